"""The shape of a fabric as a scenario states it, and the numbers and names of its links.

The arithmetic is that of core/sim/fabric.h, in whole arrays at a time; a test holds the two together. A link is one
direction of a cable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softmrc.sim.reader import setting

FORWARDINGS = ("auto", "srv6", "ecmp", "structured")


@dataclass(frozen=True)
class Fabric:
    """Equal planes, each a Clos of two tiers, or of three where `pods` is set."""

    planes: int = setting(4, low=1, high=16)
    hosts: int = setting(64, low=2)
    hosts_per_leaf: int = setting(8, low=1)
    spines: int = setting(8, low=1)  # per plane; with three tiers: aggregations per pod
    pods: int = setting(0, low=0)
    cores_per_spine: int = setting(0, low=0)
    host_link_gbps: float = setting(100.0, above=0)
    fabric_link_gbps: float = setting(0.0, low=0)  # 0: as the host's links
    link_delay_us: float = setting(1.0, low=0)
    forwarding: str = setting("auto", choices=FORWARDINGS)  # auto: srv6 for MRC, ecmp for RoCE
    convergence_delay_ms: float = setting(100.0, low=0)  # until ECMP leaves out a dead link

    @property
    def host_link_bps(self) -> int:
        return round(self.host_link_gbps * 1e9)

    @property
    def fabric_link_bps(self) -> int:
        return round((self.fabric_link_gbps or self.host_link_gbps) * 1e9)

    @property
    def leaves(self) -> int:
        return self.hosts // self.hosts_per_leaf

    @property
    def t1_switches(self) -> int:
        return self.pods * self.spines if self.pods else self.spines

    @property
    def t2_switches(self) -> int:
        return self.spines * self.cores_per_spine if self.pods else 0

    @property
    def links_per_plane(self) -> int:
        cores = 2 * self.t1_switches * self.cores_per_spine if self.pods else 0
        return 2 * self.hosts + 2 * self.leaves * self.spines + cores

    @property
    def links(self) -> int:
        return self.links_per_plane * self.planes

    @property
    def hops(self) -> int:
        """Links on the longest way."""
        return 6 if self.pods else 4

    @property
    def paths(self) -> int:
        """Ways through a plane between hosts that share nothing."""
        return self.spines * (self.cores_per_spine if self.pods else 1)

    def leaf_of(self, host: int) -> int:
        return host // self.hosts_per_leaf

    def pod_of_leaf(self, leaf: int) -> int:
        return leaf // (self.leaves // self.pods) if self.pods else 0

    def host_up(self, plane: int, host: int) -> int:
        return plane * self.links_per_plane + host

    def host_down(self, plane: int, host: int) -> int:
        return self.host_up(plane, host) + self.hosts

    def leaf_up(self, plane: int, leaf: int, spine: int) -> int:
        return plane * self.links_per_plane + 2 * self.hosts + leaf * self.spines + spine

    def leaf_down(self, plane: int, leaf: int, spine: int) -> int:
        return self.leaf_up(plane, leaf, spine) + self.leaves * self.spines

    def t1_up(self, plane: int, t1: int, up: int) -> int:
        start = plane * self.links_per_plane + 2 * self.hosts + 2 * self.leaves * self.spines
        return start + t1 * self.cores_per_spine + up

    def t1_down(self, plane: int, t1: int, up: int) -> int:
        return self.t1_up(plane, t1, up) + self.t1_switches * self.cores_per_spine

    def tiers(self) -> dict[str, np.ndarray]:
        """The links of each stage, by name, as (planes × links of a plane)."""
        sizes = {"host to T0": self.hosts, "T0 to host": self.hosts}
        sizes |= {"T0 to T1": self.leaves * self.spines, "T1 to T0": self.leaves * self.spines}
        if self.pods:
            cores = self.t1_switches * self.cores_per_spine
            sizes |= {"T1 to T2": cores, "T2 to T1": cores}
        found, start = {}, 0
        bases = np.arange(self.planes)[:, None] * self.links_per_plane
        for name, size in sizes.items():
            found[name] = bases + np.arange(start, start + size)
            start += size
        return found

    def link_name(self, link: int) -> str:
        plane, at = divmod(link, self.links_per_plane)
        if at < self.hosts:
            return f"plane {plane}: host {at} to leaf {self.leaf_of(at)}"
        at -= self.hosts
        if at < self.hosts:
            return f"plane {plane}: leaf {self.leaf_of(at)} to host {at}"
        at -= self.hosts
        half = self.leaves * self.spines
        if at < 2 * half:
            leaf, spine = divmod(at % half, self.spines)
            spine += self.pod_of_leaf(leaf) * self.spines
            ends = (f"leaf {leaf}", f"spine {spine}")
        else:
            at -= 2 * half
            half = self.t1_switches * self.cores_per_spine
            t1, up = divmod(at % half, self.cores_per_spine)
            ends = (f"spine {t1}", f"core {t1 % self.spines * self.cores_per_spine + up}")
        first, second = ends if at < half else ends[::-1]
        return f"plane {plane}: {first} to {second}"
