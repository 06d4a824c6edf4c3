"""Scenarios small enough to run by the dozen."""

from __future__ import annotations

import copy
from typing import Any

from softmrc import sim
from softmrc.sim.scenario import merge

SMALL: dict[str, Any] = {
    "question": "Does it work?",
    "fabric": {"planes": 2, "hosts": 16, "hosts_per_leaf": 4, "spines": 4},
    "transport": {"evs": 32},
    "workload": {"kind": "permutation", "message_bytes": 200_000, "pattern": "across_leaves"},
}

THREE_TIERS = {"fabric": {"planes": 2, "hosts": 16, "hosts_per_leaf": 2, "spines": 2, "pods": 4, "cores_per_spine": 2}}

# The settings of the public reference runs: packet sizes, marks on the last hop, an early first SACK.
REFERENCE: dict[str, Any] = {
    "question": "Do we agree with another simulator?",
    "transport": {
        "mtu_bytes": 4084, "header_bytes": 66, "control_packet_bytes": 64, "trimmed_packet_bytes": 64, "evs": 64,
        "sack_first_packet": True,
        "paths": "drawn",
    },
    "queues": {"ecn_on_last_hop": True, "last_hop_trim_bdp": 1.0},
}  # fmt: skip


def table(**changes: Any) -> dict[str, Any]:
    return merge(copy.deepcopy(SMALL), changes)


def scenario(**changes: Any) -> sim.Scenario:
    return sim.parse(table(**changes), "small.toml")
