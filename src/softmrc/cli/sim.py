"""`softmrc sim` and `softmrc sweep`: answer a scenario's question, once or over a range."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from softmrc import sim as simulator
from softmrc._support import resources
from softmrc._support.files import check_place, write_text
from softmrc.cli.exit_codes import INTERRUPTED, NO
from softmrc.cli.options import AsJson, AsJsonLines, Quiet, Report, print_json
from softmrc.cli.terminal import terminal
from softmrc.errors import ConfigError
from softmrc.fabric import Shape, load
from softmrc.sim import answer as answers
from softmrc.sim import report as reports
from softmrc.sim import sweep as sweeps
from softmrc.sim.result import Result
from softmrc.sim.steps import has_steps, mfu, steps_of
from softmrc.sim.steps import summary as steps_summary

SHAPE_KEYS = {one.name for one in fields(Shape)} | {"host_link_gbps", "fabric_link_gbps", "nic_bps", "file"}


def _complete(incomplete: str) -> list[str]:
    return [name for name in resources.names(resources.SCENARIOS) if name.startswith(incomplete)]


ScenarioFile = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO",
        help="A TOML file, or a name of `softmrc examples`.",
        show_default=False,
        autocompletion=_complete,
    ),
]
FabricFile = Annotated[Path | None, typer.Option(help="Use the fabric of this file, not the scenario's.")]
FirstSeed = Annotated[
    int | None, typer.Option("--seed", min=0, max=(1 << 63) - 1, help="First seed. Default: the scenario's.")
]
Keys = Annotated[list[str] | None, typer.Option("--set", help="Change a key, as fabric.planes=8. Repeatable.")]


class _Shown:
    """Progress on stderr: share done, simulated time, speed, and when it will be over."""

    def __init__(self, is_wanted: bool) -> None:
        console = terminal(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[clock]}", markup=False),
            console=console,
            transient=True,
            disable=not is_wanted or not console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, p: simulator.Progress) -> None:
        if p.name not in self.tasks:
            self.tasks[p.name] = self.bar.add_task(p.name, total=1.0, clock="")
        eta = f", {p.eta_s:.0f} s to go" if p.eta_s is not None and p.eta_s >= 1 else ""
        clock = f"{p.simulated_us:,.0f} µs simulated, {p.packets_per_s / 1e3:,.0f} k packets/s{eta}"
        self.bar.update(self.tasks[p.name], completed=p.share, clock=clock)


def sim(
    file: ScenarioFile,
    seed: FirstSeed = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds, for the spread of the answer.")] = 1,
    keys: Keys = None,
    fabric: FabricFile = None,
    only: Annotated[str | None, typer.Option(metavar="VARIANT", help="Run only the variant of this name.")] = None,
    cores: Annotated[
        int, typer.Option(min=0, max=255, help="Cores to use; the result is the same. Default: by size.")
    ] = 0,
    as_json: AsJson = False,
    report: Report = None,
    quiet: Quiet = False,
) -> None:
    """Simulate a scenario and the variants it is compared with."""
    check_place(report)
    scenario = _with_keys(_load(file, fabric), keys or [])
    if only is not None:
        names = [one.name for one in scenario.variants()]
        if only not in names:
            raise ConfigError("--only", only, "must be one of " + ", ".join(repr(name) for name in names))
        chosen = scenario.variants()[names.index(only)]
    first = scenario.run.seed if seed is None else seed
    runs: list[list[Result]] = []
    for each in range(first, first + seeds):
        shown = _Shown(not quiet)
        with shown.bar:
            if only is not None:
                runs.append([simulator.run(chosen.scenario, each, shown, chosen.name, cores)])
            else:
                runs.append(simulator.run_all(scenario, each, shown, cores))
        if runs[-1][-1].verdict.kind == "interrupted":
            break
    results, is_interrupted = runs[0], runs[-1][-1].verdict.kind == "interrupted"
    whole = runs[:-1] if is_interrupted and len(runs) > 1 else runs
    found = answers.answer(whole)
    if as_json:
        every = [one for column in whole for one in column]
        summaries = [one.summary() | ({"job": steps_summary(one)} if has_steps(one.plan) else {}) for one in every]
        print_json({"question": scenario.question, "answer": asdict(found), "runs": summaries})
    else:
        _print_results(scenario, whole)
        terminal().print(found.text, style="bold", highlight=False)
    if report is not None:  # what was found is printed by now, and not lost with a disk that is full
        words = _again("sim", file, first, keys, fabric) + (f" --only {shlex.quote(only)}" if only else "")
        write_report(report, reports.page(results, found, words))
    if is_interrupted:
        raise typer.Exit(INTERRUPTED)
    if not results[0].verdict:
        raise typer.Exit(NO)


def _again(command: str, file: Path, seed: int, keys: list[str] | None, fabric: Path | None) -> str:
    """The command that has the same result."""
    words = ["softmrc", command, shlex.quote(str(file)), f"--seed {seed}"]
    words += [f"--set {shlex.quote(text)}" for text in keys or []]
    return " ".join(words + ([f"--fabric {shlex.quote(str(fabric))}"] if fabric else []))


def write_report(report: Path, page: str) -> None:
    write_text(report, page)
    terminal(stderr=True).print(f"Report: {report}", style="dim")


def _load(file: Path, fabric: Path | None) -> simulator.Scenario:
    """A scenario, on its own fabric or on that of a fabric file; delays and forwarding stay the scenario's."""
    scenario = simulator.load(resources.find(file, resources.SCENARIOS, "file"))
    if fabric is None:
        return scenario
    path = resources.find(fabric, resources.FABRICS, "--fabric").resolve()
    table, shape = scenario.table, load(path).fabric
    own = {key: value for key, value in table.get("fabric", {}).items() if key not in SHAPE_KEYS}
    if "nic_bps" in table.get("fabric", {}):  # what changes its planes leaves a NIC its rate
        own["nic_bps"] = shape.planes * shape.host_link_bps
    changes = {"fabric": own | {"file": str(path)}, "faults": table.get("faults", {}) | {"fit": True}}
    work = table["workload"]
    if shape.leaves == 1 and isinstance(work, dict) and work.get("pattern") == "across_leaves":
        changes["workload"] = work | {"pattern": "random"}  # there is nothing to go across
    return _without_twins(simulator.parse(table | changes, scenario.source))


def _without_twins(scenario: simulator.Scenario) -> simulator.Scenario:
    """Without variants that are what another one is already, on this fabric."""
    seen, kept = [replace(scenario, name="", compare=())], []
    for one, changes in zip(scenario.compare, scenario.table.get("compare", []), strict=True):
        plain = replace(one.scenario, name="", compare=())
        if plain not in seen:
            seen.append(plain)
            kept.append(changes)
    return simulator.parse(scenario.table | {"compare": kept}, scenario.source)


def _with_keys(scenario: simulator.Scenario, keys: list[str]) -> simulator.Scenario:
    changes = dict(sweeps.read_set(text) for text in keys)
    return scenario.with_keys(changes) if changes else scenario


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _print_results(scenario: simulator.Scenario, runs: list[list[Result]]) -> None:
    console, results = terminal(), runs[0]
    console.print(scenario.question, style="bold")
    f = scenario.fabric
    console.print(
        f"{f.hosts:,} hosts, {f.planes} plane{'s' * (f.planes > 1)} × {f.host_link_gbps:g}G, {f.words} a plane, "
        f"base RTT {scenario.base_rtt_us:.1f} µs, seed {results[0].seed}\n"
    )
    console.print(_figures([[one.summary() for one in column] for column in zip(*runs, strict=True)]))
    if len(runs) > 1:
        console.print(f"Above: medians of {len(runs)} seeds. Below: seed {results[0].seed}.", highlight=False)
    console.print(FIGURES_NOTE, style="dim", highlight=False)
    for one in results:
        if len(one.step_us) > 1 and np.isfinite(one.step_us).any():
            console.print(
                f"{one.name}: steps of " + ", ".join(_number(step, 0) for step in one.summary()["step_us"]) + " µs"
            )
    for one in results:
        _print_groups(console, one)
    for one in results:
        _print_steps(console, one)
    for one in results:
        if len(one.call_us) and not has_steps(one.plan) and np.isfinite(one.call_us).all():
            took, ideal = float(np.median(one.call_us)), float(np.median(one.ideal_us))
            share = f"; {ideal / took:.2f} of the links' rate" if ideal else ""
            worst = f", at worst {_number(one.call_us.max())}" if len(one.call_us) > 1 else ""
            console.print(
                f"{one.name}: a collective takes {_number(took)} µs{worst}, of {_number(ideal)} at the least{share}"
            )
    for one in results:
        style = "green" if one.verdict else "yellow"
        console.print(Text.assemble((f"{one.name}: {one.verdict.kind}", style), f": {one.verdict.text}"))
    console.print(f"trace {results[0].trace_hash:016x}", style="dim", highlight=False)


FIGURES_NOTE = (
    "flows: that arrived; runs: that finished; mean, p99, max: how long flows take; retrans.: data packets "
    "retransmitted; trimmed: of which switches kept the header; lost: packets that faults took or full queues dropped."
)


def _figures(columns: list[list[dict[str, Any]]]) -> Table:
    """A row for each variant, with the median of its seeds. A run that did not finish has no figures: flows that
    arrived before it stopped were the quick ones."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("")
    several = len(columns[0]) > 1
    heads = ("mean µs", "p99 µs", "max µs", *(("least … most",) if several else ()), "slowest Gb/s")
    counts = ("retrans.", "lost") if several else ("retrans.", "trimmed", "lost")
    for head in ("runs" if several else "flows", *heads, *counts):
        table.add_column(head, justify="right", overflow="fold")
    for rows in columns:
        whole = [row for row in rows if row["verdict"] == "complete"]
        first = rows[0]
        done = f"{len(whole)}/{len(rows)}" if several else f"{first['flows_delivered']}/{first['flows']}"
        if not whole:
            table.add_row(first["name"], done, first["verdict"], *["–"] * (len(heads) + len(counts) - 1))
            continue
        most = [row["fct_max_us"] for row in whole]
        spread = [f"{min(most):,.1f} … {max(most):,.1f}"] if several else []
        packets = {"retrans.": [row["retransmitted"] for row in whole], "trimmed": [row["trimmed"] for row in whole]}
        packets["lost"] = [row["lost_to_faults"] + row["dropped"] for row in whole]
        table.add_row(
            first["name"], done, *(_number(_median(whole, key)) for key in ("fct_mean_us", "fct_p99_us", "fct_max_us")),
            *spread, _number(_median(whole, "slowest_flow_gbps")),
            *(f"{np.median(packets[key]):.0f}" for key in counts),
        )  # fmt: skip
    return table


def _median(rows: list[dict[str, Any]], key: str) -> float:
    return float(np.median([row[key] for row in rows]))


def _print_groups(console: Console, one: Result) -> None:
    """Where a workload has parts, each by itself: a victim among the flows of an incast is not seen in their sum."""
    if len(one.plan.groups) < 2:
        return
    for group in dict.fromkeys(one.plan.groups):
        inside = one.group(group) & one.is_sent
        if not inside.any():
            continue
        fct = one.fct_us[inside & one.is_done]
        done = f"{int((inside & one.is_delivered).sum()):,}/{int(inside.sum()):,} done"
        if len(fct):
            p50, p99 = np.percentile(fct, [50, 99])
            done += f", {_number(p50)} µs at the median, {_number(p99)} at the 99th percentile"
        console.print(f"{one.name}, {group}: {done}", highlight=False)


def _print_steps(console: Console, one: Result) -> None:
    """Of a job: where each step went."""
    if not has_steps(one.plan):
        return
    used = f"; {100 * mfu(one):.1f} % of its GPUs' rate (MFU)" if np.isfinite(mfu(one)) else ""
    for number, step in enumerate(steps_of(one), 1):
        parts = {"computing": step.computing_us, "inside hosts": step.scale_up_us, "waiting": step.waiting_us}
        said = [f"{_number(value)} {name}" for name, value in parts.items() if value > 0.05]
        exposed = f"{_number(step.exposed_us)} exposed communication ({100 * step.exposed_share:.1f} %)"
        words = f"step {number} of {_number(step.step_us)} µs: " + ", ".join([*said, exposed])
        console.print(f"{one.name}: {words}{used}", highlight=False)


def sweep(
    file: ScenarioFile,
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUES", help="A key and its values: faults.links=0..20, fabric.planes=1,2,4. Repeatable."
        ),
    ],
    seed: FirstSeed = None,
    seeds: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of seeds for each point.")] = 1,
    keys: Keys = None,
    fabric: FabricFile = None,
    compare: Annotated[bool, typer.Option("--compare", help="Also run the [[compare]] variants.")] = False,
    runner: Annotated[str, typer.Option(help="Run on this machine or on a Ray cluster.")] = "local",
    workers: Annotated[int, typer.Option(min=0, max=1024, help="Processes. Default: one a core.")] = 0,
    as_json: AsJsonLines = False,
    report: Report = None,
    quiet: Quiet = False,
) -> None:
    """Simulate a scenario over a range of values and seeds.

    --json prints each run as it finishes."""
    check_place(report)
    scenario = _with_keys(_load(file, fabric), [*(keys or []), *([f"run.seed={seed}"] if seed is not None else [])])
    varied = [sweeps.read_vary(text) for text in vary]
    tasks = sweeps.plan_sweep(scenario, varied, seeds, compare)
    rows: list[dict[str, Any]] = []
    console, names = terminal(), [key for key, _ in varied]

    def so_far() -> Table:
        return _sweep_table(scenario, rows, names, len(tasks))

    progress = Live(console=terminal(stderr=True), refresh_per_second=4, transient=True)
    if not as_json:
        console.print(scenario.question, style="bold")
    try:
        with nullcontext() if quiet or as_json else progress, sweeps.running(tasks, runner, workers) as running:
            for row in running:
                rows.append(row)
                if as_json:
                    print_json(row, is_stream=True)
                elif not quiet:
                    progress.update(so_far())
    except KeyboardInterrupt:
        if rows and not as_json:
            console.print(so_far())
        if not as_json:
            console.print(f"Stopped by hand: {len(rows)} of {len(tasks)} runs are above.", style="yellow")
        raise typer.Exit(INTERRUPTED) from None
    said = sweeps.conclusion(scenario, rows, compare)
    if not as_json:
        console.print(so_far())
        console.print(said, style="bold", highlight=False)
        console.print(SWEEP_NOTE, style="dim", highlight=False)
    if report is not None:
        words = [
            _again("sweep", file, scenario.run.seed, keys, fabric),
            *(f"--vary {shlex.quote(text)}" for text in vary),
        ]
        again = " ".join([*words, f"--seeds {seeds}", *(["--compare"] if compare else [])])
        heads, cells = _sweep_cells(scenario, rows, names)
        write_report(report, reports.sweep_page(scenario, said, heads, cells, again))


SWEEP_NOTE = (
    "Means over the seeds that finished. mean, max: how long a flow takes; Gb/s in all: what all hosts together got, "
    "over the time until the last of it had arrived."
)


def _sweep_table(scenario: simulator.Scenario, rows: list[dict[str, Any]], keys: list[str], total: int) -> Table:
    title = f"{len(rows)} of {total} runs"
    table = Table(
        header_style="bold",
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    heads, cells = _sweep_cells(scenario, rows, keys)
    for head in heads:
        table.add_column(head, justify="right" if head else "left", overflow="fold")
    for one in cells:
        table.add_row(*one)
    return table


def _sweep_cells(
    scenario: simulator.Scenario, rows: list[dict[str, Any]], keys: list[str]
) -> tuple[list[str], list[list[str]]]:
    """A row for each point, and for each variant where there are several."""
    is_compared = len({row["name"] for row in rows}) > 1
    figure = answers.figure_of(scenario)
    heads = [*sweeps.heads(keys), *([""] if is_compared else []), "finished"]
    heads += [f"{figure.replace('_', ' ')} {answers.FIGURES[figure].unit}", "least … most", "mean µs", "max µs"]
    points: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        name = (row["name"],) if is_compared else ()
        points.setdefault((*(str(row["point"][key]) for key in keys), *name), []).append(row)
    cells = []
    for point, found in sorted(points.items(), key=lambda item: [_sortable(part) for part in item[0]]):
        names = ("answer", "fct_mean_us", "fct_max_us", "goodput_gbps", "retransmitted")
        said, mean, most, rate, retransmitted = (sweeps.gather(found, name) for name in names)
        done = sum(row["verdict"] == "complete" for row in found)
        cells.append([
            *point, f"{done}/{len(found)}", answers.number(said.mean) if said else sweeps.stopped(found) or "–",
            f"{answers.number(said.least)} … {answers.number(said.most)}" if said else "–",
            *(_number(one.mean if one else None) for one in (mean, most)),
            *(_number(one.mean if one else None, 0) for one in (rate, retransmitted)),
        ])  # fmt: skip
    return [*heads, "Gb/s in all", "retrans."], cells


def _sortable(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), "")
    except ValueError:
        return (1, 0.0, text)
