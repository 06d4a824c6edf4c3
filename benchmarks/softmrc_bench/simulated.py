"""How near to its links' rate the shipped all-reduce comes on a simulated fabric that is larger than a machine."""

from __future__ import annotations

from softmrc import sim

HOSTS_PER_LEAF = 32


def all_reduce_us(ranks: int, nbytes: int, algorithm: str = "") -> tuple[float, float]:
    """What it takes by the algorithm that is given, or chosen, and the least that links allow.

    Four planes of 100 Gb/s, two tiers, nothing to spare.
    """
    hosts_per_leaf = min(HOSTS_PER_LEAF, max(ranks // 4, 1))
    scenario = sim.parse(
        {
            "question": "How much of the links' rate does an all-reduce use?",
            "fabric": {"planes": 4, "hosts": ranks, "hosts_per_leaf": hosts_per_leaf, "spines": hosts_per_leaf},
            "workload": {"kind": "collective", "collective": "all_reduce", "bytes": nbytes, "algorithm": algorithm},
        }
    )
    result = sim.run(scenario)
    return float(result.call_us[0]), float(result.ideal_us[0])


def ideal_ratio(ranks: int, nbytes: int) -> float:
    """Bus bandwidth over what the links carry."""
    took_us, ideal_us = all_reduce_us(ranks, nbytes)
    return ideal_us / took_us
