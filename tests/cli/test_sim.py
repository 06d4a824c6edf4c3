"""`softmrc sim`, `softmrc sweep` and `softmrc bench sim`, as a user meets them."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest
from tests.sim.small import table

from in_process import Done, softmrc_here
from softmrc import sim
from softmrc._support import resources
from softmrc.errors import ConfigError
from softmrc.sim.sweep import heads, read_vary

SCENARIO = """\
question = "Does it work?"
[fabric]
planes = 2
hosts = 16
hosts_per_leaf = 4
spines = 4
[transport]
evs = 32
[workload]
kind = "permutation"
message_bytes = 100_000
[[compare]]
name = "no trimming"
queues.trim = false
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


def softmrc(*arguments: str | Path) -> Done:
    return softmrc_here(*arguments, COLUMNS="200")


def test_sim_answers_in_a_table(scenario: Path) -> None:
    done = softmrc("sim", scenario, "--seed", "7")
    assert done.returncode == 0, done.stderr
    assert "Does it work?" in done.stdout and "16/16" in done.stdout and "no trimming" in done.stdout
    again = softmrc("sim", scenario, "--seed", "7", "--cores", "3")
    assert again.stdout == done.stdout, "the same seed prints the same answer, on any number of cores"


def test_sim_answers_in_json_and_writes_a_report(scenario: Path, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    done = softmrc("sim", scenario, "--json", "--report", page)
    answer = json.loads(done.stdout)
    assert [run["name"] for run in answer["runs"]] == ["MRC", "no trimming"]
    assert all(run["verdict"] == "complete" and run["flows_delivered"] == 16 for run in answer["runs"])
    assert "</html>" in page.read_text()


def test_one_variant_and_changed_keys(scenario: Path) -> None:
    done = softmrc("sim", scenario, "--only", "no trimming", "--set", "fabric.planes=1", "--json")
    (run,) = json.loads(done.stdout)["runs"]
    assert run["name"] == "no trimming"
    refused = softmrc("sim", scenario, "--only", "trimming")
    assert refused.returncode == 2 and "'no trimming'" in refused.stderr


def test_a_full_disk_takes_only_the_page(scenario: Path, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    done = softmrc("sim", scenario, "--report", page)
    assert done.returncode == 0 and "</html>" in page.read_text()
    done = softmrc("sim", scenario, "--report", "/dev/full")
    assert done.returncode == 1 and "16/16" in done.stdout and "cannot write" in done.stderr


def test_a_wrong_scenario_is_one_line_on_stderr(scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("spines", "spnies"))
    done = softmrc("sim", scenario)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.count("\n") == 1
    assert "small.toml:6: `fabric.spnies`: unknown key (got 4)" in done.stderr and "fabric.spines" in done.stderr


def test_a_stuck_scenario_ends_with_its_verdict(scenario: Path) -> None:
    fault = '[[faults.events]]\nkind = "down"\nport = { plane = "all", host = 3 }\n'
    scenario.write_text(SCENARIO.replace("[[compare]]", fault + "[[compare]]"))
    done = softmrc("sim", scenario)
    assert done.returncode == 3
    assert "stuck" in done.stdout and "host 3 can send on no plane" in " ".join(done.stdout.split())


STUCK = SCENARIO.replace(
    "[[compare]]", '[[faults.events]]\nkind = "down"\nport = { plane = "all", host = 3 }\n[[compare]]'
)
STUCK += "faults = { links = 0, events = [] }\n"


def rows_of(text: str, name: str) -> list[list[str]]:
    """Rows of a printed table that begin with a name, or have it."""
    return [line.split() for line in text.splitlines() if name in line and ":" not in line]


@pytest.mark.slow
def test_a_run_that_did_not_finish_has_no_figures(scenario: Path, tmp_path: Path) -> None:
    """What arrived before it stopped was quick, and looked better than the run that finished."""
    scenario.write_text(STUCK)
    done = softmrc("sim", scenario, "--report", tmp_path / "x.html")
    row = rows_of(done.stdout, "MRC")[0]
    assert row[1].endswith("/16") and row[2] == "stuck" and set(row[3:]) == {"–"}
    assert not {"stuck", "–"} & set(rows_of(done.stdout, "no trimming")[0])
    assert (tmp_path / "x.html").read_text().count("<td>stuck</td>") == 4
    swept = softmrc("sweep", scenario, "--vary", "run.seed=1", "--compare").stdout
    row = rows_of(swept, "MRC")[0]
    assert row[2:4] == ["0/1", "stuck"] and set(row[4:]) == {"–"}
    assert "MRC finishes nowhere (stuck). no trimming: the last flow is done after" in swept


@pytest.mark.slow
def test_several_seeds_are_a_table_of_medians(scenario: Path) -> None:
    text = softmrc("sim", scenario, "--seeds", "3").stdout
    row = rows_of(text, "MRC")[0]
    assert row[1] == "3/3" and "Above: medians of 3 seeds. Below: seed 1." in text
    runs = json.loads(softmrc("sim", scenario, "--seeds", "3", "--json").stdout)["runs"]
    most = sorted(run["fct_max_us"] for run in runs if run["name"] == "MRC")
    assert len(runs) == 6 and row[4] == f"{most[1]:,.1f}" and row[5:8] == [f"{most[0]:,.1f}", "…", f"{most[2]:,.1f}"]


def test_a_report_says_how_many_seeds_and_which_keys(scenario: Path, tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    softmrc("sim", scenario, "--seeds", "2", "--set", "fabric.planes=1", "--only", "no trimming", "--report", page)
    text = html.unescape(page.read_text())
    assert "(2 seeds; least to most" in text and "below are of seed 1" in text
    assert f"softmrc sim {scenario} --seed 1 --set fabric.planes=1 --only 'no trimming'" in text


def test_a_sweep_ends_with_its_answer(scenario: Path) -> None:
    text = softmrc("sweep", scenario, "--vary", "workload.message_bytes=50_000,400_000", "--seeds", "2").stdout
    assert "MRC: the last flow is done after" in text and "Gb/s in all: what all hosts together got" in text
    assert "at workload.message_bytes = 50000 at best" in text and "at workload.message_bytes = 400000 at worst" in text


def test_a_key_to_set_is_not_a_key_to_vary(scenario: Path) -> None:
    done = softmrc("sim", scenario, "--set", "foo")
    assert done.returncode == 2 and "`--set`: must be key=value" in done.stderr


@pytest.mark.slow
def test_a_sweep_gives_every_point_and_seed_once(scenario: Path) -> None:
    done = softmrc(
        "sweep", scenario, "--vary", "faults.links=0..2", "--vary", "fabric.planes=1,2", "--seeds", "2", "--json"
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    found = sorted((row["point"]["faults.links"], row["point"]["fabric.planes"], row["seed"]) for row in rows)
    assert found == [(links, planes, seed) for links in range(3) for planes in (1, 2) for seed in (1, 2)]
    alone = json.loads(
        softmrc("sim", scenario, "--only", "MRC", "--set", "faults.links=1", "--seed", "2", "--json").stdout
    )
    (same,) = [r for r in rows if r["point"] == {"faults.links": 1, "fabric.planes": 2} and r["seed"] == 2]
    assert same["trace_hash"] == alone["runs"][0]["trace_hash"], "a sweep runs what a single run runs"


def test_heads_of_a_sweep_are_short_and_different() -> None:
    assert heads(["fabric.planes", "faults.links"]) == ["planes", "links"]
    assert heads(["transport.kind", "faults.kind", "run.seed"]) == ["transport.kind", "faults.kind", "seed"]


def test_a_sweep_is_checked_before_it_starts(scenario: Path) -> None:
    done = softmrc("sweep", scenario, "--vary", "faults.links=0..99", "--json")
    assert done.returncode == 2 and not done.stdout and "`faults.links`: must be at most" in done.stderr
    done = softmrc("sweep", scenario, "--vary", "faults.lnks=0..9")
    assert done.returncode == 2 and "Did you mean faults.links" in done.stderr
    done = softmrc("sweep", scenario, "--vary", "fault.links=0..9")
    assert done.returncode == 2 and "`fault`: unknown key" in done.stderr
    done = softmrc("sweep", scenario, "--vary", "run.seed=1,2", "--runner", "slurm")
    assert done.returncode == 2 and "'local', 'ray'" in done.stderr


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=0..3", [0, 1, 2, 3]),
        ("a.b=0..10..5", [0, 5, 10]),
        ("a.b = 1,2.5,true,x", [1, 2.5, True, "x"]),
    ],
)
def test_ranges_and_lists(text: str, values: list[object]) -> None:
    assert read_vary(text) == ("a.b", values)


@pytest.mark.parametrize("text", ["a", "a=", "=1", "a=1..x", "a=3..1", "a=1..5..0", "a=1..2..3..4"])
def test_bad_ranges(text: str) -> None:
    with pytest.raises(ConfigError, match="--vary"):
        read_vary(text)


def test_sweeps_on_ray_give_what_cores_give() -> None:
    pytest.importorskip("ray")
    from softmrc import sim
    from softmrc.sim.sweep import plan_sweep, sweep

    tasks = plan_sweep(sim.parse(table()), [("faults.links", [0, 2])], 1, False)
    hashes = [sorted(row["trace_hash"] for row in sweep(tasks, engine)) for engine in ("local", "ray")]
    assert hashes[0] == hashes[1]


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """Two spines a plane, other rates and planes than the scenarios that are shipped have."""
    path = tmp_path / "planned.toml"
    words = (
        "--gpus",
        "16",
        "--nic",
        "200G",
        "--switch",
        "0.8T",
        "--planes",
        "2",
        "--tiers",
        "2",
        "--spares",
        "0",
        "--output",
        path,
    )
    done = softmrc("plan", *words)
    assert done.returncode == 0 and "spines = 2\n" in path.read_text(), done.stderr
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t1-reboot", "slow-link", "how-many-planes", "dead-links", "paper/transceiver-flaps"])
def test_scenarios_run_on_a_small_planned_fabric(planned: Path, name: str) -> None:
    """Their parts were beyond it: faults.events[0].index = 3."""
    small = ("workload.message_bytes=200_000", "run.stall_ms=1")
    if name in ("dead-links", "paper/transceiver-flaps"):
        small = ("workload.bytes=200_000", "workload.steps=2", "run.stall_ms=1")
    keys = [word for key in small for word in ("--set", key)]
    done = softmrc("sim", name, "--fabric", planned, *keys, "--json")
    runs = json.loads(done.stdout)["runs"]
    assert runs[0]["verdict"] == "complete", done.stderr
    if name == "how-many-planes":
        assert [run["name"] for run in runs] == ["2 planes × 100G", "1 plane × 200G", "2 planes, nothing breaks"]


def test_every_disturbed_scenario_has_an_undisturbed_run_beside_it() -> None:
    for name in ("t1-reboot", "slow-link"):
        variants = sim.load(resources.names(resources.SCENARIOS)[name]).variants()
        calm = {(v.scenario.transport.kind, v.scenario.fabric.planes) for v in variants if not v.scenario.faults.events}
        assert calm == {(v.scenario.transport.kind, v.scenario.fabric.planes) for v in variants}


@pytest.mark.slow
def test_a_sweep_over_transports_tells_both(scenario: Path) -> None:
    """RoCE's rows were left out of the answer: they had another name."""
    text = softmrc("sweep", scenario, "--vary", "transport.kind=mrc,roce").stdout
    assert "RoCE" in text and "at transport.kind = mrc" in text and "at transport.kind = roce" in text


def test_columns_are_what_they_are_called(scenario: Path) -> None:
    one, several = softmrc("sim", scenario).stdout, softmrc("sim", scenario, "--seeds", "2").stdout
    assert " flows " in one.splitlines()[4] and " runs " in several.splitlines()[4]
    for text in (one, several):
        assert "lost: packets that faults took or full queues dropped" in " ".join(text.split())


@pytest.mark.slow
def test_scenarios_on_a_single_switch_run_or_say_what_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "single.toml"
    assert softmrc("plan", "--gpus", "8", "--planes", "2", "--output", file).returncode == 0
    small = ("--set", "workload.message_bytes=200_000", "--set", "run.stall_ms=1", "--json")
    done = softmrc("sim", "how-many-planes", "--fabric", file, *small)
    assert json.loads(done.stdout)["runs"][0]["verdict"] == "complete", done.stderr
    done = softmrc("sim", "t1-reboot", "--fabric", file, *small)
    assert done.returncode == 2 and "cannot be above the only leaf of this fabric" in done.stderr
