"""A job read from Chakra execution traces, one file for each rank: what MLCommons and ASTRA-sim use.

    [workload]
    kind = "chakra"
    path = "traces/llama"        traces/llama.0.et, traces/llama.1.et, … in the scenario's folder; or .json

Nodes that compute take the time that the trace has, or their operations at `gpu_flops`. A rank computes one thing at
a time and calls the collectives of a group one after the other, both in the order of the trace, lowest ids first. What
else a trace has (memory, metadata) takes the time that it says and nothing more.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from softmrc._support.tables import refuse, setting
from softmrc.errors import MISSING, ConfigError
from softmrc.sim import chakra_format as form
from softmrc.sim.chakra_format import ChakraNode, read_nodes
from softmrc.sim.fabric import Fabric
from softmrc.sim.prng import Prng
from softmrc.sim.programs import COMPUTE, CollectiveTask, Programs, ReceiveTask, SendTask, Task, lay_out
from softmrc.sim.traffic import MAX_MESSAGE_BYTES, ORDERS, PS_PER_US, TrafficPlan, Workload

# How a collective is called here, and how many bytes the scenario counts for what a trace says of `ranks` ranks.
KINDS: dict[str, tuple[str, Callable[[int, int], float]]] = {
    "ALL_REDUCE": ("all_reduce", lambda size, ranks: size),
    "ALL_GATHER": ("all_gather", lambda size, ranks: size * ranks),  # the trace says what each rank has
    "ALL_TO_ALL": ("all_to_all", lambda size, ranks: size / ranks),  # ... what each sends to all together
    "REDUCE_SCATTER": ("reduce_scatter", lambda size, ranks: size),
    "REDUCE_SCATTER_BLOCK": ("reduce_scatter", lambda size, ranks: size),
    "BARRIER": ("barrier", lambda size, ranks: 0),
}
MAX_CALL_BYTES = 1 << 44
LONGEST_US = 1e9


@dataclass(frozen=True, kw_only=True)
class Chakra(Workload):
    """Ranks that do what their traces say."""

    path: str = setting()
    groups: str = ""  # a JSON file: for each name of a group its ranks; without, there is one group, of all
    gpu_flops: float = setting(0.0, low=0)  # for nodes that have operations and no time
    order: str = setting("hosts", choices=ORDERS)
    algorithm: str = ""  # of collectives, wherever it is possible, instead of the one that ranks would choose

    def plan(self, plan: TrafficPlan, fabric: Fabric, draws: Prng, source: str, key: str) -> None:
        base = Path(source).parent / self.path if source else Path(self.path)
        files = trace_files(base)
        if not 1 <= len(files) <= fabric.hosts:
            words = f"must be the beginning of the names of 1 to {fabric.hosts} files, NAME.0.et (or .json) and so on"
            raise refuse(source, f"{key}.path", self.path, f"{words}, and is of {len(files)}")
        groups = _read_groups(Path(source).parent / self.groups, len(files)) if self.groups else {}
        traces = [in_order(read_nodes(file), file) for file in files]

        def wrong(rank: int, task: int, words: str) -> ConfigError:
            node = traces[rank][task]
            return ConfigError(f"node {node.id}", node.name, words, where=f"{files[rank]}: {node.where}")

        programs = Programs(len(files), wrong)
        for rank, nodes in enumerate(traces):
            _Trace(self, programs, rank, files[rank], groups).read(nodes)
        hosts = self.hosts_of(fabric, source, key, len(files), self.order, draws) if len(files) > 1 else [0]
        lay_out(programs, plan, hosts, self.start_ps)


def trace_files(base: Path) -> list[Path]:
    """NAME.0.et, NAME.1.et, …, or the same with .json."""
    for ending in (".et", ".json"):
        files: list[Path] = []
        while (file := base.with_name(f"{base.name}.{len(files)}{ending}")).is_file():
            files.append(file)
        if files:
            return files
    return []


def _read_groups(path: Path, ranks: int) -> dict[str, tuple[int, ...]]:
    """{"0": [0, 1, 2, 3], "1": …}, as ASTRA-sim takes it."""
    try:
        table = json.loads(form.read_bytes(path, "groups", form.MAX_BYTES))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("workload.groups", MISSING, f"invalid JSON: {error}", where=str(path)) from None
    if not isinstance(table, dict):
        raise ConfigError(
            "workload.groups",
            type(table).__name__,
            "must be an object: names of groups, each with a list of ranks",
            where=str(path),
        )
    groups = {}
    for name, members in table.items():
        is_list = isinstance(members, list) and all(type(one) is int and 0 <= one < ranks for one in members)
        if not is_list or not members or len(set(members)) < len(members):
            raise ConfigError(name, members, f"must be a list of ranks below {ranks}, each once", where=str(path))
        groups[name] = tuple(sorted(members))
    return groups


def in_order(nodes: list[ChakraNode], file: Path) -> list[ChakraNode]:
    """Nodes so that none comes before what it waits for, and otherwise the lowest id first."""
    by_id = {node.id: node for node in nodes}
    left: dict[int, int] = {}
    before: dict[int, list[int]] = {}
    for node in nodes:
        left[node.id] = len(node.after)
        for one in node.after:
            if one not in by_id:
                raise ConfigError(
                    f"node {node.id}", one, "must depend on a node of the trace", where=f"{file}: {node.where}"
                )
            before.setdefault(one, []).append(node.id)
    ready = [one for one, count in left.items() if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        one = heapq.heappop(ready)
        found.append(by_id[one])
        for later in before.get(one, ()):
            left[later] -= 1
            if not left[later]:
                heapq.heappush(ready, later)
    if len(found) < len(nodes):
        node = by_id[min(one for one, count in left.items() if count)]
        raise ConfigError(f"node {node.id}", node.name, "must not depend on itself", where=f"{file}: {node.where}")
    return found


class _Trace:
    """One rank's nodes as tasks; the n-th task is the n-th node."""

    def __init__(
        self, job: Chakra, programs: Programs, rank: int, file: Path, groups: dict[str, tuple[int, ...]]
    ) -> None:
        self.job, self.programs, self.rank, self.file, self.groups = job, programs, rank, file, groups
        self.number: dict[int, int] = {}  # of the task, by the node's id
        self.last_compute: tuple[int, ...] = ()
        self.last_call: dict[str, int] = {}

    def _wrong(self, node: ChakraNode, key: str, value: object, problem: str) -> ConfigError:
        return ConfigError(f"node {node.id}: {key}", value, problem, where=f"{self.file}: {node.where}")

    def read(self, nodes: list[ChakraNode]) -> None:
        for task, node in enumerate(nodes):
            after = tuple(self.number[one] for one in node.after)
            self.number[node.id] = self.programs.add(self.rank, self._task(task, node, after))

    def _task(self, number: int, node: ChakraNode, after: tuple[int, ...]) -> Task:
        def whole(name: str, low: int, high: int, default: int | None = None) -> int:
            value = node.attributes.get(name, default)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise self._wrong(node, name, value, f"must be a whole number from {low} to {high}")
            return value

        ranks = self.programs.ranks
        if node.type == form.COLLECTIVE:
            return self._call(number, node, after, whole)
        if node.type == form.SEND:
            size = whole("comm_size", 1, MAX_MESSAGE_BYTES)
            peer, tag = whole("comm_dst", 0, ranks - 1), whole("comm_tag", 0, 1 << 63, 0)
            return SendTask("send", after, 0, 0, self._other(node, peer), tag, size)
        if node.type == form.RECEIVE:
            peer, tag = whole("comm_src", 0, ranks - 1), whole("comm_tag", 0, 1 << 63, 0)
            return ReceiveTask("receive", after, 0, 0, self._other(node, peer), tag)
        if node.type == form.COMPUTE:
            after = (*after, *self.last_compute)
            self.last_compute = (number,)
        return Task(COMPUTE if node.type == form.COMPUTE else "other", after, 0, self._time_ps(node))

    def _other(self, node: ChakraNode, peer: int) -> int:
        if peer == self.rank:
            raise self._wrong(node, "peer", peer, "must be another rank")
        return peer

    def _time_ps(self, node: ChakraNode) -> int:
        operations = node.attributes.get("num_ops", 0)
        took_us = float(node.duration_us)
        if not took_us and operations and node.type == form.COMPUTE:
            if isinstance(operations, str) or not math.isfinite(operations) or operations < 0:
                raise self._wrong(node, "num_ops", operations, "must be a number of operations")
            if not self.job.gpu_flops:
                raise self._wrong(
                    node, "num_ops", operations, "needs workload.gpu_flops: the node has operations and no time"
                )
            took_us = operations / self.job.gpu_flops * 1e6
        if took_us > LONGEST_US:
            raise self._wrong(node, "duration_micros", took_us, f"must be at most {LONGEST_US:g}")
        return round(took_us * PS_PER_US)

    def _call(self, number: int, node: ChakraNode, after: tuple[int, ...], whole: Callable[..., int]) -> Task:
        kind = form.COLLECTIVES[whole("comm_type", 0, len(form.COLLECTIVES) - 1)]
        if kind not in KINDS:
            raise self._wrong(node, "comm_type", kind, "must be one of " + ", ".join(KINDS))
        name = str(node.attributes.get("pg_name", ""))
        if self.groups and name not in self.groups:
            raise self._wrong(node, "pg_name", name, "must be one of " + ", ".join(self.groups))
        ranks = self.groups.get(name, tuple(range(self.programs.ranks)))
        if self.rank not in ranks:
            raise self._wrong(node, "pg_name", name, f"must be a group that rank {self.rank} is in")
        collective, bytes_of = KINDS[kind]
        size = whole("comm_size", 0, MAX_CALL_BYTES, 0 if collective == "barrier" else None)
        if len(ranks) == 1:
            return Task(collective.replace("_", "-"), after)
        unit = 4 if collective in ("all_reduce", "all_to_all") else 4 * len(ranks)
        size = -(-math.ceil(bytes_of(size, len(ranks))) // unit) * unit
        if name in self.last_call:
            after = (*after, self.last_call[name])
        self.last_call[name] = number
        shown = collective.replace("_", "-")
        return CollectiveTask(
            shown, after, 0, 0, f"{name!r}" if name else "of all", ranks, collective, size, self.job.algorithm
        )
