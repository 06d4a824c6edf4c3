"""Answers: a sentence with the figure it rests on, and its spread; nothing is said of a run that did not finish."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sim.small import table

from softmrc import sim
from softmrc._support import resources
from softmrc.sim.answer import FIGURES, answer, figure_of
from softmrc.sim.scenario import ANSWERS

INCAST = {
    "question": "Does the victim suffer?",
    "fabric": {"planes": 1, "hosts": 8, "hosts_per_leaf": 4, "spines": 4},
    "workload": {
        "kind": "incast", "destination": 0, "sources": [4, 5], "message_bytes": 400_000,
        "victim": {"source": 6, "destination": 1, "messages": 4, "message_bytes": 100_000},
    },
}  # fmt: skip


def test_what_may_be_asked_for_is_what_can_be_answered() -> None:
    assert set(FIGURES) == set(ANSWERS)


@pytest.mark.parametrize("name", resources.names(resources.SCENARIOS))
def test_every_scenario_names_a_figure_that_its_workload_has(name: str) -> None:
    scenario = sim.load(resources.names(resources.SCENARIOS)[name])
    kinds = {one.get("kind") for one in _tables(scenario.table["workload"])}
    asked = scenario.answer.figure
    if asked in ("step", "worst_step"):
        assert kinds == {"training"}
    if asked == "victim":
        assert "victim" in scenario.table["workload"]
    if not asked:
        assert kinds & {"collective", "permutation", "job", "chakra"}


def _tables(workload: object) -> list[dict[str, object]]:
    return workload if isinstance(workload, list) else [workload]  # type: ignore[list-item]


def test_the_answer_rests_on_the_runs() -> None:
    scenario = sim.parse(table(name="own", compare=[{"name": "again"}]))
    runs = [sim.run_all(scenario, seed) for seed in (1, 2)]
    found = answer(runs)
    own = [max(one[0].fct_us) for one in runs]
    assert found.figure == "last_flow" and found.seeds == 2
    assert found.found[0].values == pytest.approx(own) and found.found[0].mean == pytest.approx(sum(own) / 2)
    assert found.text.startswith("The last flow is done after") and "with own" in found.text
    assert "with again (the same)" in found.text and "2 seeds" in found.text
    assert "seeds" not in answer(runs[:1]).text


def test_the_victim_of_an_incast_is_shown() -> None:
    runs = [sim.run_all(sim.parse(INCAST))]
    one = runs[0][0]
    found = answer(runs)
    assert figure_of(one.scenario) == "victim" and "the victim gets" in found.text.lower()
    rows = one.flows[one.group("victim")]
    took_s = (rows["delivered_ps"].max() - rows["start_ps"].min()) / 1e12
    assert found.found[0].mean == pytest.approx(4 * 100_000 * 8 / took_s / 1e9)


def test_of_a_run_that_is_stuck_only_that_is_said() -> None:
    stuck = {"name": "cut off", "faults": {"events": [{"kind": "down", "port": {"plane": "all", "host": 3}}]}}
    scenario = sim.parse(table(compare=[stuck]))
    found = answer([sim.run_all(scenario)])
    assert "cut off does not finish (stuck)" in found.text and found.found[1].values == ()


def test_a_fault_that_comes_too_late_is_told() -> None:
    event = {"kind": "down", "link": {"plane": 0, "leaf": 0, "spine": 0}, "at_us": 1e6, "label": "the cable"}
    text = answer([sim.run_all(sim.parse(table(faults={"events": [event]})))]).text
    assert text.endswith("MRC was over before the cable came.")
    assert "over before" not in answer([sim.run_all(sim.parse(table()))]).text


def test_answers_of_the_page_are_about_scenarios_that_are_shipped() -> None:
    page = (Path(__file__).parents[2] / "docs" / "evidence" / "scenario-answers.md").read_text()
    for line in page.splitlines():
        if line.startswith("    softmrc sim "):
            assert line.split()[2] in resources.names(resources.SCENARIOS)
    assert page.count("    softmrc sim ") > 20
