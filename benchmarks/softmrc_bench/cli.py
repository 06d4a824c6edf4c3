"""`softmrc bench NAME`: run one benchmark. Each command imports its own benchmark only.

A benchmark is a module with TITLE, FIGURES and measure(quick). It may also have require(), which raises if this machine
cannot run it; shown(figures), which gives the measured values by the keys of FIGURES; and notes(figures), lines and
tables printed after the table. With --json the key `rows` has the table as data.
"""

from __future__ import annotations

import importlib
import json
from typing import Annotated, Any

import typer
from rich.table import Table

from softmrc.cli.options import AsJson
from softmrc.cli.terminal import check_mark, terminal
from softmrc_bench.figures import rows

BENCHMARKS = {
    "engine": "Measure the engine alone: packets/s, memory, failover round trips.",
    "udp": "Compare goodput and latency with TCP and plain UDP.",
    "sealed": "Compare encrypted with plain packets, and under attack.",
    "failover": "Compare recovery from a dead plane with MPTCP (needs root).",
    "allreduce": "Compare all-reduces with Gloo, healthy and with a dead plane.",
    "join": "Compare how fast torch ranks join with Gloo (needs torch).",
    "nccl": "Compare NCCL over the plugin and over sockets (needs a GPU).",
    "operate": "Check what the mapper and flight recorders find of known faults.",
    "assess": "Compare the closed forms of `assess` with Monte Carlo runs.",
}

benches = typer.Typer(help="Run the benchmarks behind the published figures.", no_args_is_help=True)
Quick = Annotated[bool, typer.Option("--quick", help="A short run with less precise figures.")]


def report(name: str, as_json: bool, quick: bool, **options: bool) -> None:
    """Run a benchmark and print what it measured."""
    bench = importlib.import_module(f"softmrc_bench.{name}")
    if hasattr(bench, "require"):
        bench.require()
    figures = bench.measure(quick, **options)
    shown = bench.shown(figures) if hasattr(bench, "shown") else figures
    found = rows(bench.FIGURES, shown, figures)
    if as_json:
        print(json.dumps({**figures, "rows": found}, indent=2, default=float))
        return
    console = terminal()
    console.print(table_of(bench.TITLE.format_map(figures), found))
    for note in bench.notes(figures) if hasattr(bench, "notes") else ():
        console.print(note, style="dim" if isinstance(note, str) else None, highlight=False)


def table_of(title: str, found: list[dict[str, Any]]) -> Table:
    """Each figure with its limit; one that this machine cannot measure is a dash."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("range", justify="right")
    table.add_column("must be", justify="right")
    table.add_column("")
    for row in found:
        if row["value"] is None:
            table.add_row(row["figure"], "—", "", "", "")
            continue
        rounds = row.get("rounds", [])
        spread = f"{number(min(rounds))}–{number(max(rounds))}" if len(rounds) > 1 else ""
        mark = check_mark(row["holds"]) if "holds" in row else ""
        table.add_row(
            row["figure"], f"{number(row['value'])} {row['unit']}".strip(), spread, row.get("limit", ""), mark
        )
    return table


def number(value: float) -> str:
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def _register(name: str, words: str) -> None:
    def bench(as_json: AsJson = False, quick: Quick = False) -> None:
        report(name, as_json, quick)

    benches.command(name, help=words)(bench)


for _name, _words in BENCHMARKS.items():
    _register(_name, _words)


@benches.command("sim")
def bench_sim(
    as_json: AsJson = False,
    quick: Quick = False,
    full: Annotated[
        bool, typer.Option("--full", help="Also 1 MiB, and part of an all-to-all, on 131,072 NICs (minutes).")
    ] = False,
) -> None:
    """Compare the simulator with a public reference; measure its speed."""
    report("sim", as_json, quick, full=full)


@benches.command("lab")
def bench_lab(
    as_json: AsJson = False,
    quick: Quick = False,
    without_mptcp: Annotated[bool, typer.Option("--without-mptcp", help="Do not measure Multipath TCP.")] = False,
) -> None:
    """Compare MRC with MPTCP on a lab whose parts fail (needs root)."""
    report("lab", as_json, quick, mptcp=not without_mptcp)
