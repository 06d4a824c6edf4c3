"""The page that shows a run: one HTML file with everything in it, to be opened, mailed or kept.

It has goodput over time with the faults marked, the distribution of completion times, the load of planes and links, and
the states of EVs, and says how the run can be had again.
"""

from __future__ import annotations

import html
import json
from typing import Any

import numpy as np

from softmrc._support.report import plots
from softmrc._support.report.page import page_of, section, table, verdict_line
from softmrc._support.report.plots import Band, Series
from softmrc.sim.answer import Answer, answer
from softmrc.sim.result import Result
from softmrc.sim.scenario import Scenario
from softmrc.sim.steps import has_steps, steps_of

GBPS = 1e9


def page(results: list[Result], found: Answer | None = None, command: str = "") -> str:
    """The report of a scenario and of what it was compared with, of one seed; the answer may be of several. `command`
    is how to get it again."""
    found = found or answer([results])
    first = results[0]
    f, s = first.scenario.fabric, first.scenario
    setting = (
        f"{f.hosts:,} hosts · {f.planes} plane{'s' if f.planes > 1 else ''} × {f.host_link_gbps:g} Gb/s"
        f" · {f.words} a plane"
        f" · base RTT {s.base_rtt_us:.1f} µs · seed {first.seed} · trace {first.trace_hash:016x}"
    )
    if s.run.speedup > 1:
        setting += f" · faults compressed {s.run.speedup:g} ×"
    sections = [
        section("In figures", "", _figures(results)),
        section("Goodput over time", "All hosts together. Shaded: something was broken.", goodput_plot(results)),
        section("Where a step goes", "At the median of all steps; ranks' mean.", parts_of_steps(results)),
        section("Training steps", "How long each took; a line ends where a run did not get on.", steps_plot(results)),
        section("How long flows took", "The share of all flows that were complete by then.", fct_plot(results)),
        section("Load by plane", f"Goodput of each plane, {first.name}.", planes_plot(first)),
        section("Load by link", "Share of each link's rate, over the whole run.", links_plot(first)),
        section("Paths", f"States of all entropy values of all senders, {first.name}.", evs_plot(first)),
        section("The scenario", "", _recipe(first, command)),
    ]
    said = f'<p class="verdict"><b>{html.escape(found.text)}</b></p>'
    if found.seeds > 1:
        said += f"<p>Figures and plots below are of seed {first.seed}.</p>"
    return page_of(s.question, setting, [said, *(verdict(one) for one in results)], sections)


def sweep_page(scenario: Scenario, said: str, heads: list[str], rows: list[list[str]], command: str) -> str:
    """The table of a sweep and its answer. `command` is how to get it again."""
    answer_line = f'<p class="verdict"><b>{html.escape(said)}</b></p>'
    again = f"<p>Run it again: <code>{html.escape(command)}</code></p>"
    sections = [section("In figures", "Means over the seeds that finished.", table(heads, rows))]
    return page_of(scenario.question, scenario.name or "A sweep", [answer_line, again], sections)


def verdict(result: Result) -> str:
    return verdict_line(bool(result.verdict), result.verdict.kind, result.name, result.verdict.text)


def _figures(results: list[Result]) -> str:
    columns = {
        "": lambda s: html.escape(s["name"]),
        "flows": lambda s: f"{s['flows_delivered']:,} of {s['flows']:,}",
        "mean": lambda s: _of_finished(s, _us(s["fct_mean_us"])),
        "p99": lambda s: _of_finished(s, _us(s["fct_p99_us"])),
        "last": lambda s: _of_finished(s, _us(s["fct_max_us"])),
        "slowest flow": lambda s: _of_finished(s, f"{s['slowest_flow_gbps']:,.1f} Gb/s"),
        "retransmitted": lambda s: _of_finished(s, f"{s['retransmitted']:,}", "–"),
        "trimmed": lambda s: _of_finished(s, f"{s['trimmed']:,}", "–"),
        "lost, all kinds": lambda s: _of_finished(s, f"{s['dropped'] + s['lost_to_faults']:,}", "–"),
    }
    head = "".join(f"<th>{name}</th>" for name in columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{show(one.summary())}</td>" for show in columns.values()) + "</tr>" for one in results
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _of_finished(summary: dict[str, Any], text: str, otherwise: str = "") -> str:
    """Flows that arrived before a run stopped were the quick ones: their times are no figure of it."""
    return text if summary["verdict"] == "complete" else otherwise or html.escape(summary["verdict"])


def _us(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} µs"


def bands(result: Result, until_us: float = 0.0) -> list[Band]:
    """When something was broken, by what; flaps of one thing are separate spans. A run that this one
    is compared with may last longer: until `until_us`."""
    end = max(result.simulated_us, until_us, 1.0)
    open_: dict[tuple[str, int], float] = {}
    found = []
    for action in result.faults:
        key = (action.label, int(action.links[0]))
        at = action.at_ps / 1e6
        if action.kind != "heal":
            open_.setdefault(key, at)
        elif key in open_:
            found.append(Band(open_.pop(key), at, action.label))
    found += [Band(at, end, label) for (label, _), at in open_.items()]
    return sorted((one for one in found if one.start <= end), key=lambda one: one.start)


def goodput_plot(results: list[Result], until_us: float | None = None) -> str:
    """Goodput of every variant; the scenario's own last bin is left out, as it is not full."""
    series = []
    for one in results:
        total = one.goodput_bps.sum(axis=0)[:-1] / GBPS
        x = (np.arange(len(total)) + 0.5) * one.bin_us
        if until_us is not None:
            total, x = total[x <= until_us], x[x <= until_us]
        series.append(Series(one.name, x, total))
    shown = max((float(one.x.max()) for one in series if len(one.x)), default=0)
    return plots.line_chart(series, "µs", "Gb/s", [one for one in bands(results[0], shown) if one.start < shown])


def planes_plot(result: Result) -> str:
    if result.goodput_bps.shape[0] < 2:
        return ""
    x = (np.arange(result.goodput_bps.shape[1] - 1) + 0.5) * result.bin_us
    series = [Series(f"plane {i}", x, plane[:-1] / GBPS) for i, plane in enumerate(result.goodput_bps)]
    return plots.line_chart(series, "µs", "Gb/s", bands(result))


def fct_plot(results: list[Result]) -> str:
    """Of flows in which something is sent; in a job's others a host computes."""
    chosen = [(one.name, one.fct_us[one.is_sent]) for one in results]
    series = [Series(name, fct, fct, plots.color(i)) for i, (name, fct) in enumerate(chosen)]
    return plots.cdf_chart(series, "µs")


def steps_plot(results: list[Result]) -> str:
    chosen = [one for one in results if len(one.step_us) > 1]
    series = [Series(one.name, np.arange(1, len(one.step_us) + 1), one.step_us) for one in chosen]
    return plots.line_chart(series, "step", "µs", whole_x=True, height=200) if series else ""


def parts_of_steps(results: list[Result]) -> str:
    """Of jobs: what a step is made of, and how much communication nothing hides."""
    chosen = [(one.name, steps_of(one)) for one in results if has_steps(one.plan) and one.verdict]
    if not chosen:
        return ""
    keys = ("step_us", "computing_us", "scale_up_us", "waiting_us", "exposed_us", "exposed_share")
    found = {name: [float(np.median([getattr(step, key) for step in steps])) for key in keys] for name, steps in chosen}
    head = ("", "a step", "computing", "inside hosts", "waiting for ranks", "exposed communication", "of the step")
    rows = [
        [name, *(f"{value:,.1f} µs" for value in values[:-1]), f"{100 * values[-1]:.1f} %"]
        for name, values in found.items()
    ]
    exposed = [max(values[-2], 0.0) for values in found.values()]
    return table(head, rows) + plots.bar_chart([f"{name}: exposed" for name in found], exposed, "µs")


def evs_plot(result: Result) -> str:
    if not len(result.ev_states) or not result.ev_states.any():
        return ""
    names = (("good", "--good"), ("skipped once", "--skip"), ("assumed bad", "--bad"), ("denied", "--denied"))
    parts = [(name, result.ev_states[:, i], f"var({ink})") for i, (name, ink) in enumerate(names)]
    return plots.stacked_chart(
        result.ev_states_us, [one for one in parts if one[1].any()], "µs", "entropy values", bands(result)
    )


def links_plot(result: Result) -> str:
    """A map for each plane of what went up, from leaves to spines; and the busiest links by name."""
    fabric = result.scenario.fabric
    loads = result.link_bytes * 8e6 / max(result.makespan_us, 1e-9) / fabric.fabric_link_bps / fabric.cables_per_link
    up, down = (fabric.stages()[name] for name in ("T0 to T1", "T1 to T0"))
    maps = []
    for plane in range(min(fabric.planes, 8)):
        for links, way in ((up, "up"), (down, "down")):
            shape = (fabric.leaves, fabric.spines)
            named = links[plane].tolist() if links.shape[1] <= 4096 else []
            cells = [fabric.link_name(link) for link in named] or None
            picture = plots.heat_map(loads[links[plane]].reshape(shape), "leaf", "spine", cells)
            mean = float(loads[links[plane]].mean()) * 100
            caption = f"plane {plane} {way}: {mean:.0f} %, most {loads[links[plane]].max() * 100:.0f} %"
            maps.append(f"<figure><figcaption>{caption}</figcaption>{picture}</figure>")
    busiest = np.argsort(result.link_max_queue_bytes)[::-1][:5]
    rows = "".join(
        f"<tr><td>{html.escape(fabric.link_name(int(i)))}</td><td>{result.link_max_queue_bytes[i] / 1024:,.0f} KiB</td>"
        f"<td>{result.link_bytes[i] / 1e6:,.1f} MB</td></tr>"
        for i in busiest
    )
    queues = f"<table><tr><th>longest queues</th><th>at most</th><th>carried</th></tr>{rows}</table>"
    return f'{plots.heat_scale()}<div class="row">{"".join(maps)}</div><br>{queues}'


def _recipe(result: Result, command: str) -> str:
    keys = json.dumps(result.scenario.table, indent=2, ensure_ascii=False)
    command = command or f"softmrc sim {result.scenario.source or 'this scenario'} --seed {result.seed}"
    return (
        f"<p>Run it again: <code>{html.escape(command)}</code></p>"
        f"<details><summary>every key</summary><pre>{html.escape(keys)}</pre></details>"
    )
