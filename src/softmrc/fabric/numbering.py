"""The numbers of a fabric's links, and which nodes they join: arithmetic, so nothing is stored per host.

It is the simulator's own (core/sim/fabric.h), so that a link has the same number in both; a test holds the two
together. Links are directed; the two directions of a cable lie at the same place of twin ranges. Where a number is
asked for by its indexes, whole NumPy arrays of them do as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from softmrc.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

Index = TypeVar("Index", int, "np.ndarray")


class Tier(IntEnum):
    """Where a node stands. Three tiers call T1 an aggregation, two tiers a spine."""

    HOST = 0
    T0 = 1
    T1 = 2
    T2 = 3


@dataclass(frozen=True, order=True, slots=True)
class Node:
    """A host (plane 0: a host is in all of them), or a switch by its index within tier and plane."""

    tier: Tier
    plane: int
    index: int


class Numbering:
    """What follows from how many there are of everything; who inherits it says how many."""

    planes: int
    hosts: int
    hosts_per_leaf: int
    spines: int
    pods: int
    cores_per_spine: int
    cables_per_link: int
    cables_per_core_link: int

    # How many there are, per plane.

    @property
    def leaves(self) -> int:
        return self.hosts // self.hosts_per_leaf

    @property
    def leaves_per_pod(self) -> int:
        return self.leaves // self.pods if self.pods else self.leaves

    @property
    def t1_switches(self) -> int:
        return self.pods * self.spines if self.pods else self.spines

    @property
    def t2_switches(self) -> int:
        return self.spines * self.cores_per_spine if self.pods else 0

    @property
    def links_per_plane(self) -> int:
        """Directed links."""
        return 2 * (self.hosts + self.leaves * self.spines + self.t1_switches * self.cores_per_spine)

    @property
    def links(self) -> int:
        """Directed links of the whole fabric."""
        return self.planes * self.links_per_plane

    def cables_in(self, link: int) -> int:
        """Cables side by side that make this link."""
        at = link % self.links_per_plane - 2 * self.hosts
        if at < 0:
            return 1
        return self.cables_per_link if at < 2 * self.leaves * self.spines else self.cables_per_core_link

    # Who belongs to whom.

    def leaf_of(self, host: int) -> int:
        return host // self.hosts_per_leaf

    def downlink_of(self, host: int) -> int:
        return host % self.hosts_per_leaf

    def pod_of_leaf(self, leaf: int) -> int:
        return leaf // self.leaves_per_pod

    def t1_of(self, leaf: int, uplink: int) -> int:
        """The spine or aggregation at the other end of a leaf's uplink."""
        return self.pod_of_leaf(leaf) * self.spines + uplink if self.pods else uplink

    def core_of(self, t1: int, up: int) -> int:
        """The core at the other end of an aggregation's uplink."""
        return t1 % self.spines * self.cores_per_spine + up

    def t1_of_core(self, core: int, pod: int) -> int:
        """The one aggregation of a pod that a core meets."""
        return pod * self.spines + core // self.cores_per_spine

    # Links by their ends, and back.

    def host_up(self, plane: Index, host: Index) -> Index:
        return plane * self.links_per_plane + host

    def host_down(self, plane: Index, host: Index) -> Index:
        return self.host_up(plane, host) + self.hosts

    def leaf_up(self, plane: Index, leaf: Index, uplink: Index) -> Index:
        return plane * self.links_per_plane + 2 * self.hosts + leaf * self.spines + uplink

    def leaf_down(self, plane: Index, leaf: Index, uplink: Index) -> Index:
        """The link that comes down to the leaf from the T1 at the end of its uplink."""
        return self.leaf_up(plane, leaf, uplink) + self.leaves * self.spines

    def t1_up(self, plane: Index, t1: Index, up: Index) -> Index:
        start = plane * self.links_per_plane + 2 * self.hosts + 2 * self.leaves * self.spines
        return start + t1 * self.cores_per_spine + up

    def t1_down(self, plane: Index, t1: Index, up: Index) -> Index:
        """The link that comes down to the aggregation from the core at the end of its uplink."""
        return self.t1_up(plane, t1, up) + self.t1_switches * self.cores_per_spine

    def plane_of(self, link: int) -> int:
        return link // self.links_per_plane

    def ends(self, link: int) -> tuple[Node, Node]:
        """From where to where a directed link leads."""
        plane, at = divmod(link, self.links_per_plane)
        if not 0 <= plane < self.planes:
            raise ConfigError("link", link, f"must be 0 to {self.planes * self.links_per_plane - 1}")
        for half, cable in (
            (self.hosts, self._host_cable),
            (self.leaves * self.spines, self._leaf_cable),
            (self.t1_switches * self.cores_per_spine, self._core_cable),
        ):
            if at < 2 * half:
                lower, upper = cable(plane, at % half)
                return (lower, upper) if at < half else (upper, lower)
            at -= 2 * half
        raise ConfigError("link", link, "must be a link of this fabric")

    def _host_cable(self, plane: int, at: int) -> tuple[Node, Node]:
        return Node(Tier.HOST, 0, at), Node(Tier.T0, plane, self.leaf_of(at))

    def _leaf_cable(self, plane: int, at: int) -> tuple[Node, Node]:
        leaf, uplink = divmod(at, self.spines)
        return Node(Tier.T0, plane, leaf), Node(Tier.T1, plane, self.t1_of(leaf, uplink))

    def _core_cable(self, plane: int, at: int) -> tuple[Node, Node]:
        t1, up = divmod(at, self.cores_per_spine)
        return Node(Tier.T1, plane, t1), Node(Tier.T2, plane, self.core_of(t1, up))
