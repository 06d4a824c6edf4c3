"""The oracles: what must be true of a run, decided without asking the engine's code how it works.

They know the plan, the two memories and the completions, and nothing else; every rule here can be read off the
protocol's promises to its user.
"""

from __future__ import annotations

from collections import Counter, deque

import numpy as np

from softmrc.config import EvFormat, EvMode
from softmrc.engine import CompletionKind, CompletionStatus, EventType, EvState
from softmrc.engine.pair import Pair

from .plan import Flow, Message, Plan

GUARD = 4096
FILL = 0xA5
# Copies per packet that was sent or hurt, beyond which they are a storm.
STORM = 4


class Violation(AssertionError):
    """A promise that was broken."""


class Memories:
    """Source and target memory of both sides; the target lies between guard bytes that must not change."""

    def __init__(self, plan: Plan) -> None:
        noise = np.random.default_rng(plan.seed)
        self.size = plan.memory_size
        self.source = [noise.integers(0, 256, self.size, dtype=np.uint8) for _ in range(2)]
        self._whole = [np.full(self.size + 2 * GUARD, FILL, dtype=np.uint8) for _ in range(2)]
        self.target = [whole[GUARD : GUARD + self.size] for whole in self._whole]
        self._posted = [np.zeros(self.size, dtype=bool) for _ in range(2)]

    def on_posted(self, sender: int, message: Message) -> None:
        self._posted[1 - sender][message.offset : message.offset + message.length] = True

    def check_placed(self, sender: int, message: Message, why: str) -> None:
        span = slice(message.offset, message.offset + message.length)
        if not np.array_equal(self.target[1 - sender][span], self.source[sender][span]):
            raise Violation(f"{why}, but its {message.length} bytes at {message.offset} are not all in place")

    def check_nothing_else(self) -> None:
        """Bytes outside every posted message still hold what they held before."""
        for side in (0, 1):
            whole = self._whole[side]
            if (whole[:GUARD] != FILL).any() or (whole[GUARD + self.size :] != FILL).any():
                raise Violation(f"side {side}: a write outside the registered region")
            changed = (self.target[side] != FILL) & ~self._posted[side]
            if changed.any():
                raise Violation(f"side {side}: byte {int(changed.argmax())} was written, and no message covers it")


class FlowChecker:
    """One direction of one queue pair: completions once, in order, with the right words; bytes there when they show."""

    def __init__(self, name: str, flow: Flow, memories: Memories) -> None:
        self.name = name
        self.flow = flow
        self.memories = memories
        self.posted = 0
        self.sends: deque[int] = deque()
        self.receives: deque[int] = deque(i for i, m in enumerate(flow.messages) if m.imm is not None)
        self.expected_receives = len(self.receives)
        self.next_receive_id = 0
        self.send_failure: CompletionStatus | None = None
        self.receive_failure = False
        self.is_abandoned = False  # one of its two processes is gone

    def on_posted(self, index: int) -> None:
        message = self.flow.messages[index]
        self.memories.on_posted(self.flow.side, message)
        self.sends.append(index)
        self.posted += 1

    def on_send_completion(self, record: np.void) -> None:
        status = CompletionStatus(int(record["status"]))
        index = int(record["wr_id"])
        if status != CompletionStatus.SUCCESS:
            self._on_failed_send(index, status)
            return
        if self.send_failure is not None:
            raise Violation(f"{self.name}: message {index} succeeded after an earlier one had failed")
        while self.sends and not self.flow.messages[self.sends[0]].signaled and self.sends[0] != index:
            self.sends.popleft()
        if not self.sends or self.sends[0] != index:
            raise Violation(f"{self.name}: completion of message {index}, expected {list(self.sends)[:3]}")
        self.sends.popleft()
        message = self.flow.messages[index]
        kind = CompletionKind.WRITE if message.imm is None else CompletionKind.WRITE_IMM
        found = (int(record["length"]), int(record["kind"]), int(record["imm"]))
        if found != (message.length, int(kind.value), message.imm or 0):
            raise Violation(f"{self.name}: completion of message {index} says {found}")
        if int(record["msn"]) != index & 0xFFFF:
            raise Violation(f"{self.name}: completion of message {index} has msn {int(record['msn'])}")
        self.memories.check_placed(self.flow.side, message, f"{self.name}: message {index} completed at its sender")

    def _on_failed_send(self, index: int, status: CompletionStatus) -> None:
        if self.send_failure is None:
            # Unsignaled messages that succeeded left no trace; the failure names the first that did not.
            while self.sends and not self.flow.messages[self.sends[0]].signaled and self.sends[0] != index:
                self.sends.popleft()
            self.send_failure = status
        elif status != CompletionStatus.FLUSHED:
            raise Violation(f"{self.name}: message {index} failed with {status.name}, but the queue pair was in error")
        if not self.sends or self.sends.popleft() != index:
            raise Violation(f"{self.name}: message {index} was flushed out of order or twice")

    def on_receive_completion(self, record: np.void) -> None:
        wr_id = int(record["wr_id"])
        if wr_id != self.next_receive_id:
            raise Violation(f"{self.name}: receive {wr_id} completed, expected {self.next_receive_id}")
        self.next_receive_id += 1
        if int(record["status"]) != CompletionStatus.SUCCESS.value:
            self.receive_failure = True
            return
        if self.receive_failure:
            raise Violation(f"{self.name}: an immediate arrived after the receive queue was flushed")
        if not self.receives:
            raise Violation(f"{self.name}: one immediate too many: {int(record['imm']):#x}")
        index = self.receives.popleft()
        message = self.flow.messages[index]
        if (int(record["imm"]), int(record["length"])) != (message.imm, message.length):
            found = int(record["imm"])
            raise Violation(f"{self.name}: immediate {found:#x}, expected message {index}'s {message.imm:#x}")
        for earlier in range(index + 1):
            why = f"{self.name}: the immediate of message {index} completed, so message {earlier} has arrived"
            self.memories.check_placed(self.flow.side, self.flow.messages[earlier], why)

    @property
    def is_done(self) -> bool:
        if self.send_failure is not None or self.is_abandoned:
            return True
        return self.posted == len(self.flow.messages) and not self.sends and not self.receives

    def check_end(self) -> None:
        for index, message in enumerate(self.flow.messages):
            self.memories.check_placed(self.flow.side, message, f"{self.name}: the run is over, message {index} too")


class PathChecker:
    """What must be true of paths, read off what each of them carried and of the events that tell of their states."""

    def __init__(self, plan: Plan, pair: Pair) -> None:
        self.plan = plan
        self.pair = pair
        self.denied: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        pair.watch_paths()

    def on_denied(self, side: int, connection: int, index: int, evs: list[np.ndarray]) -> None:
        """`evs` are those of all the side's queue pairs, the denying one's first."""
        port, value = int(evs[0]["port"][index]), int(evs[0]["value"][index])
        twins = sum(int(((e["port"] == port) & (e["value"] == value)).sum()) for e in evs)
        profile = self.plan.ev_profile
        is_shared = profile.mode == EvMode.EXPLICIT or profile.format == EvFormat.SRV6
        is_short = profile.value_bits < 32 or profile.format == EvFormat.UDP
        if twins > 1 or is_short or (is_shared and (len(evs) > 1 or self.plan.has_victims)):
            return
        self.denied.setdefault((side, connection, index), (port, value, self.pair.now_ps))

    def on_released(self, side: int, connection: int, index: int) -> None:
        """Allowed, or replaced, or gone with its queue pair."""
        found = self.denied.pop((side, connection, index), None)
        if found is not None:
            self._check_denied(side, connection, *found)

    def on_closed(self, connection: int) -> None:
        for key in [key for key in self.denied if key[1] == connection]:
            self.on_released(*key)

    def _check_denied(self, side: int, connection: int, port: int, value: int, since: int) -> None:
        last = self.pair.last_polled_ps(side, port, value)
        if last is not None and last > since:
            at = f"{last / 1e6:.3f} µs, denied since {since / 1e6:.3f}"
            raise Violation(f"qp {connection} side {side}: EV {value:#x} on plane {port} carried a packet at {at}")

    def on_events(self, side: int, events: np.ndarray) -> None:
        """No path is blamed for packets that it never carried. One that falls with its port has lost none."""
        bad = events[(events["type"] == EventType.ev_state.value) & (events["code"] == EvState.ASSUMED_BAD.value)]
        for event in bad[bad["value"] > 0]:
            port, value = int(event["port"]), int(event["ev"])
            if self.pair.last_polled_ps(side, port, value) is None:
                raise Violation(f"side {side}: EV {value:#x} on plane {port} is blamed, and never carried a packet")

    def check_end(self) -> None:
        for (side, connection, _), found in self.denied.items():
            self._check_denied(side, connection, *found)


def check_no_storm(plan: Plan, counters: Counter[str], harm: dict[str, int], packets: int, foreign: int) -> None:
    """NACKs answer what the network did to packets, each makes one copy at most, and evidence few of every packet.

    What timers send again is bounded by their back-off alone.
    """
    nacks = 2 * harm["trimmed"] + counters["refused_wrong_state"]  # an end that has given up answers with a NACK
    if not plan.restarts and not plan.has_victims and counters["nacks_sent"] > nacks:
        raise Violation(f"{counters['nacks_sent']} NACKs for {harm['trimmed']} trimmed packets")
    nacked = 2 * (harm["trimmed"] + harm["starved"]) + foreign
    if counters["lost_nacked"] > nacked:
        raise Violation(f"{counters['lost_nacked']} lost by NACK, of which there were {nacked} at most")
    hurt = sum(harm.values()) + foreign
    judged = counters["lost_same_ev"] + counters["lost_across_evs"] + counters["lost_with_path"]
    if judged > STORM * (packets + hurt):
        raise Violation(f"{judged} found lost, of {packets} and though {hurt} were hurt")


# Where order is kept and nothing is lost, nothing may be found lost by its order.
ORDERLY = {"mark"}
# So many of the longest hold-ups fit into the least W where they may not deceive: those of both sides, two each.
HOLD_UPS_IN_W = 4
SOCKET_FLOOR_US = 2_000.0
ORDERLY_ACTS = {"penalty", "window", "stall", "deny_ev", "allow_ev", "replace_ev", "port"}


def keeps_order(plan: Plan) -> bool:
    """Whether packets of a path arrive all, and in the order in which they were sent."""
    if plan.network.trim_above_bytes or plan.has_victims:
        return False
    knobs = {name for f in plan.faults if f.act == "weather" for name, value in f.args[2] if value}
    return knobs <= ORDERLY and all(f.act in ORDERLY_ACTS or f.act == "weather" for f in plan.faults)


def is_never_late(plan: Plan) -> bool:
    """Whether, too, W has a floor as on sockets, which no queue and no hold-up comes near."""
    floor_us = plan.cc_profile.min_reorder_window_us
    longest_us = max((p.hold_up_us for p in plan.processes or () if p.hold_up), default=0.0)
    stalls = any(f.act == "stall" for f in plan.faults)
    return (
        keeps_order(plan)
        and not plan.network.port_rate_bps
        and not stalls
        and floor_us >= max(SOCKET_FLOOR_US, longest_us * HOLD_UPS_IN_W)
    )


def check_verdicts(plan: Plan, counters: Counter[str]) -> None:
    """No false verdict where order or time cannot deceive. One by time passes for one by order if both were at hand."""
    by_order = counters["lost_same_ev"]
    by_time = counters["lost_across_evs"] + counters["lost_with_path"]
    if keeps_order(plan) and by_order and not by_time:
        raise Violation(f"{by_order} found lost by their order, where every path keeps it")
    if is_never_late(plan) and by_order + by_time:
        raise Violation(f"{by_time} found lost by comparing paths, where nothing is lost and nothing is late")


def may_give_up(plan: Plan) -> bool:
    """Whether the schedule left a queue pair without its anchor for as long as its patience lasts."""
    longest = max((end - start for start, end in merged(plan.outages_us)), default=0.0)
    return longest >= plan.patience_us


def merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Overlapping intervals become one."""
    result: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def check_planes_equal(plan: Plan, sent: list[int], retransmitted: int) -> None:
    """While all planes are healthy they carry the same load.

    The rotation gives every EV its turn, of one quantum, once a round, and every plane has the same number of EVs. So
    per queue pair two planes differ by at most one unfinished round: the EVs of one plane times the quantum.
    Retransmissions avoid the EV that failed and shift a round by one each. With a link rate, a window for each
    port, or a process that checks for room after a few packets, the choice is among ports with room, and what is in
    flight takes part in it; a fifth of the mean comes on top.
    Separate windows grow by what arrives through each, and the first that meets a queue is halved while another
    still doubles. Nothing makes them equal before there is a queue, so one plane may carry twice what another does.
    """
    if plan.endpoint.proves_addresses:
        return  # the first plane that answers carries what waits for the others
    per_plane = plan.ev_profile.count // plan.planes
    slack = len(plan.connections) * per_plane * plan.ev_profile.spray_quantum + retransmitted
    is_among_some = plan.network.port_rate_bps or any(p.port_burst for p in plan.processes or ())
    if is_among_some or plan.cc_profile.each_port:
        slack += 8 + sum(sent) / plan.planes / 5
    if plan.cc_profile.each_port and plan.cc_profile.algorithm != "fixed_window":
        slack += min(sent)
    if max(sent) - min(sent) > slack:
        raise Violation(f"planes unequally loaded though all are healthy: {sent}, allowed difference {slack:.0f}")
