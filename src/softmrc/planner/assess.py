"""One fabric, judged: how many paths there are between two hosts, what each failure takes away and from how many, and
what failures cost a job that spans the whole fabric, with MRC and without.

Both transports have the same parts, failures, spares, crews and repair policy. availability.py has the definitions,
closed_form.py the figures, monte_carlo.py the same figures by another method, sensitivity.py the assumptions that would
change the answer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

from softmrc.errors import ConfigError
from softmrc.fabric.description import Description
from softmrc.fabric.shape import Shape, Tier
from softmrc.planner import closed_form
from softmrc.planner.availability import POLICIES, TRANSPORTS, Losses
from softmrc.planner.monte_carlo import MONTH_H, MonteCarloResult, draw, events_a_month
from softmrc.planner.plan import DesignSpec, fewest_tiers, shape_of
from softmrc.planner.sensitivity import NO_DIFFERENCE, SensitivityResult, find

EVENTS_DRAWN = 60_000  # unless more months are requested
MAX_MONTHS = 24
PLANES = (1, 2, 4, 8, 16)  # on which RoCE is tried
NETWORK_RATES = tuple(
    f"{part}_per_year" for part in ("link", "nic_port", "optic", "switch")
) + ("flap_per_link_year",)  # fmt: skip


@dataclass(frozen=True)
class Diversity:
    """Paths between two hosts, by how far apart they are."""

    relation: str
    share_of_pairs: float
    paths_per_plane: int
    paths: int
    switches: int


@dataclass(frozen=True)
class FailureDomain:
    """A thing that can fail: how many there are, and what one of them takes from how many hosts."""

    what: str
    count: int
    hosts: int
    share: float  # of each of those hosts' capacity
    per_year: float  # of each
    repair_h: float
    is_above: bool = False  # the leaves: switches reroute around it

    @property
    def a_month(self) -> float:
        """Failures of all of them."""
        return self.count * self.per_year * MONTH_H / closed_form.YEAR_H

    @property
    def fabric_hosts(self) -> float:
        """Its size: as many whole hosts' worth of capacity as one failure takes away."""
        return self.hosts * self.share


@dataclass(frozen=True)
class Price:
    """What a share of a job's time is worth, for a month."""

    gpu_h: float
    usd: float
    watts: float

    @property
    def mwh(self) -> float:
        return self.watts * MONTH_H / 1e6


@dataclass(frozen=True)
class BestRoceFabric:
    """The fabric on which RoCE loses least, for the same GPUs, NICs and switches."""

    planes: int
    tiers: int
    switch_bps: int
    lost: float
    is_here: bool  # the one that is judged


@dataclass
class Assessment:
    """Everything `softmrc assess` has to say."""

    description: Description
    diversity: list[Diversity]
    domains: list[FailureDomain]
    losses: dict[str, dict[str, Losses]]  # by policy and transport, in closed form
    hosts_alone: Losses  # with a network that never fails
    drawn: dict[str, MonteCarloResult]  # by transport, with its best policy
    roce_elsewhere: BestRoceFabric
    search: SensitivityResult  # for what would change the answer
    seed: int
    idle_switches: int = 0  # that no packet crosses, and that are left out

    def best(self, transport: str) -> str:
        """The policy with which this transport loses least."""
        return min(POLICIES, key=lambda policy: self.losses[policy][transport].lost)

    def of_best(self, transport: str) -> Losses:
        return self.losses[self.best(transport)][transport]

    def network_share(self, transport: str) -> float:
        """Of the time that hosts leave, what the network's failures take under the best policy."""
        return self.of_best(transport).beyond(self.hosts_alone)

    def ridden_out(self, transport: str) -> float:
        """Failures a month of parts without which a job goes on, whether it runs just then or not."""
        job = self.description.job
        if transport == "roce":
            return sum(d.a_month for d in self.domains if d.is_above and job.reroute_s <= job.rides_out_s)
        return sum(d.a_month for d in self.domains if d.is_above or d.share < 1)

    @property
    def uplinks_share(self) -> float:
        """Of the time that failures leave, what lean uplinks take: no failure, and in no other figure."""
        return closed_form.uplinks_share(self.description)

    def price(self, share: float) -> Price:
        job = self.description.job
        gpus = self.description.gpus
        hours = share * gpus * MONTH_H
        return Price(hours, hours * job.gpu_hour_usd, share * gpus * job.gpu_w)

    def to_json(self) -> dict[str, Any]:
        shape = self.description.fabric
        counts: dict[str, float] = {"switches": shape.switches, "cables": shape.cables, "tiers": shape.tiers}
        counts |= {"gpus": self.description.gpus, "oversubscription": float(shape.oversubscription)}
        return {
            "name": self.description.name,
            "fabric": asdict(shape) | counts,
            "failures": asdict(self.description.failures),
            "job": asdict(self.description.job),
            "diversity": [asdict(d) for d in self.diversity],
            "domains": [asdict(d) | {"fabric_hosts": d.fabric_hosts} for d in self.domains],
            "losses": {p: {t: one.to_json() for t, one in row.items()} for p, row in self.losses.items()},
            "hosts_alone": self.hosts_alone.to_json(),
            "best": {t: self.best(t) for t in TRANSPORTS},
            "network_share": {t: self.network_share(t) for t in TRANSPORTS},
            "uplinks_share": self.uplinks_share,
            "drawn": {t: {"seed": self.seed, "mean": m.mean.to_json(), "lost": m.lost} for t, m in self.drawn.items()},
            "roce_elsewhere": asdict(self.roce_elsewhere),
            "flips": [asdict(one) for one in self.search.flips],
            "a_month": {
                t: asdict(self.price(self.of_best(t).lost)) | {"mwh": self.price(self.of_best(t).lost).mwh}
                for t in TRANSPORTS
            },
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


def domains(description: Description) -> list[FailureDomain]:
    """All things that can fail, the largest domain first."""
    s, f = description.fabric, description.failures
    n, below_leaf, everyone = s.planes, s.hosts_per_leaf, s.hosts
    machines, nics = description.machines, description.nics_per_machine
    t1 = s.tier_word(Tier.T1)
    pod_hosts = s.leaves_per_pod * below_leaf
    links, of_nic = description.links_of_an_optic, description.planes_of_an_optic
    optics = -(-below_leaf // links)
    cables = max(1, n // f.planes_per_cable)
    found = [
        FailureDomain("plane", n, everyone, 1 / n, 0.0, 0.0),
        FailureDomain("leaf", n * s.leaves, below_leaf, 1 / n, f.switch_per_year, f.switch_repair_h),
        FailureDomain("leaf's optic", n * s.leaves * optics, links, 1 / n, f.optic_per_year,
               f.optic_repair_h),
        FailureDomain("power feed", description.feeds, min(f.hosts_per_feed, machines) * nics, 1.0, f.power_per_year,
               f.power_repair_h),
        FailureDomain("GPU" if nics > 1 else "host", machines, nics, 1.0, f.gpu_per_year * description.gpus / machines,
               f.gpu_repair_h),
        FailureDomain("NIC", description.nics, 1, 1.0, f.nic_per_year, f.nic_repair_h),
        FailureDomain("NIC's optic", n // of_nic * everyone, 1, of_nic / n, f.optic_per_year, f.optic_repair_h),
        FailureDomain("NIC port", n * everyone, 1, 1 / n, f.nic_port_per_year, f.nic_port_repair_h),
        FailureDomain("host cable", cables * everyone, 1, 1 / cables, f.link_per_year, f.link_repair_h),
    ]  # fmt: skip
    if s.spines:
        up = n * s.spines * s.cables_per_link
        found += [
            FailureDomain(
                t1, n * s.t1_switches, pod_hosts, 1 / (n * s.spines), f.switch_per_year, f.switch_repair_h, True
            ),
            FailureDomain(
                f"leaf–{t1} cable", s.leaves * up, below_leaf, 1 / up, f.link_per_year, f.link_repair_h, True
            ),
        ]
    if s.pods:
        cores, cables = s.t2_switches, s.cables_per_core_link
        found += [
            FailureDomain("core", n * cores, everyone, 1 / (n * cores), f.switch_per_year, f.switch_repair_h, True),
            FailureDomain(f"{t1}–core cable", n * s.pods * cores * cables, pod_hosts, 1 / (n * cores * cables),
                   f.link_per_year, f.link_repair_h, True),
        ]  # fmt: skip
    return sorted(found, key=lambda d: -d.fabric_hosts)


def compare(description: Description) -> dict[str, dict[str, Losses]]:
    """Every policy, with either transport, in closed form."""
    return {p: {t: closed_form.losses(description, t, p) for t in TRANSPORTS} for p in POLICIES}


def without_network_failures(description: Description) -> Description:
    never: dict[str, Any] = dict.fromkeys(NETWORK_RATES, 0.0)
    return replace(description, failures=replace(description.failures, **never))


def roce_elsewhere(description: Description) -> BestRoceFabric:
    """Planes do not help RoCE: with each port that breaks its job stops. So it is also judged where it
    loses least: with any number of planes, of as few tiers as reach all NICs."""
    d, shape = description, description.fabric
    nic_bps = shape.planes * shape.host_link_bps
    switch_bps = -(-shape.switch_bps // (2 * nic_bps)) * 2 * nic_bps  # an even number of ports, whatever the planes
    spares = d.job.spare_share if d.spares <= d.places else 0.0
    asked = DesignSpec(d.machines, nic_bps, switch_bps, d.nics_per_machine, spares)
    found = [BestRoceFabric(shape.planes, shape.tiers, switch_bps, _best_lost(d.spanned, "roce"), True)]
    for planes in PLANES:
        one = fewest_tiers(asked, planes, max(shape.oversubscription, Fraction(1))) if planes != shape.planes else None
        if one is None:
            continue
        try:
            other = replace(d, fabric=shape_of(one), job=replace(d.job, gpus=d.gpus)).spanned
            found.append(BestRoceFabric(planes, one.tiers, switch_bps, _best_lost(other, "roce"), False))
        except ConfigError:  # what fails together is no part of so many planes
            continue
    here, best = found[0], min(found, key=lambda one: one.lost)
    return best if best.lost < here.lost - NO_DIFFERENCE else here


def _best_lost(description: Description, transport: str) -> float:
    return min(closed_form.losses(description, transport, policy).lost for policy in POLICIES)


def assess(description: Description, trials: int = 0, seed: int = 1) -> Assessment:
    """All answers about one fabric, of which the part counts that packets cross; no trials: as many months as a few
    seconds allow."""
    if trials < 0:
        raise ConfigError("trials", trials, "must be at least 1, or 0 for as many as take a few seconds")
    idle = description.fabric.switches - description.fabric.crossed.switches
    description = replace(description, fabric=description.fabric.crossed)
    span = description.spanned
    losses = compare(span)
    months = trials or max(1, min(MAX_MONTHS, int(EVENTS_DRAWN / (events_a_month(span) or 1))))
    best = {t: min(POLICIES, key=lambda p: losses[p][t].lost) for t in TRANSPORTS}
    return Assessment(
        description, diversity(description.fabric), domains(span), losses,
        hosts_alone=closed_form.losses(without_network_failures(span), "mrc", "repair"),
        drawn={t: draw(span, t, best[t], months, seed) for t in TRANSPORTS},
        roce_elsewhere=roce_elsewhere(description),
        search=find(span),
        seed=seed,
        idle_switches=idle,
    )  # fmt: skip
