"""The shape of a fabric: equal planes, each a Clos of two or three tiers, and which link follows which.

How its links are numbered is in numbering.py.

    one tier       host -- T0 (leaf)                           one switch a plane
    two tiers      host -- T0 (leaf) -- T1 (spine)             every leaf has one link to every spine
    three tiers    host -- T0 (leaf) -- T1 (agg) -- T2 (core)  pods of leaves and aggregations; a core meets one
                                                               aggregation of every pod

A link between switches is one cable, or several side by side, of which each breaks by itself. How many switches can
have addresses is not decided here (address.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from softmrc.errors import ConfigError
from softmrc.fabric.numbering import Node, Numbering, Tier

__all__ = ["Cable", "Node", "Shape", "Tier", "cable_name", "link_name"]

MAX_PLANES = 16
MAX_HOSTS = 1 << 20
MAX_SWITCHES = 1 << 16  # of a tier of a plane
MAX_DOWNLINKS = 0x800
MAX_CABLES = 0x400


class Cable(NamedTuple):
    """The two ends of a cable, the one nearer to the hosts first."""

    plane: int
    lower: Node
    upper: Node


@dataclass(frozen=True)
class Shape(Numbering):
    """How many of everything. The keys are those of a fabric file's [fabric] and of the simulator."""

    planes: int = 1
    hosts: int = 16
    hosts_per_leaf: int = 4
    spines: int = 4
    pods: int = 0
    cores_per_spine: int = 0
    host_link_bps: int = 100_000_000_000
    fabric_link_bps: int = 100_000_000_000  # of a cable
    cables_per_link: int = 1  # between T0 and T1
    cables_per_core_link: int = 1  # between T1 and T2

    def __post_init__(self) -> None:
        self._require("planes", 1, MAX_PLANES)
        self._require("hosts", 2, MAX_HOSTS)
        self._require("hosts_per_leaf", 1, MAX_DOWNLINKS)
        self._require("spines", 0, MAX_SWITCHES)
        self._require("pods", 0, MAX_SWITCHES)
        self._require("cores_per_spine", 0, MAX_SWITCHES)
        self._require("host_link_bps", 1_000_000, 10**15)
        self._require("fabric_link_bps", 1_000_000, 10**15)
        self._require("cables_per_link", 1, MAX_CABLES)
        self._require("cables_per_core_link", 1, MAX_CABLES)
        if self.hosts % self.hosts_per_leaf:
            raise ConfigError(
                "fabric.hosts", self.hosts, f"must be a multiple of hosts_per_leaf = {self.hosts_per_leaf}"
            )
        if not self.spines and (self.leaves > 1 or self.pods):
            raise ConfigError(
                "fabric.spines", 0, f"must be at least 1 above {self.leaves} leaves", "0 means one switch a plane."
            )
        if not self.pods:
            if self.cores_per_spine:
                raise ConfigError("fabric.cores_per_spine", self.cores_per_spine, "must be 0 unless there are pods")
            return
        if self.leaves % self.pods:
            raise ConfigError("fabric.pods", self.pods, f"must divide the number of leaves, {self.leaves}")
        if self.cores_per_spine < 1:
            raise ConfigError("fabric.cores_per_spine", self.cores_per_spine, "must be at least 1 with three tiers")

    def _require(self, field: str, least: int, most: int) -> None:
        value = getattr(self, field)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ConfigError(f"fabric.{field}", value, f"must be a whole number from {least} to {most}")

    # How many there are of everything.

    @property
    def tiers(self) -> int:
        return 3 if self.pods else 2 if self.spines else 1

    @property
    def cables(self) -> int:
        """Cables of the whole fabric."""
        inside = self.leaves * self.spines * self.cables_per_link
        inside += self.t1_switches * self.cores_per_spine * self.cables_per_core_link
        return self.planes * (self.hosts + inside)

    def rate_bps(self, link: int) -> int:
        """Of all cables of a directed link."""
        at_host = link % self.links_per_plane < 2 * self.hosts
        return self.cables_in(link) * (self.host_link_bps if at_host else self.fabric_link_bps)

    @property
    def switches(self) -> int:
        """Switches of the whole fabric."""
        return self.planes * (self.leaves + self.t1_switches + self.t2_switches)

    def paths(self, a: int, b: int) -> int:
        """How many paths lead from one host to another within a plane."""
        leaf_a, leaf_b = self.leaf_of(a), self.leaf_of(b)
        if leaf_a == leaf_b:
            return 1
        if not self.pods or self.pod_of_leaf(leaf_a) == self.pod_of_leaf(leaf_b):
            return self.spines
        return self.spines * self.cores_per_spine

    @property
    def oversubscription(self) -> Fraction:
        """What the hosts below can send to what can go up, at a leaf or at a pod, wherever there is less room; 0 under
        a single leaf, which nothing has to leave."""
        if self.leaves == 1:
            return Fraction(0)
        below = self.hosts_per_leaf * self.host_link_bps
        ratio = Fraction(below, self.spines * self.cables_per_link * self.fabric_link_bps)
        if self.pods > 1:
            above = self.spines * self.cores_per_spine * self.cables_per_core_link * self.fabric_link_bps
            ratio = max(ratio, Fraction(self.leaves_per_pod * below, above))
        return ratio

    @property
    def switch_bps(self) -> int:
        """What its busiest switch carries."""
        up, rising = self.spines * self.cables_per_link, self.cores_per_spine * self.cables_per_core_link
        leaf = self.hosts_per_leaf * self.host_link_bps + up * self.fabric_link_bps
        above = max(self.leaves_per_pod * self.cables_per_link + rising, self.pods * self.cables_per_core_link)
        return max(leaf, above * self.fabric_link_bps if self.spines else 0)

    @property
    def crossed(self) -> Shape:
        """Without what no packet crosses: spines above a single leaf, cores above a single pod."""
        if self.leaves == 1:
            return replace(self, spines=0, pods=0, cores_per_spine=0, cables_per_link=1, cables_per_core_link=1)
        return replace(self, pods=0, cores_per_spine=0, cables_per_core_link=1) if self.pods == 1 else self

    def cable_of(self, link: int) -> Cable:
        """The cable that a directed link is one direction of."""
        a, b = self.ends(link)
        return Cable(self.plane_of(link), *((a, b) if a.tier < b.tier else (b, a)))

    def links_of(self, cable: Cable) -> tuple[int, int]:
        """Both directions of a cable: up, down."""
        plane, lower, upper = cable
        if lower.tier is Tier.HOST and upper.tier is Tier.T0 and self.leaf_of(lower.index) == upper.index:
            return self.host_up(plane, lower.index), self.host_down(plane, lower.index)
        if lower.tier is Tier.T0 and upper.tier is Tier.T1:
            uplink = upper.index % self.spines
            if self.t1_of(lower.index, uplink) == upper.index:
                return self.leaf_up(plane, lower.index, uplink), self.leaf_down(plane, lower.index, uplink)
        if lower.tier is Tier.T1 and upper.tier is Tier.T2:
            up = upper.index % self.cores_per_spine
            if self.core_of(lower.index, up) == upper.index:
                return self.t1_up(plane, lower.index, up), self.t1_down(plane, lower.index, up)
        raise ConfigError("cable", cable_name(self, cable), "must be two nodes with a cable between them")

    # Every node and every port of a node, in a fixed order: what a configuration lists.

    def nodes(self) -> list[Node]:
        """Hosts, then plane by plane the switches, from the lowest tier up."""
        found = [Node(Tier.HOST, 0, h) for h in range(self.hosts)]
        for plane in range(self.planes):
            for tier, count in ((Tier.T0, self.leaves), (Tier.T1, self.t1_switches), (Tier.T2, self.t2_switches)):
                found += [Node(tier, plane, i) for i in range(count)]
        return found

    def downlinks(self, node: Node) -> list[int]:
        """The directed links from a switch towards the hosts, in the order of its ports."""
        plane, i = node.plane, node.index
        if node.tier is Tier.T0:
            return [self.host_down(plane, i * self.hosts_per_leaf + d) for d in range(self.hosts_per_leaf)]
        if node.tier is Tier.T1:
            pod, uplink = divmod(i, self.spines) if self.pods else (0, i)
            first = pod * self.leaves_per_pod
            return [self.leaf_down(plane, leaf, uplink) for leaf in range(first, first + self.leaves_per_pod)]
        if node.tier is Tier.T2:
            up = i % self.cores_per_spine
            return [self.t1_down(plane, self.t1_of_core(i, pod), up) for pod in range(self.pods)]
        return []

    def uplinks(self, node: Node) -> list[int]:
        """The directed links away from the hosts, in the order of the node's ports."""
        plane, i = node.plane, node.index
        if node.tier is Tier.HOST:
            return [self.host_up(p, i) for p in range(self.planes)]
        if node.tier is Tier.T0:
            return [self.leaf_up(plane, i, uplink) for uplink in range(self.spines)]
        if node.tier is Tier.T1 and self.pods:
            return [self.t1_up(plane, i, up) for up in range(self.cores_per_spine)]
        return []

    # Names, as people type them.

    def tier_word(self, tier: Tier) -> str:
        return ("host", "leaf", "agg" if self.pods else "spine", "core")[tier]

    def name_of(self, node: Node) -> str:
        """`host3`, `p0.leaf1`, `p0.spine2`: the plane in front, for what belongs to one."""
        plane = "" if node.tier is Tier.HOST else f"p{node.plane}."
        return f"{plane}{self.tier_word(node.tier)}{node.index}"

    def parse_node(self, name: str, plane: int = 0) -> Node:
        """The node of a name; one without a plane is in `plane`."""
        match = re.fullmatch(r"(?:p(\d+)\.)?(host|leaf|spine|agg|core)(\d+)", name)
        words = {self.tier_word(tier): tier for tier in Tier}
        counts = {Tier.HOST: self.hosts, Tier.T0: self.leaves, Tier.T1: self.t1_switches, Tier.T2: self.t2_switches}
        if match and match[2] in words:
            tier, at = words[match[2]], int(match[1] or plane)
            if at < self.planes and int(match[3]) < counts[tier]:
                return Node(tier, 0 if tier is Tier.HOST else at, int(match[3]))
        have = ", ".join(f"{counts[t]} × {word}" for word, t in words.items() if counts[t])
        raise ConfigError(
            "node",
            name,
            "no such node",
            f"Names look like host0 or p0.leaf0; there are {self.planes} planes with {have}.",
        )

    def parse_cable(self, name: str, plane: int = 0) -> Cable:
        """The cable of a name such as `p1.leaf0-spine1`; one without a plane is in `plane`."""
        match = re.fullmatch(r"(?:p(\d+)\.)?([a-z]+\d+)-(?:p\d+\.)?([a-z]+\d+)", name)
        if match is None:
            raise ConfigError("cable", name, "must be two nodes, as leaf0-spine1 or p1.host3-leaf0")
        at = int(match[1] or plane)
        if at >= self.planes:
            raise ConfigError("cable", name, f"must name a plane from 0 to {self.planes - 1}")
        a, b = (self.parse_node(part, at) for part in (match[2], match[3]))
        cable = Cable(at, *((a, b) if a.tier < b.tier else (b, a)))
        self.links_of(cable)
        return cable


def cable_name(shape: Shape, cable: Cable) -> str:
    """`p0.leaf0-spine1`."""
    lower, upper = (f"{shape.tier_word(node.tier)}{node.index}" for node in (cable.lower, cable.upper))
    return f"p{cable.plane}.{lower}-{upper}"


def link_name(shape: Shape, link: int) -> str:
    """A directed link: `p0.leaf0>spine1`."""
    start, end = (f"{shape.tier_word(node.tier)}{node.index}" for node in shape.ends(link))
    return f"p{shape.plane_of(link)}.{start}>{end}"
