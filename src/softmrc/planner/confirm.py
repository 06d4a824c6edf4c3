"""What the arithmetic of designs says, confirmed with packets: how much slower the slowest host is with one dead port;
and what it does not say: how many EVs a queue pair should use.

A slice of a design runs in the simulator: its planes, its rate and the ratio of downlinks to uplinks that it has as it
is built, with few hosts that all send across leaves, or under the only one. Every run is a sweep's task, so that many
run at once, on all cores or on Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from softmrc._support.units import as_rate_bps, rate_text
from softmrc.sim.sweep import SweepRun

HOSTS_PER_LEAF, LEAVES = 8, 4
WIDE_LEAF = 32  # hosts of a leaf, where the number of EVs matters: there are more paths than that


@dataclass(frozen=True)
class Slice:
    """The part of a design that packets can show. Designs that differ in nothing else have the same runs."""

    planes: int
    nic_bps: str | int
    oversubscription: float  # as built; 0: a single tier
    evs: Sequence[int] = ()  # of a queue pair: the numbers to try

    @property
    def tasks(self) -> dict[str, SweepRun]:
        """The runs, by name: whole, with a dead port at a host, and whole with each number of EVs."""
        port = {"kind": "down", "port": {"plane": 0, "host": 5}, "at_us": 0.0}
        tables = {
            self._whole: self._table(HOSTS_PER_LEAF),
            self._broken: self._table(HOSTS_PER_LEAF) | {"faults": {"events": [port]}},
        }
        for count in self.evs:
            tables[self._with(count)] = self._table(WIDE_LEAF) | {"transport": {"evs": self.spread(count)}}
        return {name: SweepRun(table | {"name": name}, "", {}, seed=1) for name, table in tables.items()}

    def confirmed(self, slowest_gbps: Mapping[str, float | None]) -> Confirmed:
        """From what the slowest host had in each run; None where a run did not finish."""
        whole, broken = slowest_gbps[self._whole], slowest_gbps[self._broken]
        nic_gbps = as_rate_bps("nic_bps", self.nic_bps) / 1e9
        rates = {count: slowest_gbps[self._with(count)] for count in self.evs}
        return Confirmed(
            # As assess has it. Where uplinks are fewer than downlinks a host may keep more: its ports delayed no other.
            1 - 1 / self.planes,
            broken / whole if broken is not None and whole else None,
            {count: None if rate is None else rate / nic_gbps for count, rate in rates.items()},
        )

    def spread(self, evs: int) -> int:
        """So many, or the next number that planes divide: every plane has as many."""
        return -(-evs // self.planes) * self.planes

    @property
    def _whole(self) -> str:
        return f"{self._what}; whole"

    @property
    def _broken(self) -> str:
        return f"{self._what}; a port less"

    def _with(self, evs: int) -> str:
        return f"{self._what}; {evs} EVs"

    @property
    def _what(self) -> str:
        """All that decides what comes out, since what came out is kept by this name."""
        rate = rate_text(as_rate_bps("nic_bps", self.nic_bps))
        uplinks = f"{self.oversubscription:g}:1" if self.oversubscription else "a single tier"
        return f"{self.planes} planes, NICs of {rate}, {uplinks}"

    def _table(self, leaf: int) -> dict[str, Any]:
        fabric: dict[str, Any] = {"planes": self.planes, "nic_bps": self.nic_bps, "hosts": leaf * LEAVES}
        if self.oversubscription:
            uplinks = leaf / self.oversubscription
            spines = max(1, round(uplinks))
            port_gbps = as_rate_bps("nic_bps", self.nic_bps) / self.planes / 1e9
            # Whole spines do not make every ratio: the rate of their links makes up for it.
            fabric |= {"hosts_per_leaf": leaf, "spines": spines, "fabric_link_gbps": port_gbps * uplinks / spines}
        else:
            fabric |= {"hosts_per_leaf": leaf * LEAVES, "spines": 1}
        pattern = "across_leaves" if self.oversubscription else "random"
        return {
            "question": "What has the slowest host?",
            "fabric": fabric,
            "workload": {"kind": "permutation", "pattern": pattern, "message_bytes": 8_000_000},
            "run": {"stall_ms": 5.0},
        }


@dataclass(frozen=True)
class Confirmed:
    """What is left of a host's rate with one port less, by arithmetic and in packets; and what EVs do to it."""

    arithmetic: float
    packets: float | None  # None: the host was cut off, and the run did not finish
    evs: dict[int, float | None] = field(default_factory=dict)  # by their number: of a NIC's rate, the slowest host's
