"""`softmrc demo`: a training job whose network breaks; with `--engine`, the engine alone in a bad network."""

from __future__ import annotations

import math
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from softmrc._support.files import check_place, write_text
from softmrc.cli.demo_engine import show as show_engine
from softmrc.cli.demo_gpu import show as show_gpu
from softmrc.cli.demo_view import View, view_for
from softmrc.cli.signals import STATUS, Terminated, terminable
from softmrc.cli.terminal import terminal
from softmrc.demo import lab, report
from softmrc.demo.ranks import DemoRanks
from softmrc.demo.script import SCRIPT, STEPS, Director, ScriptedFault
from softmrc.demo.story import RANKS, TrainingRun, play
from softmrc.errors import ConfigError, UsageError

PLANES = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
CALM, FAULTY, GLOO = "MRC, undisturbed", "MRC, with faults", "Gloo, undisturbed"
GLOO_FAULTY = "Gloo, with faults"


def demo(
    engine: bool = typer.Option(False, help="The engine alone: 64 MiB through a simulated network; takes a second."),
    in_lab: bool = typer.Option(False, "--lab", help="Over a kernel SRv6 fabric whose spine reboots. Needs root."),
    on_gpu: bool = typer.Option(False, "--gpu", help="NCCL with our plugin, two processes on one GPU."),
    sealed: bool = typer.Option(False, "--sealed", help="Encrypt packets."),
    seed: int = typer.Option(1, help="With --engine: seed of the random faults."),
    steps: int = typer.Option(0, min=0, help="How long each of the three jobs trains; 0: default length."),
    output: Path = typer.Option(Path("demo-report.html"), help="Where the report goes."),
) -> None:
    """Train a small transformer on 4 ranks over 4 planes while they break: no step fails, results are bit-identical."""
    if engine:
        show_engine(seed)
        return
    if not on_gpu:
        check_place(output)
    console = terminal()
    try:
        with terminable(), sealing_of_ranks(sealed) as settings:
            if on_gpu:
                show_gpu(steps)
                return
            story = lab_story(console, steps) if in_lab else loopback_story(console, steps, settings)
    except KeyboardInterrupt as stopped:
        console.print("\nStopped; nothing is left running.")
        raise typer.Exit(STATUS if isinstance(stopped, Terminated) else 130) from None
    is_good, text = proof(story.runs)
    show(console, story.runs, text, is_good)
    setting = f"{RANKS} ranks on one machine · DDP, {story.runs[-1].parameters:,} parameters · {story.network}"
    write_text(output, report.page(story.runs, setting, (is_good, text), story.title))
    console.print(Text.assemble("Everything in one page: ", (str(output), "bold")))
    if not is_good:
        raise typer.Exit(1)


class Story(NamedTuple):
    title: str
    network: str
    runs: list[TrainingRun]


@contextmanager
def sealing_of_ranks(is_sealed: bool) -> Iterator[dict[str, str]]:
    """What ranks on loopback need in their environment to seal what they send."""
    if not is_sealed:
        yield {}
        return
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write('[device]\nseal = "on"\n')
        file.flush()
        yield {"SOFTMRC_CONFIG": file.name, "SOFTMRC_SECRET": secrets.token_hex(16)}


def loopback_story(console: Console, steps: int, settings: dict[str, str]) -> Story:
    steps = long_enough(steps or STEPS, SCRIPT, STEPS)
    runs = [
        TrainingRun(GLOO, "gloo", steps),
        TrainingRun(CALM, "mrc", steps),
        TrainingRun(FAULTY, "mrc", steps, scaled(SCRIPT, steps / STEPS)),
    ]
    network = f"{len(PLANES)} planes on loopback" + (", encrypted" if settings else "")
    greet(console, network)
    with DemoRanks(RANKS, {"SOFTMRC_PLANES": ",".join(PLANES), "GLOO_SOCKET_IFNAME": "lo", **settings}) as ranks:
        perform(runs, ranks, view_for(console), lambda run: Director(run.script, len(PLANES), ranks.order))
    return Story("Training rides through", network, runs)


def lab_story(console: Console, steps: int) -> Story:
    """The same in a lab; Gloo meets the same faults there."""
    if os.geteuid() != 0:
        raise UsageError("the demo over the lab makes network namespaces, which needs root: sudo make demo-lab")
    steps = long_enough(steps or lab.STEPS, lab.SCRIPT, lab.STEPS)
    script = scaled(lab.SCRIPT, steps / lab.STEPS)
    runs = [
        TrainingRun(GLOO_FAULTY, "gloo", steps, script),
        TrainingRun(CALM, "mrc", steps),
        TrainingRun(FAULTY, "mrc", steps, script),
    ]
    network = f"{lab.PLANES} planes × (4 + 2 switches) of kernel SRv6, links of 200 Mb/s"
    greet(console, network)
    with lab.ranks_in_lab() as (network_lab, ranks):
        perform(runs, ranks, view_for(console), lambda run: lab.LabDirector(network_lab, run.script))
    return Story("Training rides through a spine's reboot", network, runs)


def greet(console: Console, network: str) -> None:
    text = f": {RANKS} ranks train a transformer with DDP, three times; {network}.\n"
    console.print(Text.assemble(("SoftMRC demo", "bold"), text))


def long_enough(steps: int, script: tuple[ScriptedFault, ...], usual: int) -> int:
    """Refuse a job that is over before every fault has had a step or two."""
    least = math.ceil(2 * usual / min(fault.end - fault.start for fault in script))
    if steps < least:
        raise ConfigError("steps", steps, f"at least {least}, so that each fault happens; 0 is {usual}")
    return steps


def scaled(script: tuple[ScriptedFault, ...], share: float) -> tuple[ScriptedFault, ...]:
    """The script for a job of another length."""
    return tuple(replace(one, start=round(one.start * share), end=round(one.end * share)) for one in script)


def perform(runs: list[TrainingRun], ranks: DemoRanks, view: View, direct: Callable[[TrainingRun], Director]) -> None:
    for number, run in enumerate(runs, 1):
        view.begin(run, number, len(runs))
        try:
            play(run, ranks, view.watch, direct(run))
        finally:
            view.end(run)


def proof(runs: list[TrainingRun]) -> tuple[bool, str]:
    """Whether the faults changed a bit, and what to say about Gloo's, which sums in another order."""
    gloo, calm, faulty = runs[0], runs[-2], runs[-1]
    is_same = calm.digest == faulty.digest and calm.losses == faulty.losses
    text = "with faults and without, on every rank" if is_same else "the run with faults ended with other weights"
    if is_same and gloo.digest != calm.digest:
        apart = max(abs(a - b) for a, b in zip(gloo.losses, calm.losses, strict=True))
        text += f"; Gloo adds up four ranks in another order, so its losses differ, by at most {apart:.1g}"
    return is_same, text


def show(console: Console, runs: list[TrainingRun], text: str, is_good: bool) -> None:
    """The table at the end."""
    table = Table(header_style="bold")
    for column in ("job", "median step", "p95", "worst", "last loss", "weights"):
        table.add_column(column, justify="left" if column == "job" else "right", no_wrap=True)
    for run in runs:
        times = (run.median_ms, float(np.percentile(run.step_ms[1:], 95)), run.worst_ms)
        shown = [f"{value:,.0f} ms" for value in times]
        table.add_row(run.name, *shown, f"{run.losses[-1]:.6f}", run.digest[:10])
    console.print()
    console.print(table)
    calm, faulty = runs[-2], runs[-1]
    faults = Table(header_style="bold")
    for column in ("fault", "median step", "worst", "× usual"):
        faults.add_column(column, justify="left" if column == "fault" else "right", no_wrap=True)
    for fault in faulty.script:
        touched = faulty.during(fault)
        shown = [f"{np.median(touched):,.0f} ms", f"{touched.max():,.0f} ms", f"{touched.max() / calm.median_ms:.1f} ×"]
        faults.add_row(fault.label, *shown)
    console.print(faults)
    console.print("× usual: the worst step, as a multiple of the median step of the undisturbed run.", highlight=False)
    counters = faulty.counters
    console.print(
        f"{counters['packets_sent']:,} packets sent, {counters['packets_retransmitted']:,} retransmitted; paths "
        f"withdrawn {counters['evs_demoted']:,} times, revived {counters['evs_revived']:,} times.",
        highlight=False,
    )
    mark = ("Weights bit-identical", "bold green") if is_good else ("Weights differ", "bold red")
    console.print(Text.assemble(mark, f": {text}."))
