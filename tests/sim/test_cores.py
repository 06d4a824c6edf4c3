"""One run on several cores: the same trace, to the last packet, as on one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.sim.small import THREE_TIERS, scenario

from softmrc import sim
from softmrc.sim.run import Run
from softmrc.sim.scenario import merge

CORES = (2, 3, 5)
WIDE = {"fabric": {"planes": 2, "hosts": 40, "hosts_per_leaf": 4, "spines": 4}}
BREAKS = [
    {"kind": "loss", "value": 0.02, "at_us": 3, "link": {"plane": 0, "leaf": 1, "spine": 2}},
    {"kind": "black_hole", "at_us": 7.3, "for_us": 60, "link": {"plane": 1, "leaf": 0, "spine": 0}},
    {"kind": "down", "at_us": 5, "for_us": 40, "times": 3, "every_us": 90, "port": {"plane": 0, "host": 5}},
    {"kind": "corrupt", "value": 0.05, "at_us": 0, "link": {"plane": 1, "leaf": 2, "spine": 3}},
    {"kind": "ev_loss", "value": 0.9, "at_us": 2.5, "link": {"plane": 0, "leaf": 2, "spine": 1}},
    {"kind": "down", "at_us": 11, "for_us": 30, "switch": {"plane": 0, "tier": "t1", "index": 3}},
]
GREY = [
    {"kind": "slow", "value": 0.1, "at_us": 4, "queues": "scaled", "switch": {"plane": 1, "tier": "t1", "index": 1}}
]
DEAD_LEAF = [
    {"kind": "black_hole", "at_us": 9, "switch": {"plane": plane, "tier": "t0", "index": 3}} for plane in (0, 1)
]
INCAST = merge(WIDE, {"workload": {"kind": "incast", "destination": 7, "fan_in": 20, "message_bytes": 100_000}})
ROCE = {"transport": {"kind": "roce", "qps_per_pair": 4}}


def ranks(**call: Any) -> dict[str, Any]:
    return merge(WIDE, {"workload": {"kind": "collective", "bytes": 400_000} | call})


RUNS: dict[str, dict[str, Any]] = {
    "a permutation": WIDE,
    "three tiers": THREE_TIERS,
    "faults": merge(WIDE, {"faults": {"events": BREAKS}}),
    "a grey spine": merge(WIDE, {"faults": {"events": GREY}, "queues": {"trim_bdp": 0.3}}),
    "trimming": merge(INCAST, {"queues": {"trim_bdp": 0.2, "last_hop_trim_bdp": 0.2}}),
    "drops": merge(INCAST, {"queues": {"trim": False, "data_bdp": 0.5}}),
    "several queue pairs": merge(WIDE, {"transport": {"qps_per_pair": 3}, "workload": {"messages": 4}}),
    "ECMP": merge(WIDE, {"fabric": {"forwarding": "ecmp", "convergence_delay_ms": 0.01}, "faults": {"events": BREAKS}}),
    "RoCE, lossless": merge(INCAST, ROCE),
    "RoCE, lossy": merge(merge(WIDE, ROCE), {"transport": {"pfc": False}, "faults": {"events": BREAKS[:2]}}),
    "a ring": merge(WIDE, {"workload": {"kind": "ring", "bytes": 400_000, "repeats": 2}}),
    "an all-reduce": ranks(repeats=3, pause_us=2.5),
    "ranks and faults": merge(ranks(collective="all_to_all", bytes=8_000), {"faults": {"events": BREAKS}}),
    "acknowledgements": merge(
        WIDE,
        {"workload": {"kind": "all_to_all", "message_bytes": 8_000, "window": 3}, "run": {"chain": "acknowledgement"}},
    ),
    "time that is up": merge(WIDE, {"run": {"until_ms": 0.02}}),
    "stuck": merge(WIDE, {"faults": {"events": DEAD_LEAF}, "run": {"stall_ms": 0.2}}),
}
SERIES = ("flows", "goodput_bps", "bad_evs", "link_bytes", "link_max_queue_bytes", "ev_states", "ev_states_us")


def found(one: sim.Scenario, seed: int, cores: int) -> tuple[Run, sim.Result]:
    run = Run(one, seed, cores=cores)
    return run, run.to_end()


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_cores_change_nothing(name: str, seed: int) -> None:
    one = scenario(**RUNS[name])
    alone, expected = found(one, seed, 1)
    assert alone.network.cores == 1
    for cores in CORES:
        run, result = found(one, seed, cores)
        assert run.network.cores == cores, "or else nothing is compared"
        assert f"{result.trace_hash:016x}" == f"{expected.trace_hash:016x}"
        assert result.counters == expected.counters and result.stats == expected.stats
        assert result.verdict == expected.verdict and result.simulated_us == expected.simulated_us
        for key in SERIES:
            assert np.array_equal(getattr(result, key), getattr(expected, key)), key
        for key in ("unsent_packets", "last_lost_us", "last_retransmitted_us"):
            assert np.array_equal(getattr(result, key), getattr(expected, key), equal_nan=True), key


@pytest.mark.slow
def test_how_a_run_is_cut_changes_nothing() -> None:
    """Slices that end in the middle of a window, on some cores sooner than on others."""
    one = scenario(**RUNS["faults"])
    expected = found(one, 3, 1)[1].trace_hash
    for cores, events in ((1, 100), (2, 7), (3, 500), (5, 33)):
        run = Run(one, 3, cores=cores)
        run.build()
        while run.network.run(2**62, events):
            pass
        assert run.network.trace_hash == expected


def test_flows_that_start_each_other_from_afar_stay_on_one_core() -> None:
    """An all-to-all that goes on when its destination has the message: nothing tells the source in time."""
    run, _ = found(scenario(**WIDE, workload={"kind": "all_to_all", "message_bytes": 4096}), 1, 4)
    assert run.network.cores == 1


def test_a_leaf_is_never_cut() -> None:
    run, result = found(scenario(), 1, 64)
    assert run.network.cores == 4 == result.scenario.fabric.leaves


def test_small_runs_take_one_core_by_themselves() -> None:
    assert Run(scenario()).config.cores == 1
