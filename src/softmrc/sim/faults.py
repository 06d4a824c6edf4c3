"""What breaks, and when: events of a scenario turned into faults of single links at given times.

An event names what it hits (a link, a NIC's port, a switch, a plane, a transceiver, or everything), what happens to it,
when, for how long, and how often. `faults.links = N` draws N cables between T0 and T1 instead, for sweeps.
The end of a fault ends everything that was wrong with the link.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from softmrc import _core
from softmrc._support.tables import Index, read_table, refuse, setting
from softmrc.errors import MISSING
from softmrc.sim.fabric import Fabric
from softmrc.sim.prng import Prng

PS_PER_US = 1_000_000
KINDS = ("down", "black_hole", "loss", "bit_errors", "corrupt", "slow", "ev_loss")
_NATIVE = {
    "down": _core.FaultKind.DOWN,
    "black_hole": _core.FaultKind.BLACK_HOLE,
    "loss": _core.FaultKind.LOSS,
    "bit_errors": _core.FaultKind.CORRUPT,
    "corrupt": _core.FaultKind.CORRUPT,
    "slow": _core.FaultKind.SLOW,
    "slow scaled": _core.FaultKind.SLOW_SCALED,
    "ev_loss": _core.FaultKind.EV_LOSS,
    "heal": _core.FaultKind.HEAL,
}


@dataclass(frozen=True)
class LinkTarget:
    """Cables between T0 and T1."""

    plane: Index = setting(low=0)
    leaf: Index = setting(low=0)
    spine: Index = setting(low=0)  # with three tiers: the aggregation's number in its pod


@dataclass(frozen=True)
class CoreLinkTarget:
    """Cables between T1 and T2."""

    plane: Index = setting(low=0)
    t1: Index = setting(low=0)
    up: Index = setting(low=0)


@dataclass(frozen=True)
class PortTarget:
    """NIC ports: the cables between hosts and T0."""

    plane: Index = setting(low=0)
    host: Index = setting(low=0)


@dataclass(frozen=True)
class SwitchTarget:
    plane: Index = setting(low=0)
    tier: str = setting(choices=("t0", "t1", "t2"))
    index: Index = setting(low=0)


@dataclass(frozen=True)
class TransceiverTarget:
    """An optical module at a T0 switch: some of its cables fail together, to spines or to hosts."""

    plane: int = setting(low=0)
    leaf: int = setting(low=0)
    spines: tuple[int, ...] | None = setting(None, low=0)
    hosts: tuple[int, ...] | None = setting(None, low=0)


_TARGETS = ("link", "core_link", "port", "switch", "plane", "transceiver", "everywhere")


@dataclass(frozen=True)
class FaultEvent:
    """One entry of [[faults.events]]."""

    kind: str = setting(choices=KINDS)
    at_us: float = setting(0.0, low=0)
    for_us: float = setting(0.0, low=0)  # 0: for good
    times: int = setting(1, low=1)  # more than once: it flaps
    every_us: float = setting(0.0, low=0)  # from one start to the next
    value: float = setting(0.0, low=0, high=1)  # probability of loss; bit error rate; share of the rate that is left
    queues: str = setting("kept", choices=("kept", "scaled"))  # of a slow link: of as many bytes, or as its rate
    direction: str = setting("both", choices=("both", "up", "down"))  # up: away from the hosts
    link: LinkTarget | None = None
    core_link: CoreLinkTarget | None = None
    port: PortTarget | None = None
    switch: SwitchTarget | None = None
    plane: Index | None = setting(None, low=0)
    transceiver: TransceiverTarget | None = None
    everywhere: bool = False
    label: str = ""


@dataclass(frozen=True)
class Faults:
    """[faults]: events, and cables or ports drawn at random."""

    links: int = setting(0, low=0)  # cables between T0 and T1, drawn by the seed
    ports: int = setting(0, low=0)  # NIC ports, drawn by the seed
    kind: str = setting("down", choices=KINDS)
    value: float = setting(0.0, low=0, high=1)
    at_us: float = setting(0.0, low=0)
    every_us: float = setting(0.0, low=0)  # from one to the next; 0: all at once
    for_us: float = setting(0.0, low=0)
    fit: bool = False  # an index beyond the fabric counts on from its first: for fabrics it was not written for
    events: tuple[Any, ...] = ()


@dataclass(frozen=True)
class FaultAction:
    """One kind of fault on a set of links at one moment."""

    at_ps: int
    kind: str  # a kind of KINDS, or "heal"
    links: np.ndarray
    value: float
    label: str


def read_faults(table: Any, source: str) -> Faults:
    events = table.get("events", []) if isinstance(table, dict) else []
    rest = {key: value for key, value in table.items() if key != "events"} if isinstance(table, dict) else table
    faults: Faults = read_table(Faults, rest, source, "faults")
    if not isinstance(events, list):
        raise refuse(source, "faults.events", events, "must be [[faults.events]] tables")
    read = []
    for i, one in enumerate(events):
        key = f"faults.events[{i}]"
        event = read_table(FaultEvent, one, source, key)
        named = [name for name in _TARGETS if getattr(event, name) is not None and getattr(event, name) is not False]
        if len(named) != 1:
            raise refuse(source, key, named, "must be exactly one of " + ", ".join(_TARGETS))
        _check_times(event, source, key)
        _check_value(event.kind, event.value, source, f"{key}.value")
        read.append(event)
    if faults.links or faults.ports:
        _check_value(faults.kind, faults.value, source, "faults.value")
    return dataclasses.replace(faults, events=tuple(read))


def _check_value(kind: str, value: float, source: str, key: str) -> None:
    if kind in ("loss", "bit_errors", "corrupt", "slow", "ev_loss") and value <= 0:
        meaning = "the share of the rate that is left" if kind == "slow" else "a probability"
        raise refuse(source, key, value, f"must be {meaning}, above 0 and at most 1")
    if kind in ("down", "black_hole") and value:
        raise refuse(source, key, value, f"must be left out: {kind} has no value")


def _check_times(event: FaultEvent, source: str, key: str) -> None:
    if event.times == 1:
        return
    if event.for_us <= 0:
        raise refuse(source, f"{key}.for_us", event.for_us, "must be above 0: how long each flap lasts")
    if event.every_us <= event.for_us:
        raise refuse(source, f"{key}.every_us", event.every_us, f"must be more than for_us = {event.for_us}")


def actions(faults: Faults, fabric: Fabric, packet_bytes: int, seed: int, source: str) -> list[FaultAction]:
    """Every change of every link, in order of time."""
    found: list[FaultAction] = []
    for i, event in enumerate(faults.events):
        links, what = _Targets(fabric, source, f"faults.events[{i}]", faults.fit).links_of(event)
        label = event.label or f"{what} {event.kind.replace('_', ' ')}"
        for k in range(event.times):
            start = event.at_us + k * event.every_us
            found += _span(_kind_of(event), event.value, links, start, event.for_us, packet_bytes, label)
    found += _drawn(faults, fabric, packet_bytes, seed, source)
    return sorted(found, key=lambda action: action.at_ps)


def _kind_of(event: FaultEvent) -> str:
    return "slow scaled" if event.kind == "slow" and event.queues == "scaled" else event.kind


def _span(
    kind: str, value: float, links: np.ndarray, at_us: float, for_us: float, packet_bytes: int, label: str
) -> list[FaultAction]:
    if kind == "bit_errors":
        value = 1 - (1 - value) ** (8 * packet_bytes)
    span = [FaultAction(round(at_us * PS_PER_US), kind, links, value, label)]
    if for_us:
        span.append(FaultAction(round((at_us + for_us) * PS_PER_US), "heal", links, 0.0, label))
    return span


def _drawn(faults: Faults, fabric: Fabric, packet_bytes: int, seed: int, source: str) -> list[FaultAction]:
    found: list[FaultAction] = []
    stages = fabric.stages()
    for what, stage in (("links", "T0 to T1"), ("ports", "host to T0")):
        ups = stages[stage].ravel()
        count = getattr(faults, what)
        if count > len(ups):
            raise refuse(source, f"faults.{what}", count, f"must be at most the fabric's {len(ups)}")
        drawn = Prng(seed, f"faults {what}").order(len(ups))[:count]
        for k, up in enumerate(ups[drawn].tolist()):
            label = fabric.link_name(up).replace(" to ", " – ") + f" {faults.kind.replace('_', ' ')}"
            links = np.array([up, up + stages[stage].shape[1]])
            start = faults.at_us + k * faults.every_us
            found += _span(faults.kind, faults.value, links, start, faults.for_us, packet_bytes, label)
    return found


def _cables(base: np.ndarray, half: int, direction: str) -> np.ndarray:
    """The links of cables whose upward links are `base`; the way down lies `half` further on."""
    ways = {"both": (0, half), "up": (0,), "down": (half,)}[direction]
    return np.concatenate([base.ravel() + way for way in ways])


class _Targets:
    """What an event names (one, several or all of something), as links of a fabric. What is not there is refused, or
    fitted in."""

    def __init__(self, fabric: Fabric, source: str, key: str, fit: bool) -> None:
        self.fabric, self.source, self.key, self.fit = fabric, source, key, fit

    def links_of(self, event: FaultEvent) -> tuple[np.ndarray, str]:
        fabric = self.fabric
        if fabric.leaves == 1 and (event.link is not None or (event.switch is not None and event.switch.tier == "t1")):
            what = "link" if event.switch is None else "switch"
            raise refuse(self.source, f"{self.key}.{what}", MISSING, "cannot be above the only leaf of this fabric")
        if event.everywhere:
            return _by_direction(fabric, np.arange(fabric.links), event.direction), "everything"
        if event.plane is not None:
            planes = self._picked("plane", event.plane, fabric.planes, "planes")
            links = (planes[:, None] * fabric.links_per_plane + np.arange(fabric.links_per_plane)).ravel()
            return _by_direction(fabric, links, event.direction), f"plane {_words(event.plane)}"
        if event.switch is not None:
            return self._of_switch(event.switch)
        if event.transceiver is not None:
            return self._of_transceiver(event.transceiver, event.direction)
        if event.port is not None:
            planes = self._picked("port.plane", event.port.plane, fabric.planes, "planes")
            hosts = self._picked("port.host", event.port.host, fabric.hosts, "hosts")
            name = f"port {_words(event.port.plane)} of host {_words(event.port.host)}"
            return _cables(fabric.host_up(planes[:, None], hosts), fabric.hosts, event.direction), name
        if event.link is not None:
            link = event.link
            planes = self._picked("link.plane", link.plane, fabric.planes, "planes")
            leaves = self._picked("link.leaf", link.leaf, fabric.leaves, "leaves")
            spines = self._picked("link.spine", link.spine, fabric.spines, "spines")
            base = fabric.leaf_up(planes[:, None, None], leaves[:, None], spines)
            name = f"plane {_words(link.plane)}: leaf {_words(link.leaf)} – spine {_words(link.spine)}"
            return _cables(base, fabric.leaves * fabric.spines, event.direction), name
        core = event.core_link
        assert core is not None
        if not fabric.pods:
            raise refuse(self.source, f"{self.key}.core_link", MISSING, "needs three tiers, and this fabric has two")
        planes = self._picked("core_link.plane", core.plane, fabric.planes, "planes")
        t1s = self._picked("core_link.t1", core.t1, fabric.t1_switches, "T1 switches")
        ups = self._picked("core_link.up", core.up, fabric.cores_per_spine, "cores above each")
        base = fabric.t1_up(planes[:, None, None], t1s[:, None], ups)
        name = f"plane {_words(core.plane)}: spine {_words(core.t1)} – core {_words(core.up)}"
        return _cables(base, fabric.t1_switches * fabric.cores_per_spine, event.direction), name

    def _picked(self, key: str, value: Any, size: int, what: str) -> np.ndarray:
        if value == "all":
            return np.arange(size)
        chosen = np.atleast_1d(np.array(value))
        if isinstance(value, str) or (chosen.max() >= size and not self.fit):
            raise refuse(
                self.source, f"{self.key}.{key}", value, f'must be below {size}, the {what} of this fabric, or "all"'
            )
        return np.unique(chosen % size)

    def _of_switch(self, t: SwitchTarget) -> tuple[np.ndarray, str]:
        """All cables of a switch, both ways whatever the direction says: a switch has no half."""
        fabric = self.fabric
        size = {"t0": fabric.leaves, "t1": fabric.t1_switches, "t2": fabric.t2_switches}[t.tier]
        if not size:
            raise refuse(
                self.source, f"{self.key}.switch.tier", t.tier, "must be 't0' or 't1': this fabric has two tiers"
            )
        links: list[int] = []
        for plane in self._picked("switch.plane", t.plane, fabric.planes, "planes").tolist():
            for index in self._picked("switch.index", t.index, size, f"{t.tier.upper()} switches").tolist():
                links += switch_links(fabric, plane, t.tier, index)
        return np.array(links), f"{t.tier.upper()} switch {_words(t.index)} of plane {_words(t.plane)}"

    def _of_transceiver(self, t: TransceiverTarget, direction: str) -> tuple[np.ndarray, str]:
        fabric, where = self.fabric, f"{self.key}.transceiver"
        plane = int(self._picked("transceiver.plane", t.plane, fabric.planes, "planes")[0])
        leaf = int(self._picked("transceiver.leaf", t.leaf, fabric.leaves, "leaves")[0])
        if (t.spines is None) == (t.hosts is None):
            raise refuse(self.source, where, MISSING, "needs either spines or hosts, and not both")
        if t.spines is not None:
            spines = self._picked("transceiver.spines", t.spines, fabric.spines, "spines")
            base = [fabric.leaf_up(plane, leaf, int(one)) for one in spines]
            half = fabric.leaves * fabric.spines
        else:
            each, hosts = fabric.hosts_per_leaf, t.hosts or ()
            if self.fit:
                hosts = tuple(dict.fromkeys(leaf * each + host % each for host in hosts))
            wrong = [host for host in hosts if host >= fabric.hosts or fabric.leaf_of(host) != leaf]
            if wrong:
                raise refuse(self.source, f"{where}.hosts", wrong[0], f"must be hosts of leaf {leaf}")
            base, half = [fabric.host_up(plane, host) for host in hosts], fabric.hosts
        name = f"transceiver of leaf {leaf} in plane {plane}, {len(base)} links,"
        return _cables(np.array(base), half, direction), name


def _by_direction(fabric: Fabric, links: np.ndarray, direction: str) -> np.ndarray:
    if direction == "both":
        return links
    names = [name for i, name in enumerate(fabric.stages()) if (i % 2 == 0) == (direction == "up")]
    return np.intersect1d(links, np.concatenate([fabric.stages()[name].ravel() for name in names]))


def switch_links(fabric: Fabric, plane: int, tier: str, index: int) -> list[int]:
    links: list[int] = []
    if tier == "t0":
        first = index * fabric.hosts_per_leaf
        for host in range(first, first + fabric.hosts_per_leaf):
            links += [fabric.host_up(plane, host), fabric.host_down(plane, host)]
        for spine in range(fabric.spines):
            links += [fabric.leaf_up(plane, index, spine), fabric.leaf_down(plane, index, spine)]
    elif tier == "t1":
        pod, spine = divmod(index, fabric.spines)
        per_pod = fabric.leaves // fabric.pods if fabric.pods else fabric.leaves
        for leaf in range(pod * per_pod, (pod + 1) * per_pod):
            links += [fabric.leaf_up(plane, leaf, spine), fabric.leaf_down(plane, leaf, spine)]
        for up in range(fabric.cores_per_spine):
            links += [fabric.t1_up(plane, index, up), fabric.t1_down(plane, index, up)]
    else:
        spine, up = divmod(index, fabric.cores_per_spine)
        for pod in range(fabric.pods):
            t1 = pod * fabric.spines + spine
            links += [fabric.t1_up(plane, t1, up), fabric.t1_down(plane, t1, up)]
    return links


def _words(index: Any) -> str:
    return ", ".join(str(one) for one in index) if isinstance(index, tuple) else str(index)


def native_kind(kind: str) -> Any:
    return _NATIVE[kind]
