"""Designs side by side: planes × tiers × oversubscription for a number of GPUs, a NIC and a switch.

A plane is a folded Clos of equal switches. With radix k (ports of the plane's rate) and oversubscription o, T0 has
k·o/(1+o) ports down and k/(1+o) up; tiers between have half of each; the top has all ports down. A single tier is one
switch a plane, with all ports down.

What is counted and priced is what is written, and so what is assessed and simulated: every leaf meets every spine (of
its pod) by as many cables, NICs are spread evenly over leaves, and of all ways to lay a fabric out like that the one
with the fewest switches is taken. Where a fabric is full that is the textbook's number. Four tiers and more, which no
fabric file has, are counted with whole switches in each tier.

What costs what is read from a price file, whose defaults are assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from softmrc._support.files import located, parse_toml, read_text
from softmrc._support.tables import check_keys, read_table
from softmrc._support.units import counted, rate_text, ratio_text
from softmrc.errors import ConfigError
from softmrc.fabric.description import OPTIC_BPS
from softmrc.fabric.shape import Shape

LANE_BPS = 100_000_000_000
MAX_PORTS = 1 << 14  # of a switch, far beyond any


@dataclass(frozen=True)
class SwitchPrice:
    cost_usd_per_tbps: float = 0.0
    power_w_per_tbps: float = 0.0


@dataclass(frozen=True)
class OpticPrice:
    cost_usd: float = 0.0
    power_w: float = 0.0


@dataclass(frozen=True)
class CablePrice:
    cost_usd: float = 0.0


@dataclass(frozen=True)
class EnergyPrice:
    cost_usd_per_kwh: float = 0.0
    overhead: float = 1.0
    years: float = 5.0


@dataclass(frozen=True)
class Prices:
    """A price file."""

    switch: SwitchPrice = field(default_factory=SwitchPrice)
    optic: OpticPrice = field(default_factory=OpticPrice)
    cable: CablePrice = field(default_factory=CablePrice)
    energy: EnergyPrice = field(default_factory=EnergyPrice)
    are_assumptions: bool = True

    @classmethod
    def load(cls, path: Path | None = None) -> Prices:
        """Read a price file, or the one that comes with SoftMRC."""
        text = read_text(path, "prices") if path else (resources.files(__package__) / "prices.toml").read_text()
        table = parse_toml(text, str(path))
        kinds = {"switch": SwitchPrice, "optic": OpticPrice, "cable": CablePrice, "energy": EnergyPrice}
        try:
            check_keys(kinds, table, "", "")
            parts = {key: read_table(kinds[key], value, "", key) for key, value in table.items()}
        except ConfigError as error:
            raise located(error, str(path), text) from None
        return cls(**parts, are_assumptions=path is None)


@dataclass(frozen=True)
class DesignSpec:
    """The requested design."""

    gpus: int
    nic_bps: int
    switch_bps: int
    nics_per_gpu: int = 1
    spare_share: float = 0.0  # of the GPUs: so many more stand by, each with its ports
    lane_bps: int = LANE_BPS  # of a switch; it has no more ports than lanes

    def __post_init__(self) -> None:
        for key, least in (("gpus", 2), ("nics_per_gpu", 1)):
            if getattr(self, key) < least:
                raise ConfigError(key, getattr(self, key), f"must be at least {least}")

    @property
    def spares(self) -> int:
        return math.ceil(self.spare_share * self.gpus)

    @property
    def nics(self) -> int:
        return (self.gpus + self.spares) * self.nics_per_gpu


@dataclass(frozen=True)
class Layout:
    """How many there are of everything in a plane, and how many cables lie side by side."""

    hosts_per_leaf: int
    leaves: int
    spines: int = 0  # that a leaf meets
    cables: int = 0  # to each of them
    pods: int = 0
    cores_per_spine: int = 0
    core_cables: int = 0

    @property
    def hosts(self) -> int:
        return self.leaves * self.hosts_per_leaf

    @property
    def by_tier(self) -> tuple[int, ...]:
        if self.pods:
            return self.leaves, self.pods * self.spines, self.spines * self.cores_per_spine
        return (self.leaves, self.spines) if self.spines else (self.leaves,)

    @property
    def links(self) -> int:
        """Cables."""
        above = self.leaves * self.spines * self.cables
        return self.hosts + above + self.pods * self.spines * self.cores_per_spine * self.core_cables


@dataclass(frozen=True)
class Design:
    """One way to build it, and what follows. Shares are of one NIC's capacity unless they say otherwise."""

    planes: int
    tiers: int
    oversubscription: Fraction
    nics: int  # requested
    port_bps: int
    radix: int
    downlinks: int  # of a leaf
    uplinks: int  # of a leaf, as it is built
    max_nics: int
    layout: Layout | None  # None: more tiers than a fabric file has
    hosts: int  # NICs of a fabric whose leaves have as many each; what is counted and priced
    switches_by_tier: tuple[int, ...]  # all planes together, T0 first
    links: int
    optics_800g: float
    cost_usd: float
    power_w: float
    energy_usd: float

    @property
    def switches(self) -> int:
        return sum(self.switches_by_tier)

    @property
    def longest_path_switches(self) -> int:
        return 2 * self.tiers - 1

    @property
    def neighbours_one_hop(self) -> int:
        return self.layout.hosts_per_leaf if self.layout else min(self.downlinks, self.nics)

    @property
    def paths(self) -> int:
        """Paths between two NICs that are farthest apart, over all planes."""
        if self.layout is None:  # by each switch at the top, if all can be reached
            most = self.planes * self.uplinks * (self.radix // 2) ** (self.tiers - 2)
            return min(most, self.switches_by_tier[-1])
        return self.planes * max(self.layout.spines, 1) * max(self.layout.cores_per_spine, 1)

    @property
    def down_up(self) -> Fraction | None:
        """Downlinks to uplinks of a leaf as it is built, which may be fewer than requested; None: no uplinks."""
        if not self.uplinks:
            return None
        leaf = self.layout.hosts_per_leaf if self.layout else -(-self.nics * self.planes // self.switches_by_tier[0])
        return Fraction(leaf, self.uplinks)

    # What a failure takes away.

    @property
    def link_share_in_plane(self) -> float:
        """Of a NIC's capacity in that plane, with one leaf uplink."""
        return 1 / self.uplinks if self.uplinks else 0.0

    @property
    def link_share(self) -> float:
        return self.link_share_in_plane / self.planes

    @property
    def port_share(self) -> float:
        """With one port or its cable; a leaf takes as much from each of its NICs, a plane from all."""
        return 1 / self.planes

    @property
    def t1_share(self) -> float:
        """With one T1 switch, for every NIC below it: all its cables to a leaf go with it."""
        return self.link_share * (self.layout.cables if self.layout else 1)

    @property
    def t0_nics(self) -> int:
        return self.neighbours_one_hop

    def to_json(self) -> dict[str, Any]:
        built = None if self.down_up is None else float(self.down_up)
        found = asdict(self) | {"oversubscription": float(self.oversubscription), "built_oversubscription": built}
        names = (
            "switches", "longest_path_switches", "neighbours_one_hop", "paths", "link_share_in_plane", "link_share",
            "port_share", "t1_share", "t0_nics",
        )  # fmt: skip
        return found | {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Impossible:
    """A design that cannot be built, and the numbers that show it."""

    planes: int
    tiers: int  # 0: with any number of them
    oversubscription: Fraction
    reason: str

    @property
    def name(self) -> str:
        tiers = f", {counted(self.tiers, 'tier')}" if self.tiers else ""
        return counted(self.planes, "plane") + tiers

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"oversubscription": float(self.oversubscription)}


def design(
    question: DesignSpec, prices: Prices, planes: int, tiers: int, oversubscription: Fraction | int = 1
) -> Design:
    """Work a design out, or raise ConfigError with the numbers."""
    q, o = question, Fraction(oversubscription)
    for key, value, least in (("planes", planes, 1), ("tiers", tiers, 1)):
        if value < least:
            raise ConfigError(key, value, f"must be at least {least}")
    if o < 1:
        raise ConfigError("oversubscription", float(o), "must be at least 1", "1 means as much bandwidth up as down.")
    if q.nic_bps % planes:
        raise ConfigError("planes", planes, f"must divide the NIC's {rate_text(q.nic_bps)}")
    port_bps = q.nic_bps // planes
    if q.switch_bps % port_bps:
        raise ConfigError(
            "switch", rate_text(q.switch_bps), f"must be a multiple of the port rate {rate_text(port_bps)}"
        )
    radix = q.switch_bps // max(port_bps, q.lane_bps)
    if radix > MAX_PORTS:
        raise ConfigError(
            "switch", rate_text(q.switch_bps), f"must have at most {MAX_PORTS:,} ports, and has {radix:,}"
        )
    if tiers == 1:
        if o != 1:
            raise ConfigError("oversubscription", float(o), "must be 1 with a single tier, which has no uplinks")
        if q.nics > radix:
            raise ConfigError("tiers", 1, f"too few: a switch has {radix:,} ports for {q.nics:,} NICs{_with_spares(q)}")
        return _price(q, prices, planes, 1, o, port_bps, radix, radix, 0, radix)
    down = radix * o / (1 + o)
    if down.denominator != 1:
        split = f"{float(down):.1f} down and {float(radix - down):.1f} up"
        raise ConfigError(
            "oversubscription", float(o), f"must split {radix} ports into whole numbers, and makes {split}"
        )
    if radix % 2:
        raise ConfigError("switch", rate_text(q.switch_bps), f"must have an even number of ports, and has {radix}")
    downlinks, uplinks = int(down), radix - int(down)
    most = downlinks * (radix // 2) ** (tiers - 2) * radix
    if uplinks < 1 or most < q.nics:
        need = f"{tiers} tiers of {radix} ports reach {most:,} NICs, and {q.nics:,} are requested{_with_spares(q)}"
        raise ConfigError("tiers", tiers, f"too few: {need}", "Use more tiers or more planes.")
    if q.nics <= downlinks:
        raise ConfigError("tiers", tiers, f"must be 1: a single leaf connects all {q.nics:,} NICs")
    return _price(q, prices, planes, tiers, o, port_bps, radix, downlinks, uplinks, most)


def _with_spares(q: DesignSpec) -> str:
    return f", {q.spares * q.nics_per_gpu:,} of them for spares" if q.spares else ""


def _price(
    q: DesignSpec, prices: Prices, planes: int, tiers: int, o: Fraction, port_bps: int, radix: int, downlinks: int,
    uplinks: int, most: int,
) -> Design:  # fmt: skip
    layout = lay_out(q.nics, tiers, radix, o)
    if layout is not None:
        uplinks = layout.spines * layout.cables
        hosts, links, counts = layout.hosts, layout.links, layout.by_tier
    else:
        leaves = -(-q.nics // downlinks)
        rising = leaves * uplinks  # cables from each tier to the next
        hosts, links = q.nics, q.nics + (tiers - 1) * rising
        counts = (leaves, *(-(-rising // (radix // 2)) for _ in range(tiers - 2)), -(-rising // radix))
    by_tier = tuple(planes * count for count in counts)
    links *= planes
    optics = 2 * links * port_bps / OPTIC_BPS
    tbps = sum(by_tier) * q.switch_bps / 1e12
    power_w = tbps * prices.switch.power_w_per_tbps + optics * prices.optic.power_w
    cost_usd = tbps * prices.switch.cost_usd_per_tbps + optics * prices.optic.cost_usd + links * prices.cable.cost_usd
    hours = prices.energy.years * 8766
    return Design(
        planes, tiers, o, q.nics, port_bps, radix, downlinks, uplinks, most, layout, hosts, by_tier, links, optics,
        cost_usd=cost_usd,
        power_w=power_w,
        energy_usd=power_w / 1e3 * prices.energy.overhead * hours * prices.energy.cost_usd_per_kwh,
    )  # fmt: skip


@cache
def lay_out(nics: int, tiers: int, radix: int, oversubscription: Fraction) -> Layout | None:
    """A plane with the fewest switches, and of those the fewest cables, where NICs fill more than one leaf; None where
    there are more tiers than a fabric file has. Three tiers have more than one pod: nothing would cross their cores."""
    if tiers == 1:
        return Layout(nics, 1)
    if tiers > 3:
        return None
    found = _two_tiers if tiers == 2 else _three_tiers
    return min(found(nics, radix, oversubscription), key=lambda one: (sum(one.by_tier), one.links, one.leaves))


def _uplinks(h: int, radix: int, ratio: Fraction, most_cables: int) -> Iterator[tuple[int, int]]:
    """How many T1 a leaf with so many NICs meets, and by how many cables each. No T1 is the only one above a leaf,
    unless the leaf needs a single uplink."""
    need = math.ceil(h / ratio)
    for cables in range(1, most_cables + 1):
        spines = max(-(-need // cables), min(need, 2))
        if h + spines * cables <= radix:
            yield spines, cables


def _two_tiers(nics: int, radix: int, ratio: Fraction) -> Iterator[Layout]:
    fewest = math.ceil(nics / ratio / radix)  # spines
    best = math.inf
    for leaves in range(math.ceil(nics * (1 + ratio) / ratio / radix), radix + 1):
        if leaves + fewest > best:
            return
        h = -(-nics // leaves)
        for spines, cables in _uplinks(h, radix, ratio, radix // leaves):
            best = min(best, leaves + spines)
            yield Layout(h, leaves, spines, cables)


def _three_tiers(nics: int, radix: int, ratio: Fraction) -> Iterator[Layout]:
    """With as much from aggregations to cores as from leaves to aggregations."""
    least = math.ceil(nics * (1 + ratio) / ratio / radix)
    fewest = math.ceil(3 * nics / ratio / radix)  # aggregations and cores
    best = math.inf
    for per_pod in range(1, radix // 2 + 1):
        for pods in range(max(2, -(-least // per_pod)), radix + 1):
            leaves = pods * per_pod
            if leaves + fewest > best:
                break
            h = -(-nics // leaves)
            for spines, cables in _uplinks(h, radix, ratio, radix // 2 // per_pod):
                core = _cores(per_pod * cables, pods, radix)
                if core:
                    one = Layout(h, leaves, spines, cables, pods, *core)
                    best = min(best, sum(one.by_tier))
                    yield one


def _cores(rising: int, pods: int, radix: int) -> tuple[int, int] | None:
    """How many cores an aggregation meets, and by how many cables each: as few as can be."""
    for side in range(min(radix // pods, rising), 0, -1):
        cores = -(-rising // side)
        side = -(-rising // cores)
        if rising + cores * side <= radix:
            return cores, side
    return None


def compare(
    question: DesignSpec,
    prices: Prices,
    planes: tuple[int, ...] = (1, 2, 4, 8),
    tiers: tuple[int, ...] = (2, 3, 4),
    oversubscriptions: tuple[Fraction, ...] = (Fraction(1),),
    only_smallest: bool = True,
) -> list[Design | Impossible]:
    """Every combination. With `only_smallest`, tiers beyond the fewest that suffice are left out: they only add."""
    found: list[Design | Impossible] = []
    for n in planes:
        if question.nic_bps % n:
            found.append(
                Impossible(n, 0, oversubscriptions[0], f"{rate_text(question.nic_bps)} is not divisible by {n}")
            )
            continue
        for o in oversubscriptions:
            refused: list[Impossible] = []
            fits: list[Design] = []
            for t in tiers:
                if only_smallest and fits:
                    break
                try:
                    fits.append(design(question, prices, n, t, o))
                except ConfigError as error:
                    refused.append(Impossible(n, t, o, reason_of(error)))
            found += fits or refused[-1:]
    return found


def reason_of(error: ConfigError) -> str:
    """Why a design cannot be built."""
    return error.problem if error.field in ("tiers", "planes") else f"{error.field}: {error.problem}"


def fewest_tiers(question: DesignSpec, planes: int, oversubscription: Fraction) -> Design | None:
    """The lowest design that a fabric file has, without its price; None if there is none."""
    found = compare(question, Prices(), (planes,), (1, 2, 3), (oversubscription,))
    return next((one for one in found if isinstance(one, Design)), None)


def shape_of(found: Design) -> Shape:
    """The fabric of a design, as a fabric file has it."""
    if found.layout is None:
        raise ConfigError("tiers", found.tiers, "must be at most 3 in a fabric file")
    one = found.layout
    return Shape(
        planes=found.planes, hosts=one.hosts, hosts_per_leaf=one.hosts_per_leaf, spines=one.spines, pods=one.pods,
        cores_per_spine=one.cores_per_spine, host_link_bps=found.port_bps, fabric_link_bps=found.port_bps,
        cables_per_link=one.cables or 1, cables_per_core_link=one.core_cables or 1,
    )  # fmt: skip


def gpus_text(question: DesignSpec) -> str:
    each = f" with {question.nics_per_gpu} NICs each" if question.nics_per_gpu > 1 else ""
    return f"{question.gpus:,} GPUs{' and ' + counted(question.spares, 'spare') if question.spares else ''}{each}"


def fabric_file(question: DesignSpec, found: Design) -> str:
    """A design as the file that assess, sim, lab and fabric read."""
    shape = shape_of(found)
    nic, switch, port = (rate_text(rate) for rate in (question.nic_bps, question.switch_bps, found.port_bps))
    lines = [
        f"# {gpus_text(question)}, NICs of {nic}, switches of {switch}: {counted(found.planes, 'plane')}, "
        f"{counted(found.tiers, 'tier')}" + (f", {ratio_text(found.down_up)} at a leaf." if found.down_up else "."),
    ]
    if found.hosts != found.nics:
        lines.append(f"# {counted(found.hosts - found.nics, 'NIC')} more than requested: every leaf has as many.")
    lines += ["[fabric]", f"planes = {shape.planes}", f"hosts = {shape.hosts}"]
    lines += [f"hosts_per_leaf = {shape.hosts_per_leaf}", f"spines = {shape.spines}"]
    if shape.pods:
        lines += [f"pods = {shape.pods}", f"cores_per_spine = {shape.cores_per_spine}"]
    lines += [f'host_link_bps = "{port}"', f'fabric_link_bps = "{port}"']
    if shape.cables_per_link > 1:
        lines.append(f"cables_per_link = {shape.cables_per_link}  # side by side, from a leaf to each spine")
    if shape.cables_per_core_link > 1:
        lines.append(f"cables_per_core_link = {shape.cables_per_core_link}")
    if question.gpus != shape.hosts:
        lines += ["[job]", f"gpus = {question.gpus}  # that the NICs belong to"]
        if shape.hosts // question.gpus != question.nics_per_gpu:
            lines.append(f"nics_per_gpu = {question.nics_per_gpu}")
        lines.append(f"spare_share = {question.spare_share:g}  # of the GPUs; {question.spares:,} stand by")
    return "\n".join(lines) + "\n"
