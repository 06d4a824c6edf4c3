"""A design space: every combination of what may be varied, what it costs, what failures take from it, and which of them
nobody could do better than.

    gpus = 16384                       [vary]  each a value or a list: planes, tiers, oversubscription,
    crossing_share = 0.5                       nic_bps, switch_bps, spare_share
    [vary]                             [keep]  the most that is allowed: cost_usd, power_w, lost_share
    planes = [1, 2, 4, 8]              [failures], [job]: as in a fabric file
    nic_bps = ["400G", "800G"]         evs     numbers of EVs a queue pair to try, with packets alone
    [keep]
    power_w = 5e6

All of it is arithmetic (plan.py, closed_form.py), so hundreds of points take seconds. What is left can be confirmed
with packets (softmrc.sim.confirm).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from softmrc.errors import ConfigError
from softmrc.fabric import closed_form
from softmrc.fabric.assess import without_network_failures
from softmrc.fabric.description import Description, Failures, Job, read_section, unknown_key
from softmrc.fabric.losses import POLICIES
from softmrc.fabric.plan import Prices, Question, design, shape_of
from softmrc.files import located, parse_toml, read_text
from softmrc.units import as_rate_bps, as_share, rate_text, share_text

MOST_POINTS = 20_000
MOST_EVS = 1024
CLEAR_DIFFERENCE = 0.001  # of the job's time
VARIED: dict[str, tuple[Any, ...]] = {
    "planes": (1, 2, 4, 8),
    "tiers": (1, 2, 3),
    "oversubscription": (1,),
    "nic_bps": ("800G",),
    "switch_bps": ("51.2T",),
    "spare_share": (0.01,),
}


@dataclass(frozen=True)
class Limits:
    """The most that is allowed; 0: anything."""

    cost_usd: float = 0.0  # to build it, its energy and the spares that stand by, over its life
    power_w: float = 0.0
    lost_share: float = 0.0  # of the job's time, to all failures with MRC and its best policy, and to lean uplinks


@dataclass(frozen=True)
class Study:
    """What is asked."""

    gpus: int
    vary: dict[str, tuple[Any, ...]]
    keep: Limits = field(default_factory=Limits)
    failures: Failures = field(default_factory=Failures)
    job: Job = field(default_factory=Job)
    crossing_share: float = 1.0  # of what a host sends: what leaves its leaf
    evs: tuple[int, ...] = ()  # a queue pair's, to be tried with packets: no arithmetic tells what they do

    @property
    def points(self) -> list[dict[str, Any]]:
        return [dict(zip(self.vary, values, strict=True)) for values in itertools.product(*self.vary.values())]

    def name_of(self, varied: dict[str, Any]) -> str:
        """By what it differs from others."""
        planes, tiers = varied["planes"], varied["tiers"]
        words = [f"{planes} {'plane' if planes == 1 else 'planes'} × {tiers} {'tier' if tiers == 1 else 'tiers'}"]
        said = {
            "oversubscription": lambda value: f"{value:g} : 1",
            "nic_bps": lambda value: f"NICs of {rate_text(as_rate_bps('nic_bps', value))}",
            "switch_bps": lambda value: f"switches of {rate_text(as_rate_bps('switch_bps', value))}",
            "spare_share": lambda value: f"{share_text(value)} spares",
        }
        return ", ".join(words + [said[key](varied[key]) for key in said if len(self.vary[key]) > 1])


@dataclass(frozen=True)
class Point:
    """One combination: what it comes to, or why it is out."""

    name: str
    varied: dict[str, Any]
    out: str = ""  # why it cannot be built, or is not wanted, or who is better; empty: on the front
    cost_usd: float = 0.0
    power_w: float = 0.0
    lost_share: float = 0.0  # the three below together
    hosts_share: float = 0.0  # of it, what would be lost with a network that never fails
    network_share: float = 0.0  # what failures of the network add
    uplinks_share: float = 0.0  # what lean uplinks add
    policy: str = ""
    switches: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def load(path: Path) -> Study:
    """A study from its file."""
    text = read_text(path, "study")
    table = parse_toml(text, "study", str(path))
    try:
        return parse(table)
    except ConfigError as error:
        raise located(error, str(path), text) from None


def parse(table: dict[str, Any]) -> Study:
    known = [one.name for one in fields(Study)]
    for key, value in table.items():
        if key not in known:
            raise unknown_key("", key, value, known)
    gpus = table.get("gpus")
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 2:
        raise ConfigError("gpus", gpus, "a whole number of at least 2")
    study = Study(
        gpus,
        _varied(table.get("vary", {})),
        read_section("keep", table.get("keep", {}), Limits),
        read_section("failures", table.get("failures", {}), Failures),
        read_section("job", table.get("job", {}), Job),
        as_share("crossing_share", table.get("crossing_share", 1.0)),
        _evs(table.get("evs", [])),
    )
    if len(study.points) > MOST_POINTS:
        raise ConfigError("vary", len(study.points), f"at most {MOST_POINTS:,} combinations")
    return study


def _evs(given: object) -> tuple[int, ...]:
    values = given if isinstance(given, list) else [given]
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_EVS:
            raise ConfigError("evs", value, f"whole numbers from 1 to {MOST_EVS}")
    return tuple(dict.fromkeys(values))


def _varied(table: object) -> dict[str, tuple[Any, ...]]:
    if not isinstance(table, dict):
        raise ConfigError("vary", table, "a section, [vary]")
    found = dict(VARIED)
    for key, given in table.items():
        if key not in VARIED:
            raise unknown_key("vary", key, given, list(VARIED))
        values = given if isinstance(given, list) else [given]
        if not values:
            raise ConfigError(f"vary.{key}", given, "at least one value")
        found[key] = tuple(_checked(f"vary.{key}", value) for value in values)
    return found


def _checked(where: str, value: Any) -> Any:
    if where.endswith("_bps"):
        as_rate_bps(where, value)
    elif where.endswith("_share"):
        return as_share(where, value)
    elif where.endswith("oversubscription"):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 1 <= value <= 64:
            raise ConfigError(where, value, "a number from 1 to 64")
    elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(where, value, "a whole number of at least 1")
    return value


def judge(study: Study, prices: Prices, varied: dict[str, Any]) -> Point:
    """One combination, as far as it goes by itself. Communication is held up by whichever is busier: a host's own
    links, or the uplinks of its leaf, which carry what leaves it."""
    name = study.name_of(varied)
    nic, switch = (as_rate_bps(f"vary.{key}", varied[key]) for key in ("nic_bps", "switch_bps"))
    try:
        ratio = Fraction(varied["oversubscription"]).limit_denominator(1000)
        found = design(Question(study.gpus, nic, switch), prices, varied["planes"], varied["tiers"], ratio)
        shape = shape_of(found)
        job = replace(study.job, spare_share=varied["spare_share"])
        description = Description(fabric=shape, failures=study.failures, job=job)
        lost = {policy: closed_form.losses(description, "mrc", policy).lost for policy in POLICIES}
        hosts = closed_form.losses(without_network_failures(description), "mrc", "repair").lost
    except ConfigError as error:
        return Point(name, varied, f"cannot be: {error.field}: {error.allowed}")
    policy = min(POLICIES, key=lambda one: lost[one])
    idle_gpus = math.ceil(job.spare_share * study.gpus)
    spares_usd = idle_gpus * job.gpu_hour_usd * prices.energy.years * closed_form.YEAR_H
    cost = found.cost_usd + found.energy_usd + spares_usd
    share = job.communication_share
    longer = share * max(0.0, float(ratio) * study.crossing_share - 1)  # of a step
    uplinks = (1 - lost[policy]) * longer / (1 + longer)
    parts = (lost[policy] + uplinks, hosts, lost[policy] - hosts, uplinks)
    return _within(study.keep, Point(name, varied, "", cost, found.power_w, *parts, policy, found.switches))


def _within(limits: Limits, point: Point) -> Point:
    for one in fields(Limits):
        most, value = getattr(limits, one.name), getattr(point, one.name)
        if most and value > most:
            return replace(point, out=f"not wanted: {one.name} is {value:.3g}, and {most:.3g} is the most")
    return point


def explore(study: Study, prices: Prices) -> list[Point]:
    """All points: those that nobody beats first, the cheapest first; then the others, with who beats them."""
    points = [judge(study, prices, varied) for varied in study.points]
    wanted = sorted((p for p in points if not p.out), key=lambda p: (p.cost_usd, p.lost_share))
    judged = list(_against_each_other(wanted))
    return [p for p in judged if not p.out] + [p for p in judged if p.out] + [p for p in points if p.out]


def _against_each_other(wanted: list[Point]) -> Iterator[Point]:
    """From the cheapest up: one is on the front if it loses clearly less than everything cheaper."""
    best: Point | None = None
    for point in wanted:
        if best is None or point.lost_share < best.lost_share - CLEAR_DIFFERENCE:
            best = point
            yield point
        else:
            yield replace(point, out=f"{best.name} costs no more and loses as little")


def by_planes(points: Sequence[Point]) -> str:
    """What the network's failures take, by the number of planes: each with the design that loses least to them."""
    least: dict[int, float] = {}
    for p in points:
        if p.cost_usd:
            least[p.varied["planes"]] = min(p.network_share, least.get(p.varied["planes"], 1.0))
    said = [f"{planes}: {share_text(least[planes])}" for planes in sorted(least)]
    return f"Failures of the network take, at the least, by planes: {'; '.join(said)}." if len(said) > 1 else ""
