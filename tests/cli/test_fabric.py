"""The commands about fabrics and labs, as a user types them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from softmrc import sim as simulator
from softmrc.cli import app
from softmrc.errors import ConfigError, DeviceError
from softmrc.planner.confirm import Slice
from softmrc.sim.sweep import SweepRun

ROOT = Path(__file__).parents[2]
LAB, LARGE = str(ROOT / "examples" / "lab.toml"), str(ROOT / "examples" / "large.toml")


def run(*words: str) -> str:
    found = CliRunner().invoke(app, list(words), catch_exceptions=False, env={"COLUMNS": "80"})
    assert found.exit_code == 0, found.output
    return found.output


def test_plan_prints_the_published_comparison() -> None:
    text = run("plan", "--gpus", "131072", "--nic", "800G", "--switch", "51.2T", "--spares", "0")
    assert "6,144" in text and "12.5 %" in text and "assumed prices" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    found = json.loads(run("plan", "--json", "--planes", "8,3", "--spares", "0"))
    assert found["assumed_prices"] and found["designs"][0]["switches"] == 6144
    assert "800G" in found["designs"][1]["reason"]


def test_plan_refuses_nonsense() -> None:
    for words in (
        ("--nic", "fast"), ("--planes", "one"), ("--oversubscription", "1/0"), ("--prices", "/none.toml"),
        ("--planes", "0"), ("--tiers", "0,2"), ("--output", "/tmp/two-designs.toml"),
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            CliRunner().invoke(app, ["plan", *words], catch_exceptions=False)
    with pytest.raises(ConfigError, match="Did you mean 800G"):
        CliRunner().invoke(app, ["plan", "--nic", "800"], catch_exceptions=False)


def test_a_plan_becomes_the_file_that_everything_reads(tmp_path: Path) -> None:
    """From plan to assess, to a configuration, and into a scenario's fabric."""
    file = str(tmp_path / "mine.toml")
    size = ("--gpus", "64", "--nic", "400G", "--switch", "1.6T", "--spares", "0")
    run("plan", *size, "--planes", "4", "--tiers", "2", "--output", file)
    assert json.loads(run("assess", file, "--trials", "1", "--json"))["fabric"]["hosts"] == 64
    assert "p0.leaf0" in run("fabric", "routes", file, "p0.leaf0")
    found = simulator.parse({"question": "?", "fabric": {"file": file}, "workload": {"kind": "permutation"}})
    assert (found.fabric.hosts, found.fabric.planes, found.fabric.host_link_gbps) == (64, 4, 100)


@pytest.mark.parametrize("command", [["plan", "--gpus", "64"], ["assess", LAB, "--trials", "1"]])
def test_a_full_disk_takes_only_the_page(tmp_path: Path, command: list[str]) -> None:
    page = tmp_path / "x.html"
    run(*command, "--report", str(page))
    assert page.read_text().startswith("<!doctype html>")
    found = CliRunner().invoke(app, [*command, "--report", "/dev/full"])
    assert isinstance(found.exception, DeviceError) and "cannot write" in str(found.exception)
    assert "planes" in found.stdout  # what it had to say, it said


def test_a_plan_of_which_nothing_can_be_built_fails() -> None:
    done = CliRunner().invoke(app, ["plan", "--gpus", "999999999999"])
    assert done.exit_code == 3 and "None of the requested designs can be built." in done.stdout
    assert CliRunner().invoke(app, ["plan", "--gpus", "999999999999", "--json"]).exit_code == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], r"`--from`: is missing.*both hosts"),
        (["--from", "host0"], r"`--to`: is missing.*both hosts"),
        (["p0.leaf0", "--ev", "3"], r"--ev`: cannot be combined with the switch p0\.leaf0 .got 3"),
        (["p0.leaf0", "--from", "host0", "--to", "host7"], r"--from`: cannot be combined.*.got 'host0'"),
    ],
)
def test_routes_of_half_a_question_or_of_two_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CliRunner().invoke(app, ["fabric", "routes", LAB, *words], catch_exceptions=False)


def test_a_bundle_of_cables_is_one_port_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text("[fabric]\nplanes = 1\nhosts = 8\nhosts_per_leaf = 4\nspines = 2\ncables_per_link = 2\n")
    said = run("fabric", "config", str(file), "-o", str(tmp_path / "c"))
    assert "12 files" in said and "make that port a bundle" in said


def test_kept_simulations_need_simulations(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["study", "study", "--keep", str(tmp_path / "k")])
    assert isinstance(done.exception, ConfigError) and "only with --confirm" in str(done.exception)


def test_a_plan_says_where_it_has_more_nics_than_asked_for(tmp_path: Path) -> None:
    words = ["plan", "--gpus", "16384", "--planes", "4", "--tiers", "2", "--oversubscription", "3"]
    text = run(*words, "--spares", "0", "--output", str(tmp_path / "f.toml"))
    found = json.loads(run("assess", str(tmp_path / "f.toml"), "--trials", "1", "--json"))["fabric"]
    assert found["hosts"] > 16384 and found["switches"] <= 472
    more = found["hosts"] - 16384
    assert f"so that all leaves have as many: {more} (4 × 2, " in text and f"{found['hosts']:,}" in text


def test_help_shows_brackets() -> None:
    assert "Also run the [[compare]]" in " ".join(run("sweep", "--help").split())


@pytest.mark.slow
def test_assess_prints_reports_and_json(tmp_path: Path) -> None:
    text = run("assess", LARGE, "--trials", "1", "--report", str(tmp_path / "x.html"))
    assert "2,048" in text and "131,072" in text and "With MRC" in text and "loses less" in text
    page = (tmp_path / "x.html").read_text()
    assert page.count('<svg class="plot') == 3 and len(page) < 300_000
    found = json.loads(run("assess", LAB, "--trials", "2", "--seed", "7", "--json"))
    assert found["drawn"]["mrc"]["seed"] == 7 and found["diversity"][1]["paths"] == 16
    assert len(found["drawn"]["roce"]["lost"]) == 2 and set(found["best"]) == {"mrc", "roce"}
    assert "job.rides_out_s" in run("assess", LAB, "--trials", "1", "--assumptions")


def test_routes_go_both_ways() -> None:
    table = run("fabric", "routes", LAB, "p0.leaf0")
    assert "fcbb:bb00:100::/48" in table and "this switch" in table
    paths = json.loads(run("fabric", "routes", LAB, "--from", "host0", "--to", "host7", "--json"))["paths"]
    assert len(paths) == 16 and paths[6]["links"][1] == "p2.leaf0>spine1"
    over = run("fabric", "routes", LAB, "--from", "host0", "--to", "host7", "--over", "p2.leaf0-spine1")
    assert over.startswith("ev 6 ") and "host0>leaf0>spine1>leaf3>host7" in over
    other = ("fabric", "routes", LAB, "--from", "host0", "--to", "host7", "--over", "p2.leaf1-spine1")
    assert run(*other) == "No EV from host0 to host7 crosses p2.leaf1-spine1.\n"
    assert json.loads(run(*other, "--json")) == {"paths": []}
    assert run(*other[:-1], "p2.leaf0-spine1", "--ev", "5") == "EV 5 does not cross p2.leaf0-spine1.\n"
    large = run("fabric", "routes", LARGE, "--from", "host0", "--to", "host131071", "--ev", "2047")
    assert "spine255" in large and "fcbb:bb07" in large
    for words in (("host0",), ("--from", "host0", "--to", "host0"), ("--from", "host0", "--to", "p0.leaf0"), ()):
        with pytest.raises(ConfigError):
            CliRunner().invoke(app, ["fabric", "routes", LAB, *words], catch_exceptions=False)


def test_draw_and_config_write_what_they_say(tmp_path: Path) -> None:
    assert run("fabric", "draw", LAB, "-o", str(tmp_path / "x.svg")).strip().endswith("x.svg")
    assert run("fabric", "draw", LAB, "-o", "-").startswith("<svg")
    assert "40 files" in run("fabric", "config", LAB, "--target", "sonic", "-o", str(tmp_path))
    assert json.loads((tmp_path / "p0.leaf0.json").read_text())["SRV6_MY_LOCATORS"]


def test_a_lab_without_root_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for words in (
        ["up", LAB],
        ["inspect"],
        ["down"],
        ["fail", "leaf0-spine0"],
        ["heal"],
        ["exec", "host0", "--", "ls"],
    ):
        with pytest.raises(DeviceError, match="a lab needs root"):
            CliRunner().invoke(app, ["lab", *words], catch_exceptions=False)


def test_the_examples_are_ten_lines_or_so() -> None:
    for path in (LAB, LARGE):
        lines = [line for line in Path(path).read_text().splitlines() if line and not line.startswith("#")]
        assert len(lines) <= 10


def test_a_study_goes_on_where_it_was_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, kept = tmp_path / "s.toml", tmp_path / "kept.jsonl"
    file.write_text("gpus = 64\nevs = [8, 64]\n[vary]\nplanes = [2, 4]\ntiers = 2\nswitch_bps = '12.8T'\n")
    asked: list[str] = []

    def pretended(tasks: list[SweepRun], engine: str, workers: int) -> Iterator[dict[str, Any]]:
        for number, task in enumerate(tasks, 1):
            if len(asked) == 2:
                raise KeyboardInterrupt
            asked.append(task.table["name"])
            yield {"name": task.table["name"], "verdict": "complete", "slowest_flow_gbps": 100.0 * number}

    monkeypatch.setattr("softmrc.sim.sweep.sweep", pretended)
    command = ["study", str(file), "--confirm", "--keep", str(kept), "--json"]
    stopped = CliRunner().invoke(app, command)
    assert stopped.exit_code == 130 and "2 of 4 simulations were done and kept" in " ".join(stopped.output.split())
    assert len(kept.read_text().splitlines()) == 2, "what was found is kept"
    asked[:] = [*asked, "and so on"]
    first = json.loads(run(*command))
    lines = kept.read_text().splitlines()
    assert len(asked) - 1 == len(lines) == len(set(asked)) - 1 == 4 * first["front"] > 0, "each run once"
    assert json.loads(run(*command)) == first and len(asked) - 1 == len(lines), "what is there is not run again"
    confirmed = next(one["confirmed"] for one in first["designs"] if one["confirmed"])
    assert set(confirmed["evs"]) == {"8", "64"} and confirmed["packets"] == 2.0
    assert "evs = [8, 64]" in run("study", str(file), "--report", str(tmp_path / "x.html"))
    text = run("study", str(file), "--confirm", "--keep", str(kept))
    assert "0.12   0.25" in text and "slowest of 128 hosts" in " ".join(text.split())


def test_runs_are_kept_by_all_that_decides_them() -> None:
    few = Slice(2, "400G", 1.0, evs=(8,))
    assert Slice(2, 400_000_000_000, 1.0, evs=(8,)).tasks.keys() == few.tasks.keys()
    for other in (Slice(2, "800G", 1.0, (8,)), Slice(2, "400G", 3.0, (8,)), Slice(4, "400G", 1.0, (8,))):
        assert not other.tasks.keys() & few.tasks.keys()


def test_a_file_that_no_study_kept_is_refused(tmp_path: Path) -> None:
    file, kept = tmp_path / "s.toml", tmp_path / "kept.jsonl"
    file.write_text("gpus = 64\n")
    for line in ("nonsense", "[]", "{}", '{"run": "x", "slowest_gbps": "much"}'):
        kept.write_text(f'{{"run": "x", "slowest_gbps": 1.0}}\n{line}\n')
        with pytest.raises(ConfigError, match="line 2"):
            run("study", str(file), "--confirm", "--keep", str(kept))


def slowest(part: Slice) -> dict[str, float | None]:
    found = {name: task.run() for name, task in part.tasks.items()}
    return {name: one["slowest_flow_gbps"] if one["verdict"] == "complete" else None for name, one in found.items()}


@pytest.mark.parametrize("planes", [1, 2])
def test_packets_confirm_what_a_port_takes(planes: int) -> None:
    part = Slice(planes, "100G", 1.0)
    found = part.confirmed(slowest(part))
    if planes == 1:
        assert found.packets is None and found.arithmetic == 0
    else:
        assert found.packets == pytest.approx(found.arithmetic, abs=0.12)


def test_few_paths_leave_somebody_behind() -> None:
    part = Slice(2, "100G", 1.0, evs=(3, 64))
    assert part.spread(3) == 4 and part.spread(64) == 64, "every plane has as many"
    few, many = part.confirmed(slowest(part)).evs.values()
    assert few is not None and many is not None and few < 0.8 < 0.85 < many <= 1


def test_a_slice_has_the_ratio_of_its_design() -> None:
    """3:1 was tried with three spines below eight hosts, 35:16 with four."""
    for ratio in (1.0, 3.0, 35 / 16, 0.75):
        for task in Slice(2, "400G", ratio, evs=(8,)).tasks.values():
            f = simulator.parse(task.table).fabric
            built = f.hosts_per_leaf * f.host_link_bps / (f.spines * f.fabric_link_bps)
            assert built == pytest.approx(ratio, rel=1e-6) and f.leaves == 4
    single = [simulator.parse(task.table).fabric for task in Slice(2, "400G", 0.0, evs=(8,)).tasks.values()]
    assert {f.leaves for f in single} == {1}


def test_a_file_of_several_nics_a_gpu_is_read_as_such(tmp_path: Path) -> None:
    """Every NIC was a GPU: they failed, and were paid for, twice."""
    file = str(tmp_path / "f.toml")
    words = ["plan", "--gpus", "1000", "--nics-per-gpu", "2", "--planes", "4", "--tiers", "2", "--spares", "0"]
    assert "1,000 GPUs with 2 NICs each" in run(*words, "--output", file)
    found = json.loads(run("assess", file, "--trials", "1", "--json"))
    assert (found["fabric"]["hosts"], found["fabric"]["gpus"]) == (2000, 1000)
    assert next(d["count"] for d in found["domains"] if d["what"] == "GPU") == 1000
    assert "1,000 GPUs, 2,000 NICs of 800G" in run("assess", file, "--trials", "1")


def test_a_study_without_a_front_fails(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    for text in ("gpus = 100_000\n[vary]\ntiers = 1\n", "gpus = 64\n[keep]\ncost_usd = 1.0\n"):
        file.write_text(text)
        for words in ([], ["--json"]):
            done = CliRunner().invoke(app, ["study", str(file), *words])
            assert done.exit_code == 3 and "No design" in done.stdout
