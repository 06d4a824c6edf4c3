"""`softmrc plan` compares network designs, `softmrc assess` judges one."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from softmrc._support import resources
from softmrc._support.files import check_place, write_text
from softmrc._support.units import as_rate_bps, as_share, counted
from softmrc.cli.exit_codes import NO
from softmrc.cli.fabric import File
from softmrc.cli.options import AsJson, Report, Seed, print_json
from softmrc.cli.terminal import PAPER, terminal
from softmrc.errors import ConfigError
from softmrc.fabric import load
from softmrc.planner import assess as judge
from softmrc.planner import plan as plans
from softmrc.planner import report as reports
from softmrc.planner import summary
from softmrc.planner.availability import PART_WORDS

DESIGNS_A_TABLE = 4  # as many as fit 80 columns
COUNT = re.compile(r"([0-9]{1,12})([kM]?)")


def _gpus(text: str) -> int:
    """131072, 131k or 1M."""
    match = COUNT.fullmatch(text)
    if match is None:
        raise ConfigError("--gpus", text, "must be a whole number of GPUs, as 8192, 8k or 1M")
    return int(match[1]) * {"": 1, "k": 1000, "M": 1_000_000}[match[2]]


def _spares(text: str) -> float:
    """A share of the GPUs. A plain 1 is refused: it would be as many spares as GPUs."""
    share = as_share("--spares", text)
    if share == 1 and "%" not in text:
        raise ConfigError("--spares", text, "must be a share of the GPUs, as 1% or 0.01; 100% for as many as GPUs")
    return share


def _numbers(field: str, text: str, most: int) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
        if min(found) < 1 or max(found) > most:
            raise ValueError
    except ValueError:
        raise ConfigError(
            field, text, f"must be whole numbers from 1 to {most:,} with commas between them, as 1,2,4,8"
        ) from None
    return found


def _fractions(field: str, text: str) -> tuple[Fraction, ...]:
    try:
        found = tuple(Fraction(part) for part in text.split(","))
        if not all(0 < one < plans.MAX_PORTS for one in found):
            raise ValueError
        return found
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            field, text, f"must be numbers up to {plans.MAX_PORTS:,} with commas between them, as 1,3"
        ) from None


def plan(
    gpus: Annotated[str, typer.Option(metavar="N", help="GPUs to connect, as 8192 or 8k.")] = "131072",
    nic: Annotated[str, typer.Option(help="Rate of a NIC.")] = "800G",
    switch: Annotated[str, typer.Option(help="Capacity of a switch.")] = "51.2T",
    planes: Annotated[str, typer.Option(metavar="N,…", help="Numbers of planes to compare.")] = "1,2,4,8",
    tiers: Annotated[str, typer.Option(metavar="N,…", help="Numbers of tiers to consider.")] = "1,2,3,4",
    oversubscription: Annotated[str, typer.Option(metavar="RATIO,…", help="Downlinks to uplinks of a leaf.")] = "1",
    nics_per_gpu: Annotated[int, typer.Option(min=1, help="NICs of each GPU.")] = 1,
    spares: Annotated[str, typer.Option(metavar="SHARE", help="Spare GPUs, as a share of the GPUs.")] = "1%",
    serdes: Annotated[str, typer.Option(help="Rate of a switch's SerDes lane; a port has at least one.")] = "100G",
    include_poor: Annotated[
        bool, typer.Option("--include-poor", help="Also designs with more tiers than they need.")
    ] = False,
    prices: Annotated[Path | None, typer.Option(help="A price file. Default: assumed prices.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the design as a fabric file, if only one is left."),
    ] = None,
    as_json: AsJson = False,
    report: Report = None,
) -> None:
    """Compare network designs: switches, optics, failures, cost.

    assess, sim, lab and fabric read the file of --output."""
    check_place(report)
    question = plans.DesignSpec(
        _gpus(gpus), as_rate_bps("--nic", nic), as_rate_bps("--switch", switch), nics_per_gpu, _spares(spares),
        as_rate_bps("--serdes", serdes),
    )  # fmt: skip
    book = plans.Prices.load(prices)
    found = plans.compare(
        question, book, _numbers("--planes", planes, 1024), _numbers("--tiers", tiers, 16),
        _fractions("--oversubscription", oversubscription), not include_poor,
    )  # fmt: skip
    if output is not None:
        _write_fabric(output, question, found)
    if as_json:
        print_json({"assumed_prices": book.are_assumptions, "designs": [d.to_json() for d in found]})
    else:
        _print_plan(question, found, book)
    _write_report(report, lambda: reports.plan_html(question, found, book))
    if all(isinstance(d, plans.Impossible) for d in found):
        raise typer.Exit(NO)


def _print_plan(question: plans.DesignSpec, found: list[plans.Design | plans.Impossible], book: plans.Prices) -> None:
    console = terminal()
    designs = [d for d in found if isinstance(d, plans.Design)]
    console.print(reports.plan_title(question), style="bold", highlight=False)
    left = designs
    while left:
        shown = _as_many_as_fit(left, console)
        console.print(_plan_table(shown))
        left = left[len(shown) :]
    for refused in (d for d in found if isinstance(d, plans.Impossible)):
        console.print(f"{refused.name}: not feasible: {refused.reason}", style="yellow", highlight=False)
    for words in reports.spare_places(found) + reports.lane_notes(question, found):
        console.print(words, style="yellow", highlight=False)
    note = reports.plan_note(book) if designs else "None of the requested designs can be built."
    console.print(note, style="dim", highlight=False)


def _write_fabric(path: Path, question: plans.DesignSpec, found: list[plans.Design | plans.Impossible]) -> None:
    designs = [d for d in found if isinstance(d, plans.Design)]
    if len(designs) != 1:
        have = ", ".join(f"{reports.plan_cell(d, 'shape')} ({reports.plan_cell(d, 'split')})" for d in designs)
        problem = f"cannot hold {counted(len(designs), 'design')}" if designs else "needs a design that can be built"
        hint = f"Choose one with --planes, --tiers and --oversubscription: {have}." if designs else ""
        raise ConfigError("--output", str(path), problem, hint)
    write_text(path, plans.fabric_file(question, designs[0]))
    terminal(stderr=True).print(f"Fabric: {path}", style="dim")


def _as_many_as_fit(designs: list[plans.Design], console: Console) -> list[plans.Design]:
    """The first designs, whose table is no wider than the terminal: figures are not to be cut."""
    for many in range(min(DESIGNS_A_TABLE, len(designs)), 1, -1):
        unbounded = console.options.update(max_width=PAPER)
        if Measurement.get(console, unbounded, _plan_table(designs[:many])).maximum <= console.width:
            return designs[:many]
    return designs[:1]


def _plan_table(designs: list[plans.Design]) -> Table:
    table = Table()
    table.add_column("planes × tiers", overflow="fold")
    for design in designs:
        table.add_column(reports.plan_cell(design, "shape"), justify="right", no_wrap=True)
    for label, key in reports.PLAN_ROWS:
        cells = [reports.plan_cell(d, key) for d in designs]
        table.add_row(label, *cells, end_section=key in ("max_nics", "paths", "plane_share"))
    return table


def assess(
    file: File,
    trials: Annotated[
        int, typer.Option(min=0, max=100_000, help="Months to simulate. Default: as many as take a few seconds.")
    ] = 0,
    seed: Seed = 1,
    assumptions: Annotated[bool, typer.Option("--assumptions", help="Also print all assumptions.")] = False,
    as_json: AsJson = False,
    report: Report = None,
) -> None:
    """Assess a fabric: paths, failure domains, time lost to faults.

    The job's losses are given with MRC and with RoCE."""
    check_place(report)
    found = judge.assess(load(resources.find(file, resources.FABRICS, "file")), trials, seed)
    if as_json:
        print_json(found.to_json())
        _write_report(report, lambda: reports.assess_html(found))
        return
    console = terminal()
    console.print(Text.assemble((f"Fabric {found.description.name}", "bold"), f": {summary.summary(found)}\n"))
    for title, head, rows in (
        ("Paths between two hosts", summary.DIVERSITY_HEAD, summary.diversity_rows(found)),
        ("Failure domains, the largest first", summary.DOMAIN_HEAD, summary.domain_rows(found)),
    ):
        console.print(_table(title, head, rows))
    console.print(_losses_table(found))
    for heading, lines in (
        ("What failures cost", summary.answer_lines(found)),
        ("What would change the answer", summary.flip_lines(found)),
    ):
        console.print(f"\n{heading}", style="bold", highlight=False)
        for line in lines:
            console.print(line, highlight=False)
    if assumptions:
        console.print(_table("Assumptions", ["key", "value", "from"], summary.assumption_rows(found)))
    console.print(summary.assess_note(found), style="dim", highlight=False)
    _write_report(report, lambda: reports.assess_html(found))


def _table(title: str, head: list[str], rows: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for i, cell in enumerate(head):
        table.add_column(cell, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _losses_table(found: judge.Assessment) -> Table:
    """Two columns for each policy; its name stands above MRC's."""
    table = Table(title=summary.LOSSES_TITLE, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in summary.LOSSES_HEAD:
        table.add_column(column.replace(", ", "\n"), justify="right", no_wrap=True)
    for row in summary.losses_rows(found):
        table.add_row(*row, end_section=row[0] == list(PART_WORDS.values())[-1])
    return table


def _write_report(path: Path | None, page: Callable[[], str]) -> None:
    """After everything was printed: a page that cannot be written must not cost what was worked out."""
    if path:
        write_text(path, page())
        terminal(stderr=True).print(f"Report: {path}", style="dim")
