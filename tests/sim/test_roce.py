"""The baseline does what RoCE does: one path a queue pair, go-back-N, and nothing worse than that."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.small import scenario

from softmrc import sim

ROCE = {"kind": "roce"}


def roce(**changes: Any) -> sim.Result:
    transport = ROCE | changes.pop("transport", {})
    return sim.run(scenario(transport=transport, fabric={"planes": 1, "host_link_gbps": 400}, **changes))


@pytest.mark.parametrize("qps", [1, 4, 16])
@pytest.mark.parametrize("size", [4096, 65_536, 262_144, 100_001])
def test_a_lone_flow_is_acknowledged_without_a_timeout(qps: int, size: int) -> None:
    """The last packet of each part asks for its acknowledgement, whatever its size."""
    work = {"kind": "incast", "sources": [5], "message_bytes": size}
    result = roce(transport={"qps_per_pair": qps}, workload=work)
    assert result.verdict and result.retransmitted == 0
    assert result.fct_us[0] < 9 + size * 8 / 400e9 * 1e6 * 1.1


def test_loss_costs_roce_more_than_mrc() -> None:
    lossy = {"events": [{"kind": "loss", "everywhere": True, "value": 0.003}]}
    work = {"kind": "permutation", "message_bytes": 2_000_000, "pattern": "across_leaves"}
    baseline = roce(faults=lossy, workload=work)
    ours = sim.run(scenario(fabric={"planes": 1, "host_link_gbps": 400}, faults=lossy, workload=work))
    assert baseline.verdict and ours.verdict
    assert baseline.retransmitted > 5 * baseline.counters["lost_to_faults"], "go-back-N sends more than was lost"
    assert baseline.makespan_us > 1.5 * ours.makespan_us


def test_pfc_pauses_instead_of_dropping() -> None:
    work = {"kind": "incast", "fan_in": 12, "message_bytes": 1_000_000}
    paused = roce(workload=work, transport={"dcqcn": False})
    dropped = roce(workload=work, transport={"dcqcn": False, "pfc": False})
    assert paused.counters["dropped"] == 0 < paused.counters["pauses"]
    assert dropped.counters["dropped"] > 0 == dropped.counters["pauses"]


def test_a_dead_link_is_left_after_the_convergence_delay() -> None:
    event = {"kind": "down", "link": {"plane": 0, "leaf": "all", "spine": 1}, "at_us": 10.0}
    work = {"kind": "permutation", "message_bytes": 1_000_000, "pattern": "across_leaves"}
    result = sim.run(
        scenario(
            transport=ROCE | {"qps_per_pair": 4},
            fabric={"planes": 1, "host_link_gbps": 400, "convergence_delay_ms": 1.0},
            workload=work,
            faults={"events": [event]},
        )
    )
    assert result.verdict and result.makespan_us > 1_000


def test_packets_that_are_sent_again_are_data_packets_with_either() -> None:
    """Of MRC's they were none, so that a share of them was a share of something else."""
    faults = {"events": [{"kind": "loss", "value": 0.01, "everywhere": True}]}
    for kind in ("mrc", "roce"):
        found = sim.run(scenario(transport={"kind": kind}, faults=faults))
        needed = sum(-(-size // found.scenario.transport.mtu_bytes) for size in found.plan.bytes)
        assert found.verdict and found.retransmitted > 0
        assert found.summary()["data_packets"] == found.data_packets == needed + found.retransmitted
