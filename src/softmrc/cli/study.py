"""`softmrc study`: a design space and its Pareto front."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from softmrc._support import resources
from softmrc._support.files import check_place, read_text, write_text
from softmrc._support.units import counted
from softmrc.cli.exit_codes import INTERRUPTED, NO
from softmrc.cli.options import AsJson, Quiet, Report, print_json
from softmrc.cli.terminal import terminal
from softmrc.errors import ConfigError
from softmrc.planner import study as studies
from softmrc.planner.confirm import Confirmed, Slice
from softmrc.planner.plan import Prices
from softmrc.planner.report import STUDY_HEAD, planes_rows, study_html, study_note, study_row
from softmrc.sim.sweep import running

SHOWN_OUT = 12


def study(
    file: Annotated[Path, typer.Argument(help="A study (TOML), or a name of `softmrc examples`.", show_default=False)],
    prices: Annotated[Path | None, typer.Option(help="A price file. Default: assumed prices.")] = None,
    confirmed: Annotated[
        bool, typer.Option("--confirm", help="Simulate a slice of every Pareto-optimal design.")
    ] = False,
    kept: Annotated[
        Path | None,
        typer.Option("--keep", help="Cache results of --confirm in this file, to resume."),
    ] = None,
    runner: Annotated[str, typer.Option(help="Simulate on this machine or on a Ray cluster.")] = "local",
    workers: Annotated[int, typer.Option(min=0, max=1024, help="Processes to simulate in. Default: one a core.")] = 0,
    as_json: AsJson = False,
    report: Report = None,
    quiet: Quiet = False,
) -> None:
    """Explore many designs and keep the Pareto-optimal ones.

    Designs are compared by closed forms; --confirm simulates the best. The others are listed with the reason."""
    if kept is not None and not confirmed:
        raise ConfigError("--keep", str(kept), "works only with --confirm, whose simulations it keeps")
    check_place(report)
    check_place(kept)
    asked, book = studies.load(resources.find(file, resources.STUDIES, "file")), Prices.load(prices)
    points = studies.explore(asked, book)
    front = [p for p in points if not p.out]
    slices = {p.name: _slice(p, asked.evs) for p in front}
    found = _confirmations(slices, kept, runner, workers, quiet) if confirmed else {}
    if as_json:
        rows = [p.to_json() | {"confirmed": asdict(found[p.name]) if p.name in found else None} for p in points]
        said = {"answer": studies.answer(asked, points), "points": len(points), "front": len(front), "designs": rows}
        print_json(said)
    else:
        _print(asked, points, found, book)
        if asked.evs and not confirmed:
            terminal().print(
                f"evs = {list(asked.evs)}: tried with packets, by --confirm.", style="dim", highlight=False
            )
    if report is not None:
        write_text(report, study_html(asked, points, book))
        terminal(stderr=True).print(f"Report: {report}", style="dim")
    if not front:
        raise typer.Exit(NO)


def _slice(point: studies.Point, evs: Sequence[int]) -> Slice:
    varied = point.varied
    return Slice(varied["planes"], varied["nic_bps"], point.built_oversubscription, evs)


def _confirmations(
    front: dict[str, Slice], kept: Path | None, runner: str, workers: int, quiet: bool
) -> dict[str, Confirmed]:
    """A line of JSON for each run, written as soon as it is known: a study that was cut short goes on where it was."""
    slowest = _taken(kept)
    runs = {name: task for one in front.values() for name, task in one.tasks.items()}
    tasks = [task for name, task in runs.items() if name not in slowest]
    done, console = 0, terminal(stderr=True)
    console.quiet = quiet
    try:
        with console.status(f"{len(tasks)} simulations") as status, running(tasks, runner, workers) as rows:
            for done, row in enumerate(rows, 1):
                slowest[row["name"]] = row["slowest_flow_gbps"] if row["verdict"] == "complete" else None
                status.update(f"{done} of {len(tasks)} simulations")
                if kept is not None:
                    lines = [json.dumps({"run": name, "slowest_gbps": rate}) for name, rate in slowest.items()]
                    write_text(kept, "\n".join(lines) + "\n")
    except KeyboardInterrupt:
        where = f" and kept in {kept}" if kept is not None else "; --keep would have kept them"
        said = f"Stopped by hand: {done} of {len(tasks)} simulations were done{where}."
        console.print(said, style="yellow", highlight=False)
        raise typer.Exit(INTERRUPTED) from None
    return {name: one.confirmed(slowest) for name, one in front.items()}


def _taken(kept: Path | None) -> dict[str, float | None]:
    """What the slowest host had, by run, from a file of --keep."""
    found: dict[str, float | None] = {}
    if kept is None or not kept.exists():
        return found
    for number, line in enumerate(read_text(kept, "--keep").splitlines(), 1):
        try:
            row = json.loads(line)
            rate = row["slowest_gbps"]
            found[str(row["run"])] = None if rate is None else float(rate)
        except (ValueError, TypeError, KeyError):
            raise ConfigError(
                "--keep", str(kept), f"must be a file that a study wrote (line {number} is not)"
            ) from None
    return found


def _print(asked: studies.Study, points: list[studies.Point], found: dict[str, Confirmed], book: Prices) -> None:
    console = terminal()
    front = [p for p in points if not p.out]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.title = (
        f"{len(front)} of {counted(len(points), 'design')} {'is' if len(front) == 1 else 'are'} Pareto-optimal"
    )
    table.add_column("design", overflow="fold")
    heads = [*STUDY_HEAD[1:], *(["a port less: packets", "arithmetic"] if found else [])]
    for head in heads:
        table.add_column(head, justify="right")
    for p in front:
        cells = study_row(p)
        if found:
            one = found[p.name]
            cells += ["cut off" if one.packets is None else f"{one.packets:.2f}", f"{one.arithmetic:.2f}"]
        table.add_row(*cells)
    if front:
        console.print(table)
    if front and len(asked.vary["planes"]) > 1:
        console.print(_planes_table(points))
    console.print(studies.answer(asked, points), style="bold", highlight=False)
    lines = studies.outs(points)
    for line in lines[:SHOWN_OUT]:
        console.print(line, highlight=False)
    if len(lines) > SHOWN_OUT:
        console.print(f"{len(lines) - SHOWN_OUT} more reasons: --report and --json have all.", highlight=False)
    console.print(study_note(book), style="dim", highlight=False)
    if any(one.evs for one in found.values()):
        _print_evs(found)


def _planes_table(points: list[studies.Point]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.title = "With each number of planes, the design whose useful hours cost least"
    for head in STUDY_HEAD:
        table.add_column(head, justify="right" if head != STUDY_HEAD[0] else "left", overflow="fold")
    for row in planes_rows(points):
        table.add_row(*row)
    return table


def _print_evs(found: dict[str, Confirmed]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.title = (
        "What the slowest of 128 hosts has of its NIC's rate, by EVs a queue pair, when all send across leaves"
    )
    table.add_column("design", overflow="fold")
    for count in next(iter(found.values())).evs:
        table.add_column(str(count), justify="right")
    for name, one in found.items():
        table.add_row(name, *("stuck" if rate is None else f"{rate:.2f}" for rate in one.evs.values()))
    terminal().print(table)
