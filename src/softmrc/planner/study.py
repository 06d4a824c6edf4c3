"""A design space: every combination of what may be varied, what it costs, what failures take from it, and which are
Pareto-optimal.

    gpus = 16384                       [vary]  each a value or a list: planes, tiers, oversubscription,
    nics_per_gpu = 1                           nic_bps, switch_bps, spare_share
    [vary]                             [keep]  the most that is allowed: cost_usd, power_w, lost_share
    planes = [1, 2, 4, 8]              [failures], [job]: as in a fabric file
    nic_bps = ["400G", "800G"]         evs     numbers of EVs a queue pair to try, with packets alone
    [keep]
    power_w = 5e6

All of it is arithmetic (plan.py, closed_form.py), so hundreds of points take seconds. What is left can be confirmed
with packets (softmrc.planner.confirm).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from softmrc._support.files import located, parse_toml, read_text
from softmrc._support.tables import check_keys, read_table
from softmrc._support.units import (
    as_rate_bps,
    as_share,
    counted,
    money_text,
    power_text,
    rate_text,
    ratio_text,
    share_text,
)
from softmrc.errors import MISSING, ConfigError
from softmrc.fabric.description import Description, Failures, JobSettings
from softmrc.planner import closed_form
from softmrc.planner.assess import without_network_failures
from softmrc.planner.availability import POLICIES
from softmrc.planner.plan import LANE_BPS, DesignSpec, Prices, design, reason_of, shape_of
from softmrc.planner.sensitivity import NO_DIFFERENCE

MAX_POINTS = 20_000
MAX_EVS = 1024
NOT_WANTED = "not wanted"
LIMIT_WORDS: dict[str, tuple[str, Callable[[float], str]]] = {
    "cost_usd": ("costs", money_text), "power_w": ("takes", power_text), "lost_share": ("loses", share_text),
}  # fmt: skip
SAID = ("name", "varied", "out")  # of a design that cannot be built
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
    """The most that is allowed."""

    cost_usd: float = math.inf  # to build it, its energy and the spares that stand by, over its life
    power_w: float = math.inf
    lost_share: float = 1.0  # of the job's time, to all failures with MRC and its best policy, and to lean uplinks

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) > 0:
                raise ConfigError(
                    f"keep.{one.name}", getattr(self, one.name), "must be more than 0", "Leave it out for no limit."
                )


@dataclass(frozen=True)
class Study:
    """The study's input."""

    gpus: int
    vary: dict[str, tuple[Any, ...]]
    keep: Limits = field(default_factory=Limits)
    failures: Failures = field(default_factory=Failures)
    job: JobSettings = field(default_factory=JobSettings)
    nics_per_gpu: int = 1
    evs: tuple[int, ...] = ()  # a queue pair's, to be tried with packets: no arithmetic tells what they do
    lane_bps: int = LANE_BPS  # of a switch, which has no more ports than lanes

    @property
    def points(self) -> list[dict[str, Any]]:
        return [dict(zip(self.vary, values, strict=True)) for values in itertools.product(*self.vary.values())]

    def name_of(self, varied: dict[str, Any], built: Fraction | None = None) -> str:
        """By what it differs from others. Where leaves are not full, they have more uplinks than requested."""
        asked = _ratio(varied)
        words = [f"{counted(varied['planes'], 'plane')} × {counted(varied['tiers'], 'tier')}"]
        ratio = ratio_text(asked) if built in (None, asked) else f"{ratio_text(built)} ({ratio_text(asked)} asked)"
        said = {
            "oversubscription": lambda _: ratio,
            "nic_bps": lambda value: f"NICs of {rate_text(as_rate_bps('nic_bps', value))}",
            "switch_bps": lambda value: f"switches of {rate_text(as_rate_bps('switch_bps', value))}",
            "spare_share": lambda value: f"{share_text(value)} spares",
        }
        told = [key for key in said if len(self.vary[key]) > 1 or (key == "oversubscription" and asked > 1)]
        return ", ".join(words + [said[key](varied[key]) for key in told])


def _ratio(varied: dict[str, Any]) -> Fraction:
    """The requested oversubscription."""
    return Fraction(varied["oversubscription"]).limit_denominator(1000)


@dataclass(frozen=True)
class Point:
    """One combination: what it comes to, or why it is out."""

    name: str
    varied: dict[str, Any]
    out: str = ""  # why it cannot be built, or is not wanted, or who is better; empty: on the front
    cost_usd: float = 0.0
    power_w: float = 0.0
    lost_share: float = 0.0  # to the three below, of which each takes its share of what those before it leave
    hosts_share: float = 0.0  # would be lost with a network that never fails
    network_share: float = 0.0  # failures of the network take
    uplinks_share: float = 0.0  # lean uplinks take
    policy: str = ""
    switches: int = 0
    useful_hour_usd: float = 0.0  # the fabric and the GPUs over its life, for each GPU-hour that is not lost
    built_oversubscription: float = 0.0  # 0: a single tier, without uplinks

    @property
    def network_lost(self) -> float:
        """Of the time that hosts leave: to failures of the network, and to lean uplinks."""
        return 1 - (1 - self.network_share) * (1 - self.uplinks_share)

    @property
    def is_built(self) -> bool:
        return bool(self.policy)

    @property
    def is_wanted(self) -> bool:
        return not self.out.startswith(NOT_WANTED)

    def to_json(self) -> dict[str, Any]:
        """Without figures of what cannot be built."""
        found = asdict(self)
        return found if self.is_built else {key: found[key] if key in SAID else None for key in found}


def load(path: Path) -> Study:
    """A study from its file."""
    text = read_text(path, "file")
    table = parse_toml(text, str(path))
    try:
        return parse(table)
    except ConfigError as error:
        raise located(error, str(path), text) from None


def parse(table: dict[str, Any]) -> Study:
    for key in VARIED:
        if key in table:
            raise ConfigError(key, table[key], "must stand in [vary], where it may be a list")
    check_keys([one.name for one in fields(Study)], table, "", "")
    study = Study(
        _whole("gpus", table.get("gpus", MISSING), 2),
        _varied(table.get("vary", {})),
        read_table(Limits, table.get("keep", {}), "", "keep"),
        read_table(Failures, table.get("failures", {}), "", "failures"),
        read_table(JobSettings, table.get("job", {}), "", "job"),
        _whole("nics_per_gpu", table.get("nics_per_gpu", 1), 1),
        _evs(table["evs"]) if "evs" in table else (),
        as_rate_bps("lane_bps", table.get("lane_bps", LANE_BPS)),
    )
    for key in ("gpus", "nics_per_gpu"):
        if getattr(study.job, key):
            raise ConfigError(f"job.{key}", getattr(study.job, key), f"must stand at the top of the file, as {key}")
    if study.nics_per_gpu > 1 and study.job.gpus_per_host > 1:
        raise ConfigError(
            "nics_per_gpu", study.nics_per_gpu, "must be 1 where several GPUs share a NIC (job.gpus_per_host)"
        )
    if len(study.points) > MAX_POINTS:
        raise ConfigError("vary", len(study.points), f"must make at most {MAX_POINTS:,} combinations")
    return study


def _whole(key: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(key, value, f"must be a whole number of at least {least}")
    return value


def _evs(given: object) -> tuple[int, ...]:
    values = given if isinstance(given, list) else [given]
    if not values:
        raise ConfigError("evs", given, "must have at least one number", "Leave it out to try none.")
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_EVS:
            raise ConfigError("evs", value, f"must be whole numbers from 1 to {MAX_EVS}")
    return tuple(dict.fromkeys(values))


def _varied(table: object) -> dict[str, tuple[Any, ...]]:
    if not isinstance(table, dict):
        raise ConfigError("vary", table, "must be a section, [vary]")
    found = dict(VARIED)
    for key in ("gpus", "evs", "nics_per_gpu"):
        if key in table:
            raise ConfigError(f"vary.{key}", table[key], "must stand at the top of the file, before [vary]")
    check_keys(VARIED, table, "", "vary")
    for key, given in table.items():
        values = given if isinstance(given, list) else [given]
        if not values:
            raise ConfigError(f"vary.{key}", given, "must have at least one value")
        found[key] = tuple(_checked(f"vary.{key}", value) for value in values)
    return found


def _checked(where: str, value: Any) -> Any:
    if where.endswith("_bps"):
        as_rate_bps(where, value)
    elif where.endswith("_share"):
        return as_share(where, value)
    elif where.endswith("oversubscription"):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 1 <= value <= 64:
            raise ConfigError(where, value, "must be a number from 1 to 64")
    else:
        return _whole(where, value, 1)
    return value


def judge(study: Study, prices: Prices, varied: dict[str, Any]) -> Point:
    """One combination, as far as it goes by itself."""
    nic, switch = (as_rate_bps(f"vary.{key}", varied[key]) for key in ("nic_bps", "switch_bps"))
    job = replace(study.job, spare_share=varied["spare_share"], gpus=study.gpus, nics_per_gpu=study.nics_per_gpu)
    try:
        host_count = max(2, -(-study.gpus // job.gpus_per_host))
        asked = DesignSpec(host_count, nic, switch, study.nics_per_gpu, job.spare_share, study.lane_bps)
        found = design(asked, prices, varied["planes"], varied["tiers"], _ratio(varied))
        description = Description(fabric=shape_of(found), failures=study.failures, job=job)
        span = description.spanned
        lost = {policy: closed_form.losses(span, "mrc", policy) for policy in POLICIES}
        hosts = closed_form.losses(without_network_failures(span), "mrc", "repair")
    except ConfigError as error:
        return Point(study.name_of(varied), varied, f"not feasible: {reason_of(error)}")
    policy = min(POLICIES, key=lambda one: lost[one].lost)
    hours = prices.energy.years * closed_form.YEAR_H
    gpu_usd = job.gpu_hour_usd * hours
    spares_usd = description.spares * job.gpus_per_host * gpu_usd
    cost = found.cost_usd + found.energy_usd + spares_usd
    uplinks = closed_form.uplinks_share(description)
    left = (1 - lost[policy].lost) * (1 - uplinks)
    parts = (1 - left, hosts.lost, lost[policy].beyond(hosts), uplinks)
    useful = left * study.gpus * hours
    each = (cost + study.gpus * gpu_usd) / useful if useful > 0 else math.inf
    name, built = study.name_of(varied, found.down_up), float(found.down_up or 0)
    point = Point(name, varied, "", cost, found.power_w, *parts, policy, found.switches, each, built)
    return _within(study.keep, point)


def _within(limits: Limits, point: Point) -> Point:
    for key, (verb, text) in LIMIT_WORDS.items():
        most, value = getattr(limits, key), getattr(point, key)
        if value > most:
            return replace(point, out=f"{NOT_WANTED}: {verb} more than {text(most)}: {text(value)}")
    return point


def explore(study: Study, prices: Prices) -> list[Point]:
    """All points: the Pareto front first, the cheapest first; then the others, with who beats them."""
    points = [judge(study, prices, varied) for varied in study.points]
    wanted = sorted((p for p in points if not p.out), key=lambda p: (p.cost_usd, p.lost_share))
    judged = list(_against_each_other(wanted))
    return [p for p in judged if not p.out] + [p for p in judged if p.out] + [p for p in points if p.out]


def _against_each_other(wanted: list[Point]) -> Iterator[Point]:
    """From the cheapest up: one is on the front if it loses clearly less than everything cheaper."""
    best: Point | None = None
    for point in wanted:
        if best is None or point.lost_share < best.lost_share - NO_DIFFERENCE:
            best = point
            yield point
        else:
            yield replace(point, out=f"{best.name} costs no more and loses as little")


def outs(points: Sequence[Point]) -> list[str]:
    """Why designs are out, and which (planes × tiers): the reason that most have first."""
    why: dict[str, list[Point]] = {}
    for p in points:
        if p.out:
            why.setdefault(p.out if p.is_wanted else p.out.rsplit(": ", 1)[0], []).append(p)
    lines = []
    for reason, those in sorted(why.items(), key=lambda item: -len(item[1])):
        shapes = dict.fromkeys(f"{p.varied['planes']} × {p.varied['tiers']}" for p in those)
        line = f"{len(those)} out ({', '.join(shapes)}): {reason}"
        if not those[0].is_wanted:
            nearest = min(those, key=lambda p: p.cost_usd)
            line += f"; the cheapest of them, {nearest.name}: {nearest.out.rsplit(': ', 1)[1]}"
        lines.append(line)
    return lines


def by_planes(points: Sequence[Point]) -> dict[int, Point | None]:
    """By the number of planes: of the designs that are wanted, the one whose useful hours cost least; None where there
    is none."""
    best: dict[int, Point | None] = {}
    for p in points:
        planes = p.varied["planes"]
        old = best.setdefault(planes, None)
        if p.is_built and p.is_wanted and (old is None or p.useful_hour_usd < old.useful_hour_usd):
            best[planes] = p
    return dict(sorted(best.items()))


def hour_text(usd: float) -> str:
    return f"$ {usd:.3f}" if usd < 100 else money_text(usd)


def answer(study: Study, points: Sequence[Point]) -> str:
    """With which design a useful GPU-hour costs least, and what the network takes of it."""
    wanted = [p for p in points if p.is_built and p.is_wanted]
    if not wanted:
        is_any = any(p.is_built for p in points)
        return "No design that can be built is wanted." if is_any else "No design can be built."
    best, cheapest = min(wanted, key=lambda p: p.useful_hour_usd), min(wanted, key=lambda p: p.cost_usd)
    hosts, network = share_text(best.hosts_share), share_text(best.network_lost)
    text = (
        f"With GPUs at $ {study.job.gpu_hour_usd:g} an hour, {best.name} is the least: a GPU-hour that is useful comes "
        f"to {hour_text(best.useful_hour_usd)}. Of the job's time {hosts} is lost to its own hosts, whatever the "
        f"network, and of the rest {network} to the network."
    )
    if cheapest.name != best.name:
        saved, each = money_text(best.cost_usd - cheapest.cost_usd), hour_text(cheapest.useful_hour_usd)
        text += f" The cheapest to have, {cheapest.name}, saves {saved}, and a useful hour comes to {each}."
    slow = {n for n in study.vary["planes"] for nic in study.vary["nic_bps"]
            if as_rate_bps("nic_bps", nic) < n * study.lane_bps}  # fmt: skip
    if slow:
        text += (
            f" A switch has no more ports than lanes of {rate_text(study.lane_bps)} (lane_bps), however slow they are."
        )
    if cheapest.uplinks_share and study.job.crossing_share == 1:
        text += " Lean uplinks are taken at their worst: all that is sent leaves its leaf (job.crossing_share = 1)."
    return text
