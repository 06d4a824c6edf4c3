"""Parts of no bytes are waited for like others, so that no rank gets further ahead of its peers than they have room
for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives.ranks import Ranks, values_of
from softmrc import _core
from softmrc.collectives import DType, Group
from softmrc.collectives.block import CollectiveKind, ReduceOp
from softmrc.config import CcProfile, EndpointConfig, EvProfile, to_native
from softmrc.engine.pair import PairConfig

SECOND_PS = 10**12
MANY = 60  # more than one rank keeps of another's messages
ROOTED = (CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.SCATTER)


class Simulated:
    """Groups on a simulated network."""

    def __init__(self, size: int, algorithm: str | None = None) -> None:
        configs = [to_native(EndpointConfig(ports=2, seed=7 + rank)) for rank in range(size)]
        self.size = size
        self.mesh = _core.Mesh(to_native(PairConfig(ports=2, seed=7), _core.MeshConfig()), configs)
        evs, window = to_native(EvProfile()), to_native(CcProfile())
        self.ranks = _core.Ranks(self.mesh, _core.RanksConfig(), evs, window)
        self.groups = [self.ranks.group(rank) for rank in range(size)]
        self.memory = [np.zeros(64, np.uint8) for _ in range(size)]
        for rank, group in enumerate(self.groups):
            group.force(algorithm)
            self.ranks.join(rank)

    def run(self, seconds: float) -> None:
        self.mesh.run(self.mesh.now_ps + round(seconds * SECOND_PS))

    def issue(self, rank: int, kind: CollectiveKind, root: int) -> Any:
        """A collective of nothing."""
        nothing = (self.memory[rank].ctypes.data, 0)
        parts, one, none = [nothing] * self.size, [nothing], list[Any]()
        is_root = rank == root
        inputs, outputs = {
            CollectiveKind.ALL_REDUCE: (one, one),
            CollectiveKind.REDUCE_SCATTER: (parts, one),
            CollectiveKind.ALL_GATHER: (one, parts),
            CollectiveKind.BROADCAST: (none, one),
            CollectiveKind.REDUCE: (one, one if is_root else none),
            CollectiveKind.GATHER: (one, parts if is_root else none),
            CollectiveKind.SCATTER: (parts if is_root else none, one),
            CollectiveKind.ALL_TO_ALL: (parts, parts),
            CollectiveKind.BARRIER: (none, none),
        }[kind]
        op = (int(kind), int(DType.FLOAT32), int(ReduceOp.SUM), 1.0, root if kind in ROOTED else -1)
        return self.groups[rank].issue(*op, inputs, outputs, 60.0)


def algorithms_of(kind: CollectiveKind) -> list[str | None]:
    return [None, *_core.collective_times(kind, 4, 1 << 20)]


CASES = [(kind, algorithm) for kind in CollectiveKind for algorithm in algorithms_of(kind)]


@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize(("kind", "algorithm"), CASES, ids=lambda value: getattr(value, "name", str(value)))
def test_no_rank_gets_too_far_ahead(kind: CollectiveKind, algorithm: str | None, late: int) -> None:
    """One rank calls nothing for a second, the others call everything at once."""
    sim = Simulated(4, algorithm)
    prompt = [rank for rank in range(sim.size) if rank != late]
    works = [sim.issue(rank, kind, 0) for _ in range(MANY) for rank in prompt]
    sim.run(1.0)
    assert not any(group.error for group in sim.groups)
    works += [sim.issue(late, kind, 0) for _ in range(MANY)]
    sim.run(1.0)
    assert not any(group.error for group in sim.groups)
    assert all(work.has_ended for work in works)


@pytest.mark.parametrize(
    "kind", [CollectiveKind.BROADCAST, CollectiveKind.SCATTER, CollectiveKind.GATHER], ids=lambda kind: kind.name
)
def test_a_part_of_nothing_waits_for_its_sender(kind: CollectiveKind) -> None:
    sim = Simulated(2)
    sender, receiver = (1, 0) if kind == CollectiveKind.GATHER else (0, 1)
    waiting = sim.issue(receiver, kind, 0)
    sim.run(1.0)
    assert not waiting.has_ended
    sending = sim.issue(sender, kind, 0)
    sim.run(1.0)
    assert waiting.has_ended and sending.has_ended and not waiting.error and not sending.error


def uneven(group: Group) -> tuple[list[np.ndarray], np.ndarray]:
    """Large parts, of which every other one is empty; and this rank's own."""
    counts = [(rank % 2) * (200_000 + rank) for rank in range(group.size)]
    return [np.zeros(count, np.float32) for count in counts], np.full(counts[group.rank], group.rank, np.float32)


CALLS: list[Callable[[Group, list[np.ndarray], np.ndarray], Any]] = [
    lambda group, parts, own: group.all_gather(own, parts),
    lambda group, parts, own: group.gather(own, parts if group.rank == 0 else None, 0),
]


def test_empty_parts_beside_large_ones(group: Ranks) -> None:
    """On sockets, over several lanes and through shared memory."""

    def call(one: Group) -> None:
        empty = np.zeros(0, np.float32)
        works = [one.broadcast(empty, 0) for _ in range(MANY)]
        for collective in CALLS:
            parts, own = uneven(one)
            collective(one, parts, own).wait()
            if one.rank == 0:
                assert all((part == rank).all() for rank, part in enumerate(parts))
        works += [one.scatter(empty, [empty] * one.size if one.rank == 0 else None, 0) for _ in range(MANY)]
        for work in works:
            work.wait()

    values_of(group(call))
