"""Reports and plots: one file with everything in it, that says what the run found."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.sim.small import scenario, table

from softmrc import sim
from softmrc.sim import plots, report

FAULT = {"kind": "down", "link": {"plane": 0, "leaf": 1, "spine": 2}, "at_us": 5.0, "for_us": 5.0, "label": "a <cable>"}


@pytest.fixture(scope="module")
def results() -> list[sim.Result]:
    changes = {"faults": {"events": [FAULT]}, "compare": [{"name": "one & only", "fabric": {"planes": 1}}]}
    return sim.run_all(sim.parse(table(**changes)))


def test_a_report_is_whole_and_needs_nothing_else(results: list[sim.Result]) -> None:
    page = report.page(results)
    for heading in ("In figures", "Goodput over time", "How long flows took", "Load by plane", "Load by link", "Paths"):
        assert f"<h2>{heading}</h2>" in page
    assert not re.search(r'(src|href)="', page) and "@import" not in page, "nothing is fetched"
    assert "a &lt;cable&gt;" in page and "a <cable>" not in page and "one &amp; only" in page
    assert f"{results[0].trace_hash:016x}" in page


def test_plots_are_well_formed_on_their_own(results: list[sim.Result]) -> None:
    drawn = [
        report.goodput_plot(results), report.fct_plot(results), report.planes_plot(results[0]),
        report.evs_plot(results[0]), plots.bar_chart(["a", "b"], [1.0, 2.0], "Gb/s"),
        plots.heat_map(np.random.default_rng(1).random((100, 3)), "leaf", "spine"),
    ]  # fmt: skip
    for one in drawn:
        root = ElementTree.fromstring(plots.standalone(one))
        assert root.tag.endswith("svg")
        assert "nan" not in one and "inf" not in one.replace("info", "")


def test_faults_are_marked_from_start_to_end(results: list[sim.Result]) -> None:
    assert [(band.start, band.end) for band in report.bands(results[0])] == [(5.0, 10.0)]


def test_a_training_run_shows_its_steps() -> None:
    one = sim.run(scenario(workload={"kind": "training", "steps": 3, "bytes": 100_000, "compute_us": 5.0}))
    assert "<h2>Training steps</h2>" in report.page([one])


def test_a_run_in_which_nothing_arrived_has_a_report_too() -> None:
    one = sim.run(scenario(run={"until_ms": 0.001}))
    assert "time is up" in report.page([one])


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 97), (3, 1e6), (0, 0.004), (5, 5)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    marks = plots.ticks(low, high)
    assert all(low - 1e-9 <= mark <= high + 1e-9 for mark in marks) and 1 <= len(marks) <= 12
