"""What retries cost: shares that add up, and a job that stops is said to stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from softmrc.cli.retries import answer, cells
from softmrc.sim import retries
from softmrc.sim.retries import Cost, Spread
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
    expected = sum(1 - b.makespan_us / a.makespan_us for a, b in zip(hit, calm, strict=True)) / 2
    assert found.time.mean == pytest.approx(expected) and found.time.mean > 0.02  # a quarter of the NIC is gone
    assert found.usd == pytest.approx(2000 * expected)
    assert found.bandwidth_share == pytest.approx(sum(one.retransmitted / one.data_packets for one in hit) / 2)


def test_a_job_that_stops_has_no_share_of_time(small: None) -> None:
    fault = retries.FAULTS["NIC port down"]
    calm = [run(retries.scenario_of("RoCE", None), 1)]
    hit = [run(retries.scenario_of("RoCE", fault), 1)]
    found = retries.weigh("port", "RoCE", hit, calm, 2.0)
    assert not hit[0].verdict and found.stopped == 1
    assert (found.time.shares, found.step.shares, found.usd) == ((), (), None)
    assert found.to_json()["time_share"] == {"mean": None, "least": None, "most": None}


def test_what_seeds_do_not_agree_on_is_unclear() -> None:
    """No fault makes a job faster: where one seed of three gained, by chance, nothing was said to be lost, at $ 0."""
    some = Cost("flaps", "RoCE", 0.01, Spread((-0.03, 0.02, 0.07)), Spread((-0.02, -0.01, 0.0)), 0, 2.5)
    sure = replace(some, fault="loss", time=Spread((0.05, 0.15)), step=Spread((0.2, 0.2)))
    none = replace(some, fault="calm", time=Spread((-0.01, 0.0)))
    stops = Cost("port", "RoCE", 0.2, Spread(()), Spread(()), 3, 2.5)
    assert cells(some) == ["1 %", "-3.0 … +7.0 %", "none", "unclear"]
    assert some.usd is None and some.to_json()["time_share"] == {"mean": None, "least": -0.03, "most": 0.07}
    assert cells(sure)[1:] == ["+10.0 %", "+20.0 %", "250"] and cells(none)[1:] == ["none", "none", "0"]
    assert cells(stops) == ["20 %", "stops", "", ""]
    said = "RoCE rides out 3 of 4 faults and loses 10 % of the time to the worst of them (loss)."
    assert answer([some, sure, none, stops]) == said
