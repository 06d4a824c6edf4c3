"""Where a job's time goes, drawn: months of failures, event after event, with every part by its number.

Nothing here is shared with closed_form.py but the definitions of availability.py; each is there to check the other. A
failure hits a certain host, plane and leaf; crews repair one thing each at a time, in the order in which they can
begin; a spare that is used up comes back when what it replaced is repaired.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np

from softmrc.errors import ConfigError
from softmrc.fabric.description import Description
from softmrc.planner.availability import Losses

MONTH_H = 720.0
HOURS_A_YEAR = 8766.0
MAX_EVENTS = 4_000_000
NEVER = float("inf")
BELOW = ("port", "cable", "nic-optic", "optic", "leaf")  # the leaves, and these themselves: hosts that can be swapped


class FailedPart(NamedTuple):
    """Something that broke: what it is and which one."""

    kind: str
    which: int


@dataclass(frozen=True)
class _Kind:
    """So many of a kind, how often one of them breaks, and how long its repair takes."""

    name: str
    count: int
    per_year: float
    hours: float


def _kinds(d: Description) -> list[_Kind]:
    s, f = d.fabric, d.failures
    p = s.planes
    host_cables = s.hosts * -(-p // f.planes_per_cable)
    uplinks, core_links = p * s.spines * s.cables_per_link, p * s.cores_per_spine * s.cables_per_core_link
    optics = s.leaves * -(-s.hosts_per_leaf // d.links_of_an_optic) * p
    kinds = [
        _Kind("gpu", d.machines, f.gpu_per_year * d.gpus / d.machines, f.gpu_repair_h),
        _Kind("nic", d.nics, f.nic_per_year, f.nic_repair_h),
        _Kind("power", d.feeds, f.power_per_year, f.power_repair_h),
        _Kind("port", s.hosts * p, f.nic_port_per_year, f.nic_port_repair_h),
        _Kind("cable", host_cables, f.link_per_year, f.link_repair_h),
        _Kind("nic-optic", s.hosts * (p // d.planes_of_an_optic), f.optic_per_year, f.optic_repair_h),
        _Kind("optic", optics, f.optic_per_year, f.optic_repair_h),
        _Kind("leaf", s.leaves * p, f.switch_per_year, f.switch_repair_h),
        _Kind("uplink", s.leaves * uplinks, f.link_per_year, f.link_repair_h),
        _Kind("t1", s.t1_switches * p, f.switch_per_year, f.switch_repair_h),
        _Kind("t1-uplink", s.t1_switches * core_links, f.link_per_year, f.link_repair_h),
        _Kind("core", s.t2_switches * p, f.switch_per_year, f.switch_repair_h),
    ]
    flap_h = f.flap_s / 3600
    for kind in [k for k in kinds if k.name in ("cable", "uplink", "t1-uplink")]:
        kinds.append(_Kind("flap of " + kind.name, kind.count, f.flap_per_link_year, flap_h))
    return [k for k in kinds if k.count and k.per_year]


def events_a_month(d: Description) -> float:
    """How many failures and flaps a month brings."""
    return sum(k.count * k.per_year for k in _kinds(d)) * MONTH_H / HOURS_A_YEAR


class SlowestHost:
    """The capacity of the slowest host while parts break and are repaired; a plane that two failures take is gone
    once."""

    def __init__(self, d: Description) -> None:
        self._d, self._s = d, d.fabric
        # The parts of each host, and how many planes fail with one of them.
        self._of_host = {
            "port": 1,
            "cable": min(d.failures.planes_per_cable, d.fabric.planes),
            "nic-optic": d.planes_of_an_optic,
        }
        self._planes: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))  # of a host: what took each
        self._leaf_planes: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._uplinks: dict[int, int] = defaultdict(int)  # of a leaf
        self._hosts: dict[int, set[int]] = defaultdict(set)  # of a leaf, those with something broken
        self._pods: dict[int, float] = defaultdict(float)
        self._everyone = 0.0
        self._worst_of: dict[int, float] = {}  # leaves with something broken

    def change(self, part: FailedPart, by: int) -> None:
        s, which = self._s, part.which
        p = s.planes
        if part.kind in self._of_host:
            together = self._of_host[part.kind]
            host, first = divmod(which * together, p)
            self._host(host, range(first, first + together), by)
        elif part.kind == "optic":
            together = self._d.links_of_an_optic
            a_leaf = -(-s.hosts_per_leaf // together)
            place, plane = divmod(which, p)
            leaf, group = divmod(place, a_leaf)
            for at in range(group * together, min((group + 1) * together, s.hosts_per_leaf)):
                self._host(leaf * s.hosts_per_leaf + at, (plane,), by)
        elif part.kind == "leaf":
            leaf, plane = divmod(which, p)
            self._leaf_planes[leaf][plane] += by
            self._judge(leaf)
        elif part.kind == "uplink":
            leaf = which // (p * s.spines * s.cables_per_link)
            self._uplinks[leaf] += by
            self._judge(leaf)
        elif part.kind == "core" or (part.kind == "t1" and not s.pods):
            self._everyone += by / (p * (s.t2_switches or s.t1_switches))
        else:
            each = p * s.spines * (s.cores_per_spine * s.cables_per_core_link if part.kind == "t1-uplink" else 1)
            self._pods[which // each] += by / each

    def _host(self, host: int, planes: range | tuple[int], by: int) -> None:
        for plane in planes:
            self._planes[host][plane] += by
        leaf = host // self._s.hosts_per_leaf
        if any(self._planes[host].values()):
            self._hosts[leaf].add(host)
        else:
            del self._planes[host]
            self._hosts[leaf].discard(host)
        self._judge(leaf)

    def _judge(self, leaf: int) -> None:
        p = self._s.planes
        dark = {plane for plane, n in self._leaf_planes[leaf].items() if n}
        most = len(dark)
        for host in self._hosts[leaf]:
            most = max(most, len(dark | {plane for plane, n in self._planes[host].items() if n}))
        broken = self._uplinks[leaf]
        lost = most / p + (broken / (p * self._s.spines * self._s.cables_per_link) if broken else 0.0)
        if lost:
            self._worst_of[leaf] = lost
        else:
            self._worst_of.pop(leaf, None)

    def capacity(self) -> float:
        leaves_a_pod = self._s.leaves_per_pod
        worst = max(self._pods.values(), default=0.0)
        for leaf, lost in self._worst_of.items():
            worst = max(worst, lost + self._pods.get(leaf // leaves_a_pod, 0.0))
        return max(0.0, 1 - worst - self._everyone)


@dataclass
class _Tally:
    """Hours, by what they went to."""

    hours: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    stops: int = 0
    swaps: int = 0


class _Run:
    """One job through some hours of failures."""

    def __init__(
        self, d: Description, transport: str, policy: str, hours: float, rng: np.random.Generator, as_expected: bool
    ) -> None:
        self.d, self.transport, self.policy, self.end = d, transport, policy, hours
        self.rng = rng
        self.whole_cable = d.failures.planes_per_cable >= d.fabric.planes  # that breaks leaves nothing of a host
        self.takes_host = {"gpu", "nic"} | ({"cable"} if self.whole_cable else set())
        self.takes_host |= {"nic-optic"} if d.planes_of_an_optic == d.fabric.planes else set()
        self.takes_group = {"power"}
        if d.fabric.planes == 1:
            self.takes_host.add("port")
            self.takes_group |= {"optic", "leaf"}
        self.hosts_of = {kind: 1 for kind in BELOW} | {"power": min(d.failures.hosts_per_feed, d.machines)}
        self.hosts_of |= {"optic": d.links_of_an_optic, "leaf": d.fabric.hosts_per_leaf}
        self.as_expected = as_expected  # as many failures as are expected, where only the mean is wanted
        self.kinds = {k.name: k for k in _kinds(d)}
        self.slowest = SlowestHost(d)
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()
        self.now = 0.0
        self.upcoming = 0.0  # when the next failure comes
        self.phase = "run"  # run, write, detection, waiting, restarts, swaps
        self.turn = 0  # counts phases, so that the end of one that was cut short is known as such
        self.wall = self.work = self.stood = 0.0  # since the last checkpoint
        self.pace = 1.0
        self.stalls = 0
        self.soft: dict[int, FailedPart] = {}  # what is broken and leaves something
        self.to_swap: list[int] = []
        self.spares = d.spares
        self.missing = 0  # hosts without which the job cannot go on, and for which there is no spare
        self.dark_groups = 0  # groups of hosts that wait for a repair, as spares are not enough
        self.free_crews = d.failures.crews or NEVER
        self.queue: deque[tuple[float, Callable[[], None]]] = deque()
        self.tally = _Tally()
        self.timeline: list[tuple[float, float]] = [(0.0, 1.0)]

    # Time.

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (when, next(self.order), action))

    def go(self) -> _Tally:
        for when, part in self._failures():
            self.upcoming = when
            while self.heap and self.heap[0][0] <= when:
                self._next()
            self._pass(when)
            self._break(part)
        self.upcoming = NEVER
        while self.heap and self.heap[0][0] <= self.end:
            self._next()
        self._pass(self.end)
        self._commit()  # what ran since the last checkpoint is not lost at the end of the month
        return self.tally

    def _next(self) -> None:
        when, _, action = heapq.heappop(self.heap)
        self._pass(when)
        action()

    def _pass(self, when: float) -> None:
        took, self.now = when - self.now, when
        if self.phase in ("run", "write"):
            self.wall += took
            if self.phase == "write":
                self.tally.hours["writing"] += took
            elif self.stalls:
                self.stood += took
            else:
                self.work += took * self.pace
        else:
            self.tally.hours[self.phase] += took

    def _failures(self) -> list[tuple[float, FailedPart]]:
        found: list[tuple[float, FailedPart]] = []
        for kind in self.kinds.values():
            expected = kind.count * kind.per_year * self.end / HOURS_A_YEAR
            if expected > MAX_EVENTS:
                few = f"must have rates that make at most {MAX_EVENTS:,} failures; these make {expected:,.0f}"
                raise ConfigError("failures", kind.name, few)
            n = int(expected + self.rng.uniform()) if self.as_expected else int(self.rng.poisson(expected))
            times = self.rng.uniform(0, self.end, n).tolist()
            which = self.rng.integers(0, kind.count, n).tolist()
            found += [(t, FailedPart(kind.name, w)) for t, w in zip(times, which, strict=True)]
        return sorted(found)

    # What breaks.

    def _break(self, part: FailedPart) -> None:
        kind = part.kind
        if kind.startswith("flap of "):
            self._flap(FailedPart(kind.removeprefix("flap of "), part.which))
        elif kind in self.takes_host:
            self._lose_host(part)
        elif kind in self.takes_group:
            self._lose_group(part)
        else:
            below = kind in BELOW
            self._degrade(part)
            if self.transport == "roce":
                if below or self.d.job.reroute_s > self.d.job.rides_out_s:
                    self._stop()
                else:
                    self._stall(self.d.job.reroute_s / 3600)

    def _lose_host(self, part: FailedPart) -> None:
        if self.phase == "waiting":
            return  # an idle host is not missed
        self._mend(part, self._host_back)
        if self.spares:
            self.spares -= 1
        else:
            self.missing += 1
        self._stop()

    def _host_back(self) -> None:
        if self.missing:
            self.missing -= 1
            self._maybe_go_on()
        else:
            self.spares += 1

    def _hosts_back(self, hosts: int) -> None:
        for _ in range(hosts):
            self._host_back()

    def _lose_group(self, part: FailedPart) -> None:
        if self.phase == "waiting":
            return
        hosts = self.hosts_of[part.kind]
        if hosts <= self.spares:
            self.spares -= hosts
            self._mend(part, lambda: self._hosts_back(hosts))
        else:
            self.dark_groups += 1
            self._mend(part, self._group_back)
        self._stop()

    def _group_back(self) -> None:
        self.dark_groups -= 1
        self._maybe_go_on()

    def _degrade(self, part: FailedPart) -> None:
        key = next(self.order)
        self._soften(key, part)
        if self.policy == "degraded":
            window = self.d.failures.maintenance_days * 24
            self.at((self.now // window + 1) * window, lambda: self._heal(key))
            return
        swappable = self.policy == "swap" and part.kind in BELOW
        if swappable and self.spares >= self.hosts_of[part.kind]:
            if self.transport == "mrc" and self.phase in ("run", "write"):
                self.to_swap.append(key)
                return
            self._swap(key)  # the job stops, or stands still, anyway
            return
        self._mend(part, lambda: self._heal(key))

    def _soften(self, key: int, part: FailedPart) -> None:
        self.soft[key] = part
        self.slowest.change(part, +1)
        self._look()

    def _heal(self, key: int) -> None:
        part = self.soft.pop(key, None)
        if part is not None:
            self.slowest.change(part, -1)
            self._look()

    def _swap(self, key: int) -> None:
        part = self.soft[key]
        hosts = self.hosts_of[part.kind]
        if self.spares >= hosts:
            self.spares -= hosts
            self._heal(key)
            self._mend(part, lambda: self._hosts_back(hosts))
        else:
            self._mend(part, lambda: self._heal(key))

    def _flap(self, part: FailedPart) -> None:
        job, seconds = self.d.job, self.d.failures.flap_s
        whole = part.kind == "cable" and self.whole_cable
        rides = self.transport == "mrc" and not whole
        if rides or part.kind != "cable":
            key = next(self.order)
            self._soften(key, part)
            self.at(self.now + seconds / 3600, lambda: self._heal(key))
        if rides or (self.transport == "mrc" and part.kind != "cable"):
            return
        held = seconds if part.kind == "cable" else min(seconds, job.reroute_s)
        if held > job.rides_out_s:
            self._stop()
        else:
            self._stall(held / 3600)

    def _stall(self, hours: float) -> None:
        self.stalls += 1
        self.at(self.now + hours, self._unstall)

    def _unstall(self) -> None:
        self.stalls -= 1

    def _look(self) -> None:
        left = self.slowest.capacity()
        share = self.d.job.communication_share
        self.pace = 1 / (1 - share + share / left) if left > 1e-9 else 0.0
        self.timeline.append((self.now, left))

    # Repairs.

    def _mend(self, part: FailedPart, then: Callable[[], None]) -> None:
        hours = float(self.rng.exponential(self.kinds[part.kind].hours))
        self.at(self.now + self.d.failures.dispatch_h, lambda: self._ask_for_crew(hours, then))

    def _ask_for_crew(self, hours: float, then: Callable[[], None]) -> None:
        if self.free_crews:
            self.free_crews -= 1
            self.at(self.now + hours, lambda: self._repaired(then))
        else:
            self.queue.append((hours, then))

    def _repaired(self, then: Callable[[], None]) -> None:
        self.free_crews += 1
        if self.queue:
            self._ask_for_crew(*self.queue.popleft())
        then()

    # The job.

    def _enter(self, phase: str, hours: float, then: Callable[[], None]) -> None:
        self.phase = phase
        self.turn += 1
        turn = self.turn
        self.at(self.now + hours, lambda: then() if self.turn == turn else None)

    def _stop(self) -> None:
        if self.phase in ("detection", "waiting"):
            return
        if self.phase in ("run", "write"):
            self.tally.hours["rework"] += self.wall
            self._forget()
        self.tally.stops += 1
        for key in self.to_swap:
            self._swap(key)
        self.to_swap.clear()
        self._enter("detection", self.d.job.detect_min / 60, self._detected)

    def _forget(self) -> None:
        self.wall = self.work = self.stood = 0.0
        self.tally.hours["writing"] = 0.0

    def _detected(self) -> None:
        self.phase = "waiting"
        self._maybe_go_on()

    def _maybe_go_on(self) -> None:
        if self.phase == "waiting" and not self.missing and not self.dark_groups:
            self._restart("restarts")

    def _restart(self, phase: str) -> None:
        self._enter(phase, (self.d.job.restart_min + self.d.job.warmup_min) / 60, self._running)

    def _running(self) -> None:
        every, writing = self.d.job.checkpoint_every_min / 60, self.d.job.checkpoint_s / 3600
        undisturbed = min(self.heap[0][0] if self.heap else NEVER, self.upcoming, self.end) - self.now
        whole = int(undisturbed / (every + writing))
        if whole > 1 and not self.stalls:  # intervals in which nothing happens pass all at once
            self.tally.hours["checkpoints"] += whole * writing
            self.tally.hours["degraded"] += whole * every * (1 - self.pace)
            self.now += whole * (every + writing)
        self._enter("run", every, self._write)

    def _write(self) -> None:
        self._enter("write", self.d.job.checkpoint_s / 3600, self._written)

    def _written(self) -> None:
        self._commit()
        if self.to_swap:
            self.tally.swaps += 1
            for key in self.to_swap:
                self._swap(key)
            self.to_swap.clear()
            self._restart("swaps")
        else:
            self._running()

    def _commit(self) -> None:
        hours = self.tally.hours
        writing = hours["writing"]
        hours["checkpoints"] += writing
        hours["stalled"] += self.stood
        hours["degraded"] += self.wall - writing - self.stood - self.work
        self._forget()

    def start(self) -> None:
        self._running()


@dataclass(frozen=True)
class MonteCarloResult:
    """What so many months came to, each of them and on average."""

    mean: Losses
    lost: tuple[float, ...]  # of each month
    timeline: list[tuple[float, float]]  # hour, slowest host's capacity: of the first month


def draw(d: Description, transport: str, policy: str, trials: int = 20, seed: int = 1) -> MonteCarloResult:
    """Months drawn one by one, each of which begins with everything repaired."""
    found = [_one(d, transport, policy, MONTH_H, [seed, trial]) for trial in range(trials)]
    parts = {part: float(np.mean([getattr(one, part) for one, _ in found])) for part in Losses.__dataclass_fields__}
    return MonteCarloResult(Losses(**parts), tuple(one.lost for one, _ in found), found[0][1] if found else [])


def draw_long(d: Description, transport: str, policy: str, hours: float, seed: int = 1) -> Losses:
    """One long stretch, in which the beginning does not matter; with as many failures of each kind as are expected,
    which leaves the mean as it is and takes away most of what chance adds to it."""
    return _one(d, transport, policy, hours, [seed], as_expected=True)[0]


def _one(
    d: Description, transport: str, policy: str, hours: float, seed: list[int], as_expected: bool = False
) -> tuple[Losses, list[tuple[float, float]]]:
    run = _Run(d, transport, policy, hours, np.random.default_rng(seed), as_expected)
    run.start()
    tally = run.go()
    names = ("degraded", "stalled", "checkpoints", "rework", "detection", "restarts", "swaps", "waiting")
    shares = {name: tally.hours[name] / hours for name in names}
    monthly = MONTH_H / hours
    return Losses(**shares, stops_per_month=tally.stops * monthly, swaps_per_month=tally.swaps * monthly), run.timeline
