"""The page at the end of the demo."""

from __future__ import annotations

import datetime
import html
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

import softmrc
from softmrc._support.report import plots
from softmrc._support.report.page import page_of, section, table, verdict_line
from softmrc._support.report.plots import Band, Series, at_both_widths
from softmrc.demo import drawing
from softmrc.demo.outcome import (
    Outcome,
    count_of,
    milliseconds,
    outcomes,
    percent,
    pick,
    seconds,
    where_tcp_is_better,
    withdrawal_of,
)
from softmrc.demo.story import MRC, RANKS, TCP, Network, TrainingRun, traffic_of
from softmrc.demo.traffic import Traffic

TITLE = "Training while the network breaks"
ABOUT = (
    "A plane is one of several separate networks that connect the same hosts. MRC (Multipath Reliable Connection) is a "
    "transport that sends each packet of a connection over its own path, across all planes. It withdraws a path that "
    "loses packets, retransmits them over the others, and probes the path until it works again."
)
EV_STATES = (("good", "--good"), ("skipped once", "--skip"), ("withdrawn", "--bad"), ("denied", "--denied"))
INKS = {MRC: plots.color(0), TCP: plots.color(1)}
WINDOW = 9  # steps, of the rolling median
ZOOM_S, BEFORE_S, BIN_S = 0.2, 0.05, 0.008
DATA_BYTES = 10_000  # more than probes come to between two samples


def page(runs: Sequence[TrainingRun], network: Network, *, is_encrypted: bool, command: str, load: float) -> str:
    """Everything about the runs. `load`: the machine's, before they began."""
    found = outcomes(runs)
    mrc = pick(runs, MRC, True)
    assert mrc is not None
    jobs = [run for run in (mrc, pick(runs, TCP, True)) if run is not None]
    both = "Both jobs met the same faults." if len(jobs) == 2 else network.tcp_text
    parts = [
        section("What MRC and planes are", "", f'<p class="prose">{html.escape(ABOUT)}</p>'),
        section("In figures", "", _figures(runs, found)),
        section("What broke", both, drawing.faults(mrc, network.planes, RANKS)),
        section("Progress", "Steps completed. A flat line is a job that stands still.", _progress(jobs)),
        section("Step time", _about_steps(), _step_time(jobs)),
        section("What each fault cost", "The longest step that each fault touched.", _fault_costs(jobs)),
        *_zooms(jobs),
        section("Paths", "", _paths(mrc)),
        section("Goodput by plane", "What each plane delivered to the job over MRC.", _planes(mrc)),
        section("About this run", "", _footer(runs, network, is_encrypted, command, load)),
    ]
    return page_of(TITLE, f"{count_of(found)} while {RANKS} ranks train.", [_verdict(one) for one in found], parts)


def _verdict(one: Outcome) -> str:
    kind = "stopped" if one.stopped_at is not None else "finished" if one.is_identical else "differs"
    return verdict_line(one.is_identical, kind, one.transport, f"{one.words}.")


def _figures(runs: Sequence[TrainingRun], found: Sequence[Outcome]) -> str:
    def stop(one: Outcome) -> str:
        return "0" if one.stopped_at is None else f"stopped at step {one.stopped_at}"

    rows = [
        ["network faults", *(str(one.faults) for one in found)],
        ["failed steps", *map(stop, found)],
        ["longest stall", *(seconds(one.stall_s) for one in found)],
        ["run time, undisturbed", *(seconds(one.calm_s) for one in found)],
        ["run time, with faults", *(seconds(one.run_s) for one in found)],
        ["run time added", *(percent(one.extra) if one.stopped_at is None else "" for one in found)],
        ["weights", *("identical" if one.is_identical else "different" for one in found)],
    ]
    notes = ["Stall: the longest step, less the median step of the undisturbed run."]
    if len(found) == 2:
        notes.append(where_tcp_is_better(*found))
    mrc, tcp = pick(runs, MRC, False), pick(runs, TCP, False)
    if mrc and tcp and mrc.digest != tcp.digest:
        apart = max(abs(a - b) for a, b in zip(mrc.losses, tcp.losses, strict=True))
        notes.append(
            "Each job is compared with its own undisturbed run: Gloo adds the ranks' gradients in another order than "
            f"MRC, so the losses of the two differ, by at most {apart:.1g}."
        )
    lines = "".join(f'<p class="note">{html.escape(note)}</p>' for note in notes if note)
    return table(["", *(one.transport for one in found)], rows) + lines


def bands(run: TrainingRun, width: int = plots.WIDTH) -> list[Band]:
    """What was broken, by seconds; a narrow plot has room for numbers only."""
    return [Band(a, b, _label(i, fault.label, width)) for i, (fault, a, b) in enumerate(run.bands, 1)]


def _label(number: int, text: str, width: int) -> str:
    return f"{number}. {text}" if width >= plots.WIDTH else str(number)


def _progress(jobs: Sequence[TrainingRun]) -> str:
    series = [
        Series(run.name, np.array([0.0, *run.step_at_s]), np.arange(len(run.step_at_s) + 1.0), INKS[run.transport])
        for run in jobs
    ]
    return at_both_widths(lambda width: plots.line_chart(series, "s", "steps", width=width))


def _about_steps() -> str:
    return f"Of rank 0: the median of the last {WINDOW} steps, and the area from their 5th to their 95th percentile."


def rolling(values: np.ndarray, share: float) -> np.ndarray:
    """A percentile of each value and those before it, as far as the window reaches."""
    parts = [values[max(at + 1 - WINDOW, 0) : at + 1] for at in range(len(values))]
    return np.array([np.percentile(part, share) for part in parts])


def _step_time(jobs: Sequence[TrainingRun]) -> str:
    """By step, so that a fault is in the same place for both."""
    series = []
    for run in jobs:
        took = np.array(run.step_ms[1:])  # the first makes buckets and buffers
        spread = (rolling(took, 5), rolling(took, 95))
        series.append(Series(run.name, np.arange(2.0, len(took) + 2), rolling(took, 50), INKS[run.transport], spread))
    ends = np.array(jobs[0].step_at_s)

    def draw(width: int) -> str:
        begun = [
            Band(float(fault.step + 1), float(np.searchsorted(ends, end) + 1), _label(i, fault.label, width))
            for i, (fault, _, end) in enumerate(jobs[0].bands, 1)
        ]
        return plots.line_chart(series, "step", "ms a step", begun, log_y=True, height=320, width=width)

    return at_both_widths(draw)


def _fault_costs(jobs: Sequence[TrainingRun]) -> str:
    rows = []
    for number, fault in enumerate(jobs[0].script, 1):
        worst = [f"{run.during(fault).max():,.0f} ms" if len(run.during(fault)) else "" for run in jobs]
        rows.append([f"{number}. {fault.label}", *worst])
    return _folding(["fault", *(run.transport for run in jobs)], rows)


def _folding(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column may fold."""
    return table(head, rows).replace("<tr><td>", '<tr><td class="prose">')


def _zooms(jobs: Sequence[TrainingRun]) -> list[str]:
    """The first fault, closely and at one scale; nothing where no counters were read."""
    edges = np.arange(-BEFORE_S, ZOOM_S - BEFORE_S + BIN_S / 2, BIN_S)
    at = (edges[1:] + edges[:-1]) / 2 * 1e3
    near = [(run, run.traffic.since(run.bands[0][1])) for run in jobs if run.traffic is not None and run.bands]
    top = max((float(traffic.rates_gbps(edges).max()) for _, traffic in near), default=0.0) * 1.06 or 1.0
    parts = []
    for run, traffic in near:
        fault, start, end = run.bands[0]
        series = [Series(f"plane {plane}", at, rate) for plane, rate in enumerate(traffic.rates_gbps(edges))]
        draw = partial(plots.line_chart, series, "ms", "Gb/s", [Band(0.0, float(at[-1]), fault.kind)], y_max=top)
        words = zoom_words(traffic, fault.planes, min(end - start, start - run.step_at_s[0]), end - start)
        title = f"First fault, {fault.label}: {ZOOM_S * 1e3:.0f} ms of {run.transport}"
        parts.append(section(title, words, at_both_widths(lambda width, draw=draw: draw(width=width))))  # type: ignore[misc]
    return parts


def zoom_words(near: Traffic, planes: Sequence[int], before_s: float, lasts_s: float) -> str:
    """What the plot shows, in figures: the last byte, and who takes over. `before_s`: training before it."""
    last = near.last_given_s(planes, 0.0, lasts_s, DATA_BYTES)
    before, after = (near.rates_gbps(np.array(span)).sum() for span in ((-before_s, 0.0), (0.0, lasts_s)))
    words, silent = "Delivered by each plane. ", "the silent plane" if len(planes) == 1 else "the silent planes"
    if last is None:
        words += f"No data was sent into {silent}. "
    else:
        words += f"The last data was sent into {silent} {milliseconds(last)} after the fault began. "
    share = f"{100 * after / before:.0f} %" if before else "none"
    return f"{words}While the fault lasted, the other planes delivered {share} of what all did before it."


def _paths(run: TrainingRun) -> str:
    lines = []
    for number, fault in enumerate(run.script, 1):
        seen = withdrawal_of(run, fault)
        if seen is not None:
            lines.append(f"<li>{html.escape(f'{number}. {fault.label}: {seen.sentence}')}.</li>")
    counts = run.counters
    if counts:
        sent, again = counts["packets_sent"], counts["packets_retransmitted"]
        lines.append(f"<li>In all: {sent:,} packets sent, {again:,} of them retransmitted.</li>")
    at = np.array([look.at_s for look in run.looks])
    plot = ""
    if len(at):
        states = np.array([look.states.sum(axis=0) for look in run.looks])[:: max(len(at) // 300, 1)]
        at = at[:: max(len(at) // 300, 1)]
        layers = [(name, states[:, i], f"var({ink})") for i, (name, ink) in enumerate(EV_STATES) if states[:, i].any()]
        plot = at_both_widths(
            lambda width: plots.stacked_chart(at, layers, "s", "paths", bands(run, width), width=width)
        )
    return f"<ul>{''.join(lines)}</ul>{plot}" if lines else ""


def _planes(run: TrainingRun) -> str:
    found = traffic_of(run)
    if found is None:
        return ""
    edges = np.linspace(0.0, run.run_s, max(int(run.run_s / 0.2), 2))
    rates, at = found.rates_gbps(edges), (edges[1:] + edges[:-1]) / 2
    series = [Series(f"plane {plane}", at, rate) for plane, rate in enumerate(rates)]
    return at_both_widths(lambda width: plots.line_chart(series, "s", "Gb/s", bands(run, width), width=width))


def _footer(runs: Sequence[TrainingRun], network: Network, is_encrypted: bool, command: str, load: float) -> str:
    faulty = pick(runs, MRC, True)
    assert faulty is not None
    lasts = (
        f"Each fault lasts {faulty.script[0].lasts_s:.1f} s: a job that waits for the repair stalls at least so long."
    )
    facts = [
        f"{RANKS} ranks on one machine train a transformer of {runs[-1].parameters:,} parameters with DDP, for "
        f"{faulty.steps} steps a job. {lasts}",
        f"Network: {network.text}{', MRC encrypted' if is_encrypted else ''}.",
        network.tcp_text,
        f"Software: SoftMRC {softmrc.__version__}{_commit()}, torch {importlib.metadata.version('torch')}, "
        f"Python {platform.python_version()}; TCP is Gloo's, with congestion control {_congestion_control()}.",
        f"Machine: {_processor()}, {os.cpu_count()} cores, Linux {platform.release()}; load at the start {load:.1f}.",
        f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M %Z} · {command} · seed 0",
    ]
    steps = (
        "Next: <code>softmrc top</code> watches a job, <code>softmrc ctl faults --help</code> shows how to break your "
        'own, and <code>docs/guides/pytorch.md</code> how to train with <code>init_process_group("mrc")</code>.'
    )
    return "".join(f'<p class="note">{html.escape(fact)}</p>' for fact in facts) + f"<p>{steps}</p>"


def _commit() -> str:
    """Of the clone that this runs from; empty elsewhere."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f" (commit {done.stdout.strip()})" if done.returncode == 0 else ""


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _congestion_control() -> str:
    return next(iter(_lines("/proc/sys/net/ipv4/tcp_congestion_control")), "not known")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
