"""Where a job's time goes, in closed form: instant, so that every assumption can be moved to see what it does.

Four results of the textbooks, put together:
  * checkpoints and stops are a renewal process (Daly's complete model, with detection and waiting added to it);
  * parts that are broken now and then are independent, and the slowest host is the largest of many sums of them;
  * hosts out for repair are Erlang's loss system, in which a job that waits for a spare is the lost call;
  * repair crews are a queue (Erlang C, corrected for service times that vary as Allen and Cunneen do).
What they leave out (failures in the same plane of the same host counted twice, spares that run out just after one
another) is what the Monte Carlo of monte_carlo.py is there to weigh.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from softmrc.errors import ConfigError
from softmrc.fabric.description import Description
from softmrc.fabric.shape import Shape
from softmrc.planner.availability import Losses

YEAR_H = 8766.0
MONTH_H = 720.0
WINDOW_POINTS = 5  # at which the time between two maintenance windows is looked at
NEGLIGIBLE = 1e-12
LARGEST_WEIGHT = 1e200
LARGEST_EXPONENT = 300.0  # beyond it a job does nothing but restart

Spread = tuple[np.ndarray, np.ndarray]  # losses of capacity, rising, and how likely each is


# Sums and largest values of what is lost.


def _binomial(count: int, chance: float, each: float) -> Spread:
    """The sum over `count` parts of which each is broken with this chance, and takes `each` away."""
    chance = min(chance, 1.0)
    if count == 0 or chance <= 0:
        return np.zeros(1), np.ones(1)
    if chance >= 1:
        return np.array([count * each]), np.ones(1)
    mean = count * chance
    most = min(count, int(mean + 12 * math.sqrt(mean + 1) + 12))
    k = np.arange(most + 1)
    logs = np.array([math.lgamma(count + 1) - math.lgamma(i + 1) - math.lgamma(count - i + 1) for i in k])
    weight = np.exp(logs + k * math.log(chance) + (count - k) * math.log1p(-chance))
    return _tidy(k * each, weight)


def _any_of(count: int, chance: float) -> Spread:
    """The same, of parts that share the capacity evenly."""
    return _binomial(count, chance, 1 / count if count else 0.0)


def _tidy(levels: np.ndarray, weight: np.ndarray) -> Spread:
    levels, where = np.unique(np.round(np.minimum(levels, 1.0), 9), return_inverse=True)
    summed = np.bincount(where, weights=weight, minlength=len(levels))
    kept = summed > NEGLIGIBLE
    return levels[kept], summed[kept] / summed[kept].sum()


def _plus(a: Spread, b: Spread) -> Spread:
    return _tidy(np.add.outer(a[0], b[0]).ravel(), np.multiply.outer(a[1], b[1]).ravel())


def _largest(of: Spread, count: float) -> Spread:
    """The largest of so many like this one."""
    below = np.minimum(np.cumsum(of[1]), 1.0) ** count
    return _tidy(of[0], np.diff(below, prepend=0.0))


# What breaks.


@dataclass(frozen=True)
class _Rates:
    """Failures an hour of the whole fabric, by what they do."""

    gpu: float
    nic: float  # as a whole
    power: float
    port: float  # a NIC's port, alone
    cable: float
    nic_optic: float
    optic: float  # of a leaf
    leaf: float
    above: float  # all that lies above the leaves
    flap_below: float
    flap_above: float

    @classmethod
    def of(cls, d: Description) -> _Rates:
        s, f = d.fabric, d.failures
        n = s.planes
        above_cables = s.cables - n * s.hosts
        above_switches = n * (s.t1_switches + s.t2_switches)
        cables = s.hosts * max(1, n // f.planes_per_cable)
        return cls(
            gpu=d.gpus * f.gpu_per_year / YEAR_H,
            nic=d.nics * f.nic_per_year / YEAR_H,
            power=d.feeds * f.power_per_year / YEAR_H,
            port=n * s.hosts * f.nic_port_per_year / YEAR_H,
            cable=cables * f.link_per_year / YEAR_H,
            nic_optic=s.hosts * (n // d.planes_of_an_optic) * f.optic_per_year / YEAR_H,
            optic=n * _optics_of_a_leaf(d) * s.leaves * f.optic_per_year / YEAR_H,
            leaf=n * s.leaves * f.switch_per_year / YEAR_H,
            above=(above_cables * f.link_per_year + above_switches * f.switch_per_year) / YEAR_H,
            flap_below=cables * f.flap_per_link_year / YEAR_H,
            flap_above=above_cables * f.flap_per_link_year / YEAR_H,
        )


def _optics_of_a_leaf(d: Description) -> int:
    return -(-d.fabric.hosts_per_leaf // d.links_of_an_optic)


Often = tuple[float, float]  # failures an hour, and hours that the repair of one takes


@dataclass(frozen=True)
class _Sorts:
    """What breaks, by what is left."""

    host: list[Often]  # nothing of one host
    group: list[tuple[int, Often]]  # nothing of so many hosts
    below: dict[str, tuple[int, Often]]  # something of so many hosts, that spares could replace
    above: list[Often]  # something, of hosts that are too many for that

    @classmethod
    def of(cls, d: Description, r: _Rates) -> _Sorts:
        f, s = d.failures, d.fabric
        only = s.planes == 1
        host = [(r.gpu, f.gpu_repair_h), (r.nic, f.nic_repair_h)]
        group = [(min(f.hosts_per_feed, d.machines), (r.power, f.power_repair_h))]
        below: dict[str, tuple[int, Often]] = {}
        for kind, takes_all, size, often in (
            ("port", only, 1, (r.port, f.nic_port_repair_h)),
            ("cable", f.planes_per_cable >= s.planes, 1, (r.cable, f.link_repair_h)),
            ("nic optic", d.planes_of_an_optic == s.planes, 1, (r.nic_optic, f.optic_repair_h)),
            ("optic", only, d.links_of_an_optic, (r.optic, f.optic_repair_h)),
            ("leaf", only, s.hosts_per_leaf, (r.leaf, f.switch_repair_h)),
        ):
            if not takes_all:
                below[kind] = size, often
            elif size == 1:
                host.append(often)
            else:
                group.append((size, often))
        switches = s.planes * (s.t1_switches + s.t2_switches) * f.switch_per_year / YEAR_H
        above = [(switches, f.switch_repair_h), (r.above - switches, f.link_repair_h)]
        return cls(host, group, below, above)


def _crew_delay_h(d: Description, sorts: _Sorts, policy: str) -> float:
    """How long a broken thing waits for a repair crew, on average."""
    f = d.failures
    if not f.crews:
        return 0.0
    work = sorts.host + [often for _, often in sorts.group]
    if policy != "degraded":
        work += [often for _, often in sorts.below.values()] + sorts.above
    rate = sum(each for each, _ in work)
    offered = sum(each * hours for each, hours in work)
    if offered >= 0.98 * f.crews:
        raise ConfigError(
            "failures.crews", f.crews, f"must be 0, or at least {math.ceil(offered / 0.9)}: so many are busy"
        )
    if not rate:
        return 0.0
    mean = offered / rate
    square = sum(each * 2 * hours**2 for each, hours in work) / rate  # of exponential times
    queued = _erlang_b(f.crews, offered)
    queued /= 1 - offered / f.crews * (1 - queued)  # Erlang C
    return queued * mean / (f.crews - offered) * (square / mean**2) / 2


def _erlang_b(servers: int, offered: float) -> float:
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
        if blocked < NEGLIGIBLE:
            return 0.0
    return blocked


def _loads(parts: list[tuple[int, float, float]], spares: int) -> tuple[tuple[int, float], ...]:
    """How many are out on average, by how many go at once; those beyond all spares take none."""
    found: dict[int, float] = {}
    for size, _, out in parts:
        if size <= spares and out:
            found[size] = found.get(size, 0.0) + out
    return tuple(sorted(found.items()))


@lru_cache(maxsize=1024)
def _out_at_once(spares: int, loads: tuple[tuple[int, float], ...]) -> np.ndarray:
    """How likely it is that so many spares are used, 0 to all, where each load takes its number of them at once and
    gives them back together: Kaufman's and Roberts' recursion. With loads of one alone it is Erlang's."""
    found = [1.0]
    for j in range(1, spares + 1):
        weight = 0.0
        for size, load in loads:
            if size <= j:
                weight += size * load * found[j - size]
        found.append(weight / j)
        if found[j] > LARGEST_WEIGHT:
            found = [one / LARGEST_WEIGHT for one in found]
    chances = np.array(found)
    return np.asarray(chances / chances.sum())


def _first_back_h(spares: int, hosts: float, out_hosts: float, swapped: float, out_swapped: float) -> float:
    """How long a lost host is waited for that finds no spare: until the first of all that are out is back. Those that
    were swapped for a port or a cable are repaired sooner, and each may be one of them."""
    if not hosts:
        return 0.0
    back = hosts / out_hosts  # an hour, of a host that was lost
    sooner = swapped / out_swapped if out_swapped else back
    _, chances = _binomial(spares, out_swapped / (out_hosts + out_swapped), 0.0 if not spares else 1 / spares)
    return float(sum(chance / ((spares + 1 - k) * back + k * sooner) for k, chance in enumerate(chances.tolist())))


# How fast the job goes.


def _speed(d: Description, spread: Spread) -> float:
    """Of a job whose slowest host has lost so much."""
    share = d.job.communication_share
    left = 1 - spread[0]
    pace = np.where(left > 1e-9, 1 / ((1 - share) + share / np.maximum(left, 1e-9)), 0.0)
    return float((pace * spread[1]).sum())


def _broken(per_year: float, out_h: float) -> float:
    """How likely a part is out at any moment, if each failure lasts this long."""
    load = per_year / YEAR_H * out_h
    return load / (1 + load)


def _worst(d: Description, chance: dict[str, float]) -> Spread:
    """What the slowest host has lost, with each kind of part broken with the given chance."""
    together = (d.failures.planes_per_cable, d.planes_of_an_optic, d.links_of_an_optic)
    return _slowest_host(d.fabric, *together, tuple(sorted(chance.items())))


@lru_cache(maxsize=4096)  # to move an assumption about the job leaves the fabric as it was
def _slowest_host(
    s: Shape, planes_per_cable: int, planes_per_optic: int, links_per_optic: int,
    chances: tuple[tuple[str, float], ...],
) -> Spread:  # fmt: skip
    n, chance = s.planes, dict(chances)
    cables = max(1, n // planes_per_cable)
    own = _plus(_binomial(n, chance["port"], 1 / n), _binomial(cables, chance["cable"], 1 / cables))
    own = _plus(own, _any_of(n // planes_per_optic, chance["nic optic"]))
    behind_optic = _plus(_largest(own, links_per_optic), _binomial(n, chance["optic"], 1 / n))
    below = _largest(behind_optic, -(-s.hosts_per_leaf // links_per_optic))
    leaf = _plus(_binomial(n, chance["leaf"], 1 / n), _any_of(n * s.spines * s.cables_per_link, chance["link"]))
    spines = _any_of(n * s.spines, chance["switch"])
    below_pod = _largest(_plus(below, leaf), s.leaves_per_pod)
    if not s.pods:
        return _plus(below_pod, spines)
    ups = n * s.t2_switches
    pod = _plus(_plus(below_pod, spines), _any_of(ups * s.cables_per_core_link, chance["link"]))
    return _plus(_largest(pod, s.pods), _any_of(ups, chance["switch"]))


def _going(d: Description, transport: str, policy: str, crew_h: float, stays: dict[str, float]) -> float:
    """The mean speed of a job that is not stopped and not stalled; of what is broken below the leaves and leaves
    something, so much stays until it is repaired."""
    f, job, n = d.failures, d.job, d.fabric.planes
    delay = f.dispatch_h + crew_h
    # A job that a failure stops does not see the first of it.
    unseen = (job.detect_min + job.restart_min + job.warmup_min) / 60 if transport == "roce" else 0.0
    seen = max(delay - unseen, 0.0)
    flap = f.flap_per_link_year / YEAR_H * f.flap_s / 3600
    whole = f.planes_per_cable >= n  # then nothing is left of a host whose cable breaks
    rides = transport == "mrc" and not whole
    rates = {"port": (f.nic_port_per_year, f.nic_port_repair_h), "cable": (f.link_per_year, f.link_repair_h),
             "nic optic": (f.optic_per_year, f.optic_repair_h), "optic": (f.optic_per_year, f.optic_repair_h),
             "leaf": (f.switch_per_year, f.switch_repair_h)}  # fmt: skip
    chance = dict.fromkeys(rates, 0.0) | {
        "cable": flap if rides else 0.0,
        "switch": _broken(f.switch_per_year, delay + f.switch_repair_h),
        "link": _broken(f.link_per_year, delay + f.link_repair_h) + flap,
    }
    if policy == "degraded":
        return _between_windows(d, chance, {kind: rates[kind][0] for kind in stays}, rides)
    for kind, share in stays.items():
        per_year, repair_h = rates[kind]
        chance[kind] += _broken(per_year, seen + repair_h) * share
    if not stays or policy == "repair" or transport == "roce":
        return _speed(d, _worst(d, chance))
    # MRC swaps at the next checkpoint; until then any moment of the interval is as likely as any other.
    every = d.job.checkpoint_every_min / 60 / YEAR_H
    points, weights = np.polynomial.legendre.leggauss(WINDOW_POINTS)
    total = 0.0
    for at, weight in zip(((points + 1) / 2).tolist(), (weights / 2).tolist(), strict=True):
        since = {kind: chance[kind] - math.expm1(-rates[kind][0] * every * at) * (1 - stays[kind]) for kind in stays}
        total += weight * _speed(d, _worst(d, chance | since))
    return total


def _between_windows(d: Description, chance: dict[str, float], below: dict[str, float], rides: bool) -> float:
    """Everything was repaired at the last window, and nothing since."""
    f = d.failures
    window = f.maintenance_days * 24 / YEAR_H
    flap = f.flap_per_link_year / YEAR_H * f.flap_s / 3600
    per_year = below | {"switch": f.switch_per_year, "link": f.link_per_year}
    flaps = {"link": flap, "cable": flap if rides else 0.0}
    points, weights = np.polynomial.legendre.leggauss(WINDOW_POINTS)
    total = 0.0
    for at, weight in zip(((points + 1) / 2).tolist(), (weights / 2).tolist(), strict=True):
        aged = {key: flaps.get(key, 0.0) - math.expm1(-rate * window * at) for key, rate in per_year.items()}
        total += weight * _speed(d, _worst(d, chance | aged))
    return total


# All together.


def uplinks_share(d: Description) -> float:
    """Of the time that failures leave: what lean uplinks take. Communication is held up by whichever is busier: a
    host's own links, or the uplinks of its leaf, which carry what leaves it."""
    longer = d.job.communication_share * max(0.0, float(d.fabric.oversubscription) * d.job.crossing_share - 1)
    return longer / (1 + longer)


def losses(d: Description, transport: str, policy: str) -> Losses:
    """Where the time goes."""
    r = _Rates.of(d)
    sorts = _Sorts.of(d, r)
    crew_h = _crew_delay_h(d, sorts, policy)
    delay = d.failures.dispatch_h + crew_h
    groups = [(size, rate, rate * (delay + hours)) for size, (rate, hours) in sorts.group]
    swapped = [(size, rate, rate * (delay + hours)) for size, (rate, hours) in sorts.below.values()]
    swapped = [one for one in swapped if one[0] <= d.spares] if policy == "swap" else []
    host_rate = sum(rate for rate, _ in sorts.host)
    out_hosts = sum(rate * (delay + hours) for rate, hours in sorts.host)
    used = _out_at_once(d.spares, _loads([(1, host_rate, out_hosts), *groups, *swapped], d.spares))

    def lacking(hosts: int) -> float:
        """How likely it is that there are no spares for so many at once."""
        chance = float(used[max(0, d.spares - hosts + 1) :].sum())
        return chance if chance > NEGLIGIBLE else 0.0

    stays = {kind: lacking(size) if policy == "swap" else 1.0 for kind, (size, _) in sorts.below.items()}
    stop = host_rate + sum(rate for _, rate, _ in groups)
    stall_h = 0.0  # of stalls that begin in an hour
    if transport == "roce":
        stop += sum(rate for _, (rate, _) in sorts.below.values())
        stall_h, stop = _held_up(d, r, stop)
    elif d.failures.planes_per_cable >= d.fabric.planes and r.flap_below:
        stall_h, stop = _flaps(d, r.flap_below, stop)
    # A group for which there are not spares enough is waited for.
    waits = sum(out * lacking(size) for size, _, out in groups)
    if lacking(1):
        sooner = (sum(size * rate for size, rate, _ in swapped), sum(size * out for size, _, out in swapped))
        waits += lacking(1) * host_rate * _first_back_h(d.spares, host_rate, out_hosts, *sooner)
    planned = sum((rate * (1 - lacking(size)) for size, rate, _ in swapped), 0.0) if transport == "mrc" else 0.0
    standing = -math.expm1(-stall_h)
    going = _going(d, transport, policy, crew_h, stays)
    return _renewal(d, stop, waits / stop if stop else 0.0, planned, going, standing)


def _flaps(d: Description, rate: float, stop: float) -> tuple[float, float]:
    """Flaps that the job has to sit out, or does not survive."""
    if d.failures.flap_s > d.job.rides_out_s:
        return 0.0, stop + rate
    return rate * d.failures.flap_s / 3600, stop


def _held_up(d: Description, r: _Rates, stop: float) -> tuple[float, float]:
    """Without MRC: hours of stalls that begin in an hour, and stops an hour."""
    stall, stop = _flaps(d, r.flap_below, stop)
    shortest = min(d.failures.flap_s, d.job.reroute_s)
    if d.job.reroute_s > d.job.rides_out_s:
        stop += r.above
        if shortest > d.job.rides_out_s:
            return stall, stop + r.flap_above
    else:
        stall += r.above * d.job.reroute_s / 3600
    return stall + r.flap_above * shortest / 3600, stop


def _renewal(d: Description, stop: float, wait_h: float, planned: float, going: float, standing: float) -> Losses:
    """One checkpoint interval after another: how long each takes, and on what."""
    job = d.job
    every, writing = job.checkpoint_every_min / 60, job.checkpoint_s / 3600
    detect, back = job.detect_min / 60, (job.restart_min + job.warmup_min) / 60
    if stop * (every + writing + back) > LARGEST_EXPONENT:
        return Losses(restarts=1.0, stops_per_month=stop * MONTH_H)
    tries = math.expm1(stop * (every + writing))  # stops in an interval
    again = math.expm1(stop * back)  # stops in a restart
    worked = tries / stop if stop else every + writing
    restart_h = again / stop if stop else back
    swap = -math.expm1(-planned * (every + writing))
    stops = tries * (1 + again) + swap * again
    restarts = restart_h * tries
    total = worked + restarts + swap * restart_h + stops * (detect + wait_h)
    return Losses(
        degraded=every * (1 - standing) * (1 - going) / total,
        stalled=every * standing / total,
        checkpoints=writing / total,
        rework=(worked - every - writing) / total,
        detection=stops * detect / total,
        restarts=restarts / total,
        swaps=swap * restart_h / total,
        waiting=stops * wait_h / total,
        stops_per_month=stops / total * MONTH_H,
        swaps_per_month=swap / total * MONTH_H,
    )
