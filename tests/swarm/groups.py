"""Plays groups of ranks: the shipped collectives over a network in memory, while things go wrong.

python -m tests.swarm.groups --seed 7
python -m tests.swarm.groups --seeds 0:1000

Every call ends in bounded time. It went well, and then every byte in its rank's memory is what the model says; or it
ended with words that name a rank which gave cause. No rank is left without an answer.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from softmrc import _core
from softmrc.collectives import DType
from softmrc.collectives.block import CollectiveKind
from softmrc.config import to_native

from . import group_model
from .checkers import Violation
from .group_draw import draw_group
from .group_plan import RECEIVE, SEND, GroupPlan, Share, Span
from .swarm import play, seeds_of_arguments

PS_PER_US = 1_000_000
END_OF_TIME_PS = 2**63 - 1
FINAL = -1  # the barrier that all who are left end with
# What peers are patient for, and what it takes them to find out that it was too long.
TIMEOUT, RETRY_LINEAR, RETRY_EXPONENTIAL = 12, 4, 6
PATIENCE_US = 1.024 * 2**TIMEOUT * (RETRY_LINEAR + 2 ** (RETRY_EXPONENTIAL + 1))
NEWS_US = 100_000  # until what one rank knows has reached all
SLACK_US = 4 * PATIENCE_US + 2_000_000


@dataclass
class Outcome:
    seed: int
    trace_hash: int
    simulated_us: float
    packets: int
    calls: Counter[str]


class GroupRun:
    """One plan, played once."""

    def __init__(self, plan: GroupPlan) -> None:
        self.plan = plan
        configs = [dataclasses.replace(plan.endpoint, seed=plan.seed * 32 + rank) for rank in range(plan.ranks)]
        self.mesh = _core.Mesh(to_native(plan.network, _core.MeshConfig()), [to_native(one) for one in configs])
        self._starts_at_ps = self.mesh.now_ps
        for rank, process in enumerate(plan.processes or ()):
            self.mesh.set_process(rank, to_native(process))
        settings = _core.RanksConfig()
        settings.seed, settings.mtu, settings.unit = plan.seed, plan.mtu, 8 * plan.mtu
        settings.timeout, settings.retry_linear = TIMEOUT, RETRY_LINEAR
        settings.retry_exponential = RETRY_EXPONENTIAL
        settings.max_send_wr = plan.max_send_wr
        self.ranks = _core.Ranks(self.mesh, settings, to_native(plan.ev_profile), to_native(plan.cc_profile))
        self.arenas = group_model.first_arenas(plan)
        self.groups = [self.ranks.group(rank) for rank in range(plan.ranks)]
        for group in self.groups:
            group.force(plan.algorithm)
        self.works: dict[tuple[int, int], Any] = {}  # by rank and step
        self.gone: set[int] = set()  # ranks that were killed, or have left

    @property
    def now_us(self) -> float:
        return (self.mesh.now_ps - self._starts_at_ps) / PS_PER_US

    def play(self) -> Outcome:
        for at_us, _, act, args in self._agenda():
            self._run_to(at_us)
            getattr(self, f"_do_{act}")(*args)
        self._run_until_ended()
        last = Share(self.now_us, CollectiveKind.BARRIER, DType.UINT8)
        for rank in self._witnesses():
            self._do_call(rank, FINAL, last)
        self._run_until_ended()
        self._run_to(self.now_us + NEWS_US)
        self._check_ends()
        self._check_memory()
        self._close()
        return self._outcome()

    def _agenda(self) -> list[tuple[float, int, str, tuple]]:
        """Everything in order; at the same moment, ranks join before they call, and calls come before what happens."""
        found: list[tuple[float, int, str, tuple]] = []
        for rank, at_us in enumerate(self.plan.joins_us):
            found.append((at_us, 0, "join", (rank,)))
        for number, step in enumerate(self.plan.steps):
            found += [(share.at_us, 1, "call", (rank, number, share)) for rank, share in step.shares.items()]
        found += [(h.at_us, 0 if h.act == "lie" else 2, h.act, h.args) for h in self.plan.happenings]
        return sorted(found, key=lambda one: one[:2])

    def _run_to(self, at_us: float) -> None:
        if at_us > self.now_us:
            self.mesh.run(self._starts_at_ps + round(at_us * PS_PER_US))

    def _witnesses(self) -> list[int]:
        return [r for r in range(self.plan.ranks) if r not in self.gone and r not in self.plan.silent]

    def _open(self) -> list[tuple[int, int]]:
        witnesses = set(self._witnesses())
        return [key for key, work in self.works.items() if key[0] in witnesses and not work.has_ended]

    def _run_until_ended(self) -> None:
        limit_us = max(self.now_us, self.plan.last_change_us) + self.plan.timeout_s * 1e6 + SLACK_US
        slice_us = 20.0
        while self._open():
            if self.now_us > limit_us:
                raise Violation(f"still under way at {self.now_us:,.0f} µs: {self._describe(self._open())}")
            self._run_to(self.now_us + slice_us)
            slice_us = min(slice_us * 1.3, 50_000.0)

    # What happens.

    def _do_join(self, rank: int) -> None:
        if rank not in self.gone:
            self.ranks.join(rank)

    def _do_call(self, rank: int, number: int, share: Share) -> None:
        if rank in self.gone:
            return
        group, timeout_s = self.groups[rank], self.plan.timeout_s
        inputs, outputs = ([self._part(rank, span) for span in spans] for spans in (share.inputs, share.outputs))
        if share.kind == SEND:
            work = group.send(*inputs[0], int(share.dtype), share.peer, share.tag, timeout_s)
        elif share.kind == RECEIVE:
            work = group.receive(*outputs[0], int(share.dtype), share.peer, share.tag, timeout_s)
        else:
            how = (int(share.kind), int(share.dtype), int(share.op), share.factor, share.root)
            work = group.issue(*how, inputs, outputs, timeout_s)
        self.works[rank, number] = work

    def _part(self, rank: int, span: Span) -> tuple[int, int]:
        return self.arenas[rank].ctypes.data + span.offset, span.nbytes

    def _do_weather(self, ways: list[tuple[int, int]], plane: int, knobs: dict[str, float]) -> None:
        for sender, receiver in ways:
            for one in range(self.plan.planes) if plane < 0 else (plane,):
                weather = self.mesh.faults(sender, receiver, one)
                for name, value in knobs.items():
                    setattr(weather, name, bool(value) if name == "spares_control" else float(value))

    def _do_plane(self, ways: list[tuple[int, int]], plane: int, is_up: bool, is_seen: bool) -> None:
        for sender, receiver in ways:
            self.mesh.faults(sender, receiver, plane).black_hole = not is_up
        # A cable that is out is out to all, and its host sees that.
        around = Counter(rank for way in ways for rank in way)
        for rank, count in around.items():
            if is_seen and count == 2 * (self.plan.ranks - 1) and rank not in self.gone:
                self.mesh.side(rank).set_port(self.mesh.now_ps, plane, is_up)

    def _do_stall(self, rank: int, for_us: float) -> None:
        until = self.mesh.now_ps + round(for_us * PS_PER_US)
        self.mesh.stall(rank, min(until, END_OF_TIME_PS))

    def _do_kill(self, rank: int, host_says_so: bool) -> None:
        self.gone.add(rank)
        self.mesh.kill(rank, host_says_so)

    def _do_abort(self, rank: int) -> None:
        self.groups[rank].abort("on request")

    def _do_leave(self, rank: int) -> None:
        self.gone.add(rank)
        self.groups[rank].close(0.05)

    def _do_lie(self, *lie: int) -> None:
        self.ranks.lie(*lie)

    # What must be true.

    def _check_ends(self) -> None:
        witnesses = self._witnesses()
        errors = [self.groups[rank].error for rank in witnesses]
        for (rank, number), work in self.works.items():
            if work.has_ended and work.error:
                self._check_words(rank, number, work.error)
        if any(errors) and not all(errors):
            raise Violation(f"some of the ranks {witnesses} know of an error, and some do not: {errors}")
        if self.plan.is_doomed and not all(self.works[rank, FINAL].error for rank in witnesses):
            raise Violation(f"no rank noticed what rank {self.plan.guilty} did")

    def _check_words(self, rank: int, number: int, error: str) -> None:
        if "no rank sent it" in error and self.plan.is_doomed:
            return  # a receive from any rank misses no particular one
        named = {int(found) for found in re.findall(r"rank (\d+)", error)}
        if rank in self.gone:
            return
        if not self.plan.is_doomed and not self.plan.lies:
            raise Violation(f"rank {rank}, step {number}: {error!r}, and no rank gave cause")
        if not named or (self.plan.is_doomed and not named & self.plan.guilty):
            raise Violation(f"rank {rank}, step {number}: {error!r} names none of {self.plan.guilty}")

    def _check_memory(self) -> None:
        """What no failed call was to write is as the model has it;
        of a malicious rank's victims, what none was to write."""
        model = group_model.first_arenas(self.plan)
        whole = [step for step in self.plan.steps if not self._is_broken(step)]
        for step in whole:
            group_model.apply(step, model)
        for rank in self._witnesses():
            excused = np.zeros(len(model[rank]), bool)
            for number, step in enumerate(self.plan.steps):
                share = step.shares.get(rank)
                if share is None:
                    continue
                work = self.works[rank, number]
                if work.error or self.plan.lies or step not in whole:
                    for span in share.outputs:
                        excused[span.offset : span.offset + span.nbytes] = True
            wrong = np.flatnonzero((self.arenas[rank] != model[rank]) & ~excused)
            if len(wrong):
                raise Violation(
                    f"rank {rank}: {len(wrong)} wrong bytes from {wrong[0]} on, {self._owner(int(wrong[0]))}"
                )

    def _is_broken(self, step: Any) -> bool:
        """Its callers never agreed on it, so the model has nothing to say."""
        if step.kind == SEND:
            return {share.kind for share in step.shares.values()} != {SEND, RECEIVE}
        descriptions = {(s.kind, s.dtype, s.op, s.root) for s in step.shares.values()}
        return len(step.shares) < self.plan.ranks or len(descriptions) > 1

    def _owner(self, offset: int) -> str:
        for number, step in enumerate(self.plan.steps):
            for rank, share in step.shares.items():
                if any(span.offset <= offset < span.offset + span.nbytes for span in share.outputs):
                    what = f"{share.kind!r}, {share.dtype.name}, {share.op.name}"
                    return f"which rank {rank} writes in step {number} ({what})"
        return "which no rank writes"

    def _close(self) -> None:
        """Memory that was given back is not touched by the engine, and a group that is closed leaves nothing behind."""
        for rank in self._witnesses():
            if self.ranks.reads_from(rank, _core.Buffer(self.arenas[rank], False)):
                raise Violation(f"rank {rank}: something is still sent from memory whose operations have ended")
        for rank in self._witnesses():
            self.groups[rank].close(0.2)
            if left := self.ranks.region_count(rank):
                raise Violation(f"rank {rank}: {left} regions are left of a group that is closed")

    def _describe(self, keys: list[tuple[int, int]]) -> str:
        return "; ".join(f"rank {rank} step {number}" for rank, number in keys[:8])

    def _outcome(self) -> Outcome:
        calls = Counter("ended well" if not w.error else "failed" for w in self.works.values() if w.has_ended)
        found = self.mesh.trace_hash
        for rank in self._witnesses():
            found = zlib.crc32(self.arenas[rank].tobytes(), found)
        for key in sorted(self.works):
            found = zlib.crc32(self.works[key].error.encode(), found)
        return Outcome(self.plan.seed, self.mesh.trace_hash ^ found, self.now_us, self.mesh.packets_delivered, calls)


def run_group(seed: int, *, repeat: bool = False) -> Outcome:
    """Plays one seed. With `repeat` twice: the trace must be the same."""
    plan = draw_group(seed)
    outcome = GroupRun(plan).play()
    if repeat and (again := GroupRun(plan).play()).trace_hash != outcome.trace_hash:
        raise Violation(f"not deterministic: {outcome.trace_hash:016x} then {again.trace_hash:016x}")
    return outcome


def play_groups(seeds: Iterable[int]) -> Iterator[Outcome | str]:
    return play(seeds, lambda seed: run_group(seed, repeat=seed % 8 == 0), "python -m tests.swarm.groups --seed {}")


def main() -> int:
    seeds = seeds_of_arguments(__doc__, draw_group)
    started = time.perf_counter()
    failures, total, packets, calls = 0, 0, 0, Counter[str]()
    for found in play_groups(seeds):
        if isinstance(found, str):
            print(found, flush=True)
            failures += 1
            continue
        total += 1
        packets += found.packets
        calls.update(found.calls)
    took = time.perf_counter() - started
    print(f"{total} seeds passed, {failures} failed, {took:.1f} s, {packets:,} packets; calls: {dict(calls)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
