"""The page at the end of the demo."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

from softmrc._support.report import plots
from softmrc._support.report.page import page_of, section, verdict_line
from softmrc._support.report.plots import Band, Series
from softmrc.demo.story import TrainingRun, rates_gbps

EV_STATES = (("good", "--good"), ("skipped once", "--skip"), ("assumed bad", "--bad"), ("denied", "--denied"))


def page(runs: Sequence[TrainingRun], setting: str, proof: tuple[bool, str], title: str) -> str:
    """Everything about the runs; the last of them is the one with the faults."""
    faulty = runs[-1]
    sections = [
        section("In figures", "", _figures(runs)),
        section("Step time", "Of rank 0. Shaded: something was broken, in the last job.", step_plot(runs)),
        section("What each fault cost", "Steps that it touched, beside the same job undisturbed.", _faults(runs)),
        section("Goodput by plane", "What all ranks together sent, headers included.", plane_plot(faulty)),
        section("Paths", "States of all entropy values of all queue pairs.", ev_plot(faulty)),
        section(
            "Loss", "Of rank 0's batches: the lines lie on each other where nothing changed the result.", losses(runs)
        ),
    ]
    verdicts = [verdict_line(proof[0], "bit-identical" if proof[0] else "differs", "weights", proof[1])]
    return page_of(title, setting, verdicts, sections)


def bands(run: TrainingRun) -> list[Band]:
    end = run.step_at_s[-1]
    return [Band(start, min(stop, end), fault.label) for fault, start, stop in run.bands]


def step_plot(runs: Sequence[TrainingRun]) -> str:
    """Each step is as wide as it is high; the first, which makes buckets and buffers, is left out."""
    series = []
    for run in runs:
        ends, took = np.array(run.step_at_s[1:]), np.array(run.step_ms[1:])
        x = np.stack([ends - took / 1e3, ends], axis=1).ravel()
        series.append(Series(run.name, x, np.repeat(took, 2)))
    return plots.line_chart(series, "s", "ms a step", bands(runs[-1]), height=320)


def plane_plot(run: TrainingRun) -> str:
    at, rates = rates_gbps(run)
    series = [Series(f"plane {plane}", at, rates[plane]) for plane in range(len(rates))]
    return plots.line_chart(series, "s", "Gb/s", bands(run))


def ev_plot(run: TrainingRun) -> str:
    at = np.array([look.at_s for look in run.looks])
    counts = np.array([look.states.sum(axis=0) for look in run.looks])
    if not len(at):
        return ""
    parts = [(name, counts[:, i], f"var({ink})") for i, (name, ink) in enumerate(EV_STATES)]
    return plots.stacked_chart(at, [part for part in parts if part[1].any()], "s", "entropy values", bands(run))


def losses(runs: Sequence[TrainingRun]) -> str:
    series = [Series(run.name, np.arange(1, len(run.losses) + 1), np.array(run.losses)) for run in runs]
    return plots.line_chart(series, "step", "loss", height=200)


def _figures(runs: Sequence[TrainingRun]) -> str:
    rows = []
    for run in runs:
        p95 = float(np.percentile(run.step_ms[1:], 95))
        times = [_ms(run.median_ms), _ms(p95), _ms(run.worst_ms), f"{run.step_at_s[-1]:.1f} s"]
        rows.append([run.name, f"{run.steps}", *times, f"{run.losses[-1]:.6f}", run.digest[:12]])
    return _table(["", "steps", "median step", "p95", "worst", "in all", "last loss", "weights"], rows)


def _faults(runs: Sequence[TrainingRun]) -> str:
    calm, faulty = runs[-2], runs[-1]
    rows = []
    for fault in faulty.script:
        touched = faulty.during(fault)
        rows.append([fault.label, f"{fault.start + 1} to {fault.end + 1}", _ms(float(np.median(touched))),
                     _ms(float(touched.max())), _ms(calm.median_ms)])  # fmt: skip
    return _table(["", "steps", "median", "worst", "undisturbed median"], rows)


def _ms(value: float) -> str:
    return f"{value:,.1f} ms"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{html.escape(one)}</th>" for one in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(one)}</td>" for one in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"
