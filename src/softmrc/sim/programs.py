"""What each rank does, task by task: it computes, sends, receives, or calls a collective with others.

A task starts when the tasks of its own rank that it names are over. Ranks meet in two ways: the n-th call of a group is
that of all its ranks, and the n-th message of a tag that one receives is the n-th that the other sends. `lay_out` turns
all of it into flows, in an order in which nothing comes before what it waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from softmrc import _core
from softmrc.collectives.block import CollectiveKind
from softmrc.errors import ConfigError
from softmrc.sim.traffic import MAX_MESSAGE_BYTES, CollectiveCalls, TrafficPlan, wire_bytes

COMPUTE, SCALE_UP = "compute", "scale-up"  # names that results know


@dataclass(frozen=True)
class Task:
    """`after` are numbers of tasks of the same rank. Without anything else it computes, for `lasts_ps`."""

    name: str
    after: tuple[int, ...]
    step: int = 0
    lasts_ps: int = 0


@dataclass(frozen=True)
class SendTask(Task):
    peer: int = 0
    tag: int | str = 0
    bytes: int = 1


@dataclass(frozen=True)
class ReceiveTask(Task):
    peer: int = 0
    tag: int | str = 0


@dataclass(frozen=True)
class CollectiveTask(Task):
    group: str = ""
    ranks: tuple[int, ...] = ()
    collective: str = "all_reduce"
    bytes: int = 0  # as `collective` of a scenario counts them
    algorithm: str = ""  # wherever it is possible


@dataclass
class Programs:
    """All ranks; `refuse(rank, task, words)` makes the error that says where a task came from."""

    ranks: int
    refuse: Callable[[int, int, str], ConfigError]
    tasks: list[list[Task]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tasks = [[] for _ in range(self.ranks)]

    def add(self, rank: int, task: Task) -> int:
        self.tasks[rank].append(task)
        return len(self.tasks[rank]) - 1


Place = tuple[int, int]  # a rank, and a task of it


def lay_out(programs: Programs, plan: TrafficPlan, hosts: list[int], start_ps: int) -> None:
    """Add everything to a plan; rank i is on hosts[i]."""
    units = _calls(programs)
    sent = _messages(programs)
    unit_of = {place: number for number, unit in enumerate(units) for place in unit}
    for rank, tasks in enumerate(programs.tasks):
        for number in range(len(tasks)):
            if (rank, number) not in unit_of:
                unit_of[(rank, number)] = len(units)
                units.append([(rank, number)])
    after: list[set[int]] = [set() for _ in units]
    before: list[list[int]] = [[] for _ in units]
    for number, unit in enumerate(units):
        for rank, task in unit:
            needs = {unit_of[(rank, one)] for one in programs.tasks[rank][task].after}
            if (rank, task) in sent:
                needs.add(unit_of[sent[(rank, task)]])
            for one in needs - after[number]:
                before[one].append(number)
            after[number] |= needs
    left = [len(needs) for needs in after]
    ready = deque(number for number, count in enumerate(left) if not count)
    laid = _Layer(programs, plan, hosts, start_ps, sent)
    done = 0
    while ready:
        number = ready.popleft()
        done += 1
        laid.lay(units[number])
        for one in before[number]:
            left[one] -= 1
            if not left[one]:
                ready.append(one)
    if done < len(units):
        rank, task = min(place for number, unit in enumerate(units) if left[number] for place in unit)
        name = programs.tasks[rank][task].name
        raise programs.refuse(rank, task, f"can never start: {name} waits for what waits for it")


def _calls(programs: Programs) -> list[list[Place]]:
    """One list for each collective: who calls it, in the order of the group."""
    turns: dict[tuple[str, int], list[Place]] = {}
    for rank, tasks in enumerate(programs.tasks):
        count: dict[str, int] = {}
        for number, task in enumerate(tasks):
            if not isinstance(task, CollectiveTask):
                continue
            turn = count[task.group] = count.get(task.group, -1) + 1
            turns.setdefault((task.group, turn), []).append((rank, number))
    for (group, turn), unit in turns.items():
        rank, number = unit[0]
        first = programs.tasks[rank][number]
        assert isinstance(first, CollectiveTask)
        missing = sorted(set(first.ranks) - {one for one, _ in unit})
        if missing:
            words = f"must be a call of rank {missing[0]}, too, which has no number {turn + 1} in group {group}"
            raise programs.refuse(rank, number, words)
        for one, at in unit:
            task = programs.tasks[one][at]
            assert isinstance(task, CollectiveTask)
            if (task.collective, task.bytes, task.ranks) != (first.collective, first.bytes, first.ranks):
                words = f"must be {first.collective} of {first.bytes} bytes, as rank {rank} calls it in group {group}"
                raise programs.refuse(one, at, words)
        unit.sort(key=lambda place: first.ranks.index(place[0]))
    return list(turns.values())


def _messages(programs: Programs) -> dict[Place, Place]:
    """Which send each receive waits for."""
    sends: dict[tuple[int, int, int | str], deque[Place]] = {}
    for rank, tasks in enumerate(programs.tasks):
        for number, task in enumerate(tasks):
            if isinstance(task, SendTask):
                sends.setdefault((rank, task.peer, task.tag), deque()).append((rank, number))
    found = {}
    for rank, tasks in enumerate(programs.tasks):
        for number, task in enumerate(tasks):
            if isinstance(task, ReceiveTask):
                waiting = sends.get((task.peer, rank, task.tag))
                if not waiting:
                    words = (
                        f"waits for a message that rank {task.peer} does not send: to rank {rank} with tag {task.tag}"
                    )
                    raise programs.refuse(rank, number, words)
                found[(rank, number)] = waiting.popleft()
    for (_, peer, tag), rest in sends.items():
        if rest:
            raise programs.refuse(*rest[0], f"sends a message with tag {tag} that rank {peer} does not receive")
    return found


class _Layer:
    """Puts tasks into a plan, one after the other, and remembers their flows."""

    def __init__(
        self, programs: Programs, plan: TrafficPlan, hosts: list[int], start_ps: int, sent: dict[Place, Place]
    ) -> None:
        self.programs, self.plan, self.hosts, self.start_ps, self.sent = programs, plan, hosts, start_ps, sent
        self.flow: dict[Place, int] = {}
        self.names: dict[str, int] = {}
        self.groups: dict[str, int] = {}

    def lay(self, unit: list[Place]) -> None:
        rank, number = unit[0]
        task = self.programs.tasks[rank][number]
        plan, group = self.plan, self._named(task.name)
        if isinstance(task, CollectiveTask):
            self.flow.update(zip(unit, self._call(task, group), strict=True))
        elif isinstance(task, SendTask):
            if not 1 <= task.bytes <= MAX_MESSAGE_BYTES:
                raise self.programs.refuse(rank, number, f"must send a message of 1 to {MAX_MESSAGE_BYTES} bytes")
            to = self.hosts[task.peer]
            self.flow[unit[0]] = plan.add(self.hosts[rank], to, task.bytes, self.start_ps, group, task.step)
        else:
            self.flow[unit[0]] = plan.add_compute(self.hosts[rank], task.lasts_ps, self.start_ps, group, task.step)
        for place in unit:
            for one in sorted(set(self.programs.tasks[place[0]][place[1]].after)):
                plan.wait(self.flow[place], self.flow[(place[0], one)])
            if place in self.sent:
                plan.wait(self.flow[place], self.flow[self.sent[place]])

    def _named(self, name: str) -> int:
        if name not in self.names:
            self.names[name] = self.plan.add_group(name)
        return self.names[name]

    def _call(self, task: CollectiveTask, group: int) -> list[int]:
        if task.group not in self.groups:
            self.plan.ranks.append([self.hosts[rank] for rank in task.ranks])
            self.groups[task.group] = len(self.plan.ranks) - 1
        ranks = len(task.ranks)
        kind = CollectiveKind[task.collective.upper()]
        possible = _core.collective_times(kind, ranks, task.bytes) if task.algorithm else ()
        algorithm = task.algorithm if task.algorithm in possible else ""
        wire = wire_bytes(task.collective, task.bytes, ranks)
        calls = CollectiveCalls(self.groups[task.group], kind, task.bytes, wire, algorithm)
        return self.plan.add_calls(calls, self.start_ps, group, task.step)
