"""What a scenario answers, as a sentence that is computed from its runs, and the figure it rests on.

A scenario may say in [answer] which figure that is; without, its workload decides. One seed gives the figure, several
its spread. A run that did not finish is reported as such: no figure of it is shown with those of runs that did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from softmrc.sim.chakra import Chakra
from softmrc.sim.job import Job
from softmrc.sim.result import PS_PER_US, Result
from softmrc.sim.scenario import Scenario
from softmrc.sim.steps import Step, has_steps, steps_of
from softmrc.sim.workloads import Collective, Incast, Training


@dataclass(frozen=True)
class Figure:
    """A figure of a run: the words that lead up to it, its unit, and whether more of it is better."""

    words: str
    unit: str
    more_is_better: bool
    of: Callable[[Result], float]


def _victim_gbps(one: Result) -> float:
    """What the victim gets from its first message to its last."""
    rows = one.flows[one.group("victim")] if "victim" in one.plan.groups else one.flows[:0]
    if not len(rows) or (rows["delivered_ps"] < 0).any():
        return float("nan")
    took_ps = int(rows["delivered_ps"].max() - rows["start_ps"].min())
    return float(rows["bytes"].sum(dtype=np.uint64)) * 8e3 / took_ps


def _retransmitted_share(one: Result) -> float:
    return 100 * one.retransmitted / max(one.data_packets, 1)


def _exposed_us(one: Result) -> float:
    return float(np.median([step.exposed_us for step in steps_of(one)]))


FIGURES = {
    "last_flow": Figure("the last flow is done after", "µs", False, lambda one: float(np.nanmax(one.fct_us))),
    "makespan": Figure("everything has arrived after", "µs", False, lambda one: one.makespan_us),
    "slowest_flow": Figure("the slowest flow gets", "Gb/s", True, lambda one: float(np.nanmin(one.rate_bps)) / 1e9),
    "goodput": Figure("all hosts together get", "Gb/s", True, lambda one: one.goodput_mean_bps / 1e9),
    "step": Figure("a step takes, at the median,", "µs", False, lambda one: float(np.median(one.step_us))),
    "worst_step": Figure("the longest step takes", "µs", False, lambda one: float(np.max(one.step_us))),
    "exposed": Figure("communication that nothing hides takes, of a step,", "µs", False, _exposed_us),
    "collective": Figure("a collective takes, at the median,", "µs", False, lambda one: float(np.median(one.call_us))),
    "victim": Figure("the victim gets", "Gb/s", True, _victim_gbps),
    "retransmitted": Figure("of the data packets are retransmitted", "%", False, _retransmitted_share),
}


@dataclass(frozen=True)
class VariantResult:
    """One variant: its figure for each seed; none where a run did not finish."""

    name: str
    values: tuple[float, ...]
    unfinished: int  # of the seeds
    why: str  # the verdict of the first run that did not finish

    @property
    def mean(self) -> float:
        return float(np.mean(self.values)) if self.values else float("nan")


@dataclass(frozen=True)
class Answer:
    """A sentence, and what it rests on."""

    text: str
    figure: str
    unit: str
    seeds: int
    found: tuple[VariantResult, ...]


def figure_value(one: Result) -> float | None:
    """What a run has to say; nothing if it did not finish."""
    value = FIGURES[figure_of(one.scenario)].of(one) if one.verdict else float("nan")
    return value if np.isfinite(value) else None


def figure_of(scenario: Scenario) -> str:
    """Which figure answers this scenario."""
    asked = scenario.answer.figure
    if asked:
        return asked
    kinds = {type(one) for one in scenario.workloads}
    if any(isinstance(one, Incast) and one.victim for one in scenario.workloads):
        return "victim"
    return "step" if kinds & {Training, Job, Chakra} else "collective" if Collective in kinds else "last_flow"


def answer(runs: Sequence[Sequence[Result]]) -> Answer:
    """`runs` has one list for each seed, with the scenario's own run first and then what it is compared with."""
    key = figure_of(runs[0][0].scenario)
    figure = FIGURES[key]
    found = tuple(_gather(column, figure) for column in zip(*runs, strict=True))
    own = found[0]
    parts = [_said(own, figure)] + [_beside(one, own, figure) for one in found[1:]]
    lead = figure.words[0].upper() + figure.words[1:]
    seeds = f" ({len(runs)} seeds; least to most in brackets)" if len(runs) > 1 else ""
    text = f"{lead} {'; '.join(parts)}{seeds}.{_parts(runs)}{_too_late(runs[0])}"
    return Answer(text, key, figure.unit, len(runs), found)


def _parts(runs: Sequence[Sequence[Result]]) -> str:
    """Of jobs: where a step goes, at the median of all steps and seeds; of what is compared, only what differs."""
    if not has_steps(runs[0][0].plan):
        return ""
    said: list[str] = []
    for column in zip(*runs, strict=True):
        steps = [step for one in column if one.verdict for step in steps_of(one)]
        if not steps:
            continue
        share = float(np.median([one.exposed_share for one in steps]))
        exposed = f"{number(_median(steps, 'exposed_us'))} µs ({100 * share:.1f} %)"
        if said:
            said.append(f"{exposed} of that with {column[0].name}")
        else:
            said.append(f"{_hidden(steps)} and {exposed} of communication that nothing hides with {column[0].name}")
    return f" A step is {'; '.join(said)}." if said else ""


def _median(steps: Sequence[Step], key: str) -> float:
    return float(np.median([getattr(one, key) for one in steps]))


def _hidden(steps: Sequence[Step]) -> str:
    """All but the communication."""
    words = [f"{number(_median(steps, 'computing_us'))} µs of computing"]
    if _median(steps, "scale_up_us"):
        words.append(f"{number(_median(steps, 'scale_up_us'))} µs inside hosts")
    if _median(steps, "waiting_us") > 0.005:
        words.append(f"{number(_median(steps, 'waiting_us'))} µs of waiting for other ranks")
    return ", ".join(words)


def _too_late(results: Sequence[Result]) -> str:
    """What the figures do not tell: that a run was over before what should have disturbed it."""
    said = ""
    for one in results:
        missed = [a.label for a in one.faults if a.kind != "heal" and a.at_ps / PS_PER_US > one.makespan_us]
        if one.verdict and missed:
            said += f" {one.name} was over before {missed[0]} came."
    return said


def _gather(column: Sequence[Result], figure: Figure) -> VariantResult:
    done = [one for one in column if one.verdict]
    failed = [one for one in column if not one.verdict]
    values = [figure.of(one) for one in done]
    finite = tuple(value for value in values if np.isfinite(value))
    return VariantResult(column[0].name, finite, len(column) - len(finite), failed[0].verdict.kind if failed else "")


def number(value: float) -> str:
    """Three digits and a bit: 1,234, 56.7, 0.89."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _figure_text(one: VariantResult, figure: Figure) -> str:
    spread = f" [{number(min(one.values))} to {number(max(one.values))}]" if len(one.values) > 1 else ""
    some = f", in {len(one.values)} of {len(one.values) + one.unfinished} seeds" if one.unfinished else ""
    return f"{number(one.mean)} {figure.unit}{spread} with {one.name}{some}"


def _said(one: VariantResult, figure: Figure) -> str:
    if not one.values:
        return f"no time with {one.name}, which does not finish ({one.why or 'no figure'})"
    return _figure_text(one, figure)


def _beside(one: VariantResult, own: VariantResult, figure: Figure) -> str:
    if not one.values:
        return f"{one.name} does not finish ({one.why or 'no figure'})"
    text = _figure_text(one, figure)
    if not own.values or not own.mean or not one.mean:
        return text
    ratio = one.mean / own.mean
    return f"{text} ({ratio:.2f} times)" if abs(ratio - 1) >= 0.005 else f"{text} (the same)"
