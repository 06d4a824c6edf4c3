"""`softmrc demo`: one training job over TCP and over MRC while the network breaks; `--engine`: the engine alone."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from softmrc._support.files import check_place, write_text
from softmrc.cli.demo_engine import show as show_engine
from softmrc.cli.demo_gpu import show as show_gpu
from softmrc.cli.demo_view import view_for
from softmrc.cli.signals import STATUS, Terminated, terminable
from softmrc.cli.terminal import terminal
from softmrc.demo import namespaces, report
from softmrc.demo.lab import LabFabric
from softmrc.demo.loopback import Loopback
from softmrc.demo.outcome import headline, outcomes, pick, seconds, where_tcp_is_better, withdrawal_of
from softmrc.demo.planes import Planes
from softmrc.demo.script import STEPS
from softmrc.demo.story import MRC, RANKS, TCP, Network, TrainingRun, perform
from softmrc.errors import ConfigError

LEAST_STEPS = 4  # for each fault
BUSY = 0.75  # load for each core, above which figures are marked


def demo(
    engine: bool = typer.Option(
        False, "--engine", help="The engine alone: 64 MiB through a simulated network; takes a second."
    ),
    in_lab: bool = typer.Option(False, "--lab", help="Over a kernel SRv6 fabric whose spine reboots. Needs root."),
    on_loopback: bool = typer.Option(
        False, "--loopback", help="Without network namespaces: MRC injects the faults, and TCP has none."
    ),
    on_gpu: bool = typer.Option(False, "--gpu", help="NCCL with the SoftMRC plugin, two processes on one GPU."),
    sealed: bool = typer.Option(False, "--sealed", help="Encrypt MRC's packets."),
    seed: int = typer.Option(1, metavar="N", help="With --engine: seed of the random faults."),
    steps: int = typer.Option(
        0, min=0, metavar="N", help=f"Training steps of each job; 0: {STEPS}, or {LabFabric.steps} with --lab."
    ),
    output: Path = typer.Option(Path("demo-report.html"), metavar="FILE", help="Write the report to FILE."),
) -> None:
    """Train over TCP and over MRC while the network breaks.

    A small transformer trains on 4 ranks, each in a network namespace, over 4 planes. Each job runs undisturbed, then
    while the kernel takes links down and silences planes: about 90 seconds on two cores. It needs torch, and root or
    unprivileged user namespaces; without these it falls back to --loopback.
    """
    if engine:
        show_engine(seed)
        return
    console = terminal()
    if not on_gpu:
        check_place(output)
        check_steps(steps, len(LabFabric.faults if in_lab else Loopback.faults))
    try:
        with terminable(), sealing_of_ranks(sealed) as settings:
            if on_gpu:
                show_gpu(steps)
                return
            network = LabFabric(RANKS) if in_lab else planes_or_loopback(console, on_loopback)
            console.print(
                Text.assemble(("SoftMRC demo", "bold"), f": {RANKS} ranks train a small transformer with DDP.")
            )
            console.print(f"{network.text[0].upper()}{network.text[1:]}.\n", highlight=False)
            if (load := os.getloadavg()[0]) > BUSY * (os.cpu_count() or 1):
                console.print(f"This machine is busy (load {load:.0f}): steps take longer, and their times vary.\n")
            with network:
                runs = perform(network, steps or network.steps, settings, view_for(console))
    except KeyboardInterrupt as stopped:
        console.print("\nStopped; nothing is left running.")
        raise typer.Exit(STATUS if isinstance(stopped, Terminated) else 130) from None
    show(console, runs)
    command = shlex.join(["softmrc", *sys.argv[1:]])
    write_text(output, report.page(runs, network, is_encrypted=sealed, command=command, load=load))
    console.print(Text.assemble("Plots and details: ", (str(output), "bold")))
    console.print("Next: softmrc top (watch a job), softmrc ctl faults --help (break your own), docs/guides/pytorch.md")
    if not outcomes(runs)[0].is_identical:
        raise typer.Exit(1)


def check_steps(steps: int, faults: int) -> None:
    """Refuse a job that is over before every fault has had a step or two."""
    least = LEAST_STEPS * faults
    if 0 < steps < least:
        raise ConfigError(
            "steps", steps, f"must be at least {least}, so that each fault happens", "0 is the default length."
        )


def planes_or_loopback(console: Console, on_loopback: bool) -> Network:
    """The best network that this machine permits. An ordinary user's command starts again in a user namespace."""
    why = "as asked by --loopback" if on_loopback else namespaces.why_not()
    if not why:
        return Planes(RANKS)
    if not on_loopback and not namespaces.is_restarted and not namespaces.why_not(in_user_namespace=True):
        with suppress(OSError):
            namespaces.restart_in_user_namespace()
    console.print(f"Without network namespaces ({why}): only MRC meets faults; run as root to compare it with TCP.")
    return Loopback(RANKS)


@contextmanager
def sealing_of_ranks(is_sealed: bool) -> Iterator[dict[str, str]]:
    """What ranks need in their environment to encrypt what they send."""
    if not is_sealed:
        yield {}
        return
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write('[device]\nseal = "on"\n')
        file.flush()
        yield {"SOFTMRC_CONFIG": file.name, "SOFTMRC_SECRET": secrets.token_hex(16)}


def show(console: Console, runs: list[TrainingRun]) -> None:
    """Two tables and the headline."""
    found = outcomes(runs)
    table = Table(header_style="bold")
    for column in ("job", "steps", "median step", "longest step", "run time", "weights"):
        table.add_column(column, justify="left" if column == "job" else "right", no_wrap=True)
    for run in runs:
        times = [f"{run.median_ms:,.0f} ms", f"{run.worst_ms:,.0f} ms", seconds(run.run_s)]
        table.add_row(run.name, f"{len(run.step_ms)}", *times, run.digest[:8] or "none")
    console.print()
    console.print(table)
    console.print(faults_table(runs))
    console.print(Text(headline(found), "bold green" if found[0].is_identical else "bold red"))
    if len(found) == 2 and (better := where_tcp_is_better(*found)):
        console.print(better, highlight=False)


def faults_table(runs: list[TrainingRun]) -> Table:
    mrc, tcp = pick(runs, MRC, True), pick(runs, TCP, True)
    assert mrc is not None
    table = Table(title="Longest step while each fault lasted", title_justify="left", header_style="bold")
    table.add_column("fault")
    jobs = [run for run in (mrc, tcp) if run is not None]
    for run in jobs:
        table.add_column(run.transport, justify="right", no_wrap=True)
    table.add_column("paths withdrawn")
    for fault in mrc.script:
        worst = [f"{run.during(fault).max():,.0f} ms" if len(run.during(fault)) else "" for run in jobs]
        seen = withdrawal_of(mrc, fault)
        table.add_row(fault.label, *worst, seen.short if seen else "")
    return table
