"""What retries cost: shares that add up, and a job that stops is said to stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from softmrc.cli.retries import answer, cells
from softmrc.planner import retries
from softmrc.planner.retries import Cost, SeedSpread
from softmrc.sim.run import run

SMALL = {"steps": 3, "compute_us": 50.0, "bytes": 1_000_000}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(retries.JOB["workload"], "steps", SMALL["steps"])
    monkeypatch.setitem(retries.JOB["workload"], "bytes", SMALL["bytes"])
    monkeypatch.setattr(retries, "HIT_US", 100.0)


@pytest.mark.parametrize("transport", retries.TRANSPORTS)
@pytest.mark.parametrize("fault", retries.FAULTS)
def test_every_fault_can_happen_to_either(transport: str, fault: str) -> None:
    hit = retries.scenario_of(transport, retries.FAULTS[fault])
    calm = retries.scenario_of(transport, None)
    assert hit.faults.events and not calm.faults.events and hit.workloads == calm.workloads
    assert hit.fabric.planes * hit.fabric.host_link_bps == 400_000_000_000


def test_a_fault_is_weighed_beside_the_same_seed_without_it(small: None) -> None:
    calm = [run(retries.scenario_of("MRC", None), seed) for seed in (1, 2)]
    nothing = retries.weigh("nothing", "MRC", calm, calm, 2.0)
    assert (nothing.time.mean, nothing.step.mean, nothing.usd, nothing.stopped) == (0, 0, 0, 0)
    fault = retries.FAULTS["NIC port down"]
    hit = [run(retries.scenario_of("MRC", fault), seed) for seed in (1, 2)]
    found = retries.weigh("port", "MRC", hit, calm, 2.0)
    since = [[one.makespan_us - retries.HIT_US for one in runs] for runs in (hit, calm)]
    expected = sum(1 - b / a for a, b in zip(*since, strict=True)) / 2  # from when the fault comes
    assert found.time.mean == pytest.approx(expected) and found.time.mean > 0.02  # a quarter of the NIC is gone
    assert found.usd == pytest.approx(2000 * expected)
    assert found.bandwidth_share == pytest.approx(sum(one.retransmitted / one.data_packets for one in hit) / 2)


def test_a_job_that_stops_has_no_share_of_time(small: None) -> None:
    fault = retries.FAULTS["NIC port down"]
    calm = [run(retries.scenario_of("RoCE", None), 1)]
    hit = [run(retries.scenario_of("RoCE", fault), 1)]
    found = retries.weigh("port", "RoCE", hit, calm, 2.0)
    assert not hit[0].verdict and found.stopped == 1
    assert (found.time.values, found.step.values, found.usd) == ((), (), None)
    assert found.to_json()["time_share"] == {"mean": None, "least": None, "most": None}


def test_what_seeds_do_not_agree_on_is_unclear() -> None:
    """No fault makes a job faster: where one seed of three gained, by chance, nothing was said to be lost, at $ 0."""
    time, lost = SeedSpread((-0.03, 0.02, 0.07)), SeedSpread((-300.0, 200.0, 700.0), 5.0)
    some = Cost("flaps", "RoCE", 0.01, True, time, lost, SeedSpread((-0.02, -0.01, 0.0)), 0, 10_000, 2.5)
    sure = replace(some, fault="loss", time=SeedSpread((0.05, 0.15)), step=SeedSpread((0.2, 0.2)))
    none = replace(some, fault="calm", time=SeedSpread((-0.01, 0.0)))
    stops = Cost("port", "RoCE", 0.2, True, SeedSpread(()), SeedSpread(()), SeedSpread(()), 3, 10_000, 2.5)
    ends = replace(
        some, fault="reboot", is_lasting=False, time=SeedSpread((0.9, 0.9)), lost_us=SeedSpread((50.0, 70.0), 5.0)
    )
    assert cells(some) == ["1 %", "-3.0 … +7.0 %", "none", "unclear"]
    assert some.usd is None and some.to_json()["time_share"] == {"mean": None, "least": -0.03, "most": 0.07}
    assert cells(sure)[1:] == ["+10.0 %", "+20.0 %", "250"] and cells(none)[1:] == ["none", "none", "0"]
    assert cells(stops) == ["20 %", "stops", "", ""]
    said = "RoCE rides out 4 of 5 faults and loses 10 % of the time to the worst of those that stay (loss)."
    assert answer([some, sure, none, stops, ends]) == said


def test_a_fault_that_ends_costs_time_once_and_no_share_of_a_job(small: None) -> None:
    """Its share was of a run of twelve steps: a third of it with three times as many."""
    fault = retries.FAULTS["spine reboots"]
    calm = [run(retries.scenario_of("MRC", None), 1)]
    hit = [run(retries.scenario_of("MRC", fault), 1)]
    found = retries.weigh("reboot", "MRC", hit, calm, 2.0, is_lasting=False)
    assert found.lost_us.mean == pytest.approx(hit[0].makespan_us - calm[0].makespan_us)
    assert (found.usd, found.to_json()["time_share"]) == (None, None)
    sure = replace(found, lost_us=SeedSpread((50.0, 70.0), 5.0))
    assert (cells(sure)[1], cells(sure)[3]) == ("+60 µs", "–")
