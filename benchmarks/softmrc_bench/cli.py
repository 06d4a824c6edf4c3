"""`softmrc bench NAME`: measure a claim. Each command imports its own benchmark only.

A benchmark is a module with TITLE, FIGURES and measure(quick). It may also have require(), which raises where there is
nothing to measure with; shown(figures), which gives the measured values by the keys of FIGURES; and notes(figures),
lines and tables that follow.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from typing import Any

import typer
from rich.table import Table

from softmrc.cli.terminal import check_mark, terminal
from softmrc_bench.figures import BenchFigure

BENCHMARKS = {
    "engine": "Packets per second, bytes per queue pair, and round trips to leave a dead path.",
    "udp": "Goodput and latency over real sockets, beside TCP and plain UDP in the same run.",
    "sealed": "Encrypted packets: what they cost, and what forged, copied and spoofed packets can do.",
    "failover": "A plane dies under load: time to recover, beside MPTCP. Needs root: it makes network namespaces.",
    "allreduce": "All-reduces beside Gloo's in the same run, and while a plane dies; as root also over shaped links.",
    "join": "How long 2 to 16 ranks of torch take to join, and to make a second group, beside Gloo. Needs torch.",
    "nccl": "NCCL's all-reduces over our plugin and over its sockets, two processes on one GPU. Needs torch with CUDA.",
    "operate": "What the mapper names in simulated fabrics of 512 hosts, and what flight recorders say of broken jobs.",
    "assess": "The closed forms of `softmrc assess` beside drawn months, for eight fabrics, and simulated packets.",
}

benches = typer.Typer(help="Run the benchmarks behind the published figures.", no_args_is_help=True)
AS_JSON = typer.Option(False, "--json", help="Print one JSON object instead of a table.")
QUICK = typer.Option(False, help="A short run; figures are less precise.")


def report(name: str, as_json: bool, quick: bool, **options: bool) -> None:
    """Run a benchmark and print what it measured."""
    bench = importlib.import_module(f"softmrc_bench.{name}")
    if hasattr(bench, "require"):
        bench.require()
    figures = bench.measure(quick, **options)
    if as_json:
        print(json.dumps(figures, indent=2, default=float))
        return
    shown = bench.shown(figures) if hasattr(bench, "shown") else figures
    console = terminal()
    console.print(table_of(bench.TITLE.format_map(figures), bench.FIGURES, shown))
    for note in bench.notes(figures) if hasattr(bench, "notes") else ():
        console.print(note, style="dim" if isinstance(note, str) else None, highlight=False)


def table_of(title: str, figures: Iterable[BenchFigure], values: dict[str, Any]) -> Table:
    """Each figure beside what it must reach; one that this machine cannot measure is a dash."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("must be", justify="right")
    table.add_column("")
    for figure in figures:
        if figure.key not in values:
            continue
        value = values[figure.key]
        if value is None:
            table.add_row(figure.meaning, "—", "", "")
            continue
        shown = f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
        mark = check_mark(figure.holds(value)) if figure.bound else ""
        table.add_row(figure.meaning, f"{shown} {figure.unit}".strip(), figure.bound, mark)
    return table


def _register(name: str, words: str) -> None:
    def bench(as_json: bool = AS_JSON, quick: bool = QUICK) -> None:
        report(name, as_json, quick)

    benches.command(name, help=words)(bench)


for _name, _words in BENCHMARKS.items():
    _register(_name, _words)


@benches.command("sim")
def bench_sim(
    as_json: bool = AS_JSON,
    quick: bool = typer.Option(False, help="A quick look without the large runs; not for the record."),
    full: bool = typer.Option(False, "--full", help="Also 1 MiB, and part of an all-to-all, on 131 072 NICs: minutes."),
) -> None:
    """Agreement with a public reference, speed, cores, 131 072 NICs, and failover in simulated time."""
    report("sim", as_json, quick, full=full)


@benches.command("lab")
def bench_lab(
    as_json: bool = AS_JSON,
    quick: bool = QUICK,
    mptcp: bool = typer.Option(True, help="Also Multipath TCP on the same lab."),
) -> None:
    """A lab of 8 hosts × 4 planes × (4 + 4) switches: building it, its paths, and traffic while it breaks (root)."""
    report("lab", as_json, quick, mptcp=mptcp)
