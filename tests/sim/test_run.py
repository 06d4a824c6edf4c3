"""Runs: the same seed gives the same trace, nothing is lost or invented, and the figures agree with arithmetic."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.sim.small import REFERENCE, THREE_TIERS, scenario, table

from softmrc import sim
from softmrc.sim.run import Run
from softmrc.sim.scenario import merge


def test_the_same_seed_gives_the_same_trace() -> None:
    first, again, other = (sim.run(scenario(), seed) for seed in (7, 7, 8))
    assert first.trace_hash == again.trace_hash != other.trace_hash
    assert np.array_equal(first.flows, again.flows)
    assert np.array_equal(first.goodput_bps, again.goodput_bps)


def test_watching_does_not_change_what_happens() -> None:
    seen: list[sim.Progress] = []
    quiet = sim.run(scenario(run={"bin_us": 100.0}))
    watched = sim.run(scenario(run={"bin_us": 1.0}), on_progress=seen.append)
    assert quiet.trace_hash == watched.trace_hash
    assert seen[-1].share == 1.0 and seen[-1].flows_done == 16
    assert [one.share for one in seen] == sorted(one.share for one in seen)


def test_two_networks_in_one_process_do_not_know_of_each_other() -> None:
    alone = sim.run(scenario(), 3).trace_hash
    a, b = Run(scenario(), 3), Run(scenario(), 4)
    a.build(), b.build()
    while a.network.run(2**62, 100) | b.network.run(2**62, 70):
        pass
    assert a.network.trace_hash == alone


@pytest.mark.parametrize("forwarding", ["srv6", "ecmp", "structured"])
@pytest.mark.parametrize("shape", [{}, THREE_TIERS], ids=["two tiers", "three tiers"])
def test_every_byte_arrives_by_every_way_of_forwarding(forwarding: str, shape: dict[str, Any]) -> None:
    result = sim.run(scenario(**merge(shape, {"fabric": {"forwarding": forwarding}})))
    assert result.verdict, result.verdict.text
    assert result.counters["bytes_placed"] == 16 * 200_000 == result.stats["bytes_placed"]
    assert result.counters["data_packets"] == 16 * -(-200_000 // 4096)
    assert result.counters["dropped"] == result.counters["lost_to_faults"] == 0


def test_bytes_are_conserved_on_the_way() -> None:
    result = sim.run(scenario())
    fabric, t = result.scenario.fabric, result.scenario.transport
    sums = {name: int(result.link_bytes[links.ravel()].sum()) for name, links in fabric.stages().items()}
    # Nothing was trimmed, dropped or lost and all flows leave their leaf, so each stage carries what the last one did.
    assert result.counters["trimmed"] == 0
    assert sums["T0 to T1"] == sums["T1 to T0"] <= sums["host to T0"]
    packets = result.counters["data_packets"] + result.counters["retransmitted"]
    sent = (
        result.stats["bytes_sent"]
        + packets * t.header_bytes
        + result.counters["control_packets"] * t.control_packet_bytes
    )
    if result.counters["retransmitted"] == 0:
        assert sums["host to T0"] == sent
    placed_bits = float(result.goodput_bps.sum()) * result.bin_us * 1e-6
    assert placed_bits == pytest.approx(8 * result.counters["bytes_placed"])


def test_a_lone_flow_takes_as_long_as_arithmetic_says() -> None:
    """One packet over an empty network: four hops out, and the completion comes back over four."""
    one = {"kind": "incast", "destination": 15, "sources": [0], "message_bytes": 4096}
    result = sim.run(scenario(workload=one))
    hop_us = (4096 + 104) * 8 / 100e9 * 1e6 + 1.0
    delivered_us = float(result.table()["delivered_us"][0])
    assert delivered_us == pytest.approx(4 * hop_us, abs=1e-3)
    assert result.fct_us[0] == pytest.approx(result.scenario.base_rtt_us, abs=0.05)


def test_an_incast_takes_as_long_as_the_last_link() -> None:
    result = sim.run(scenario(workload={"kind": "incast", "fan_in": 8, "message_bytes": 1_000_000}))
    wire_bytes = 8 * (1_000_000 + 104 * -(-1_000_000 // 4096))
    least_us = wire_bytes * 8 / 200e9 * 1e6
    assert least_us < result.makespan_us < 1.1 * least_us + 15


def test_links_have_the_numbers_that_the_core_gives_them() -> None:
    for shape in ({}, THREE_TIERS):
        run = Run(scenario(**shape))
        run.build()
        fabric, network = run.scenario.fabric, run.network
        assert fabric.links == network.links and fabric.leaves == network.leaves
        for plane in range(fabric.planes):
            assert fabric.host_up(plane, 5) == network.host_up(plane, 5)
            assert fabric.host_down(plane, 5) == network.host_down(plane, 5)
            assert fabric.leaf_up(plane, 2, 1) == network.leaf_up(plane, 2, 1)
            assert fabric.leaf_down(plane, 2, 1) == network.leaf_down(plane, 2, 1)
            if fabric.pods:
                assert fabric.t1_up(plane, 3, 1) == network.t1_up(plane, 3, 1)
                assert fabric.t1_down(plane, 3, 1) == network.t1_down(plane, 3, 1)
        numbers = np.concatenate([links.ravel() for links in fabric.stages().values()])
        assert sorted(numbers) == list(range(fabric.links))
        assert len({fabric.link_name(link) for link in range(fabric.links)}) == fabric.links


@pytest.mark.slow
def test_agreement_on_a_permutation_across_a_fat_tree() -> None:
    shape = {"planes": 1, "hosts": 128, "hosts_per_leaf": 4, "spines": 4, "pods": 8, "cores_per_spine": 4}
    work = {"kind": "permutation", "message_bytes": 2_000_000}
    reference = sim.parse(merge(REFERENCE, {"fabric": shape, "workload": work}))
    assert reference.base_rtt_us == pytest.approx(14.02, abs=0.01) and reference.timeout == 7
    runs = [sim.run(reference, seed) for seed in (1, 2, 3)]
    assert np.mean([one.fct_us.mean() for one in runs]) == pytest.approx(193.5, rel=0.05)
    assert np.mean([one.fct_us.max() for one in runs]) == pytest.approx(204, rel=0.05)


def test_agreement_on_an_incast() -> None:
    shape = {"planes": 1, "hosts": 128, "hosts_per_leaf": 16, "spines": 16, "host_link_gbps": 400}
    work = {"kind": "incast", "sources": list(range(3, 128, 4)), "message_bytes": 2_000_000}
    reference = sim.parse(merge(REFERENCE, {"fabric": shape, "workload": work}))
    assert reference.base_rtt_us == pytest.approx(8.337, abs=0.001) and reference.timeout == 6
    runs = [sim.run(reference, seed) for seed in (1, 2)]
    assert np.mean([one.fct_us.mean() for one in runs]) == pytest.approx(1137, rel=0.10)
    assert np.mean([one.fct_us.max() for one in runs]) == pytest.approx(1329, rel=0.05)


def test_parts_of_mrc_can_be_switched_off() -> None:
    work = {"kind": "incast", "fan_in": 12, "message_bytes": 500_000}
    trimming = sim.run(scenario(workload=work))
    dropping = sim.run(scenario(workload=work, queues={"trim": False, "data_bdp": 1.0}))
    assert trimming.verdict and dropping.verdict
    assert trimming.counters["trimmed"] > 0 == dropping.counters["trimmed"]
    assert dropping.counters["dropped"] > 0
    oblivious = sim.run(scenario(transport={"spraying": "oblivious"}, queues={"ecn_low_bdp": 0.0}))
    assert oblivious.verdict and oblivious.ev_states[:, 1].sum() == 0
    assert sim.run(scenario(fabric={"planes": 1, "host_link_gbps": 200})).verdict


def test_variants_run_side_by_side() -> None:
    compare = [{"name": "no trimming", "queues": {"trim": False}}, {"name": "one plane", "fabric": {"planes": 1}}]
    results = sim.run_all(sim.parse(table(compare=compare)))
    assert [one.name for one in results] == ["MRC", "no trimming", "one plane"]
    assert all(one.verdict for one in results)
    assert results[2].goodput_bps.shape[0] == 1


def test_interrupting_keeps_what_was_found() -> None:
    def stop(progress: sim.Progress) -> None:
        if progress.share > 0.3:
            raise KeyboardInterrupt

    result = sim.run(scenario(workload={"message_bytes": 2_000_000}), on_progress=stop)
    assert result.verdict.kind == "interrupted" and not result.verdict
    assert 0 < result.counters["bytes_placed"] < 16 * 2_000_000
    assert result.goodput_bps.sum() > 0
    assert json.loads(json.dumps(result.summary()))["verdict"] == "interrupted"


def test_time_can_be_up() -> None:
    result = sim.run(scenario(run={"until_ms": 0.01}))
    assert result.verdict.kind == "time is up"
    assert result.simulated_us == pytest.approx(10, abs=1)


def test_tables_have_a_row_for_every_flow_and_link() -> None:
    result = sim.run(scenario())
    assert {len(column) for column in result.table().values()} == {16}
    assert {len(column) for column in result.link_table().values()} == {result.scenario.fabric.links}
    assert result.link_table()["load"].max() <= 1.0
    assert np.isnan(sim.run(scenario(run={"until_ms": 0.001})).fct_us).all()


@pytest.mark.parametrize("shape", [{}, THREE_TIERS], ids=["two tiers", "three tiers"])
def test_cables_side_by_side_are_one_link_as_fast_as_all_of_them(shape: dict[str, Any]) -> None:
    """Few switches that every leaf meets by several cables carry what many do; with one cable each they do not."""
    works = {"workload": {"message_bytes": 2_000_000}}
    wide = sim.run(scenario(**merge(shape, works)))
    spines = wide.scenario.fabric.spines
    thick = {"spines": 1, "cables_per_link": spines}
    if shape:
        thick |= {"cores_per_spine": 1, "cables_per_core_link": 2 * spines}
    few = sim.run(scenario(**merge(merge(shape, works), {"fabric": thick, "transport": {"evs": 2}})))
    thin = thick | {"cables_per_link": 1, "cables_per_core_link": 1}
    lean = sim.run(scenario(**merge(merge(shape, works), {"fabric": thin, "transport": {"evs": 2}})))
    slowest = [float(np.nanmin(one.rate_bps)) for one in (wide, few, lean)]
    assert wide.verdict and few.verdict and lean.verdict
    assert slowest[1] > 0.9 * slowest[0] and slowest[2] < 0.6 * slowest[1]
    assert few.link_table()["load"].max() < 1.01
