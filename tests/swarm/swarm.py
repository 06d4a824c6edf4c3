"""Runs seeds: draws a plan, plays it on a pair of endpoints, and lets the checkers look.

python -m tests.swarm.swarm --seed 7
python -m tests.swarm.swarm --seeds 0:1000
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from softmrc.config import EvFormat, InitAttributes, RtrAttributes, RtsAttributes
from softmrc.engine import CompletionStatus, MemoryRegion, QpState, QueuePair
from softmrc.engine.pair import Pair
from softmrc.errors import UsageError

from .checkers import (
    FlowChecker,
    Memories,
    PathChecker,
    Violation,
    check_no_storm,
    check_planes_equal,
    check_verdicts,
    may_give_up,
)
from .draw import draw_plan
from .faults import MILD_LOSS
from .plan import Connection, Fault, Message, Plan
from .strangers import NACK_REASONS, Victims, nack

SILENCES = 16  # one after the other, at the end of a transfer
REPORTED = [
    "packets_retransmitted", "lost_same_ev", "lost_across_evs", "lost_timeout", "lost_nacked", "loss_spurious",
    "evs_demoted", "evs_revived", "evs_restored", "timeouts", "tail_probes", "marks_received", "packets_trimmed",
]  # fmt: skip
HONEST = [
    "refused_malformed", "refused_unknown_qp", "refused_wrong_peer", "refused_remote_access",
    "refused_invalid_request", "refused_unknown_peer", "acks_refused",
]  # fmt: skip
# What the packets of a process that is gone run into.
AFTER_RESTART = {"refused_unknown_qp", "acks_refused"}


@dataclass
class Outcome:
    seed: int
    trace_hash: int
    simulated_us: float
    after_last_change_us: float
    packets: int
    counters: Counter[str]
    gave_up: bool


def packets_of(message: Message, mtu: int) -> int:
    return max(1, -(-message.length // mtu))


class Run:
    """One plan, played once."""

    def __init__(self, plan: Plan, *, encode: bool = True) -> None:
        self.plan = plan
        network = dataclasses.replace(plan.network, encode=encode)
        self.pair = Pair(
            plan.planes,
            plan.seed,
            network=network,
            endpoint=plan.endpoint,
            ev_profile=plan.ev_profile,
            cc_profile=plan.cc_profile,
            processes=plan.processes,
        )
        self.memories = Memories(plan)
        self.paths = PathChecker(plan, self.pair)
        self.sources: dict[int, MemoryRegion] = {}
        self.victims: dict[int, Victims] = {}
        self.ports_down: tuple[set[int], set[int]] = (set(), set())
        self.qps: list[tuple[QueuePair, QueuePair]] = []
        self.checkers: list[tuple[FlowChecker, FlowChecker]] = []
        self.numbers: dict[tuple[int, int], int] = {}  # which connection a side's queue pair belongs to
        self.closed: set[int] = set()  # connections that lost one of their processes
        self.gone: Counter[str] = Counter()  # what the queue pairs that are gone had counted
        self.foreign_nacks = 0
        self.ports_changed = False
        for side in (0, 1):
            self._equip(side)
        self._connect_era(0)
        self.faults = list(reversed(plan.faults))
        self.gave_up = False
        self.entropies: dict[tuple[int, int, int, int], int] = {}

    def _equip(self, side: int) -> None:
        """What a process sets up first."""
        endpoint = self.pair.sides[side]
        endpoint.register(self.memories.target[side], va=self.plan.va[side], rkey=0x100 + side)
        self.sources[side] = endpoint.register(self.memories.source[side], rkey=0x200)
        for plane in self.ports_down[side]:
            endpoint.set_port(self.pair.now_ps, plane, False)
        if self.plan.has_victims:
            self.victims[side] = Victims(self.pair, side)

    def _connect_era(self, era: int, fresh: int | None = None) -> None:
        """`fresh` is the side that was restarted; it may number its queue pairs from the start."""
        for nth, number in enumerate(n for n, c in enumerate(self.plan.connections) if c.era == era):
            reuses = [self.plan.reuses_numbers and side == fresh for side in (0, 1)]
            qpns = (0x1000 + (nth if reuses[0] else number), 0x2000 + (nth if reuses[1] else number))
            self._connect(number, self.plan.connections[number], qpns)

    def _connect(self, number: int, connection: Connection, qpns: tuple[int, int]) -> None:
        plan, pair = self.plan, self.pair
        qps = (pair.a.create_qp(qpns[0]), pair.b.create_qp(qpns[1]))
        self.numbers.update({(side, qpn): number for side, qpn in enumerate(qpns)})
        for side, qp in enumerate(qps):
            qp.init(InitAttributes(send_cq=pair.SEND_CQ, recv_cq=pair.RECV_CQ))
            qp.rtr(
                pair.now_ps,
                RtrAttributes(
                    peer=0,
                    dest_qpn=qpns[1 - side],
                    first_psn=connection.first_psn[1 - side],
                    mtu=plan.mtu,
                    max_wimm_dest=connection.max_wimm,
                    mpr_dest=connection.mpr_dest,
                    dynamic_mpr=plan.dynamic_mpr,
                    port_key=qpns[side] if plan.has_keys else 0,
                    peer_port_key=qpns[1 - side] if plan.has_keys else 0,
                ),
            )
            qp.rts(
                pair.now_ps,
                RtsAttributes(
                    first_psn=connection.first_psn[side],
                    max_wimm=connection.max_wimm,
                    mpr=connection.mpr,
                    timeout=plan.timeout,
                    retry_linear=plan.retry_linear,
                    retry_exponential=plan.retry_exponential,
                    max_send_wr=connection.max_send_wr,
                ),
            )
        self.qps.append(qps)
        checkers = tuple(FlowChecker(f"qp {number} from side {f.side}", f, self.memories) for f in connection.flows)
        self.checkers.append((checkers[0], checkers[1]))
        for checker in checkers:
            for wr_id in range(checker.expected_receives):
                qps[1 - checker.flow.side].post_receive(wr_id)

    def play(self) -> Outcome:
        pair = self.pair
        limit_us = self._limit_us()
        slice_us = 10.0
        watch = 0
        while True:
            self._post_what_is_due()
            self._apply_what_is_due()
            if self._is_done() and not self.faults:
                break
            if pair.now_us > limit_us:
                raise Violation(f"stuck: {self._describe()}")
            until_us = min([pair.now_us + slice_us, *self._next_moments()])
            # One queue at a time is watched, so that its completions are looked at in the instant they show.
            pair.run_until_completions(watch & 1, 1, max(until_us - pair.now_us, 0.001), cq=watch >> 1 & 1)
            watch += 1
            slice_us = 10.0 if self._take_completions() else min(slice_us * 1.5, 1_000.0 + pair.now_us / 50)
        return self._finish()

    def _limit_us(self) -> float:
        """When the run must be over.

        After the last post and the last fault there is the transfer itself, eight times slower than ideal for the
        planes and the window that faults may have cost, and a hundred round trips for its tails, some of which may each
        be lost and wait for the shortest silence that is allowed to mean anything. A plan that took the anchor away, or
        everything else, may have driven timers and probes to their caps of one second, of which three may follow each
        other. Where no plane works both ways each try finds the way back by chance, one in all the planes, and messages
        that wait for the one before look for it one after the other.
        Congestion that the pair's single queue answers with trims is resolved at one packet a round trip. A window of
        one packet has no later one whose answer could show a loss: while packets are lost, each that is, and each whose
        answer is, waits for that shortest silence, one after the other. What looks like a queue whatever is sent keeps
        a window that heeds it at two packets, or at one where the base RTT is wrong, and a narrow plane has its share
        to carry.
        """
        plan = self.plan
        rtt_us = plan.rtt_us
        limit = plan.last_change_us + 8 * plan.ideal_us + 100 * rtt_us + 20_000
        silence_us = 1.5 * plan.cc_profile.min_base_rtt_us
        limit += SILENCES * silence_us
        if plan.loses_packets and plan.sends_one_by_one:
            limit += 2 * MILD_LOSS * self._longest_flow() * silence_us
        if plan.keeps_window_small:
            limit += rtt_us * self._longest_flow() / 2
        if plan.takes_way_for_queue:
            limit += rtt_us * self._longest_flow()
        if plan.narrowest_bps:
            limit += 8e6 * plan.payload_bytes / plan.planes / plan.narrowest_bps
        if plan.outages_us or plan.leaves_last_path:
            limit += 3_500_000
        if plan.anchors[0] != plan.anchors[1]:
            # A window of two packets has no more answers than those that could find the way.
            per_packet = 500_000 if plan.cc_profile.algorithm == "queue_delay" else 10_000
            limit += 8_000_000 * plan.planes + (per_packet if plan.processes else 0) * plan.payload_bytes / plan.mtu
            limit += 2_000_000 * plan.planes * plan.rounds_of_messages
        if plan.network.trim_above_bytes:
            limit += 2 * rtt_us * plan.payload_bytes / plan.mtu
        return limit

    def _longest_flow(self) -> int:
        """In packets."""
        flows = (f for c in self.plan.connections for f in c.flows)
        return max(sum(packets_of(m, self.plan.mtu) for m in f.messages) for f in flows)

    def _next_moments(self) -> list[float]:
        moments = [self.faults[-1].at_us] if self.faults else []
        for checker in self._flows():
            if not checker.is_abandoned and checker.posted < len(checker.flow.messages):
                at_us = checker.flow.messages[checker.posted].at_us
                if at_us > self.pair.now_us:
                    moments.append(at_us)
        return moments

    def _flows(self) -> list[FlowChecker]:
        return [checker for pair in self.checkers for checker in pair]

    def _post_what_is_due(self) -> None:
        for number, checkers in enumerate(self.checkers):
            for checker in checkers:
                messages = checker.flow.messages
                if number in self.closed:
                    continue
                while checker.posted < len(messages) and messages[checker.posted].at_us <= self.pair.now_us:
                    if not self._post(number, checker):
                        break

    def _post(self, number: int, checker: FlowChecker) -> bool:
        index, side = checker.posted, checker.flow.side
        message = checker.flow.messages[index]
        qp = self.qps[number][side]
        # Posting may complete nothing, but from here on the bytes may appear at the target.
        try:
            qp.post_write(
                self.pair.now_ps,
                message.length,
                remote_va=self.plan.va[1 - side] + message.offset,
                rkey=0x100 + 1 - side,
                source=self.sources[side],
                offset=message.offset,
                imm=message.imm,
                wr_id=index,
                signaled=message.signaled,
            )
        except UsageError:
            if qp.state == QpState.ERROR:
                checker.posted = len(checker.flow.messages)
            return False
        checker.on_posted(index)
        return True

    def _apply_what_is_due(self) -> None:
        while self.faults and self.faults[-1].at_us <= self.pair.now_us + 1e-6:
            fault: Fault = self.faults.pop()
            getattr(self, f"_do_{fault.act}")(*fault.args)

    def _do_weather(self, sender: int, plane: int, knobs: tuple[tuple[str, float], ...]) -> None:
        weather = self.pair.faults(sender, plane)
        for name, value in knobs:
            kind = bool if name in ("black_hole", "spares_control") else int if name == "neck_bps" else float
            setattr(weather, name, kind(value))

    def _do_port(self, side: int, plane: int, up: bool) -> None:
        self.ports_changed = True
        (self.ports_down[side].discard if up else self.ports_down[side].add)(plane)
        self.pair.sides[side].set_port(self.pair.now_ps, plane, up)

    def _ev(self, side: int, connection: int, plane: int, nth: int) -> tuple[int, int]:
        """(index, value) of the nth EV of a plane, as it was first drawn."""
        evs = self.qps[connection][side].evs()
        index = int((evs["port"] == plane).nonzero()[0][nth])
        key = (side, connection, plane, nth)
        return index, self.entropies.setdefault(key, int(evs["value"][index]))

    def _do_ev_loss(self, sender: int, connection: int, plane: int, nth: int, loss: float) -> None:
        if connection in self.closed:
            return
        _, value = self._ev(sender, connection, plane, nth)
        self.pair.set_ev_dead(sender, plane, value, loss >= 1.0)
        self.pair.set_ev_loss(sender, plane, value, loss if loss < 1.0 else 0.0)

    def _do_deny_ev(self, side: int, connection: int, plane: int, nth: int) -> None:
        if connection in self.closed:
            return
        qp, index = self.qps[connection][side], self._ev(side, connection, plane, nth)[0]
        qp.deny_ev(self.pair.now_ps, index)
        others = [q[side] for number, q in enumerate(self.qps) if number != connection and number not in self.closed]
        self.paths.on_denied(side, connection, index, [q.evs() for q in (qp, *others)])

    def _do_allow_ev(self, side: int, connection: int, plane: int, nth: int) -> None:
        if connection in self.closed:
            return
        index = self._ev(side, connection, plane, nth)[0]
        self.paths.on_released(side, connection, index)
        self.qps[connection][side].allow_ev(self.pair.now_ps, index)

    def _do_replace_ev(self, side: int, connection: int, plane: int, nth: int, value: int) -> None:
        if connection in self.closed:
            return
        index = self._ev(side, connection, plane, nth)[0]
        self.paths.on_released(side, connection, index)
        profile = self.plan.ev_profile
        by_bytes = profile.fields or profile.format == EvFormat.SRV6
        self.qps[connection][side].replace_ev(self.pair.now_ps, index, value.to_bytes(4) if by_bytes else value)

    def _do_stall(self, side: int, duration_us: float) -> None:
        self.pair.stall_us(side, duration_us)

    def _do_window(self, side: int, connection: int, units: int) -> None:
        if connection not in self.closed:
            self.qps[connection][side].set_receive_window(units)

    def _do_penalty(self, side: int, connection: int, penalty: int) -> None:
        if connection not in self.closed:
            self.qps[connection][side].set_receiver_penalty(penalty)

    def _do_nacks(self, side: int, connection: int, count: int, salt: int) -> None:
        """NACKs for what is under way, and for what is long gone or was never sent."""
        if connection in self.closed:
            return
        rng, qp = Random(salt), self.qps[connection][side]
        for _ in range(count):
            psn = int(qp.query().get("next_psn", 0)) + rng.choice([-1, -2, -9, -200, 0, 5, 1 << 22])
            raw = nack(qp.qpn, psn, rng.choice(NACK_REASONS), rng.getrandbits(16), qp.query()["dest_qpn"])
            port = rng.randrange(self.plan.planes)
            self.pair.sides[side].handle_datagram(self.pair.now_ps, raw, peer=0, port=port, entropy=5)
        self.foreign_nacks += count

    def _do_strangers(self, side: int, count: int, salt: int) -> None:
        self.victims[side].suffer(count, Random(salt))

    def _do_restart(self, side: int, seed: int) -> None:
        for number, checkers in enumerate(self.checkers):
            if number in self.closed:
                continue
            self.closed.add(number)
            self.paths.on_closed(number)
            for checker in checkers:
                checker.is_abandoned = True
            self.gone.update(self.qps[number][side].stats())
        self.pair.restart(side, seed=seed)
        self._equip(side)

    def _do_reconnect(self, survivor: int, era: int, how: str) -> None:
        """The other side noticed. What it does about the queue pairs to the dead is its own business."""
        # A queue pair that works keeps alive what the dead process said of its ports; the new one has nothing to say.
        if how == "keep" and self.ports_changed:
            how = "destroy"
        for number in sorted(self.closed):
            if how == "keep" or self.plan.connections[number].era != era - 1:
                continue
            qp = self.qps[number][survivor]
            if how == "error":
                qp.error(self.pair.now_ps)
            self.gone.update(qp.stats())
            qp.destroy(self.pair.now_ps)
        self._connect_era(era, fresh=1 - survivor)

    def _take_completions(self) -> bool:
        any_taken = False
        for side, endpoint in enumerate(self.pair.sides):
            for record in endpoint.poll_completions(Pair.SEND_CQ):
                self.checkers[self.numbers[side, int(record["qpn"])]][side].on_send_completion(record)
                any_taken = True
            for record in endpoint.poll_completions(Pair.RECV_CQ):
                self.checkers[self.numbers[side, int(record["qpn"])]][1 - side].on_receive_completion(record)
                any_taken = True
            self.paths.on_events(side, endpoint.poll_events())
        return any_taken

    def _is_done(self) -> bool:
        for number, (qps, checkers) in enumerate(zip(self.qps, self.checkers, strict=True)):
            if number in self.closed or all(checker.is_done for checker in checkers):
                continue
            if all(qp.state == QpState.ERROR for qp in qps):
                continue
            # The other side of a dead queue pair hears of it only when it sends; with nothing to send it never does.
            dead = [qp.state == QpState.ERROR for qp in qps]
            if any(dead) and all(c.is_done or dead[c.flow.side] or not c.sends for c in checkers):
                continue
            return False
        return True

    def _finish(self) -> Outcome:
        pair = self.pair
        finished_us = pair.now_us
        pair.run_us(100.0)
        self._take_completions()
        counters = Counter(self.gone)
        for number, (qps, checkers) in enumerate(zip(self.qps, self.checkers, strict=True)):
            if number in self.closed:
                continue
            if any(qp.state == QpState.ERROR for qp in qps):
                self._check_gave_up(number, checkers)
            else:
                for checker in checkers:
                    checker.check_end()
                self._check_books(number)
            for qp in qps:
                counters.update(qp.stats())
        self.memories.check_nothing_else()
        self.paths.check_end()
        for endpoint in pair.sides:
            counters.update(endpoint.stats())
        self._check_counters(counters)
        if self.plan.is_calm:
            for side in (0, 1):
                again = sum(qps[side].stats()["packets_retransmitted"] for qps in self.qps)
                check_planes_equal(self.plan, pair.data_packets_sent(side), again)
        after = finished_us - self.plan.last_change_us
        packets = pair.packets_delivered
        return Outcome(self.plan.seed, pair.trace_hash, pair.now_us, after, packets, counters, self.gave_up)

    def _check_counters(self, counters: Counter[str]) -> None:
        plan, harm = self.plan, self.pair.counters()
        excused = AFTER_RESTART if plan.restarts else set()
        for name in HONEST:
            if counters[name] and name not in excused and not plan.has_victims:
                raise Violation(f"{name} = {counters[name]} between two honest endpoints")
        harm["marked"] = 0
        packets = sum(packets_of(m, plan.mtu) for c in plan.connections for f in c.flows for m in f.messages)
        check_no_storm(plan, counters, harm, packets, self.foreign_nacks)
        if not harm["overflowed"]:
            check_verdicts(plan, counters)

    def _check_gave_up(self, number: int, checkers: tuple[FlowChecker, FlowChecker]) -> None:
        self.gave_up = True
        failures = [c.send_failure for c in checkers]
        if not may_give_up(self.plan):
            raise Violation(f"qp {number} is in error without cause: {failures}")
        allowed = (None, CompletionStatus.RETRY_EXCEEDED, CompletionStatus.PEER_ERROR, CompletionStatus.FLUSHED)
        if any(f not in allowed for f in failures):
            raise Violation(f"qp {number}: sends failed with {failures}")

    def _check_books(self, number: int) -> None:
        """Every packet was placed exactly once, and none was sent beyond the window that was offered."""
        for checker in self.checkers[number]:
            messages = checker.flow.messages
            stats = self.qps[number][1 - checker.flow.side].stats()
            packets = sum(packets_of(m, self.plan.mtu) for m in messages)
            placed = (stats["packets_placed"], stats["bytes_placed"])
            if placed != (packets, sum(m.length for m in messages)):
                raise Violation(f"{checker.name}: placed {placed} packets and bytes, sent {packets}")
            if stats["packets_out_of_window"] and not self.plan.reuses_numbers:
                raise Violation(f"{checker.name}: {stats['packets_out_of_window']} packets beyond the window")

    def _describe(self) -> str:
        parts = []
        for number, qps in enumerate(self.qps):
            for side, qp in enumerate(qps if number not in self.closed else ()):
                checker = self.checkers[number][side]
                if checker.is_done:
                    continue
                q = qp.query()
                states = Counter(int(s) for s in qp.evs()["state"])
                parts.append(
                    f"qp {number} side {side} {q['state'].name} messages {q['messages']} in flight "
                    f"{q['packets_in_flight']} window {q['window_bytes']} evs {dict(states)} "
                    f"awaiting {len(checker.sends)} sends {len(checker.receives)} receives"
                )
        return f"at {self.pair.now_us:.0f} µs: " + "; ".join(parts)


def run_seed(seed: int, *, repeat: bool = False, starts_at_us: float | None = None) -> Outcome:
    """Plays one seed. With `repeat` once more, and with packets as structs: the trace must be the same. Every clock may
    begin late, as on a device that has been up for months."""
    plan = draw_plan(seed)
    if starts_at_us is not None:
        plan.network = dataclasses.replace(plan.network, starts_at_us=starts_at_us)
    outcome = dataclasses.replace(Run(plan).play(), seed=seed)
    if not repeat:
        return outcome
    again = Run(plan).play()
    if again.trace_hash != outcome.trace_hash:
        raise Violation(f"not deterministic: {outcome.trace_hash:016x} then {again.trace_hash:016x}")
    if not plan.flips_bits:
        structs = Run(plan, encode=False).play()
        if structs.trace_hash != outcome.trace_hash:
            raise Violation(f"bytes give {outcome.trace_hash:016x}, structs {structs.trace_hash:016x}")
    return outcome


@contextmanager
def guarded(line: str, limit_s: float = 60.0) -> Iterator[None]:
    """What never comes back stops the process, with the line that reproduces it."""

    def stop() -> None:
        print(f"{line}   # still running after {limit_s:.0f} s", file=sys.stderr, flush=True)
        os._exit(1)

    watchdog = threading.Timer(limit_s, stop)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


T = TypeVar("T")


def play(seeds: Iterable[int], run: Callable[[int], T], command: str) -> Iterator[T | str]:
    """What came of each seed; of a failure, one line that reproduces it."""
    for seed in seeds:
        line = command.format(seed)
        found: T | str
        try:
            with guarded(line):
                found = run(seed)
        except AssertionError as error:
            found = f"{line}   # {error}"
        yield found


def play_each(seeds: Iterable[int]) -> Iterator[Outcome | str]:
    """One seed in eight is played three times."""
    return play(seeds, lambda seed: run_seed(seed, repeat=seed % 8 == 0), "make swarm SEED={}")


def seeds_of_arguments(what: str | None, show: Callable[[int], object]) -> range:
    """Those that the command line names; the plan of the first is shown if that is wanted."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", default="0:200", help="FIRST:LAST, LAST left out")
    parser.add_argument("--show", action="store_true", help="print the plan of --seed")
    args = parser.parse_args()
    first, last = (args.seed, args.seed + 1) if args.seed is not None else map(int, args.seeds.split(":"))
    if args.show:
        print(show(first))
    return range(first, last)


def main() -> int:
    seeds = seeds_of_arguments(__doc__, draw_plan)
    started = time.perf_counter()
    outcomes, failures, total = [], 0, Counter[str]()
    for found in play_each(seeds):
        if isinstance(found, str):
            print(found, flush=True)
            failures += 1
            continue
        total.update(found.counters)
        found.counters.clear()
        outcomes.append(found)
    took = time.perf_counter() - started
    slowest = max(outcomes, key=lambda o: o.after_last_change_us, default=None)
    packets = sum(outcome.packets for outcome in outcomes)
    print(f"{len(outcomes)} seeds passed, {failures} failed, {took:.1f} s, {packets:,} packets")
    if slowest is not None:
        print(f"slowest to end after its last change: seed {slowest.seed}, {slowest.after_last_change_us:,.0f} µs")
    print(f"gave up with cause: {sum(o.gave_up for o in outcomes)}")
    print("  ".join(f"{name} {total[name]:,}" for name in REPORTED))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
