"""The `softmrc` command: a table of its commands. Each is imported when it is first used."""

from __future__ import annotations

import io
import os
import platform
import sys
from typing import Annotated

import typer

import softmrc
from softmrc.cli.ascii_errors import PLAINER
from softmrc.cli.lazy import BENCH, LazyCommand, group_of
from softmrc.errors import MrcError, on_terminal, words_of

COMMANDS = (
    LazyCommand("demo", "softmrc.cli.demo", "demo",
          "Train over TCP and over MRC while the network breaks, and compare stalls, run time and weights."),
    LazyCommand("info", "softmrc.cli.info", "info",
          "Check this machine and print the command that installs or fixes what is missing."),
    LazyCommand("examples", "softmrc.cli.examples", "examples",
          "List the scenarios and examples that come with SoftMRC, or print one: softmrc examples ddp.py > ddp.py"),
    LazyCommand("dissect", "softmrc.cli.dissect", "dissect",
          "Print a capture, one line a packet: time, plane, addresses, EV, path, meaning, ICRC or encryption."),
    LazyCommand("capture", "softmrc.cli.capture", "capture",
          "Write the UDP packets that pass an interface to a file, both directions. Needs root."),
    LazyCommand("ping", "softmrc.cli.ping", "ping",
          "Probe every path to a node: round trip, loss and path MTU. Exits with 1 if a probe was lost or a "
          "plane does not carry full-size packets."),
    LazyCommand("perf", "softmrc.cli.perf", "perf",
          "Measure bandwidth and latency between two nodes: a server here, a client there."),
    LazyCommand("top", "softmrc.cli.top", "top",
          "Watch running devices live: planes, the state of every path, retransmissions."),
    LazyCommand("sim", "softmrc.cli.sim", "sim", "Run a scenario and the variants it is compared with."),
    LazyCommand("explain", "softmrc.cli.explain", "explain",
          "Explain why an operation was slow, from the flight recorders of its ranks (SOFTMRC_RECORD=1), or a "
          "burst of a running NCCL job."),
    LazyCommand("agent", "softmrc.cli.agent", "agent", "Export this host's metrics to Prometheus, at /metrics."),
    LazyCommand("dash", "softmrc.cli.agent", "dash", "Show this host's devices, or a fabric, on a web page."),
    LazyCommand("sweep", "softmrc.cli.sim", "sweep", "Run a scenario over a range of values and seeds."),
    LazyCommand("retries", "softmrc.cli.retries", "retries",
          "What retries cost a training job: of bandwidth, time, a step and money, for MRC and RoCE, fault by fault."),
    LazyCommand("nccl-plugin", "softmrc.cli.nccl", "nccl_plugin",
          "Print the path of NCCL's network plugin: "
          "NCCL_NET_PLUGIN=$(softmrc nccl-plugin) NCCL_NET=SoftMRC torchrun ..."),
    LazyCommand("plan", "softmrc.cli.planner", "plan",
          "Compare designs: planes, tiers, switches, optics, what a failure costs, what it all costs."),
    LazyCommand("assess", "softmrc.cli.planner", "assess",
          "Judge a fabric: path diversity, failure domains, and what failures cost a job, with MRC and with RoCE."),
    LazyCommand("study", "softmrc.cli.study", "study",
          "Explore designs by arithmetic, confirm the best with packets, and say why the others are out."),
    LazyCommand("fabric", "softmrc.cli.fabric", "fabric_app", "Configure, draw and trace a fabric."),
    LazyCommand("ctl", "softmrc.cli.ctl", "ctl_app", "Inspect and control your running devices."),
    LazyCommand("key", "softmrc.cli.key", "key_app",
          "Keys by which peers authenticate each other, instead of a secret."),
    LazyCommand("lab", "softmrc.cli.lab", "lab_app", "A fabric of network namespaces on this machine (needs root)."),
    LazyCommand("mapper", "softmrc.cli.mapper", "mapper_app", "Find what is broken in a fabric: probe every path."),
    LazyCommand("bench", "softmrc_bench.cli", "benches", "Run the benchmarks behind the published figures.", BENCH),
)  # fmt: skip

app = typer.Typer(
    name="softmrc",
    cls=group_of(*COMMANDS),
    help="MRC (Multipath Reliable Connection) in software.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"softmrc {softmrc.__version__} (Python {platform.python_version()}, {platform.machine()})")
        sys.exit(0)


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and leave.")
    ] = False,
) -> None:
    """MRC (Multipath Reliable Connection) in software."""


def main() -> None:
    """Run the command; an error of ours is one line on stderr, not a traceback. So is what the system refuses, and a
    peer that takes too long."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAINER)  # names of files may be no text, and no marks in ASCII
    try:
        app()
    except BrokenPipeError:  # `softmrc … | head`: who read has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (MrcError, OSError) as error:
        print(f"softmrc: {on_terminal(words_of(error))}", file=sys.stderr)
        sys.exit(1)
