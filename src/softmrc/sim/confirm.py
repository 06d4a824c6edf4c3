"""What the arithmetic of designs says, confirmed with packets: how much slower the slowest host is with one dead port.

A slice of a design runs in the simulator: its planes, its rate and its ratio of downlinks to uplinks, with few hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softmrc.sim.run import run
from softmrc.sim.scenario import parse

HOSTS_PER_LEAF, LEAVES = 8, 4


@dataclass(frozen=True)
class Confirmed:
    """The share of its rate that a host keeps with one port less: by arithmetic, and by packets."""

    arithmetic: float
    packets: float | None  # None: the host was cut off, and the run did not finish


def confirm(planes: int, nic_bps: str, oversubscription: float, seed: int = 1) -> Confirmed:
    """With and without a dead port at a host, among hosts that all send across leaves."""
    spines = max(1, round(HOSTS_PER_LEAF / oversubscription))
    table: dict[str, Any] = {
        "question": "What is left with one port less?",
        "fabric": {
            "planes": planes, "nic_bps": nic_bps, "hosts": HOSTS_PER_LEAF * LEAVES, "hosts_per_leaf": HOSTS_PER_LEAF,
            "spines": spines,
        },
        "workload": {"kind": "permutation", "pattern": "across_leaves", "message_bytes": 8_000_000},
        "run": {"stall_ms": 5.0, "seed": seed},
    }  # fmt: skip
    whole = run(parse(table))
    event = {"kind": "down", "port": {"plane": 0, "host": 5}, "at_us": 0.0}
    broken = run(parse(table | {"faults": {"events": [event]}}))
    kept = float(np.nanmin(broken.rate_bps) / np.nanmin(whole.rate_bps)) if broken.verdict else None
    # As assess has it. Where uplinks are fewer than downlinks a host may keep more: its ports were not the bottleneck.
    return Confirmed(1 - 1 / planes, kept)
