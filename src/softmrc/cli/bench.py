"""`softmrc bench NAME`: measure a claim. Each command imports its own benchmark only."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from softmrc.cli.terminal import check_mark, terminal
from softmrc.errors import DeviceError

if TYPE_CHECKING:
    from softmrc_bench.figures import BenchFigure

benches = typer.Typer(help="Measure what SoftMRC claims.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Quick = Annotated[bool, typer.Option(help="A quick look; not for the record.")]
Found = dict[str, Any]


def _report(as_json: bool, title: str, figures: Iterable[BenchFigure], found: Found, rows: Found | None = None) -> None:
    """What was found, as JSON; or each figure beside what it must reach, with a dash for what this machine cannot
    measure."""
    if as_json:
        print(json.dumps(found, indent=2))
        return
    values = found if rows is None else rows
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
        text = f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
        mark = check_mark(figure.holds(value)) if figure.bound else ""
        table.add_row(figure.meaning, f"{text} {figure.unit}".strip(), figure.bound, mark)
    terminal().print(table)


@benches.command("engine")
def bench_engine(as_json: Json = False, quick: Quick = False) -> None:
    """Packets per second, bytes per queue pair, and round trips to leave a dead path."""
    from softmrc_bench import engine

    figures = {key: value if value is None else float(value) for key, value in engine.measure(quick).items()}
    _report(as_json, "The engine, on one core", engine.FIGURES, figures)


@benches.command("udp")
def bench_udp(as_json: Json = False, quick: Quick = False) -> None:
    """Goodput and latency over real sockets, beside TCP and plain UDP in the same run."""
    from softmrc_bench import udp

    figures = udp.measure(quick)
    _report(as_json, "Real sockets, two processes", udp.FIGURES, figures)


@benches.command("sealed")
def bench_sealed(as_json: Json = False, quick: Quick = False) -> None:
    """Sealed packets: what they cost, and what strangers, forgers and somebody on the wire can do."""
    from softmrc_bench import sealed

    figures = sealed.measure(quick)
    _report(as_json, "Sealed packets, two processes", sealed.FIGURES, figures)


@benches.command("failover")
def bench_failover(as_json: Json = False, quick: Quick = False) -> None:
    """A plane dies under load: time to recover, beside MPTCP. Needs root: it makes network namespaces."""
    from softmrc_bench import failover

    figures = failover.measure(quick)
    _report(as_json, f"A plane dies under load, {figures['trials']} trials", failover.FIGURES, figures)


@benches.command("allreduce")
def bench_allreduce(as_json: Json = False, quick: Quick = False) -> None:
    """All-reduces beside Gloo's in the same run, and through the death of a plane; as root also over shaped links."""
    from softmrc_bench import allreduce

    figures = allreduce.measure(quick)
    _report(as_json, "All-reduce of float32", allreduce.FIGURES, figures, allreduce.shown(figures))
    if as_json:
        return
    reasons = [figures.get("not_measured"), figures.get("cuda_not_measured"), figures["links"].get("refused")]
    reasons += [row.get("not_measured") for row in figures.values() if isinstance(row, dict)]
    for reason in reasons:
        if reason:
            terminal().print(reason, style="dim", highlight=False)


@benches.command("join")
def bench_join(as_json: Json = False, quick: Quick = False) -> None:
    """How long 2 to 16 ranks of torch take to join, and to make a second group, beside Gloo in turns. Needs torch."""
    from softmrc_bench import allreduce, join

    if not allreduce.has_gloo():
        raise DeviceError(allreduce.NO_TORCH)
    figures = join.measure(3 if quick else 15)
    _report(as_json, "Joining, on loopback", (*join.TIMES, *join.RATIOS), figures, join.shown(figures))


@benches.command("nccl")
def bench_nccl(as_json: Json = False, quick: Quick = False) -> None:
    """NCCL's all-reduces over our plugin and over its own sockets, two processes on one GPU. Needs torch with CUDA."""
    from softmrc_bench import nccl

    nccl.check_gpu()
    figures = nccl.measure(quick)
    for name, why in figures["failed"].items():
        print(f"{name} failed: {why}", file=sys.stderr)
    _report(as_json, "NCCL on one GPU, two processes", nccl.FIGURES, figures, nccl.shown(figures))


@benches.command("sim")
def bench_sim(
    as_json: Json = False,
    quick: Annotated[bool, typer.Option(help="A quick look without the large runs; not for the record.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Also 1 MiB, and part of an all-to-all, on 131 072 NICs: minutes.")
    ] = False,
) -> None:
    """Agreement with a public reference, speed, cores, 131 072 NICs, and failover in simulated time."""
    from softmrc_bench import sim

    figures = sim.measure(quick, full)
    _report(as_json, "The simulator", sim.FIGURES, figures, flat(figures))


def flat(figures: dict[str, Any]) -> dict[str, float]:
    """{"A": {"x": 1}, "y": 2} as {"A.x": 1, "y": 2}."""
    found: dict[str, float] = {}
    for key, value in figures.items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": one for name, one in value.items()}
        else:
            found[key] = value
    return found


@benches.command("operate")
def bench_operate(as_json: Json = False, quick: Quick = False) -> None:
    """What the mapper names in a simulated fabric of 512 hosts, and what flight recorders say of broken jobs."""
    from softmrc_bench import operate

    figures = operate.measure(quick)
    title = f"{figures['mapper_faults']} faults in {figures['mapper_trials']} fabrics"
    _report(as_json, title, operate.FIGURES, figures)


@benches.command("assess")
def bench_assess(as_json: Json = False, quick: Quick = False) -> None:
    """The closed forms of `softmrc assess` beside drawn months, for eight fabrics, and beside simulated packets."""
    from softmrc_bench import assess

    figures = assess.measure(quick)
    _report(as_json, "What assess says, by three ways", assess.FIGURES, figures)


@benches.command("lab")
def bench_lab(
    as_json: Json = False,
    quick: Quick = False,
    mptcp: Annotated[bool, typer.Option(help="Also Multipath TCP on the same lab.")] = True,
) -> None:
    """A lab of 8 hosts × 4 planes × (4 + 4) switches: building it, its paths, and traffic while it breaks (root)."""
    from softmrc_bench import lab

    figures = lab.measure(quick, mptcp)
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    table = Table(title="A lab of 8 hosts × 4 planes × (4 + 4) switches", title_justify="left")
    for head in ("figure", "measured", "must be", ""):
        table.add_column(head, justify="right" if head in ("measured", "must be") else "left")
    for figure in lab.FIGURES:
        value = figures[figure.key]
        shown = "not measured" if value is None else f"{value:.3g} {figure.unit}".strip()
        verdict = "" if value is None else check_mark(figure.holds(value))
        table.add_row(figure.meaning, shown, f"{'≥' if figure.at_least else '≤'} {figure.target:g}", verdict)
    console = terminal()
    console.print(table)
    _print_failures(console, "MRC", figures)
    _print_failures(console, "Multipath TCP, for comparison", figures["mptcp"])
    for reason in sorted(set(figures["not_measured"].values())):
        console.print(f"Not measured: {reason}.", style="dim", highlight=False)


def _print_failures(console: Console, title: str, found: dict[str, Any] | None) -> None:
    if not found or found["recover_ms_p50"] is None:
        return
    table = Table(title=f"{title}: {100 * found['share_of_links']:.0f} % of the links' rate", title_justify="left")
    for head in ("broken", "recovered after", "restored after"):
        table.add_column(head, justify="left" if head == "broken" else "right")
    rows = {**found["recover_ms_p50"], "nothing": found["control_ms_p50"]}
    for name, recovered in rows.items():
        restored = found["restore_s"].get(name, 0.0)
        table.add_row(
            name,
            "not within 2 s" if recovered is None else f"{recovered:.0f} ms",
            "not within 2 s" if restored is None else f"{restored:.2f} s",
        )
    console.print(table)
