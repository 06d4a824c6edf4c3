"""tools/figures.py: the page from stored results, what is stale, and how much a benchmark's rows say."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import needs
from softmrc_bench.figures import BenchFigure, Sampled, Versus, dumps, loads, percentile_99, rows

ROOT = Path(__file__).resolve().parents[2]


def _figures() -> Any:
    spec = importlib.util.spec_from_file_location("figures_tool", ROOT / "tools" / "figures.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


figures = _figures()
RESULT: dict[str, Any] = {
    "commit": "0" * 40,
    "uncommitted": True,
    "date": "2026-01-02",
    "command": "softmrc bench udp --json",
    "quick": False,
    "machine": {"cpu": "A CPU", "cores": 2, "virtual": True, "memory_gib": 8, "kernel": "6.1", "load": 0.1},
    "rows": [
        {"key": "ours", "figure": "goodput", "unit": "Gb/s", "value": 2.0, "rounds": [1.0, 2.0, 3.0]},
        {
            "key": "ratio",
            "figure": "goodput over TCP",
            "unit": "",
            "value": 0.5,
            "rounds": [0.25, 0.5, 1.0],
            "limit": "≥ 1",
            "holds": False,
            "versus": {
                "rival": "TCP",
                "unit": "Gb/s",
                "ours": {"key": "ours", "value": 2.0, "rounds": [1.0, 2.0, 3.0]},
                "theirs": {"key": "theirs", "value": 4.0, "rounds": [3.0, 4.0, 5.0]},
            },
        },
        {"key": "size", "figure": "state", "unit": "B", "value": 12345.0, "limit": "≤ 20,000", "holds": True},
        {"key": "gpu", "figure": "on a GPU", "unit": "", "value": None},
    ],
}


def test_a_section_has_machine_command_and_one_line_a_figure() -> None:
    text = figures.page({"udp": [RESULT]})
    assert "| [udp](#bench-udp) | 2 cores, A CPU (virtual machine) | 2026-01-02 | 1 of 2 |" in text
    assert "\n## Bench: udp\n" in text and "`softmrc bench udp --json`, commit `00000000`, 2026-01-02" in text
    assert "| goodput over TCP | Gb/s | 2 [1–3] | 3 | TCP: 4 [3–5] | 0.5 [0.25–1] | ≥ 1 ✗ |" in text
    assert "| goodput |" not in text  # it stands in the line of its ratio
    assert "| state | B | 12,345 |  |  |  | ≤ 20,000 ✓ |" in text
    assert "| on a GPU |  | — |  |  |  |  |" in text
    assert "Not measured yet: `make figures ONLY=join`." in text
    assert "Quick run" not in text and "Busy machine" not in text


def test_quick_runs_and_busy_machines_are_marked() -> None:
    hurried = {**RESULT, "quick": True, "machine": {**RESULT["machine"], "load": 3.5}}
    text = figures.page({"udp": [hurried]})
    assert "> Quick run" in text and "> Busy machine: load 3.5 before the run." in text


def test_a_machine_keeps_one_result_and_others_stand_beside_it(tmp_path: Path) -> None:
    larger = copy.deepcopy(RESULT)
    larger["machine"]["cores"] = 16
    newer = {**RESULT, "date": "2026-02-03"}
    for result in (larger, RESULT, newer):
        figures.keep("udp", result, tmp_path)
    assert figures.stored(tmp_path) == {"udp": [newer, larger]}
    assert len((tmp_path / "udp.json").read_text().splitlines()) == 2 * (len(RESULT["rows"]) + 1)


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@needs.tools("git")
def test_a_result_is_stale_once_measured_files_change(tmp_path: Path) -> None:
    def commit(name: str) -> str:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
        _git(tmp_path, "add", ".")
        _git(tmp_path, "commit", "-qm", name)
        return _git(tmp_path, "rev-parse", "HEAD")

    _git(tmp_path, "init", "-q")
    result = {"commit": commit("core/a.cpp"), "uncommitted": False}
    assert figures.staleness(result, ["core"], tmp_path) == ""
    commit("docs.md")
    assert figures.staleness(result, ["core"], tmp_path) == ""
    commit("core/b.cpp")
    assert figures.staleness(result, ["core"], tmp_path) == "1 commit changed the measured files since"
    commit("core/c.cpp")
    assert figures.staleness(result, ["core"], tmp_path) == "2 commits changed the measured files since"
    assert "not in this repository" in figures.staleness({**result, "commit": "1" * 40}, ["core"], tmp_path)
    assert "uncommitted" in figures.staleness({**result, "uncommitted": True}, ["core"], tmp_path)


def test_marks_of_staleness_do_not_count_when_pages_are_compared() -> None:
    stale, fresh = f"a\n\n{figures.STALE}: 3 commits.\n\nb\n", "a\n\nb\n"
    assert figures.without_staleness(stale) == figures.without_staleness(fresh)
    assert figures.without_staleness(stale) != figures.without_staleness("a\n\nc\n")


def test_the_page_is_current() -> None:
    written = figures.without_staleness(figures.PAGE.read_text(encoding="utf-8"))
    assert written == figures.without_staleness(figures.page(figures.stored())), "run: python tools/figures.py render"


@pytest.mark.parametrize("name", figures.BENCHMARKS)
def test_what_a_benchmark_measures_exists(name: str) -> None:
    assert all((ROOT / path).exists() for path in figures.paths_of(name))


def test_every_benchmark_has_a_section() -> None:
    from softmrc_bench.cli import benches

    assert {command.name for command in benches.registered_commands} == set(figures.BENCHMARKS)


def test_rows_have_rounds_limits_and_both_sides_of_a_ratio() -> None:
    known = (
        BenchFigure("ratio", "over TCP", "", 2.0, True, versus=Versus("TCP", "a.ours", "a.theirs", "s")),
        BenchFigure("least", "shown alone", "s", 0, True),
        BenchFigure("absent", "not measured", "s", 0, True),
        BenchFigure("null", "impossible here", "s", 1, True),
    )
    measured = {
        "ratio": Sampled([1, 2, 6]),
        "least": 3.0,
        "null": None,
        "a": {"ours": Sampled([4, 5]), "theirs": 2.0},
    }
    ratio, least, null = rows(known, measured, measured)
    assert ratio["value"] == 2 and ratio["rounds"] == [1, 2, 6] and ratio["limit"] == "≥ 2" and ratio["holds"]
    assert ratio["versus"]["ours"] == {"key": "a.ours", "value": 4.5, "rounds": [4, 5]}
    assert ratio["versus"]["theirs"] == {"key": "a.theirs", "value": 2.0}
    assert least == {"key": "least", "figure": "shown alone", "unit": "s", "value": 3.0}
    assert null["value"] is None and "holds" not in null
    assert json.loads(json.dumps(ratio)) == ratio


def test_rounds_cross_processes() -> None:
    there = {"a": {"p99": Sampled(range(200), percentile_99), "plain": 1.5}, "none": None}
    here = loads(dumps(there))
    assert here == {"a": {"p99": 198.0, "plain": 1.5}, "none": None}
    assert here["a"]["p99"].rounds == tuple(range(200))
