"""Scenario files: what is read, and how what is wrong is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.sim.small import scenario, table

from softmrc import sim
from softmrc.errors import ConfigError
from softmrc.sim.run import Run

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scenarios").rglob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_scenarios_of_the_project_open_with_their_question(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("question = "), f"{path.name} does not open with its question"
    assert sim.load(path).question.endswith("?")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fabrik": {}}, "`fabrik`: unknown key .got '.fabrik.'.. Did you mean fabric?"),
        ({"fabric": {"plane": 2}}, "fabric.plane`.*.got 2.*Did you mean fabric.planes?"),
        ({"fabric": {"nic_bps": "400"}}, "fabric.nic_bps`.*.got '400'.*Did you mean 400G"),
        ({"fabric": {"nic_bps": "400G", "planes": 3}}, "fabric.planes`: .*an integer that divides 400G.*.got 3"),
        (
            {"fabric": {"nic_bps": "400G", "host_link_gbps": 100}},
            "fabric.nic_bps`: .*combined with host_link_gbps.*.got '400G'",
        ),
        ({"fabric": {"nic_gps": "400G"}}, "Did you mean"),
        ({"fabric": {"file": 3}}, "fabric.file`: .*a text.*.got 3"),
        ({"fabric": {"planes": 0}}, "`fabric.planes`: must be at least 1 .got 0"),
        ({"fabric": {"planes": 17}}, "`fabric.planes`: must be at most 16 .got 17"),
        ({"fabric": {"planes": "two"}}, "`fabric.planes`: must be a whole number .got 'two'"),
        ({"fabric": {"planes": True}}, "`fabric.planes`: must be a whole number .got True"),
        ({"fabric": {"hosts": 17}}, "fabric.hosts`: .*multiple of hosts_per_leaf = 4.*.got 17"),
        ({"fabric": {"host_link_gbps": float("nan")}}, "fabric.host_link_gbps`: .*.got nan"),
        ({"fabric": {"host_link_gbps": 0}}, "more than 0"),
        ({"fabric": {"pods": 3, "cores_per_spine": 1}}, "fabric.pods`: .*divide the number of leaves, 4.*.got 3"),
        ({"fabric": {"cores_per_spine": 1}}, "two tiers"),
        ({"fabric": {"forwarding": "smart"}}, "fabric.forwarding`: .*'srv6'.*.got 'smart'"),
        ({"fabric": {"spines": 100_000}}, "fabric.spines`: .*at most 512.*.got 100000"),
        ({"transport": {"evs": 33}}, "transport.evs`: .*multiple of the 2 planes.*.got 33"),
        ({"transport": {"kind": "tcp"}}, "transport.kind`: .*'mrc', 'roce'.*.got 'tcp'"),
        ({"transport": {"kind": "roce"}, "fabric": {"forwarding": "srv6"}}, "fabric.forwarding`: .*RoCE.*.got 'srv6'"),
        ({"queues": {"ecn_low_bdp": 0.9}}, "queues.ecn_low_bdp`: .*at most ecn_high_bdp.*.got 0.9"),
        ({"queues": {"trim": 1}}, "queues.trim`: .*true or false.*.got 1"),
        ({"workload": {"kind": "permutaton"}}, "workload.kind`: .*'permutation'.*.got 'permutaton'"),
        ({"workload": {"message_bytes": 0}}, "workload.message_bytes`: .*.got 0"),
        ({"workload": {"message_bytes": 2**32}}, "workload.message_bytes"),
        ({"workload": {"pattern": "shift", "shift": 16}}, "workload.shift`: .*.got 16"),
        ({"workload": {"kind": "incast"}}, "workload.sources`: .*either sources or fan_in"),
        ({"workload": {"kind": "incast", "sources": [0]}}, "must not contain the destination"),
        ({"workload": {"kind": "incast", "sources": [99]}}, "workload.sources`: .*a host below 16.*.got 99"),
        ({"workload": {"kind": "incast", "fan_in": 16}}, "workload.fan_in`: .*.got 16"),
        (
            {"workload": {"kind": "incast", "fan_in": 2, "victim": {"source": 1}}},
            "workload.victim.destination`: is missing. Set it to a whole number",
        ),
        ({"workload": {"kind": "ring", "hosts": 99}}, "workload.hosts`: .*2 to the fabric's 16.*.got 99"),
        ({"workload": {"kind": "ring", "collective": "all_redcue"}}, "Did you mean all_reduce"),
        ({"workload": {"kind": "flows", "path": "nowhere.csv"}}, "no such file .got .dir/nowhere.csv"),
        ({"workload": {"kind": "flows"}}, "workload.path`: is missing"),
        (
            {"workload": [{"kind": "permutation"}, {"kind": "permutation", "x": 1}]},
            r"workload\[1\].x`: unknown key .got 1",
        ),
        ({"faults": {"links": 999}}, "faults.links`: .*at most the fabric's 32.*.got 999"),
        ({"faults": {"links": 1, "kind": "loss"}}, "faults.value`: .*.got 0.0"),
        ({"faults": {"events": [{"kind": "down"}]}}, r"faults.events\[0\]`: .*exactly one of link.*.got \[\]"),
        ({"faults": {"events": [{"kind": "down", "plane": 0, "everywhere": True}]}}, "exactly one of"),
        ({"faults": {"events": [{"kind": "down", "plane": 2}]}}, r"faults.events\[0\].plane`: .*below 2.*.got 2"),
        ({"faults": {"events": [{"kind": "doom", "plane": 0}]}}, "kind`: .*.got 'doom'"),
        ({"faults": {"events": [{"kind": "loss", "plane": 0}]}}, "value`: .*a probability.*.got 0.0"),
        ({"faults": {"events": [{"kind": "down", "plane": 0, "value": 0.5}]}}, "has no value"),
        ({"faults": {"events": [{"kind": "down", "plane": 0, "times": 2}]}}, "for_us`: .*.got 0.0"),
        ({"faults": {"events": [{"kind": "down", "plane": 0, "times": 2, "for_us": 9.0}]}}, "every_us`: .*.got 0.0"),
        ({"faults": {"events": [{"kind": "down", "port": {"plane": 0, "host": 16}}]}}, "host`: .*below 16.*.got 16"),
        ({"faults": {"events": [{"kind": "down", "port": {"plane": 0, "host": "some"}}]}}, "host`: .*.got 'some'"),
        ({"faults": {"events": [{"kind": "down", "core_link": {"plane": 0, "t1": 0, "up": 0}}]}}, "needs three tiers"),
        (
            {"faults": {"events": [{"kind": "down", "switch": {"plane": 0, "tier": "t2", "index": 0}}]}},
            "switch.tier`: .*.got .t2",
        ),
        (
            {"faults": {"events": [{"kind": "down", "transceiver": {"plane": 0, "leaf": 0, "hosts": [9]}}]}},
            "hosts of leaf 0",
        ),
        ({"run": {"until_ms": -1}}, "run.until_ms`: .*.got -1"),
        ({"compare": [{"queues": {}}]}, r"compare\[0\].name"),
        (
            {"compare": [{"name": "x", "queues": {"tri": 1}}]},
            r"compare\[0\].queues.tri`: .*.got 1.*Did you mean queues.trim",
        ),
        ({"question": ""}, "question`: .*.got ''"),
    ],
)
def test_a_wrong_scenario_names_file_key_value_and_what_is_allowed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}") as caught:
        one = Run(sim.parse(table(**changes), "dir/wrong.toml"))
        one.build()
    assert str(caught.value).startswith("dir/wrong.toml: ") or "dir/nowhere.csv" in str(caught.value)


def test_files_that_are_no_scenarios(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file.*missing.toml"):
        sim.load(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("question = \n")
    with pytest.raises(ConfigError, match=r"bad.toml:1:12: invalid TOML"):
        sim.load(tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        sim.load(tmp_path / "binary.toml")


def test_keys_can_be_set_by_their_path() -> None:
    one = sim.parse(table(), "x.toml")
    changed = one.with_keys({"fabric.planes": 4, "faults.links": 2})
    assert (changed.fabric.planes, changed.faults.links) == (4, 2)
    assert one.fabric.planes == 2, "the original stays as it was"
    with pytest.raises(ConfigError, match=r"Did you mean faults\.links"):
        one.with_keys({"faults.linsk": 2})
    with pytest.raises(ConfigError, match=r"question\.x"):
        one.with_keys({"question.x": 2})


def test_planes_are_varied_at_the_rate_of_a_nic() -> None:
    one = sim.parse({"question": "?", "fabric": {"nic_bps": "800G"}, "workload": {"kind": "permutation"}})
    rates = {n: one.with_keys({"fabric.planes": n}).fabric for n in (1, 2, 4, 8)}
    assert {n: f.host_link_gbps for n, f in rates.items()} == {1: 800, 2: 400, 4: 200, 8: 100}
    assert all(f.fabric_link_bps == f.host_link_bps for f in rates.values())


def test_rates_are_written_as_in_a_fabric_file(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text("[fabric]\nplanes = 2\nhosts = 8\nhosts_per_leaf = 2\nhost_link_bps = '40G'\n")
    rest = {"question": "?", "workload": {"kind": "permutation"}}
    source = str(tmp_path / "scenario.toml")
    of_file = sim.parse(rest | {"fabric": {"file": "f.toml", "link_delay_us": 2.0}}, source).fabric
    assert (of_file.planes, of_file.hosts, of_file.host_link_gbps, of_file.link_delay_us) == (2, 8, 40, 2)
    assert of_file.fabric_link_gbps == 100  # as the file has it: its default
    faster = sim.parse(rest | {"fabric": {"file": "f.toml", "nic_bps": "160G"}}, source).fabric
    assert (faster.host_link_gbps, faster.fabric_link_bps) == (80, 200_000_000_000), "2.5 times as fast, as in the file"
    assert sim.parse(rest | {"fabric": {"host_link_bps": "50G"}}).fabric.host_link_gbps == 50


def test_a_run_is_called_what_it_is() -> None:
    """RoCE was called MRC wherever it had no name, and planes of another fabric by the rates of the scenario's."""
    assert scenario().name == "MRC" and scenario(transport={"kind": "roce", "evs": 2}).name == "RoCE"
    assert scenario().with_keys({"transport.kind": "roce"}).name == "RoCE"
    variants = [
        {"name": "{planes} × {port}", "fabric": {"planes": 1}},
        {"name": "{transport}, calm", "transport": {"kind": "roce"}},
    ]
    found = scenario(fabric={"nic_bps": "400G"}, compare=variants).variants()
    assert [one.name for one in found] == ["MRC", "1 plane × 400G", "RoCE, calm"]
    assert [one.name for one in found] == ["MRC", *(one.scenario.name for one in found[1:])]


def test_keys_reach_entries_of_lists() -> None:
    event = {"kind": "down", "switch": {"plane": 0, "tier": "t1", "index": 3}}
    one = scenario(faults={"events": [event]})
    assert one.with_keys({"faults.events[0].switch.index": 1}).faults.events[0].switch.index == 1
    for key, words in {
        "faults.events[1].at_us": r"faults\.events has 1",
        "faults.events.at_us": r"faults\.events\[0\]",
        "fabric[0]": "fabric is not a list",
        "question.x": "question is none",
    }.items():
        with pytest.raises(ConfigError, match=words):
            one.with_keys({key: 1})


def test_a_fault_beyond_the_fabric_names_its_key_or_is_fitted() -> None:
    """The key in the message was none that could be set."""
    for target, key in {
        "switch": {"plane": 0, "tier": "t1", "index": 6},
        "link": {"plane": 0, "leaf": 1, "spine": 6},
        "port": {"plane": 3, "host": 1},
        "transceiver": {"plane": 0, "leaf": 6, "hosts": [26, 27]},
    }.items():
        event = {"kind": "down", target: key}
        far = scenario(faults={"events": [event]})
        where = rf"faults\.events\[0\]\.{target}\.(index|spine|plane|leaf)`: .*of this fabric.*.got \d"
        with pytest.raises(ConfigError, match=where):
            Run(far)
        assert len(Run(scenario(faults={"events": [event], "fit": True})).actions) == 1
    core = {"kind": "down", "switch": {"plane": 0, "tier": "t2", "index": 0}}
    with pytest.raises(ConfigError, match=r"switch\.tier`: .*two tiers.*.got 't2'"):
        Run(scenario(faults={"events": [core], "fit": True}))


def test_links_inside_a_files_fabric_stay_as_fast_beside_those_to_hosts(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    rates = "host_link_bps = '40G'\nfabric_link_bps = '80G'\n"
    file.write_text("[fabric]\nplanes = 2\nhosts = 8\nhosts_per_leaf = 2\n" + rates)
    rest = {"question": "?", "workload": {"kind": "permutation"}}
    found = sim.parse(rest | {"fabric": {"file": str(file), "nic_bps": "80G", "planes": 1}}).fabric
    assert (found.host_link_bps, found.fabric_link_bps) == (80 * 10**9, 160 * 10**9)
