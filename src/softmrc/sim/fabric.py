"""The shape of a fabric as a scenario states it, and the names of its links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softmrc.fabric.numbering import Numbering
from softmrc.sim.reader import setting

FORWARDINGS = ("auto", "srv6", "ecmp", "structured")


@dataclass(frozen=True)
class Fabric(Numbering):
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
    def hops(self) -> int:
        """Links on the longest way."""
        return 6 if self.pods else 4

    @property
    def paths(self) -> int:
        """Ways through a plane between hosts that share nothing."""
        return self.spines * (self.cores_per_spine if self.pods else 1)

    def stages(self) -> dict[str, np.ndarray]:
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
        words = ("host", "leaf", "spine", "core")
        start, end = (f"{words[node.tier]} {node.index}" for node in self.ends(link))
        return f"plane {self.plane_of(link)}: {start} to {end}"
