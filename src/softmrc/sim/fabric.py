"""The shape of a fabric as a scenario states it, and the names of its links."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from softmrc._support.tables import read_table, refuse, setting
from softmrc._support.units import as_rate_bps, counted, rate_text
from softmrc.errors import ConfigError
from softmrc.fabric.description import load
from softmrc.fabric.numbering import Numbering

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
    cables_per_link: int = setting(1, low=1, high=1024)  # between T0 and T1: one link, so many times as fast
    cables_per_core_link: int = setting(1, low=1, high=1024)  # between T1 and T2
    nics_per_gpu: int = setting(1, low=1)  # of a fabric file; here every NIC is a host
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
    def words(self) -> str:
        """A plane, in words."""
        cables = f" by {self.cables_per_link} cables" if self.cables_per_link > 1 else ""
        pods = f" in {self.pods} pods, {self.t2_switches} cores" if self.pods else ""
        leaves = "1 leaf" if self.leaves == 1 else f"{self.leaves} leaves"
        return f"{leaves} × {counted(self.spines, 'spine')}{cables}{pods}"

    @property
    def hops(self) -> int:
        """Links on the longest path."""
        return 6 if self.pods else 4

    @property
    def paths(self) -> int:
        """Paths through a plane between hosts that share nothing."""
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


HOST_RATES = ("host_link_gbps", "host_link_bps", "nic_bps")  # one of them; the last is all planes of a NIC together


def read_fabric(table: Any, source: str) -> Fabric:
    """[fabric] of a scenario: its own keys, those of a fabric file, or the name of one (`file`) and what is changed."""
    if not isinstance(table, dict):
        raise refuse(source, "fabric", table, "must be a table")
    named = [key for key in HOST_RATES if key in table]
    if len(named) > 1:
        raise refuse(source, f"fabric.{named[1]}", table[named[1]], f"cannot be combined with {named[0]}")
    base = _of_file(table["file"], source) if "file" in table else {}
    own = {key: value for key, value in table.items() if not key.endswith("_bps") and key != "file"}
    for key in ("host_link_bps", "fabric_link_bps"):
        if key in table:
            own[key.replace("_bps", "_gbps")] = _rate_bps(table, key, source) / 1e9
    if "nic_bps" in table:
        rate, planes = _rate_bps(table, "nic_bps", source), own.get("planes", base.get("planes", Fabric.planes))
        if not isinstance(planes, int) or planes < 1 or rate % planes:
            raise refuse(source, "fabric.planes", planes, f"must be an integer that divides {rate_text(rate)}")
        own["host_link_gbps"] = rate / planes / 1e9
        if base:  # links inside stay as much faster than those to hosts, or slower
            own.setdefault(
                "fabric_link_gbps", base["fabric_link_gbps"] * own["host_link_gbps"] / base["host_link_gbps"]
            )
    if "host_link_gbps" in own:
        base.pop("fabric_link_gbps", None)  # it was as fast as the file's links to hosts
    unknown = {key: table[key] for key in table if key.endswith("_bps") and key not in (*HOST_RATES, "fabric_link_bps")}
    found: Fabric = read_table(Fabric, base | own | unknown, source, "fabric")
    return found


def _rate_bps(table: dict[str, Any], key: str, source: str) -> int:
    try:
        return as_rate_bps(key, table[key])
    except ConfigError as error:
        raise error.replaced(field=f"fabric.{key}", where=source) from None


def _of_file(name: object, source: str) -> dict[str, Any]:
    if not isinstance(name, str):
        raise refuse(source, "fabric.file", name, "must be the name of a fabric file, as a text")
    description = load(Path(source).parent / name)
    shape = asdict(description.fabric)
    shape["spines"] = shape["spines"] or 1  # above a single leaf, where no packet comes
    rates = {key.replace("_bps", "_gbps"): value / 1e9 for key, value in shape.items() if key.endswith("_bps")}
    counts = {key: value for key, value in shape.items() if not key.endswith("_bps")}
    return counts | rates | {"nics_per_gpu": description.nics_per_machine}
