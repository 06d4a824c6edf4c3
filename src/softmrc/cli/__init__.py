"""The `softmrc` command: a table of its commands. Each is imported when it is first used."""

from __future__ import annotations

import io
import os
import platform
import sys
from typing import Annotated, Any

import typer

import softmrc
from softmrc.cli.ascii_errors import PLAINER
from softmrc.cli.exit_codes import FAILED, USAGE
from softmrc.cli.help import HELP_NAMES
from softmrc.cli.lazy import BENCH, LazyCommand, group_of
from softmrc.errors import ConfigError, MrcError, on_terminal, words_of

TRY, RUN, DIAGNOSE, OPERATE = "Try it", "Run jobs", "Diagnose", "Operate"
DESIGN, SIMULATE, DEVELOP = "Design", "Simulate", "Develop"
COMMANDS = (
    LazyCommand("demo", "softmrc.cli.demo", "demo",
                "Train over TCP and over MRC while the network breaks.", TRY),
    LazyCommand("info", "softmrc.cli.info", "info",
                "Check this machine and print the fix for anything missing.", TRY),
    LazyCommand("examples", "softmrc.cli.examples", "examples",
                "List the scenarios and examples that come with SoftMRC.", TRY),
    LazyCommand("nccl-plugin", "softmrc.cli.nccl", "nccl_plugin",
                "Print the path of the NCCL network plugin.", RUN),
    LazyCommand("key", "softmrc.cli.key", "key_app",
                "Create and show the keys that authenticate peers.", RUN),
    LazyCommand("ping", "softmrc.cli.ping", "ping",
                "Probe every path to a node: round trip, loss, path MTU.", DIAGNOSE),
    LazyCommand("perf", "softmrc.cli.perf", "perf",
                "Measure bandwidth and latency between two nodes.", DIAGNOSE),
    LazyCommand("top", "softmrc.cli.top", "top",
                "Watch running devices: planes, paths, retransmissions.", DIAGNOSE),
    LazyCommand("explain", "softmrc.cli.explain", "explain",
                "Explain why a collective operation was slow.", DIAGNOSE),
    LazyCommand("capture", "softmrc.cli.capture", "capture",
                "Capture the UDP packets of an interface (needs root).", DIAGNOSE),
    LazyCommand("dissect", "softmrc.cli.dissect", "dissect",
                "Print a capture, one packet a line.", DIAGNOSE),
    LazyCommand("ctl", "softmrc.cli.ctl", "ctl_app",
                "Inspect and control your running devices.", OPERATE),
    LazyCommand("exporter", "softmrc.cli.exporter", "exporter",
                "Export this host's metrics to Prometheus.", OPERATE),
    LazyCommand("dashboard", "softmrc.cli.exporter", "dashboard",
                "Show this host's devices, or a fabric, on a web page.", OPERATE),
    LazyCommand("mapper", "softmrc.cli.mapper", "mapper_app",
                "Locate faults in a fabric: probe every path.", OPERATE),
    LazyCommand("plan", "softmrc.cli.planner", "plan",
                "Compare network designs: switches, optics, failures, cost.", DESIGN),
    LazyCommand("assess", "softmrc.cli.planner", "assess",
                "Assess a fabric: paths, failure domains, time lost to faults.", DESIGN),
    LazyCommand("study", "softmrc.cli.study", "study",
                "Explore many designs and keep the Pareto-optimal ones.", DESIGN),
    LazyCommand("fabric", "softmrc.cli.fabric", "fabric_app",
                "Configure, draw and trace a fabric.", DESIGN),
    LazyCommand("sim", "softmrc.cli.sim", "sim",
                "Simulate a scenario and the variants it is compared with.", SIMULATE),
    LazyCommand("sweep", "softmrc.cli.sim", "sweep",
                "Simulate a scenario over a range of values and seeds.", SIMULATE),
    LazyCommand("retries", "softmrc.cli.retries", "retries",
                "Show what retransmissions cost a job, for MRC and RoCE.", SIMULATE),
    LazyCommand("lab", "softmrc.cli.lab", "lab_app",
                "Build a fabric of network namespaces (needs root).", SIMULATE),
    LazyCommand("bench", "softmrc_bench.cli", "benches",
                "Run the benchmarks behind the published figures.", DEVELOP, BENCH),
)  # fmt: skip

app = typer.Typer(
    name="softmrc",
    cls=group_of(*COMMANDS),
    help="MRC (Multipath Reliable Connection) in software.\n\n"
    "`softmrc COMMAND -h` shows an example. A DURATION is 100ms or 3s; a number without a unit is seconds.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP_NAMES},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"softmrc {softmrc.__version__} (Python {platform.python_version()}, {platform.machine()})")
        sys.exit(0)


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """MRC (Multipath Reliable Connection) in software."""


def main() -> None:
    """Run the command. An error of ours, of the system or of the command line is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAINER)  # names of files may be no text, and no marks in ASCII
    usage_error: Any = typer.BadParameter.__base__  # Click's, wherever Typer has Click from
    try:
        sys.exit(app(prog_name="softmrc", standalone_mode=False))
    except BrokenPipeError:  # `softmrc … | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except (MrcError, OSError) as error:
        print(f"softmrc: {on_terminal(words_of(error))}", file=sys.stderr)
        sys.exit(USAGE if isinstance(error, ConfigError) else FAILED)
    except usage_error as error:
        _refuse(error)
        sys.exit(USAGE)


def _refuse(error: Any) -> None:
    """What is wrong with the command line, and whose help says what is right; without arguments, that help."""
    text = str(error.format_message())
    if type(error).__name__ == "NoArgsIsHelpError":
        print(text.rstrip())
        return
    words = " ".join(text.split())
    words += "" if words.endswith((".", "?")) else "."
    path = error.ctx.command_path if error.ctx is not None else "softmrc"
    print(f"softmrc: {on_terminal(words)} See {path} --help", file=sys.stderr)
