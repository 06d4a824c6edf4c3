"""Reports and plots: one file with everything in it, that says what the run found."""

from __future__ import annotations

import html
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.sim.small import scenario, table

from softmrc import sim
from softmrc._support.report import plots
from softmrc.sim import report

FAULT = {"kind": "down", "link": {"plane": 0, "leaf": 1, "spine": 2}, "at_us": 5.0, "for_us": 5.0, "label": "a <cable>"}


def y_of(drawn: str) -> list[float]:
    """Of the only line of a plot."""
    (found,) = json.loads(html.unescape(re.search("data-plot='([^']*)'", drawn)[1]))["series"]  # type: ignore[index]
    return found["y"]


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
    assert f"{results[0].trace_hash:016x}" in page and "The last flow is done after" in page


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


def test_a_distribution_ends_where_the_flows_that_arrived_end() -> None:
    """Thirteen of a hundred flows are done: the line must not reach 1."""
    took = np.r_[np.linspace(10, 20, 13), np.full(87, np.nan)]
    assert max(y_of(plots.cdf_chart([plots.Series("stuck", took, took)], "µs"))) == pytest.approx(0.13)


def test_steps_that_never_ended_are_a_gap_and_not_zero() -> None:
    line = plots.Series("stuck", np.arange(1, 5), np.array([100.0, 120.0, np.nan, np.nan]))
    drawn = plots.line_chart([line], "step", "µs")
    assert y_of(drawn) == [100.0, 120.0, None, None]
    (path,) = re.findall(r'class="line"[^>]* d="([^"]*)"', drawn)
    assert path.count(",") == 2 and "nan" not in drawn


def test_an_axis_that_is_logarithmic_says_so() -> None:
    far = np.array([1.0, 10.0, 1000.0])
    near = np.array([10.0, 11.0, 12.0])
    assert "µs, logarithmic" in plots.cdf_chart([plots.Series("a", far, far)], "µs")
    assert "logarithmic" not in plots.cdf_chart([plots.Series("a", near, near)], "µs")


def test_names_of_faults_stand_above_the_plot_and_layers_are_not_shaded() -> None:
    bands = [plots.Band(2.0, 5.0, "a T1 switch reboots"), plots.Band(2.1, 6.0, "a cable flaps")]
    x = np.linspace(0, 10, 50)
    drawn = plots.line_chart([plots.Series("a", x, x)], "µs", "Gb/s", bands)
    heights = [float(y) for y in re.findall(r'class="fault-name" x="[^"]*" y="([^"]*)"', drawn)]
    assert len(heights) == 2 and len(set(heights)) == 2 and all(y <= plots.TOP for y in heights)
    layers = plots.stacked_chart(x, [("good", x, "red")], "µs", "EVs", bands)
    assert 'class="fault"' not in layers and 'class="fault-edge"' in layers


def test_heat_maps_have_a_scale(results: list[sim.Result]) -> None:
    assert "25 %</text>" in report.links_plot(results[0])


def test_what_breaks_after_the_first_run_is_over_is_shaded_for_the_others() -> None:
    event = FAULT | {"at_us": 60.0, "label": "a cable goes"}
    slow = {"name": "slow", "workload": {"message_bytes": 4_000_000}}
    results = sim.run_all(sim.parse(table(faults={"events": [event]}, compare=[slow])))
    assert results[0].simulated_us < 60 < results[1].simulated_us
    drawn = [report.goodput_plot(shown) for shown in (results, results[:1])]
    assert "a cable goes" in drawn[0] and "a cable goes" not in drawn[1]
