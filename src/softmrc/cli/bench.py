"""`softmrc bench NAME`: measure a claim."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.table import Table

from softmrc.bench import engine

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
    table = Table(title="The engine, on one core", title_justify="left")
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("must be", justify="right")
    table.add_column("")
    for figure in engine.FIGURES:
        value = figures[figure.key]
        is_bounded = figure.target or not figure.at_least
        bound = f"{'≥' if figure.at_least else '≤'} {figure.target:,.10g}" if is_bounded else ""
        shown = f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
        table.add_row(
            figure.meaning, f"{shown} {figure.unit}".strip(), bound, "[green]✓" if figure.holds(value) else "[red]✗"
        )
    Console().print(table)
