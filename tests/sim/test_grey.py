"""Slow links: whether adaptive spraying adapts, and the options of the fault and of chains."""

from __future__ import annotations

from typing import Any

import pytest

from softmrc import sim
from softmrc_bench.sim import GREY_SPINE, scenario

from . import small


def slowed(share: float, **keys: Any) -> sim.Scenario:
    event = {"kind": "slow", "value": share, "switch": {"plane": 0, "tier": "t1", "index": GREY_SPINE}} | keys
    return scenario("grey").with_keys({"faults.events": [event]})


# spec: ev-barred ev-share-in-flight loss-holes
@pytest.mark.slow
@pytest.mark.parametrize(("share", "most"), [(0.25, 1.10), (0.1, 1.15), (0.5, 1.15)])
@pytest.mark.parametrize("queues", ["kept", "scaled"])
def test_a_spine_at_a_part_of_its_rate_hardly_delays_the_last_message(share: float, most: float, queues: str) -> None:
    ratios = []
    for seed in (6, 7, 8):
        healthy = sim.run(scenario("grey"), seed).fct_us.max()
        ratios.append(sim.run(slowed(share, queues=queues), seed).fct_us.max() / healthy)
    assert sum(ratios) / len(ratios) < most, ratios


def test_queues_of_a_slow_link_keep_their_bytes_or_shrink_with_its_rate() -> None:
    most = {
        queues: sim.run(slowed(0.1, queues=queues).with_keys({"transport.spraying": "oblivious"}), 1)
        for queues in ("kept", "scaled")
    }
    deepest = {queues: int(run.link_max_queue_bytes.max()) for queues, run in most.items()}
    assert deepest["kept"] > 400_000 and most["scaled"].counters["trimmed"] > most["kept"].counters["trimmed"]


def test_flows_are_chained_on_the_delivery_or_on_the_acknowledgement() -> None:
    chained = {"workload": {"kind": "ring", "bytes": 1 << 20}}
    results = {how: sim.run(small.scenario(**chained, run={"chain": how})) for how in ("delivery", "acknowledgement")}
    assert all(run.verdict for run in results.values())
    assert results["acknowledgement"].simulated_us > results["delivery"].simulated_us


# spec: window-hints window-shared
def test_several_queue_pairs_a_pair_and_honest_hints() -> None:
    keys: dict[str, Any] = {"transport.hints": True}
    plain, told = (sim.run(scenario("C").with_keys(k), 1) for k in ({}, keys))
    assert told.counters["trimmed"] < plain.counters["trimmed"] / 4
    assert told.fct_us.max() < 1.02 * plain.fct_us.max()
    many = small.scenario(transport={"evs": 32, "qps_per_pair": 4}, workload={"kind": "permutation", "messages": 8})
    assert sim.run(many).verdict
