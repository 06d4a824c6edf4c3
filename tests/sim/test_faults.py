"""Each kind of fault on each kind of target: what it does, when it ends, and what the engine makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.sim.small import THREE_TIERS, scenario

from softmrc import sim
from softmrc.errors import ConfigError
from softmrc.sim.fabric import Fabric
from softmrc.sim.faults import actions, read_faults, switch_links
from softmrc.sim.verdict import broken_links

FABRIC = Fabric(planes=2, hosts=16, hosts_per_leaf=4, spines=4)
DEEP = Fabric(**THREE_TIERS["fabric"])
LONG = {"kind": "permutation", "message_bytes": 2_000_000, "pattern": "across_leaves"}


def links_of(fabric: Fabric = FABRIC, **event: Any) -> set[int]:
    faults = read_faults({"events": [{"kind": "down"} | event]}, "")
    (action,) = actions(faults, fabric, 4200, 1, "")
    assert len(set(action.links.tolist())) == len(action.links)
    return set(action.links.tolist())


def run_with(*events: dict[str, Any], **changes: Any) -> sim.Result:
    return sim.run(scenario(**({"workload": LONG} | changes), faults={"events": list(events)}))


def test_targets_name_the_links_they_mean() -> None:
    f = FABRIC
    assert links_of(link={"plane": 1, "leaf": 2, "spine": 3}) == {f.leaf_up(1, 2, 3), f.leaf_down(1, 2, 3)}
    assert links_of(link={"plane": 1, "leaf": 2, "spine": 3}, direction="up") == {f.leaf_up(1, 2, 3)}
    assert links_of(port={"plane": 0, "host": 5}, direction="down") == {f.host_down(0, 5)}
    assert links_of(port={"plane": 0, "host": [5, 6]}) == {w(0, h) for w in (f.host_up, f.host_down) for h in (5, 6)}
    assert links_of(plane=1) == set(range(f.links_per_plane, f.links))
    assert links_of(everywhere=True) == set(range(f.links))
    ups = links_of(everywhere=True, direction="up")
    assert ups | links_of(everywhere=True, direction="down") == set(range(f.links)) and len(ups) == f.links // 2
    assert len(links_of(link={"plane": "all", "leaf": "all", "spine": 0})) == 2 * 4 * 2
    spines = links_of(transceiver={"plane": 0, "leaf": 1, "spines": [0, 1]})
    assert spines == {w(0, 1, s) for w in (f.leaf_up, f.leaf_down) for s in (0, 1)}
    assert links_of(transceiver={"plane": 0, "leaf": 1, "hosts": [4, 5]}) == links_of(port={"plane": 0, "host": [4, 5]})


@pytest.mark.parametrize("fabric", [FABRIC, DEEP], ids=["two tiers", "three tiers"])
def test_switches_share_out_all_cables(fabric: Fabric) -> None:
    """A cable has two ends: over all switches, a host's links appear once and all others twice."""
    tiers = {"t0": fabric.leaves, "t1": fabric.t1_switches} | ({"t2": fabric.t2_switches} if fabric.pods else {})
    seen = np.zeros(fabric.links, dtype=int)
    for tier, size in tiers.items():
        for plane in range(fabric.planes):
            for index in range(size):
                np.add.at(seen, switch_links(fabric, plane, tier, index), 1)
    for name, links in fabric.stages().items():
        assert (seen[links] == (1 if "host" in name else 2)).all(), name


def test_core_links_and_switches_of_three_tiers() -> None:
    f = DEEP
    assert links_of(f, core_link={"plane": 0, "t1": 5, "up": 1}) == {f.t1_up(0, 5, 1), f.t1_down(0, 5, 1)}
    core = links_of(f, switch={"plane": 1, "tier": "t2", "index": 3})
    assert core == {way(1, pod * 2 + 1, 1) for way in (f.t1_up, f.t1_down) for pod in range(4)}


def test_flaps_and_spans_end() -> None:
    event = {"kind": "down", "plane": 0, "at_us": 10.0, "for_us": 5.0, "times": 3, "every_us": 20.0}
    found = actions(read_faults({"events": [event]}, ""), FABRIC, 4200, 1, "")
    assert [(a.at_ps // 1_000_000, a.kind) for a in found] == [
        (10, "down"), (15, "heal"), (30, "down"), (35, "heal"), (50, "down"), (55, "heal"),
    ]  # fmt: skip
    assert not broken_links(FABRIC, found).any()


def test_drawn_links_are_cables_of_the_fabric() -> None:
    found = actions(read_faults({"links": 5, "every_us": 10.0, "at_us": 1.0}, ""), FABRIC, 4200, 9, "")
    cables = {tuple(a.links.tolist()) for a in found}
    assert len(cables) == 5 and [a.at_ps // 1_000_000 for a in found] == [1, 11, 21, 31, 41]
    known = {
        (FABRIC.leaf_up(p, leaf, s), FABRIC.leaf_down(p, leaf, s))
        for p in range(2)
        for leaf in range(4)
        for s in range(4)
    }
    assert cables <= known
    more = actions(read_faults({"links": 6, "every_us": 10.0, "at_us": 1.0}, ""), FABRIC, 4200, 9, "")
    assert [a.links.tolist() for a in more[:5]] == [a.links.tolist() for a in found], (
        "a sweep adds, it does not reshuffle"
    )


LINK = {"plane": 0, "leaf": 1, "spine": 2}


@pytest.mark.parametrize("kind", ["down", "black_hole"])
@pytest.mark.parametrize("direction", ["both", "up", "down"])
def test_a_dead_cable_is_left_and_everything_resent(kind: str, direction: str) -> None:
    result = run_with({"kind": kind, "link": LINK, "at_us": 40.0, "direction": direction})
    assert result.verdict, result.verdict.text
    assert result.counters["lost_to_faults"] > 0 and result.stats["evs_demoted"] > 0
    assert result.unsent_packets == 0
    assert result.last_retransmitted_us - 40 < 60, "recovery takes round trips, not timeouts"
    assert result.bad_evs.max() > 0


def test_a_silent_port_costs_a_plane() -> None:
    whole = run_with()
    result = run_with({"kind": "black_hole", "port": {"plane": 1, "host": 3}, "at_us": 30.0})
    assert result.verdict and result.makespan_us > 1.3 * whole.makespan_us
    slow = np.argsort(result.rate_bps)[:2]
    assert all(3 in (result.flows["source"][i], result.flows["destination"][i]) for i in slow)


def test_a_port_down_is_told_and_comes_back() -> None:
    event = {"kind": "down", "port": {"plane": 1, "host": 3}, "at_us": 30.0}
    for_good = run_with(event)
    short = run_with(event | {"for_us": 40.0})
    assert for_good.verdict and short.verdict
    assert short.makespan_us < for_good.makespan_us


def test_a_port_that_was_never_up_is_known_from_the_start() -> None:
    result = run_with({"kind": "down", "port": {"plane": 0, "host": 3}})
    assert result.verdict
    late = run_with({"kind": "black_hole", "port": {"plane": 0, "host": 3}})
    own = result.flows["source"] == 3
    assert result.fct_us[own][0] < late.fct_us[own][0]


@pytest.mark.parametrize("tier", ["t0", "t1"])
def test_a_switch_can_fail_and_return(tier: str) -> None:
    event = {"kind": "down", "switch": {"plane": 0, "tier": tier, "index": 1}, "at_us": 30.0, "for_us": 50.0}
    assert run_with(event).verdict


def test_a_whole_plane_can_fail() -> None:
    result = run_with({"kind": "down", "plane": 1, "at_us": 30.0})
    assert result.verdict
    last = result.goodput_bps[:, 8:-2]
    assert last[1].sum() == 0 and last[0].mean() > 0.8 * 16 * 100e9


def test_three_tiers_survive_a_dead_core() -> None:
    event = {"kind": "black_hole", "switch": {"plane": 0, "tier": "t2", "index": 0}, "at_us": 20.0}
    assert run_with(event, **THREE_TIERS).verdict


@pytest.mark.parametrize("kind", ["loss", "corrupt"])
def test_random_loss_hits_its_share(kind: str) -> None:
    result = run_with({"kind": kind, "everywhere": True, "value": 0.01})
    assert result.verdict
    hit = result.counters["lost_to_faults"] + result.counters["corrupted"]
    assert hit == pytest.approx(0.01 * result.counters["link_hops"], rel=0.15)


def test_bit_errors_hit_long_packets_by_their_length() -> None:
    faults = read_faults({"events": [{"kind": "bit_errors", "everywhere": True, "value": 1e-7}]}, "")
    (action,) = actions(faults, FABRIC, 4200, 1, "")
    assert action.value == pytest.approx(8 * 4200 * 1e-7, rel=0.01)


def test_a_slow_link_is_used_less() -> None:
    result = run_with({"kind": "slow", "link": LINK, "value": 0.25, "direction": "up"})
    fabric = result.scenario.fabric
    others = [int(result.link_bytes[fabric.leaf_up(0, 1, spine)]) for spine in (0, 1, 3)]
    assert result.verdict and result.link_bytes[fabric.leaf_up(0, 1, 2)] < 0.7 * min(others)


def test_loss_on_one_ev_withdraws_that_one() -> None:
    event = {"kind": "ev_loss", "port": {"plane": 0, "host": 3}, "value": 0.2, "at_us": 20.0, "direction": "up"}
    result = run_with(event, workload=LONG | {"messages": 4})
    assert result.verdict
    assert 0 < result.counters["lost_to_faults"] < 30
    assert 1 <= result.bad_evs.max() <= 6, "a few verdicts may be wrong for a moment, most EVs must stay"
    untouched = run_with(workload=LONG | {"messages": 4})
    assert result.makespan_us < 1.15 * untouched.makespan_us, "one path of eight is gone: seven carry on"


def test_a_scenario_that_cannot_finish_says_who_is_stuck() -> None:
    result = run_with({"kind": "down", "port": {"plane": "all", "host": 3}, "at_us": 20.0})
    assert result.verdict.kind == "stuck" and not result.verdict
    ends = {(int(result.flows["source"][i]), int(result.flows["destination"][i])) for i in result.verdict.stuck}
    assert len(ends) == 2 and all(3 in pair for pair in ends)
    assert "host 3 can send on no plane" in result.verdict.text and "(3 → " in result.verdict.text
    assert result.is_delivered.sum() == 14


def test_flows_behind_a_stuck_one_are_counted() -> None:
    ring = {"kind": "ring", "bytes": 800_000}
    result = run_with({"kind": "black_hole", "port": {"plane": "all", "host": 3}, "at_us": 20.0}, workload=ring)
    assert result.verdict.kind == "stuck" and "flows wait for them" in result.verdict.text


def test_no_path_left_between_two_leaves() -> None:
    dead = {"plane": "all", "leaf": 0, "spine": "all"}
    result = run_with({"kind": "black_hole", "link": dead})
    assert result.verdict.kind == "stuck" and "no path is left from host" in result.verdict.text


def test_a_long_outage_that_ends_is_not_stuck() -> None:
    event = {"kind": "down", "plane": "all", "at_us": 20.0, "for_us": 3000.0}
    result = run_with(event, run={"stall_ms": 20.0})
    assert result.verdict, result.verdict.text


@pytest.mark.parametrize("links", [8, 12, 20])
def test_many_dead_links_are_ridden_out(links: int) -> None:
    """Of 32, in both directions at once: who still has one path out and one back must find them, and soon."""
    faults = {"links": links, "kind": "black_hole", "at_us": 20.0}
    for seed in range(12):
        result = sim.run(scenario(workload=LONG, faults=faults), seed=seed)
        if result.verdict.kind == "stuck":
            assert "no path" in result.verdict.text or "no plane" in result.verdict.text, (seed, result.verdict.text)
        else:
            assert result.makespan_us < 20_000, (seed, result.makespan_us)


def test_nothing_above_a_single_leaf_breaks() -> None:
    """A spine that no packet crosses rebooted, without any effect."""
    for target in ({"link": {"plane": 0, "leaf": 0, "spine": 0}}, {"switch": {"plane": 0, "tier": "t1", "index": 0}}):
        fabric = {"hosts": 4, "hosts_per_leaf": 4, "spines": 1}
        one = scenario(fabric=fabric, workload={"pattern": "random"}, faults={"events": [{"kind": "down"} | target]})
        with pytest.raises(ConfigError, match="cannot be above the only leaf"):
            sim.run(one)
