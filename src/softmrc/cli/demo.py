"""`softmrc demo`: a training job whose network breaks; with `--engine`, the engine alone in a bad network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from softmrc.cli.demo_engine import show as show_engine
from softmrc.cli.demo_view import View, view_for
from softmrc.demo import report
from softmrc.demo.ranks import Ranks
from softmrc.demo.script import SCRIPT, STEPS, Fault
from softmrc.demo.story import RANKS, Run, play

PLANES = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
CALM, FAULTY, GLOO = "MRC, undisturbed", "MRC, with faults", "Gloo over TCP, undisturbed"


def demo(
    engine: bool = typer.Option(False, help="The engine alone: 64 MiB through a simulated network; takes a second."),
    seed: int = typer.Option(1, help="With --engine: another seed, another storm."),
    steps: int = typer.Option(STEPS, min=STEPS // 10, help="How long each of the three jobs trains."),
    output: Path = typer.Option(Path("demo-report.html"), help="Where the report goes."),
) -> None:
    """Train a small transformer on 4 ranks over 4 planes while they break: same pace, same bits."""
    if engine:
        show_engine(seed)
        return
    console = Console()
    script = scaled(steps)
    runs = [Run(GLOO, "gloo", steps), Run(CALM, "mrc", steps), Run(FAULTY, "mrc", steps, script)]
    console.print(
        f"[bold]SoftMRC demo[/]: {RANKS} ranks train a transformer with DDP over {len(PLANES)} planes of loopback, "
        "three times.\n"
    )
    try:
        with Ranks(RANKS, {"SOFTMRC_PLANES": ",".join(PLANES), "GLOO_SOCKET_IFNAME": "lo"}) as ranks:
            perform(runs, ranks, len(PLANES), view_for(console))
    except KeyboardInterrupt:
        console.print("\nStopped; nothing is left running.")
        raise typer.Exit(130) from None
    is_good, text = proof(runs)
    show(console, runs, text, is_good)
    setting = (
        f"{RANKS} ranks on one machine · DDP, {runs[-1].parameters:,} parameters · {len(PLANES)} planes on loopback · "
        f"{steps} steps a job"
    )
    output.write_text(report.page(runs, setting, (is_good, text), "Training rides through"))
    console.print(f"Everything in one page: [bold]{output}[/]")
    if not is_good:
        raise typer.Exit(1)


def scaled(steps: int) -> tuple[Fault, ...]:
    """The script for a job of another length."""
    share = steps / STEPS
    return tuple(
        Fault(f.label, round(f.start * share), round(f.end * share), f.plane, f.rank, f.faults, f.flaps) for f in SCRIPT
    )


def perform(runs: list[Run], ranks: Ranks, planes: int, view: View) -> None:
    for number, run in enumerate(runs, 1):
        view.begin(run, number, len(runs))
        try:
            play(run, ranks, planes, view.watch)
        finally:
            if run.step_ms:
                view.end(run)


def proof(runs: list[Run]) -> tuple[bool, str]:
    """Whether the faults changed a bit, and what to say about Gloo's, which sums in another order."""
    gloo, calm, faulty = runs[0], runs[-2], runs[-1]
    is_same = calm.digest == faulty.digest and calm.losses == faulty.losses
    text = "with faults and without, on every rank" if is_same else "the run with faults ended with other weights"
    if is_same and gloo.digest != calm.digest:
        apart = max(abs(a - b) for a, b in zip(gloo.losses, calm.losses, strict=True))
        text += f"; Gloo adds up four ranks in another order, so its losses differ, by at most {apart:.1g}"
    return is_same, text


def show(console: Console, runs: list[Run], text: str, is_good: bool) -> None:
    """The table at the end."""
    table = Table(header_style="bold")
    for column in ("job", "median step", "p95", "worst", "last loss", "weights"):
        table.add_column(column, justify="left" if column == "job" else "right")
    for run in runs:
        p95 = float(np.percentile(run.step_ms[1:], 95))
        table.add_row(run.name, f"{run.median_ms:.1f} ms", f"{p95:.1f} ms", f"{run.worst_ms:.1f} ms",
                      f"{run.losses[-1]:.6f}", run.digest[:12])  # fmt: skip
    console.print()
    console.print(table)
    calm, faulty = runs[-2], runs[-1]
    faults = Table(header_style="bold")
    for column in ("fault", "median step", "worst step", "worst / undisturbed median"):
        faults.add_column(column, justify="left" if column == "fault" else "right")
    for fault in faulty.script:
        touched = faulty.during(fault)
        faults.add_row(fault.label, f"{np.median(touched):.1f} ms", f"{touched.max():.1f} ms",
                       f"{touched.max() / calm.median_ms:.1f} ×")  # fmt: skip
    console.print(faults)
    counters = faulty.counters
    console.print(
        f"{counters['packets_sent']:,} packets sent, {counters['packets_retransmitted']:,} sent again; paths withdrawn "
        f"{counters['evs_demoted']:,} times, trusted again {counters['evs_revived']:,} times.",
        highlight=False,
    )
    mark = "[bold green]Weights bit-identical[/]" if is_good else "[bold red]Weights differ[/]"
    console.print(f"{mark}: {text}.", highlight=False)
