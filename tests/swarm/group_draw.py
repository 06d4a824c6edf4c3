"""One seed draws everything about a group. Nothing here looks at the ranks, and the runner draws nothing."""

from __future__ import annotations

import dataclasses
from random import Random

from softmrc.collectives import DType, ReduceOp
from softmrc.collectives.block import CollectiveKind
from softmrc.config import CcProfile, EndpointConfig, EvProfile
from softmrc.engine.pair import PairConfig, ProcessConfig

from .edges import EDGED, draw_group_edges
from .group_plan import (
    RECEIVE,
    REDUCING,
    ROOTED,
    SEND,
    GroupPlan,
    Happening,
    Share,
    Span,
    Step,
    Zone,
    parts_of,
)

FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
EDGES = (4096, 8 * 1024, 64 * 1024, 128 * 1024)  # where another algorithm, or another slice, begins
ALGORITHMS = ("gathered", "doubling", "rounds", "ring", "grid", "grid", "binomial", "chain")
MAX_BYTES = 3 << 20  # that all ranks of a step hold
MAX_PAUSE_US = 60_000.0  # a stall, or a late start: well below what peers are patient for
SLOW = 2_000.0


def draw_group(seed: int) -> GroupPlan:
    plan = draw_inner_group(seed % EDGED)
    if seed >= EDGED:
        draw_group_edges(plan, seed, MAX_PAUSE_US)
    return plan


def draw_inner_group(seed: int) -> GroupPlan:
    rng = Random(f"group {seed}")
    ranks = rng.choice([1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 13, 16, 17])
    planes = rng.choice([1, 2, 2, 4])
    one_way_us = rng.choice([1.0, 4.0, 4.0, 20.0])
    rate = 0 if rng.random() < 0.7 else rng.choice([10_000_000_000, 100_000_000_000])
    mtu = rng.choice([4096, 4096, 1024])
    plan = GroupPlan(
        seed=seed,
        ranks=ranks,
        planes=planes,
        network=PairConfig(seed=seed, ports=planes, one_way_delay_us=one_way_us, port_rate_bps=rate),
        endpoint=EndpointConfig(ports=planes, seed=seed),
        ev_profile=EvProfile(count=planes * rng.choice([1, 4, 16])),
        cc_profile=draw_window(rng, one_way_us),
        processes=[draw_process(rng) for _ in range(ranks)] if rng.random() < 0.6 else None,
        mtu=mtu,
        timeout_s=20.0,
        joins_us=[0.0] * ranks,
    )
    writer = Writer(rng, plan)
    for _ in range(rng.randint(1, 10)):
        writer.step()
    if ranks > 1:
        writer.weather()
        writer.doom()
    plan.happenings.sort(key=lambda happening: happening.at_us)
    # Most groups are too small, or have too little to say, for most algorithms to be the cheapest.
    if seed % 4 == 0:
        plan.algorithm = rng.choice(ALGORITHMS)
    if seed % 5 == 0:
        plan.max_send_wr = rng.choice([1, 2, 4, 24, 64])
    return plan


def draw_window(rng: Random, one_way_us: float) -> CcProfile:
    if rng.random() < 0.5:
        window = rng.choice([16 << 10, 64 << 10, 1 << 20])
        return CcProfile(algorithm="fixed_window", window_bytes=window, base_rtt_us=2 * one_way_us)
    return CcProfile(base_rtt_us=max(2 * one_way_us, 8.0))


def draw_process(rng: Random) -> ProcessConfig:
    return ProcessConfig(
        most_received=rng.choice([1, 8, 64]),
        most_waiting=rng.choice([0, 0, 64]),
        most_sent=rng.choice([8, 256]),
        pace_us=rng.choice([0.2, 1.0, 5.0]),
        hold_up=rng.choice([0.0, 0.0, 0.01]),
        hold_up_us=rng.choice([100.0, 1_000.0]),
    )


class Writer:
    def __init__(self, rng: Random, plan: GroupPlan) -> None:
        self.rng = rng
        self.plan = plan
        self.at_us = 0.0
        self.pause_us = rng.choice([0.0, 0.0, 50.0, SLOW])
        self.skew_us = rng.choice([0.0, 10.0, 500.0])
        self.clocks = [0.0] * plan.ranks  # when each rank called last
        self.tag = 0

    # What is called.

    def step(self) -> None:
        rng, n = self.rng, self.plan.ranks
        self.at_us += rng.uniform(0, self.pause_us)
        roll = rng.random()
        if roll < 0.12 and n > 1:
            return self.point_to_point()
        kind = CollectiveKind.ALL_REDUCE if roll < 0.4 else rng.choice(list(CollectiveKind))
        dtype = rng.choice(list(DType))
        op, factor = self.operator(dtype) if kind in REDUCING else (ReduceOp.SUM, 1.0)
        root = rng.randrange(n) if kind in ROOTED else -1
        inputs, outputs = self.memory(kind, dtype, op, root)
        shares = {
            rank: Share(self.moment(rank), kind, dtype, inputs[rank], outputs[rank], op, factor, root)
            for rank in range(n)
        }
        self.plan.steps.append(Step(kind, shares))

    def point_to_point(self) -> None:
        sender, receiver = self.rng.sample(range(self.plan.ranks), 2)
        dtype = self.rng.choice(list(DType))
        size = self.count(dtype) * dtype.size
        # Sends and receives wait for nothing: they have separate memory.
        source, target = (
            self.zone(size, dtype, fresh=True, may_share=False),
            self.zone(size, dtype, fresh=True, may_share=False),
        )
        self.tag += 1
        by = sender if self.rng.random() < 0.7 else -1
        calls = {
            sender: Share(0.0, SEND, dtype, inputs=(source,), peer=receiver, tag=self.tag),
            receiver: Share(0.0, RECEIVE, dtype, outputs=(target,), peer=by, tag=self.tag),
        }
        shares = {rank: dataclasses.replace(share, at_us=self.moment(rank)) for rank, share in calls.items()}
        self.plan.steps.append(Step(SEND, shares))

    def moment(self, rank: int) -> float:
        self.clocks[rank] = max(self.clocks[rank], self.at_us + self.rng.uniform(0, self.skew_us))
        return self.clocks[rank]

    def operator(self, dtype: DType) -> tuple[ReduceOp, float]:
        ops = [ReduceOp.SUM, ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
        ops += [] if dtype in FLOATS else BITS
        ops += [] if dtype == DType.BOOL else [ReduceOp.AVG]
        ops += [ReduceOp.PREMUL_SUM] if dtype in FLOATS else []
        op = self.rng.choice(ops)
        return op, self.rng.choice([0.5, 2.0]) if op == ReduceOp.PREMUL_SUM else 1.0

    def count(self, dtype: DType, sharers: int = 1) -> int:
        """Of elements, around the edges of things."""
        rng, n = self.rng, self.plan.ranks
        most = MAX_BYTES // n // sharers
        edge = rng.choice([*EDGES, 64 * 1024 // max(n - 1, 1)])
        drawn = [0, dtype.size, rng.randint(0, 200), edge - dtype.size, edge, edge + dtype.size, rng.randint(0, most)]
        return min(rng.choice(drawn), most) // dtype.size

    def counts(self, dtype: DType) -> list[int]:
        n = self.plan.ranks
        if self.rng.random() < 0.5:
            return [self.count(dtype, n)] * n
        return [self.count(dtype, n) for _ in range(n)]

    def memory(self, kind: CollectiveKind, dtype: DType, op: ReduceOp, root: int) -> tuple[list, list]:
        """Parts of every rank's arena: what goes in and what comes out."""
        n, size = self.plan.ranks, dtype.size
        nothing: list[tuple[Span, ...]] = [()] * n
        in_place = self.rng.random() < 0.4
        if kind == CollectiveKind.BARRIER:
            return nothing, nothing
        if kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST, CollectiveKind.REDUCE):
            nbytes = self.count(dtype) * size
            first = self.zone(nbytes, dtype, op)
            if kind == CollectiveKind.BROADCAST:
                return nothing, [(first,)] * n
            second = first if in_place else self.zone(nbytes, dtype, fresh=True)
            return [(first,)] * n, [
                (second,) if kind == CollectiveKind.ALL_REDUCE or rank == root else () for rank in range(n)
            ]
        if kind == CollectiveKind.ALL_TO_ALL:
            matrix = [self.counts(dtype) for _ in range(n)]
            back = [[matrix[i][j] for i in range(n)] for j in range(n)]
            most = max(sum(row) for row in (*matrix, *back)) * size
            here, there = self.zone(most, dtype).offset, self.zone(most, dtype, fresh=True).offset
            return [parts_of(here, row, size) for row in matrix], [parts_of(there, row, size) for row in back]
        counts = self.counts(dtype)
        whole = parts_of(self.zone(sum(counts) * size, dtype, op).offset, counts, size)
        one = whole if in_place else None
        if one is None:
            at = self.zone(max(counts) * size, dtype, op, fresh=True).offset
            one = tuple(Span(at, count * size) for count in counts)
        single = [(part,) for part in one]
        at_root = [whole if rank == root else () for rank in range(n)]
        return {
            CollectiveKind.REDUCE_SCATTER: ([whole] * n, single),
            CollectiveKind.ALL_GATHER: (single, [whole] * n),
            CollectiveKind.GATHER: (single, at_root),
            CollectiveKind.SCATTER: (at_root, single),
        }[kind]

    def zone(
        self, nbytes: int, dtype: DType, op: ReduceOp | None = None, *, fresh: bool = False, may_share: bool = True
    ) -> Span:
        """Fresh memory, or some that an earlier step has used, with numbers that stay exact in the end."""
        rng, plan = self.rng, self.plan
        is_tame = op in (None, ReduceOp.MIN, ReduceOp.MAX)
        fitting = [z for z in plan.zones if z.may_share and z.dtype == dtype and z.span.nbytes >= nbytes]
        if fitting and not fresh and is_tame and rng.random() < 0.5:
            zone = rng.choice(fitting)
            room = (zone.span.nbytes - nbytes) // dtype.size
            return Span(zone.span.offset + rng.randint(0, room) * dtype.size, nbytes)
        at = plan.arena_bytes + 64
        plan.zones.append(Zone(Span(at, nbytes), dtype, op == ReduceOp.PRODUCT, may_share))
        plan.arena_bytes = at + (nbytes + 63) // 64 * 64
        return Span(at, nbytes)

    # What happens.

    def add(self, at_us: float, act: str, *args: object) -> None:
        self.plan.happenings.append(Happening(at_us, act, args))

    def when(self) -> float:
        return self.rng.uniform(0, max(self.at_us, 200.0) * 1.5)

    def ways(self) -> list[tuple[int, int]]:
        """All of them, those from and to a rank, or a single one."""
        rng, n = self.rng, self.plan.ranks
        every = [(a, b) for a in range(n) for b in range(n) if a != b]
        one = rng.randrange(n)
        return rng.choice([every, [way for way in every if one in way], [rng.choice(every)]])

    def weather(self) -> None:
        for _ in range(self.rng.choice([0, 1, 1, 2, 4])):
            self.rng.choice([self.storm, self.storm, self.dead_plane, self.stall, self.late_join])()

    def storm(self) -> None:
        rng = self.rng
        knobs = rng.choice([
            {"loss": rng.choice([0.001, 0.01, 0.05]), "spares_control": rng.random() < 0.3},
            {"reorder": 0.2, "reorder_delay_us": rng.choice([5.0, 200.0])},
            {"duplicate": rng.choice([0.01, 0.3])},
            {"corrupt": rng.choice([0.001, 0.03])},
            {"trim": 0.05},
            {"mark": 0.3},
            {"delay_us": rng.choice([10.0, 1000.0])},
            {"path_jitter_us": 10.0},
        ])  # fmt: skip
        plane, ways, start = rng.choice([-1, rng.randrange(self.plan.planes)]), self.ways(), self.when()
        self.add(start, "weather", ways, plane, knobs)
        if rng.random() < 0.7:
            self.add(start + self.when(), "weather", ways, plane, dict.fromkeys(knobs, 0))

    def dead_plane(self) -> None:
        """For a while, or for good where it is not the last."""
        rng, plan = self.rng, self.plan
        plane = rng.randrange(plan.planes)
        ways, start, is_seen = self.ways(), self.when(), rng.random() < 0.4
        self.add(start, "plane", ways, plane, False, is_seen)
        if plane == 0 or rng.random() < 0.6:
            self.add(start + min(self.when(), MAX_PAUSE_US), "plane", ways, plane, True, is_seen)

    def stall(self) -> None:
        self.add(self.when(), "stall", self.rng.randrange(self.plan.ranks), self.rng.uniform(100.0, MAX_PAUSE_US))

    def late_join(self) -> None:
        rank, at_us = self.rng.randrange(self.plan.ranks), self.rng.uniform(1.0, MAX_PAUSE_US)
        self.plan.joins_us[rank] = at_us
        self.postpone(rank, at_us)

    def postpone(self, rank: int, at_us: float) -> None:
        for step in self.plan.steps:
            if rank in step.shares:
                share = step.shares[rank]
                step.shares[rank] = dataclasses.replace(share, at_us=max(share.at_us, at_us))

    def doom(self) -> None:
        """In half of all plans one rank does something that ends the group."""
        if self.rng.random() < 0.5:
            return
        rng, plan = self.rng, self.plan
        rank = rng.randrange(plan.ranks)
        fate = rng.choice(["kill", "kill", "freeze", "abort", "leave", "absent", "other", "lie", "lie"])
        getattr(self, fate)(rank)

    def kill(self, rank: int) -> None:
        self.add(self.when(), "kill", rank, self.rng.random() < 0.5)
        self.plan.guilty, self.plan.silent = {rank}, {rank}

    def freeze(self, rank: int) -> None:
        self.add(self.when(), "stall", rank, 1e9)
        self.plan.guilty, self.plan.silent = {rank}, {rank}

    def abort(self, rank: int) -> None:
        self.add(self.when(), "abort", rank)
        self.plan.guilty = {rank}

    def leave(self, rank: int) -> None:
        self.add(self.when(), "leave", rank)
        self.plan.guilty, self.plan.silent = {rank}, {rank}

    def absent(self, rank: int) -> None:
        """It no longer calls what the others call, and only answers."""
        self.plan.timeout_s = 3.0
        first = self.rng.randrange(len(self.plan.steps))
        for step in self.plan.steps[first:]:
            step.shares.pop(rank, None)
        self.plan.steps = [step for step in self.plan.steps if step.shares]
        self.plan.guilty, self.plan.silent = {rank}, {rank}

    def other(self, rank: int) -> None:
        """It calls something else."""
        steps = [step for step in self.plan.steps if step.kind != SEND]
        if not steps:
            return
        step = self.rng.choice(steps)
        dtype = DType.FLOAT32 if step.any.dtype != DType.FLOAT32 else DType.INT32
        memory = self.zone(3 * dtype.size, dtype, fresh=True)
        share = Share(step.shares[rank].at_us, CollectiveKind.ALL_REDUCE, dtype, (memory,), (memory,))
        step.shares[rank] = share
        self.plan.timeout_s = 3.0
        self.plan.guilty = {rank}

    def lie(self, rank: int) -> None:
        """Now and then a byte of what it says is another."""
        self.plan.timeout_s = 3.0
        others = [other for other in range(self.plan.ranks) if other != rank]
        for _ in range(self.rng.choice([1, 1, 3])):
            flips = self.rng.choice([1, 2, 0x80, 0xFF])
            self.add(0.0, "lie", rank, self.rng.choice(others), self.rng.randrange(6), self.rng.randrange(64), flips)
        self.plan.lies = True
