"""How near to its links' rate the shipped all-reduce comes on a simulated fabric that is larger than a machine."""

from __future__ import annotations

from softmrc import sim

HOSTS_PER_LEAF = 32


def ideal_ratio(ranks: int, nbytes: int) -> float:
    """Bus bandwidth over what four planes of 100 Gb/s carry, on a fabric with two tiers and nothing to spare."""
    scenario = sim.parse(
        {
            "question": "How much of the links' rate does an all-reduce use?",
            "fabric": {"planes": 4, "hosts": ranks, "hosts_per_leaf": HOSTS_PER_LEAF, "spines": HOSTS_PER_LEAF},
            "workload": {"kind": "collective", "collective": "all_reduce", "bytes": nbytes},
        }
    )
    result = sim.run(scenario)
    return float(result.ideal_us[0] / result.call_us[0])
