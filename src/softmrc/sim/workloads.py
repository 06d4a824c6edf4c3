"""What is sent: each workload turns itself into flows and into which flow waits for which (plan.py).

A flow starts at a given time, or as soon as every flow it waits for was delivered, after a pause. `collective` calls
what is shipped; `ring` and `training` are the pattern of a ring alone, in which a rank sends its next chunk once the
chunk before it has come in: RoCE has no collectives of ours. Jobs are in job.py and chakra.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from softmrc import _core
from softmrc._support.files import located, read_text
from softmrc._support.tables import read_table, refuse, setting
from softmrc.collectives.block import CollectiveKind
from softmrc.errors import MISSING, ConfigError
from softmrc.sim.chakra import Chakra
from softmrc.sim.fabric import Fabric
from softmrc.sim.flowfiles import read_flow_file
from softmrc.sim.job import Job
from softmrc.sim.prng import Prng
from softmrc.sim.traffic import MAX_MESSAGE_BYTES, ORDERS, PS_PER_US, CollectiveCalls, TrafficPlan, Workload, wire_bytes


@dataclass(frozen=True)
class Permutation(Workload):
    """Every host sends to another one, and receives from one."""

    message_bytes: int = setting(1 << 20, low=1, high=MAX_MESSAGE_BYTES)
    messages: int = setting(1, low=1, high=16000)  # one after the other, all posted at the start
    pattern: str = setting("random", choices=("random", "across_leaves", "shift"))
    shift: int = setting(1, low=1)

    def plan(self, plan: TrafficPlan, fabric: Fabric, draws: Prng, source: str, key: str) -> None:
        hosts = np.arange(fabric.hosts)
        if self.pattern == "shift":
            if self.shift % fabric.hosts == 0:
                raise refuse(source, f"{key}.shift", self.shift, f"must not be a multiple of the {fabric.hosts} hosts")
            to = (hosts + self.shift) % fabric.hosts
        else:
            across = self.pattern == "across_leaves"
            if across and fabric.leaves < 2:
                raise refuse(source, f"{key}.pattern", self.pattern, "must be 'random' on a fabric with a single leaf")
            to = permutation(fabric, draws, across)
        group = plan.add_group("permutation")
        for _ in range(self.messages):
            plan.add_many(hosts, to, self.message_bytes, self.start_ps, group)


def permutation(fabric: Fabric, draws: Prng, across_leaves: bool) -> np.ndarray:
    """A random permutation in which no host sends to itself (or to its own leaf): offenders trade places at random."""
    hosts = np.arange(fabric.hosts)
    place = hosts // fabric.hosts_per_leaf if across_leaves else hosts
    to = draws.order(fabric.hosts)
    while len(offenders := np.flatnonzero(place == place[to])):
        for host in offenders.tolist():
            other = draws.below(fabric.hosts)
            to[host], to[other] = to[other], to[host]
    return to


@dataclass(frozen=True)
class Victim:
    """A flow that only shares the path of an incast. It sends one message after the other."""

    source: int = setting(low=0)
    destination: int = setting(low=0)
    message_bytes: int = setting(256 << 10, low=1, high=MAX_MESSAGE_BYTES)
    messages: int = setting(16, low=1, high=16000)


@dataclass(frozen=True)
class Incast(Workload):
    """Many send to one."""

    destination: int = setting(0, low=0)
    sources: tuple[int, ...] | None = setting(None, low=0)  # or `fan_in` of them, spread over the leaves
    fan_in: int = setting(0, low=0)
    message_bytes: int = setting(1 << 20, low=1, high=MAX_MESSAGE_BYTES)
    messages: int = setting(1, low=1, high=16000)
    victim: Victim | None = None

    def plan(self, plan: TrafficPlan, fabric: Fabric, draws: Prng, source: str, key: str) -> None:
        if (self.sources is None) == (self.fan_in == 0):
            raise refuse(source, f"{key}.sources", MISSING, "needs either sources or fan_in, and not both")
        _check_host(fabric, self.destination, source, f"{key}.destination")
        senders = list(self.sources) if self.sources else self._spread(fabric, source, key)
        if self.destination in senders:
            raise refuse(source, f"{key}.sources", self.destination, "must not contain the destination")
        for one in senders:
            _check_host(fabric, one, source, f"{key}.sources")
        group = plan.add_group("incast")
        for _ in range(self.messages):
            for one in senders:
                plan.add(one, self.destination, self.message_bytes, self.start_ps, group)
        if self.victim is None:
            return
        v = self.victim
        _check_host(fabric, v.source, source, f"{key}.victim.source")
        _check_host(fabric, v.destination, source, f"{key}.victim.destination")
        if v.source == v.destination:
            raise refuse(source, f"{key}.victim.destination", v.destination, "must be another host than its source")
        group = plan.add_group("victim")
        for _ in range(v.messages):
            plan.add(v.source, v.destination, v.message_bytes, self.start_ps, group)

    def _spread(self, fabric: Fabric, source: str, key: str) -> list[int]:
        if self.fan_in >= fabric.hosts:
            raise refuse(source, f"{key}.fan_in", self.fan_in, f"must be below the fabric's {fabric.hosts} hosts")
        others = [host for host in range(fabric.hosts) if host != self.destination]
        return [others[i * len(others) // self.fan_in] for i in range(self.fan_in)]


@dataclass(frozen=True)
class AllToAll(Workload):
    """Everyone sends to everyone, or to some at even distances, the next neighbour first, `window` messages at once."""

    hosts: int = setting(0, low=0)  # 0: all of them
    order: str = setting("hosts", choices=ORDERS)
    message_bytes: int = setting(64 << 10, low=1, high=MAX_MESSAGE_BYTES)
    window: int = setting(4, low=1)
    peers: int = setting(0, low=0)  # 0: all the others

    def plan(self, plan: TrafficPlan, fabric: Fabric, draws: Prng, source: str, key: str) -> None:
        ranks = self.hosts_of(fabric, source, key, self.hosts, self.order, draws)
        others = len(ranks) - 1
        if self.peers > others:
            raise refuse(source, f"{key}.peers", self.peers, f"must be 0 to the {others} others")
        peers = self.peers or others
        group = plan.add_group("all-to-all")
        sent: list[list[int]] = [[] for _ in ranks]
        for turn in range(peers):
            distance = 1 + turn * others // peers
            for rank, host in enumerate(ranks):
                to = ranks[(rank + distance) % len(ranks)]
                flow = plan.add(host, to, self.message_bytes, self.start_ps, group)
                if turn >= self.window:
                    plan.wait(flow, sent[rank][turn - self.window])
                sent[rank].append(flow)


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


@dataclass(frozen=True)
class Collective(Workload):
    """What is shipped, called by every rank `repeats` times, each as soon as its own call before has ended."""

    collective: str = setting("all_reduce", choices=COLLECTIVES)
    hosts: int = setting(0, low=0)
    order: str = setting("hosts", choices=ORDERS)
    bytes: int = setting(16 << 20, low=0)  # of the whole buffer on each rank; of an all_to_all, from each to each
    repeats: int = setting(1, low=1)
    pause_us: float = setting(0.0, low=0)  # between two calls of a rank
    algorithm: str = ""  # instead of the one that the ranks would choose

    def plan(self, plan: TrafficPlan, fabric: Fabric, draws: Prng, source: str, key: str) -> None:
        plan.ranks.append(self.hosts_of(fabric, source, key, self.hosts, self.order, draws))
        ranks = len(plan.ranks[-1])
        unit = 4 if self.collective in ("all_reduce", "all_to_all") else 4 * ranks
        if self.bytes % unit:
            raise refuse(source, f"{key}.bytes", self.bytes, f"must be a multiple of {unit}: elements of 4 bytes")
        wire = wire_bytes(self.collective, self.bytes, ranks)
        kind = CollectiveKind[self.collective.upper()]
        possible = list(_core.collective_times(kind, ranks, self.bytes))
        if self.algorithm and self.algorithm not in possible:
            raise refuse(source, f"{key}.algorithm", self.algorithm, "must be one of " + ", ".join(possible))
        calls = CollectiveCalls(len(plan.ranks) - 1, kind, self.bytes, wire, self.algorithm)
        group = plan.add_group(self.collective.replace("_", "-"))
        before: list[int] = []
        for step in range(self.repeats):
            added = plan.add_calls(calls, self.start_ps, group, step)
            for earlier, later in zip(before, added, strict=bool(before)):
                plan.wait(later, earlier, round(self.pause_us * PS_PER_US))
            before = added


RINGS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}  # rounds of the ring, less one step each


@dataclass(frozen=True)
class Ring(Workload):
    """A collective around a ring: in every step each rank passes a chunk to the next one."""

    collective: str = setting("all_reduce", choices=tuple(RINGS))
    hosts: int = setting(0, low=0)
    order: str = setting("across_leaves", choices=ORDERS)
    bytes: int = setting(16 << 20, low=1)  # of the whole buffer on each rank
    repeats: int = setting(1, low=1)

    def plan(self, plan: TrafficPlan, fabric: Fabric, draws: Prng, source: str, key: str) -> None:
        ranks = self.hosts_of(fabric, source, key, self.hosts, self.order, draws)
        _check_chunk(self.bytes, len(ranks), source, f"{key}.bytes")
        group = plan.add_group(self.collective.replace("_", "-"))
        held: list[int] | None = None
        for repeat in range(self.repeats):
            held = add_ring(plan, ranks, self.collective, self.bytes, self.start_ps, group, held, step=repeat)


@dataclass(frozen=True)
class Training(Workload):
    """Steps of a training job: compute, then collectives one after the other; the next step needs all of them."""

    steps: int = setting(4, low=1)
    compute_us: float = setting(200.0, low=0)
    collective: str = setting("all_reduce", choices=tuple(RINGS))
    hosts: int = setting(0, low=0)
    order: str = setting("across_leaves", choices=ORDERS)
    bytes: int = setting(16 << 20, low=1)  # of all gradients on each rank
    buckets: int = setting(1, low=1)  # collectives that share them

    def plan(self, plan: TrafficPlan, fabric: Fabric, draws: Prng, source: str, key: str) -> None:
        ranks = self.hosts_of(fabric, source, key, self.hosts, self.order, draws)
        share = -(-self.bytes // self.buckets)
        _check_chunk(share, len(ranks), source, f"{key}.bytes")
        group = plan.add_group("training")
        compute_ps = round(self.compute_us * PS_PER_US)
        held: list[int] | None = None
        for step in range(self.steps):
            for bucket in range(self.buckets):
                think = compute_ps if bucket == 0 else 0
                start = self.start_ps + think
                held = add_ring(plan, ranks, self.collective, share, start, group, held, think, step)


def add_ring(
    plan: TrafficPlan, ranks: list[int], collective: str, size: int, start_ps: int, group: int,
    held: list[int] | None, think_ps: int = 0, step: int = -1,
) -> list[int]:  # fmt: skip
    """One collective; `held` are the flows each rank must have received before it starts. Returns the last of each."""
    count = len(ranks)
    chunk = -(-size // count)
    for lap_step in range(RINGS[collective] * (count - 1)):
        sent = []
        for rank, host in enumerate(ranks):
            flow = plan.add(host, ranks[(rank + 1) % count], chunk, start_ps, group, step)
            if held is not None:
                plan.wait(flow, held[rank], think_ps if lap_step == 0 else 0)
            sent.append(flow)
        held = [sent[rank - 1] for rank in range(count)]
    assert held is not None
    return held


@dataclass(frozen=True, kw_only=True)
class FlowFile(Workload):
    """Flows from a file: .csv, .toml, or a connection matrix of htsim (.cm)."""

    path: str = setting()

    def plan(self, plan: TrafficPlan, fabric: Fabric, draws: Prng, source: str, key: str) -> None:
        path = Path(source).parent / self.path if source else Path(self.path)
        flows = read_flow_file(path, fabric.hosts)
        group = plan.add_group(path.name)
        ids = []
        for flow in flows:
            start_ps = flow.start_ps + self.start_ps
            ids.append(plan.add(flow.source, flow.destination, flow.bytes, start_ps, group))
            for earlier in flow.after:
                plan.wait(ids[-1], ids[earlier])


KINDS: dict[str, type] = {
    "permutation": Permutation,
    "incast": Incast,
    "all_to_all": AllToAll,
    "collective": Collective,
    "ring": Ring,
    "training": Training,
    "flows": FlowFile,
    "job": Job,
    "chakra": Chakra,
}


def read_workload(table: Any, source: str, key: str) -> Any:
    kind = table.get("kind") if isinstance(table, dict) else None
    if kind not in KINDS:
        raise refuse(source, f"{key}.kind", kind, "must be one of " + ", ".join(repr(one) for one in KINDS))
    return read_table(KINDS[kind], table, source, key)


def make_plan(workloads: tuple[Any, ...], fabric: Fabric, seed: int, source: str) -> TrafficPlan:
    """All flows of a scenario."""
    plan = TrafficPlan()
    for i, workload in enumerate(workloads):
        key = "workload" if len(workloads) == 1 else f"workload[{i}]"
        try:
            workload.plan(plan, fabric, Prng(seed, f"workload {i}"), source, key)
        except ConfigError as error:
            raise _with_line(error, source) from None
    return plan


def _with_line(error: ConfigError, source: str) -> ConfigError:
    """Where the key stands; errors in other files already name their place."""
    if error.where != source or not Path(source).is_file():
        return error
    return located(error, source, read_text(Path(source), "scenario"))


def _check_host(fabric: Fabric, host: int, source: str, key: str) -> None:
    if not 0 <= host < fabric.hosts:
        raise refuse(source, key, host, f"must be a host below {fabric.hosts}")


def _check_chunk(size: int, ranks: int, source: str, key: str) -> None:
    if -(-size // ranks) > MAX_MESSAGE_BYTES:
        raise refuse(source, key, size, f"must be at most {MAX_MESSAGE_BYTES * ranks}, as {ranks} ranks share it")
