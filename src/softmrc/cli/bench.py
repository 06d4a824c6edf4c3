"""`softmrc bench NAME`: measure a claim."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from softmrc.bench import engine, failover, udp
from softmrc.bench.engine import Figure

benches = typer.Typer(help="Measure what SoftMRC claims.", no_args_is_help=True)


@benches.command("engine")
def bench_engine(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
    quick: bool = typer.Option(False, help="A quick look; not for the record."),
) -> None:
    """Packets per second, bytes per queue pair, and round trips to leave a dead path."""
    figures = engine.measure(quick)
    if as_json:
        print(json.dumps({key: float(value) for key, value in figures.items()}, indent=2))
        return
    _show("The engine, on one core", engine.FIGURES, figures)


@benches.command("udp")
def bench_udp(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
    quick: bool = typer.Option(False, help="A quick look; not for the record."),
) -> None:
    """Goodput and latency over real sockets, beside TCP and plain UDP in the same run."""
    figures = udp.measure(quick)
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    _show("Real sockets, two processes", udp.FIGURES, figures)


@benches.command("failover")
def bench_failover(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
    quick: bool = typer.Option(False, help="A quick look; not for the record."),
) -> None:
    """A plane dies under load: time to recover, beside MPTCP. Needs root: it makes network namespaces."""
    figures = failover.measure(quick)
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    _show(f"A plane dies under load, {figures['trials']} trials", failover.FIGURES, figures)


def _show(title: str, rows: tuple[Figure, ...], figures: dict[str, Any]) -> None:
    """Each figure beside what it must reach; one that this machine cannot measure is a dash."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("must be", justify="right")
    table.add_column("")
    for figure in rows:
        value = figures[figure.key]
        if value is None:
            table.add_row(figure.meaning, "—", "", "")
            continue
        is_bound = figure.target < 1e9 and (figure.target > 0 or not figure.at_least)
        bound = f"{'≥' if figure.at_least else '≤'} {figure.target:,.10g}" if is_bound else ""
        shown = f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
        table.add_row(
            figure.meaning, f"{shown} {figure.unit}".strip(), bound, "[green]✓" if figure.holds(value) else "[red]✗"
        )
    Console().print(table)
