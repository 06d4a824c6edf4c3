"""The static table of every switch, and a walk through them.

A table is what a switch needs to know and nothing more: its own uSID (uN: shift and look again), a uSID for each of its
links (uA: shift and send there), and which link leads to each neighbour that a path may name next. Everything else is
dropped without a word. Nothing here learns, expires or is computed from the state of another switch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network

from softmrc.fabric.address import ADJACENCY_USID, MAX_ADJACENCIES, NEUTRAL_PREFIXES, AddressPlan
from softmrc.fabric.shape import Node, Tier
from softmrc.wire.srv6 import Path

MAX_HOPS = 16


class Action(Enum):
    """What a switch does with an address that an entry matches."""

    UN = "uN"
    UA = "uA"
    FORWARD = "forward"


@dataclass(frozen=True)
class RouteEntry:
    """One line of a table. `link` is the directed link that a packet leaves by; uN has none."""

    prefix: IPv6Network
    action: Action
    link: int | None = None
    meaning: str = ""


@dataclass(frozen=True)
class RoutingTable:
    """The entries of one switch, in the order in which they are configured, and how to find one."""

    node: Node
    entries: tuple[RouteEntry, ...]
    _by_length: dict[int, dict[int, RouteEntry]] = field(repr=False, compare=False)

    @classmethod
    def of(cls, node: Node, entries: list[RouteEntry]) -> RoutingTable:
        by_length: dict[int, dict[int, RouteEntry]] = {}
        for entry in entries:
            bits = entry.prefix.prefixlen
            by_length.setdefault(bits, {})[int(entry.prefix.network_address) >> (128 - bits)] = entry
        return cls(node, tuple(entries), dict(sorted(by_length.items(), reverse=True)))

    def find(self, address: IPv6Address) -> RouteEntry | None:
        """The entry with the longest match, or None: dropped."""
        number = int(address)
        for bits, entries in self._by_length.items():
            if entry := entries.get(number >> (128 - bits)):
                return entry
        return None


def table_of(plan: AddressPlan, node: Node) -> RoutingTable:
    """The table of a switch."""
    shape, plane = plan.shape, node.plane
    entries = [RouteEntry(plan.prefix(plane, plan.usid(node)), Action.UN, None, "this switch")]
    if node.tier is Tier.T0 and plan.addressing.plane_in == "block":
        for usid, bits in NEUTRAL_PREFIXES:
            prefix = IPv6Network((plan.prefix(plane, usid).network_address, bits))
            entries.append(RouteEntry(prefix, Action.UN, None, "the first uSID of checksum-neutral carriers"))
    downlinks, uplinks = shape.downlinks(node), shape.uplinks(node)
    if plan.addressing.plane_in == "block":
        for port, link in enumerate((downlinks + uplinks)[:MAX_ADJACENCIES]):
            prefix = plan.prefix(plane, ADJACENCY_USID + port)
            entries.append(RouteEntry(prefix, Action.UA, link, f"port {port}"))
    for link in downlinks + uplinks:
        _, neighbour = shape.ends(link)
        is_host = neighbour.tier is Tier.HOST
        usid = plan.downlink_usid(neighbour.index, plane) if is_host else plan.usid(neighbour)
        entries.append(RouteEntry(plan.prefix(plane, usid), Action.FORWARD, link, shape.name_of(neighbour)))
    if node.tier is Tier.T2:
        entries += _leaves_below_core(plan, downlinks, plane)
    return RoutingTable.of(node, entries)


def _leaves_below_core(plan: AddressPlan, downlinks: list[int], plane: int) -> list[RouteEntry]:
    """Loose routes do not name the aggregation below a core, so a core knows which one leads to which leaf."""
    shape, entries = plan.shape, []
    for pod, link in enumerate(downlinks):
        for leaf in range(pod * shape.leaves_per_pod, (pod + 1) * shape.leaves_per_pod):
            node = Node(Tier.T0, plane, leaf)
            entries.append(RouteEntry(plan.prefix(plane, plan.usid(node)), Action.FORWARD, link, shape.name_of(node)))
    return entries


class RoutingTables:
    """The tables of a fabric, made when they are first asked for: a walk through 131 072 hosts needs a handful."""

    def __init__(self, plan: AddressPlan) -> None:
        self.plan = plan
        self._table = lru_cache(maxsize=4096)(lambda node: table_of(plan, node))

    def of(self, node: Node) -> RoutingTable:
        return self._table(node)


@dataclass(frozen=True)
class Walk:
    """Where a packet went: the links it crossed, and the host that took it, or why none did."""

    links: tuple[int, ...]
    host: int | None
    reason: str = ""


def walk(tables: RoutingTables, source: int, plane: int, path: Path | IPv6Address) -> Walk:
    """Follow a packet from a host's port, switch by switch, by nothing but the tables."""
    plan, shape = tables.plan, tables.plan.shape
    ahead = path if isinstance(path, Path) else Path(path)
    links = [shape.host_up(plane, source)]
    node = Node(Tier.T0, plane, shape.leaf_of(source))
    for _ in range(MAX_HOPS):
        entry = tables.of(node).find(ahead.destination)
        while entry is not None and entry.action is not Action.FORWARD:
            shifted = ahead.advance()
            if shifted is None:
                return Walk(tuple(links), None, f"the path ends at {shape.name_of(node)}")
            ahead = shifted
            if entry.action is Action.UA:
                break
            entry = tables.of(node).find(ahead.destination)
        if entry is None or entry.link is None:
            return Walk(tuple(links), None, f"{shape.name_of(node)} has no route to {ahead.destination}")
        links.append(entry.link)
        _, node = shape.ends(entry.link)
        if node.tier is Tier.HOST:
            return _arrive(plan, node.index, plane, ahead, links)
    return Walk(tuple(links), None, f"no arrival after {MAX_HOPS} switches")


def _arrive(plan: AddressPlan, host: int, plane: int, ahead: Path, links: list[int]) -> Walk:
    own = IPv6Network((int(plan.nic_address(host, plane)), 64))
    if ahead.destination in own:
        return Walk(tuple(links), host)
    return Walk(tuple(links), None, f"host{host} is not {ahead.destination}")
