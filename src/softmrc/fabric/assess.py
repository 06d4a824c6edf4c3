"""One fabric, judged: how many ways there are between two hosts, what each failure takes away and from how many, and
what a month of failures costs a job that spans the whole fabric, with MRC and without.

The month is drawn (Monte Carlo, seeded): failures come at random times at the given rates, repairs take exponential
time. With MRC a job runs on at the speed of its slowest host. Without, whatever lasts longer than the transport rides
out stops the job, which restarts from its last checkpoint. Overlapping failures add up, which errs on the dark side.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from softmrc.errors import ConfigError
from softmrc.fabric.description import Description
from softmrc.fabric.shape import Shape, Tier

MONTH_H = 720.0
YEAR_H = 8766.0
MAX_EVENTS = 2_000_000


@dataclass(frozen=True)
class Diversity:
    """Ways between two hosts, by how far apart they are."""

    relation: str
    share_of_pairs: float
    paths_per_plane: int
    paths: int
    switches: int


@dataclass(frozen=True)
class Domain:
    """A thing that can fail: how many there are, and what one of them takes from how many hosts."""

    what: str
    count: int
    hosts: int
    share: float  # of each of those hosts' capacity
    per_year: float  # of each
    repair_h: float

    @property
    def fabric_hosts(self) -> float:
        """Its size: as many whole hosts' worth of capacity as one failure takes away."""
        return self.hosts * self.share


@dataclass
class Month:
    """What the trials came to."""

    trials: int
    seed: int
    failures: dict[str, float] = field(default_factory=dict)  # a month, on average
    mean_capacity: float = 1.0
    worst_host_mean: float = 1.0
    worst_host_p01: float = 1.0  # in one hour of a hundred the slowest host has less
    mrc_lost_gpu_h: float = 0.0
    mrc_lost_gpu_h_p95: float = 0.0
    restart_lost_gpu_h: float = 0.0
    restart_lost_gpu_h_p95: float = 0.0
    restarts: float = 0.0
    gpu_h: float = 0.0
    timeline: list[tuple[float, float]] = field(default_factory=list)  # hour, slowest host, of the first trial


@dataclass
class Assessment:
    """Everything `softmrc assess` has to say."""

    description: Description
    diversity: list[Diversity]
    domains: list[Domain]
    month: Month

    def to_json(self) -> dict[str, Any]:
        shape = self.description.fabric
        return {
            "name": self.description.name,
            "fabric": asdict(shape) | {"switches": shape.switches, "cables": shape.cables, "tiers": shape.tiers},
            "diversity": [asdict(d) for d in self.diversity],
            "domains": [asdict(d) | {"fabric_hosts": d.fabric_hosts} for d in self.domains],
            "month": asdict(self.month),
        }


def diversity(shape: Shape) -> list[Diversity]:
    """One line for each distance that this fabric has."""
    others = shape.hosts - 1
    near = shape.hosts_per_leaf - 1
    lines = [("under the same leaf", near, 1, 1)] if near else []
    in_pod = (shape.leaves_per_pod - 1) * shape.hosts_per_leaf
    if in_pod:
        lines.append(("in the same pod" if shape.pods else "under another leaf", in_pod, shape.spines, 3))
    far = others - near - in_pod
    if far:
        lines.append(("in another pod", far, shape.spines * shape.cores_per_spine, 5))
    return [Diversity(word, n / others, paths, paths * shape.planes, switches) for word, n, paths, switches in lines]


def domains(description: Description) -> list[Domain]:
    """All things that can fail, the largest domain first."""
    s, f = description.fabric, description.failures
    n, below_leaf, everyone = s.planes, s.hosts_per_leaf, s.hosts
    t1 = s.tier_word(Tier.T1)
    pod_hosts = s.leaves_per_pod * below_leaf
    found = [
        Domain("plane", n, everyone, 1 / n, 0.0, 0.0),
        Domain("leaf", n * s.leaves, below_leaf, 1 / n, f.switch_per_year, f.switch_repair_h),
        Domain(t1, n * s.t1_switches, pod_hosts, 1 / (n * s.spines), f.switch_per_year, f.switch_repair_h),
        Domain("NIC port", n * everyone, 1, 1 / n, f.nic_port_per_year, f.nic_port_repair_h),
        Domain("host cable", n * everyone, 1, 1 / n, f.link_per_year, f.link_repair_h),
        Domain(f"leaf–{t1} cable", n * s.leaves * s.spines, below_leaf, 1 / (n * s.spines), f.link_per_year,
               f.link_repair_h),
    ]  # fmt: skip
    if s.pods:
        cores, up = s.t2_switches, s.spines * s.cores_per_spine
        found += [
            Domain("core", n * cores, everyone, 1 / (n * cores), f.switch_per_year, f.switch_repair_h),
            Domain(f"{t1}–core cable", n * s.t1_switches * s.cores_per_spine, pod_hosts, 1 / (n * up),
                   f.link_per_year, f.link_repair_h),
        ]  # fmt: skip
    return sorted(found, key=lambda d: -d.fabric_hosts)


def _kinds(description: Description) -> list[Domain]:
    """What the month draws from: the domains, and flaps of every cable."""
    f = description.failures
    kinds = [d for d in domains(description) if d.per_year]
    for d in [d for d in kinds if d.what.endswith("cable")]:
        kinds.append(Domain(f"flap of a {d.what}", d.count, d.hosts, d.share, f.flap_per_link_year, f.flap_s / 3600))
    return kinds


@dataclass(frozen=True)
class _Events:
    """One trial's failures, in order of their beginning."""

    start_h: np.ndarray
    length_h: np.ndarray
    kind: np.ndarray
    which: np.ndarray


def _draw(kinds: list[Domain], rng: np.random.Generator) -> _Events:
    counts = [int(rng.poisson(k.count * k.per_year * MONTH_H / YEAR_H)) for k in kinds]
    if sum(counts) > MAX_EVENTS:
        allowed = f"rates that make at most {MAX_EVENTS:,} failures a month; these make {sum(counts):,}"
        raise ConfigError("failures", "the rates", allowed)
    empty = np.zeros(0)
    starts, lengths, kind, which = [empty], [empty], [empty.astype(int)], [empty.astype(int)]
    for i, (k, n) in enumerate(zip(kinds, counts, strict=True)):
        starts.append(rng.uniform(0, MONTH_H, n))
        is_flap = k.what.startswith("flap")
        lengths.append(np.full(n, k.repair_h) if is_flap else rng.exponential(k.repair_h, n))
        kind.append(np.full(n, i))
        which.append(rng.integers(0, k.count, n))
    start = np.concatenate(starts)
    order = np.argsort(start, kind="stable")
    length = np.minimum(np.concatenate(lengths), MONTH_H - start)
    return _Events(start[order], length[order], np.concatenate(kind)[order], np.concatenate(which)[order])


class _Worst:
    """The loss of the slowest host while failures come and go: everyone's, plus the worst pod's, plus the worst leaf's,
    in which the worst host counts."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._everyone = 0.0
        self._pods: dict[int, float] = defaultdict(float)
        self._leaves: dict[int, float] = defaultdict(float)
        self._hosts: dict[int, dict[int, float]] = defaultdict(dict)
        self._heap: list[tuple[float, int]] = []

    def change(self, kind: Domain, which: int, by: float) -> None:
        s = self._shape
        if kind.hosts == 1:
            host = which % s.hosts
            own = self._hosts[s.leaf_of(host)]
            own[host] = own.get(host, 0.0) + by
            if own[host] < 1e-12:
                del own[host]
            self._push(s.leaf_of(host))
        elif kind.hosts == s.hosts_per_leaf:
            leaf = which % s.leaves
            self._leaves[leaf] += by
            self._push(leaf)
        elif kind.hosts < s.hosts:
            self._pods[which % s.pods] += by
        else:
            self._everyone += by

    def _of_leaf(self, leaf: int) -> float:
        return self._leaves.get(leaf, 0.0) + max(self._hosts.get(leaf, {}).values(), default=0.0)

    def _push(self, leaf: int) -> None:
        heapq.heappush(self._heap, (-self._of_leaf(leaf), leaf))

    def loss(self) -> float:
        while self._heap and abs(-self._heap[0][0] - self._of_leaf(self._heap[0][1])) > 1e-12:
            heapq.heappop(self._heap)
        worst_leaf = -self._heap[0][0] if self._heap else 0.0
        return min(1.0, self._everyone + max(self._pods.values(), default=0.0) + worst_leaf)


def _sweep(shape: Shape, kinds: list[Domain], events: _Events) -> tuple[np.ndarray, np.ndarray]:
    """The slowest host's capacity as steps: hours, and the capacity from then on."""
    moments = np.concatenate([events.start_h, events.start_h + events.length_h])
    signs = np.concatenate([np.ones(len(events.start_h)), -np.ones(len(events.start_h))])
    index = np.concatenate([np.arange(len(events.start_h))] * 2)
    order = np.argsort(moments, kind="stable")
    worst = _Worst(shape)
    hours, capacity = [0.0], [1.0]
    kind_of, which_of = events.kind.tolist(), events.which.tolist()
    for at, sign, i in zip(moments[order].tolist(), signs[order].tolist(), index[order].tolist(), strict=True):
        kind = kinds[kind_of[i]]
        worst.change(kind, which_of[i], sign * kind.share)
        hours.append(at)
        capacity.append(1.0 - worst.loss())
    return np.array(hours), np.array(capacity)


def _restart_losses(description: Description, events: _Events) -> tuple[float, int]:
    """Hours lost in a month, and restarts, where every outage that is not ridden out stops the whole job."""
    job = description.job
    fatal = events.start_h[events.length_h * 3600 > job.rides_out_s].tolist()
    restart_h, every_h = job.restart_min / 60, job.checkpoint_every_min / 60
    running_since, lost, restarts = 0.0, 0.0, 0
    for at in fatal:
        if at < running_since:  # it comes while the job is restarting: the restart begins anew
            lost += at + restart_h - running_since
            running_since = at + restart_h
            restarts += 1
            continue
        worked = at - running_since
        since_checkpoint = worked if every_h == 0 or worked < every_h else math.fmod(worked, every_h)
        lost += since_checkpoint + restart_h
        running_since = at + restart_h
        restarts += 1
    return min(lost, MONTH_H), restarts


def month(description: Description, trials: int = 20, seed: int = 1) -> Month:
    """Draw so many months."""
    if trials < 1:
        raise ConfigError("trials", trials, "at least 1")
    shape, job = description.fabric, description.job
    kinds = _kinds(description)
    gpus = shape.hosts * job.gpus_per_host
    found = Month(trials, seed, gpu_h=gpus * MONTH_H)
    capacity, worst_mean, worst_low, mrc, restart, restarts = [], [], [], [], [], []
    totals: dict[str, int] = dict.fromkeys((k.what for k in kinds), 0)
    for trial in range(trials):
        events = _draw(kinds, np.random.default_rng([seed, trial]))
        for i, count in enumerate(np.bincount(events.kind, minlength=len(kinds))):
            totals[kinds[i].what] += int(count)
        weight = np.array([k.fabric_hosts for k in kinds])
        capacity.append(1 - float((events.length_h * weight[events.kind]).sum()) / (shape.hosts * MONTH_H))
        hours, worst = _sweep(shape, kinds, events)
        widths = np.diff(np.append(hours, MONTH_H))
        worst_mean.append(float((worst * widths).sum() / MONTH_H))
        order = np.argsort(worst)
        worst_low.append(float(worst[order][np.searchsorted(np.cumsum(widths[order]), MONTH_H / 100)]))
        share = job.communication_share
        speed = np.where(worst > 0, 1 / ((1 - share) + share / np.maximum(worst, 1e-9)), 0.0)
        mrc.append(float(((1 - speed) * widths).sum()) * gpus)
        lost_h, count = _restart_losses(description, events)
        restart.append(lost_h * gpus)
        restarts.append(count)
        if trial == 0:
            found.timeline = _thin(hours, worst)
    found.failures = {what: total / trials for what, total in totals.items()}
    found.mean_capacity, found.worst_host_mean = float(np.mean(capacity)), float(np.mean(worst_mean))
    found.worst_host_p01 = float(np.mean(worst_low))
    found.mrc_lost_gpu_h, found.mrc_lost_gpu_h_p95 = float(np.mean(mrc)), float(np.percentile(mrc, 95))
    found.restart_lost_gpu_h, found.restart_lost_gpu_h_p95 = float(np.mean(restart)), float(np.percentile(restart, 95))
    found.restarts = float(np.mean(restarts))
    return found


def _thin(hours: np.ndarray, capacity: np.ndarray) -> list[tuple[float, float]]:
    """The lowest value of each of 720 hours: what a plot can show."""
    lowest = np.ones(int(MONTH_H))
    held = capacity[np.searchsorted(hours, np.arange(MONTH_H), side="right") - 1]
    np.minimum(lowest, held, out=lowest)
    np.minimum.at(lowest, np.minimum(hours.astype(int), int(MONTH_H) - 1), capacity)
    return [(float(hour), float(value)) for hour, value in enumerate(lowest)]


def assess(description: Description, trials: int = 20, seed: int = 1) -> Assessment:
    """All answers about one fabric."""
    drawn = month(description, trials, seed)
    return Assessment(description, diversity(description.fabric), domains(description), drawn)
