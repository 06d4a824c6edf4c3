"""`softmrc bench NAME`: run one benchmark. Each command imports its own benchmark only.

A benchmark is a module with TITLE, FIGURES and measure(quick). It may also have require(), which raises if this machine
cannot run it; shown(figures), which gives the measured values by the keys of FIGURES; and notes(figures), lines and
tables printed after the table. With --json the key `rows` has the table as data.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import typer
from rich.table import Table

from softmrc.cli.terminal import check_mark, terminal
from softmrc_bench.figures import rows

BENCHMARKS = {
    "engine": "Packets per second, bytes per queue pair, and round trips to leave a dead path.",
    "udp": "Goodput and latency over real sockets, compared with TCP and plain UDP in the same run.",
    "sealed": "Encrypted packets: their cost, and the effect of forged, replayed and spoofed packets.",
    "failover": "A plane fails under load: time to recover, compared with MPTCP. Needs root, for network namespaces.",
    "allreduce": "All-reduce compared with Gloo, and while a plane fails; as root also over shaped links.",
    "join": "Group set-up of 2 to 16 torch ranks, compared with Gloo. Needs torch.",
    "nccl": "NCCL's all-reduce over the plugin and over its own sockets, on one GPU. Needs torch with CUDA.",
    "operate": "The mapper in simulated fabrics of 512 hosts, the cost of monitoring, and `softmrc explain`.",
    "assess": "The closed forms of `softmrc assess`, compared with Monte Carlo and with simulated packets.",
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
    def bench(as_json: bool = AS_JSON, quick: bool = QUICK) -> None:
        report(name, as_json, quick)

    benches.command(name, help=words)(bench)


for _name, _words in BENCHMARKS.items():
    _register(_name, _words)


@benches.command("sim")
def bench_sim(
    as_json: bool = AS_JSON,
    quick: bool = typer.Option(False, help="A quick look without the large runs; not for the record."),
    full: bool = typer.Option(False, "--full", help="Also 1 MiB, and part of an all-to-all, on 131,072 NICs: minutes."),
) -> None:
    """Agreement with a public reference, speed, cores, 131,072 NICs, and failover in simulated time."""
    report("sim", as_json, quick, full=full)


@benches.command("lab")
def bench_lab(
    as_json: bool = AS_JSON,
    quick: bool = QUICK,
    mptcp: bool = typer.Option(True, help="Also Multipath TCP on the same lab."),
) -> None:
    """A lab of 8 hosts × 4 planes × (4 + 4) switches: building it, its paths, and traffic while it breaks (root)."""
    report("lab", as_json, quick, mptcp=mptcp)
