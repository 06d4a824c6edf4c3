"""A plan: flows and which of them waits for which, as columns, and what every workload that makes one has.

A flow is one message, one rank's call of a collective, or a time in which a host computes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from softmrc._support.tables import refuse, setting
from softmrc.collectives.block import CollectiveKind
from softmrc.sim.fabric import Fabric
from softmrc.sim.prng import Prng

PS_PER_US = 1_000_000
MAX_MESSAGE_BYTES = 2**32 - 1
WAITS = -1  # a start that a dependency decides


@dataclass(frozen=True)
class CollectiveCalls:
    """A collective that ranks call, and what it takes at the least."""

    ranks: int  # the group, by its number
    kind: CollectiveKind
    bytes: int
    wire_bytes: int  # that each rank sends, and receives, at the least
    algorithm: str = ""  # the cheapest


@dataclass
class TrafficPlan:
    """Flows as columns, dependencies as columns, and what each flow belongs to."""

    source: list[int] = dataclasses.field(default_factory=list)
    destination: list[int] = dataclasses.field(default_factory=list)
    bytes: list[int] = dataclasses.field(default_factory=list)
    start_ps: list[int] = dataclasses.field(default_factory=list)
    group: list[int] = dataclasses.field(default_factory=list)
    step: list[int] = dataclasses.field(default_factory=list)  # of a training run; -1: none
    groups: list[str] = dataclasses.field(default_factory=list)
    call: list[int] = dataclasses.field(default_factory=list)  # which collective a flow is a rank's call of; -1: none
    rank: list[int] = dataclasses.field(default_factory=list)
    lasts_ps: list[int] = dataclasses.field(default_factory=list)  # how long a host computes; -1: something is sent
    ranks: list[list[int]] = dataclasses.field(default_factory=list)  # groups of hosts that call collectives
    calls: list[CollectiveCalls] = dataclasses.field(default_factory=list)
    earlier: list[int] = dataclasses.field(default_factory=list)
    later: list[int] = dataclasses.field(default_factory=list)
    think_ps: list[int] = dataclasses.field(default_factory=list)

    def add_group(self, name: str) -> int:
        self.groups.append(name)
        return len(self.groups) - 1

    def add(self, source: int, destination: int, size: int, start_ps: int, group: int, step: int = -1) -> int:
        self.source.append(source)
        self.destination.append(destination)
        self.bytes.append(size)
        self.start_ps.append(start_ps)
        self.group.append(group)
        self.step.append(step)
        self.call.append(-1)
        self.rank.append(0)
        self.lasts_ps.append(-1)
        return len(self.source) - 1

    def add_calls(self, calls: CollectiveCalls, start_ps: int, group: int, step: int) -> list[int]:
        """One flow for each rank."""
        self.calls.append(calls)
        hosts = self.ranks[calls.ranks]
        added = []
        for rank, host in enumerate(hosts):
            size = min(calls.wire_bytes or 1, MAX_MESSAGE_BYTES)
            added.append(self.add(host, hosts[(rank + 1) % len(hosts)], size, start_ps, group, step))
            self.call[-1], self.rank[-1] = len(self.calls) - 1, rank
        return added

    def add_compute(self, host: int, lasts_ps: int, start_ps: int, group: int, step: int = -1) -> int:
        """A host computes for so long, and nothing is sent."""
        self.add(host, host, 0, start_ps, group, step)
        self.lasts_ps[-1] = lasts_ps
        return len(self.source) - 1

    def add_many(self, source: np.ndarray, destination: np.ndarray, size: int, start_ps: int, group: int) -> None:
        count = len(source)
        self.source.extend(source.tolist())
        self.destination.extend(destination.tolist())
        self.bytes.extend([size] * count)
        self.start_ps.extend([start_ps] * count)
        self.group.extend([group] * count)
        self.step.extend([-1] * count)
        self.call.extend([-1] * count)
        self.rank.extend([0] * count)
        self.lasts_ps.extend([-1] * count)

    def wait(self, later: int, earlier: int, think_ps: int = 0) -> None:
        self.earlier.append(earlier)
        self.later.append(later)
        self.think_ps.append(think_ps)
        self.start_ps[later] = WAITS

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class Workload:
    """What every workload has."""

    kind: str
    start_us: float = setting(0.0, low=0)

    @property
    def start_ps(self) -> int:
        return round(self.start_us * PS_PER_US)

    def hosts_of(self, fabric: Fabric, source: str, key: str, count: int, order: str, draws: Prng) -> list[int]:
        """The hosts that take part, in the order of their ranks."""
        count = count or fabric.hosts
        if not 2 <= count <= fabric.hosts:
            raise refuse(source, f"{key}.hosts", count, f"must be 2 to the fabric's {fabric.hosts}")
        if order == "hosts":
            return list(range(count))
        if order == "random":
            return draws.order(fabric.hosts)[:count].tolist()
        # Leaf by leaf in turn, so that neighbours in a ring never share a leaf.
        spread = np.arange(fabric.hosts).reshape(fabric.leaves, fabric.hosts_per_leaf).T.ravel()
        return spread[:count].tolist()


ORDERS = ("hosts", "across_leaves", "random")


def wire_bytes(kind: str, size: int, ranks: int) -> int:
    """What no algorithm can do without, on each rank's links, whichever way is busier."""
    share = size * (ranks - 1) // ranks
    return {"all_reduce": 2 * share, "all_to_all": size * (ranks - 1), "barrier": 0}.get(kind, share)
