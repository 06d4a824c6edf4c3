"""Workloads, against arithmetic that knows nothing of how they are built."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim.small import scenario

from softmrc import sim
from softmrc.errors import ConfigError
from softmrc.sim.traffic import TrafficPlan
from softmrc.sim.workloads import make_plan


def plan_of(**workload: Any) -> TrafficPlan:
    one = scenario(workload=workload)
    return make_plan(one.workloads, one.fabric, 1, one.source)


def replay(plan: TrafficPlan) -> list[int]:
    """The round in which each flow can start, if every flow takes one round: an independent reading of who waits."""
    waits: dict[int, list[int]] = {}
    for earlier, later in zip(plan.earlier, plan.later, strict=True):
        waits.setdefault(later, []).append(earlier)
    rounds: list[int] = []
    for flow in range(len(plan)):
        rounds.append(max((rounds[one] + 1 for one in waits.get(flow, [])), default=0))
    return rounds


@given(seed=st.integers(0, 2**63 - 1), leaves=st.integers(2, 5), across=st.booleans())
def test_a_permutation_reaches_everyone_once(seed: int, leaves: int, across: bool) -> None:
    pattern = "across_leaves" if across else "random"
    one = scenario(
        fabric={"hosts": 4 * leaves}, workload={"kind": "permutation", "message_bytes": 1, "pattern": pattern}
    )
    plan = make_plan(one.workloads, one.fabric, seed, "")
    assert sorted(plan.source) == sorted(plan.destination) == list(range(4 * leaves))
    place = (lambda host: host // 4) if across else (lambda host: host)
    assert all(place(a) != place(b) for a, b in zip(plan.source, plan.destination, strict=True))


def test_draws_do_not_change() -> None:
    """The same seed must mean the same flows on every machine and in every version."""
    one = scenario(workload={"kind": "permutation", "pattern": "random"})
    assert make_plan(one.workloads, one.fabric, 7, "").destination == EXPECTED_PERMUTATION


EXPECTED_PERMUTATION = [6, 2, 15, 9, 8, 3, 14, 0, 7, 1, 11, 13, 10, 12, 4, 5]


@pytest.mark.parametrize(("collective", "laps"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_a_ring_moves_each_chunk_all_the_way_round(collective: str, laps: int) -> None:
    ranks = 8
    plan = plan_of(kind="ring", collective=collective, hosts=ranks, bytes=80_000)
    steps = laps * (ranks - 1)
    assert len(plan) == steps * ranks
    assert set(plan.bytes) == {10_000}
    assert max(replay(plan)) == steps - 1 and Counter(replay(plan)) == {step: ranks for step in range(steps)}
    # In one round a chunk visits everyone: follow what rank 0 sends first.
    nexts = dict(zip(plan.source, plan.destination, strict=True))
    host, seen = plan.source[0], []
    for _ in range(ranks):
        seen.append(host)
        host = nexts[host]
    assert host == plan.source[0] and len(set(seen)) == ranks
    for earlier, later in zip(plan.earlier, plan.later, strict=True):
        assert plan.destination[earlier] == plan.source[later], "a rank sends on what it received"


def test_a_ring_runs_at_the_speed_of_its_links() -> None:
    result = sim.run(scenario(workload={"kind": "ring", "bytes": 8_000_000}))
    n, rate = 16, 200e9
    chunk_us = (8_000_000 / n) * (4200 / 4096) * 8 / rate * 1e6
    least_us = 2 * (n - 1) * (chunk_us + 4)
    assert least_us < result.makespan_us < 1.4 * least_us
    assert len(result.step_us) == 1 and result.step_us[0] == pytest.approx(result.makespan_us)


def test_all_to_all_keeps_its_window() -> None:
    n, window = 6, 2
    plan = plan_of(kind="all_to_all", hosts=n, window=window, message_bytes=1000)
    assert Counter(zip(plan.source, plan.destination, strict=True)) == {
        (a, b): 1 for a in range(n) for b in range(n) if a != b
    }
    at = Counter(zip(plan.source, replay(plan), strict=True))
    assert max(at.values()) == window
    result = sim.run(scenario(workload={"kind": "all_to_all", "window": 3, "message_bytes": 20_000}))
    assert result.verdict
    started, ended = result.table()["start_us"], result.table()["delivered_us"]
    for host in range(16):
        mine = result.flows["source"] == host
        edges = [(t, 1) for t in started[mine]] + [(t, -1) for t in ended[mine]]
        depth = np.cumsum([change for _, change in sorted(edges, key=lambda e: (e[0], e[1]))])
        assert depth.max() <= 3


def test_part_of_an_all_to_all_is_spread_over_all_distances() -> None:
    plan = plan_of(kind="all_to_all", hosts=13, peers=3, window=2, message_bytes=1000)
    distances = [(to - host) % 13 for host, to in zip(plan.source, plan.destination, strict=True)]
    assert distances == [1] * 13 + [5] * 13 + [9] * 13
    assert max(Counter(zip(plan.source, replay(plan), strict=True)).values()) == 2
    with pytest.raises(ConfigError, match=r"workload.peers`: .*0 to the 12 others.*.got 13"):
        plan_of(kind="all_to_all", hosts=13, peers=13)


def test_a_training_step_is_its_compute_and_its_collective() -> None:
    one = scenario(workload={"kind": "training", "steps": 3, "compute_us": 100.0, "bytes": 160_000, "buckets": 2})
    result = sim.run(one)
    assert result.verdict and len(result.step_us) == 3
    alone = sim.run(scenario(workload={"kind": "ring", "bytes": 80_000})).makespan_us
    assert result.step_us == pytest.approx(100 + 2 * alone, rel=0.1)
    compute_only = sim.run(one.with_keys({"workload.compute_us": 0.0})).step_us
    assert (result.step_us - compute_only) == pytest.approx(100, abs=15)


def test_an_incast_and_its_victim() -> None:
    victim = {"source": 1, "destination": 2, "messages": 3, "message_bytes": 10_000}
    result = sim.run(scenario(workload={"kind": "incast", "fan_in": 4, "victim": victim}))
    assert result.plan.groups == ["incast", "victim"]
    assert result.group("victim").sum() == 3
    assert set(result.flows["destination"][result.group("incast")]) == {0}
    assert len(set(result.flows["source"][result.group("incast")])) == 4


def test_several_workloads_share_a_fabric() -> None:
    works = [{"kind": "permutation"}, {"kind": "incast", "fan_in": 3, "start_us": 5.0, "message_bytes": 5000}]
    result = sim.run(scenario(workload=works))
    assert result.plan.groups == ["permutation", "incast"] and len(result.flows) == 19
    assert (result.table()["start_us"][16:] == 5.0).all()


CSV = """\
# who, to whom, how much
source,destination,bytes,start_us,id,after
0,4,10000,0,a,
4,8,10000,,b,a
8,12,10000,,c,a b
1,5,5000,2.5,,
"""
TOML = """\
[[flow]]
source = 0
destination = 4
bytes = 10000
id = "a"
[[flow]]
source = 4
destination = 8
bytes = 10000
id = "b"
after = ["a"]
[[flow]]
source = 8
destination = 12
bytes = 10000
after = "a b"
[[flow]]
source = 1
destination = 5
bytes = 5000
start_us = 2.5
"""
MATRIX = """\
Nodes 16
Connections 4
Triggers 2
8->12 id 3 trigger 2 size 10000
0->4 id 1 start 0 size 10000 send_done_trigger 1
4->8 id 2 trigger 1 size 10000 recv_done_trigger 2
1->5 id 4 start 2500000 size 5000
trigger id 1 oneshot
trigger id 2 oneshot
"""


def run_file(folder: Path, name: str, text: str) -> sim.Result:
    (folder / name).write_text(text)
    table = scenario().table | {"workload": {"kind": "flows", "path": name}}
    return sim.run(sim.parse(table, str(folder / "scenario.toml")))


@pytest.mark.parametrize(("name", "text"), [("f.csv", CSV), ("f.toml", TOML), ("f.cm", MATRIX)])
def test_flows_from_a_file(tmp_path: Path, name: str, text: str) -> None:
    result = run_file(tmp_path, name, text)
    assert result.verdict
    rows = {(int(f["source"]), int(f["destination"])): f for f in result.flows}
    sizes = {ends: int(f["bytes"]) for ends, f in rows.items()}
    assert sizes == {(0, 4): 10000, (4, 8): 10000, (8, 12): 10000, (1, 5): 5000}
    assert rows[4, 8]["start_ps"] == rows[0, 4]["delivered_ps"]
    assert rows[8, 12]["start_ps"] == rows[4, 8]["delivered_ps"]
    assert rows[1, 5]["start_ps"] == 2_500_000


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("f.csv", "source,destination,bytes\n0,99,5\n", "flow 1.destination`: .*0 to 15.*.got '99'"),
        ("f.csv", "source,destination,bytes\n3,3,5\n", "another host"),
        ("f.csv", "source,destination,bytes\n0,1,0\n", "flow 1.bytes"),
        ("f.csv", "source,destination,byte\n0,1,5\n", "Did you mean flow 1.bytes"),
        ("f.csv", "source,destination,bytes,after\n0,1,5,z\n", "id of an earlier flow"),
        ("f.csv", "source,destination,bytes\n", "at least one flow"),
        ("f.toml", "flow = 3\n", r"\[\[flow\]\] tables"),
        ("f.toml", "flow = \n", "TOML"),
        ("f.cm", "Nodes 16\nConnections 2\n0->1 id 1 start 0 size 5\n", "must be 1, as many as follow"),
        ("f.cm", "Nodes 64\nConnections 1\n0->1 id 1 start 0 size 5\n", "at most the fabric's 16"),
        ("f.cm", "Nodes 16\nConnections 1\n0->1 id 1 start 0 size 0\n", "Endless"),
        ("f.cm", "Nodes 16\nConnections 1\n0->1 id 1 sart 0 size 5\n", "Did you mean start"),
        ("f.cm", "Nodes 16\nConnections 1\n0->1 id 1 trigger 3 size 5\n", "some connection fires"),
        ("f.cm", "Nodes 16\nConnections 1\n0->1 id 1 trigger 3 size 5 send_done_trigger 3\n", "circle"),
        ("f.cm", "Nodes 16\nhello\n", "line 2"),
        ("f.xyz", "", "ends in .csv"),
    ],
)
def test_bad_flow_files_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_file(tmp_path, name, text)
