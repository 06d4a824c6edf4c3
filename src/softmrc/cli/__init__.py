"""The `softmrc` command. Each verb lives in a module of its own; this file only puts them side by side."""

from __future__ import annotations

import inspect
import io
import os
import sys
from typing import Annotated

import typer

from softmrc.cli import (
    agent,
    bench,
    capture,
    ctl,
    demo,
    dissect,
    examples,
    explain,
    fabric,
    info,
    key,
    lab,
    mapper,
    nccl,
    perf,
    ping,
    profiles,
    retries,
    sim,
    study,
    top,
)
from softmrc.errors import MrcError, on_terminal, words_of

app = typer.Typer(
    name="softmrc",
    help="MRC (Multipath Reliable Connection) in software.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=info.version, help="Print the version and leave.")
    ] = False,
) -> None:
    """MRC (Multipath Reliable Connection) in software."""


app.command("demo")(demo.demo)
app.command("info")(info.info)
app.command("examples")(examples.examples)
app.command("dissect")(dissect.dissect)
app.command("capture")(capture.capture)
app.command("ping")(ping.ping)
app.command("perf")(perf.perf)
app.command("top")(top.top)
app.command("sim")(sim.sim)
app.command("explain")(explain.explain)
app.command("agent")(agent.agent)
app.command("dash")(agent.dash)
app.command("sweep")(sim.sweep)
app.command("retries")(retries.retries)
app.command("nccl-plugin")(nccl.nccl_plugin)
app.command("plan")(fabric.plan)
app.command("assess")(fabric.assess)
app.command("study")(study.study)
app.add_typer(fabric.fabric_app, name="fabric")
ctl.ctl_app.add_typer(profiles.profile_app, name="profile")
app.add_typer(ctl.ctl_app, name="ctl")
app.add_typer(key.key_app, name="key")
app.add_typer(lab.lab_app, name="lab")
app.add_typer(mapper.mapper_app, name="mapper")
app.add_typer(bench.benches, name="bench")


def _unfold_help(of: typer.Typer) -> None:
    """A docstring's lines end where the source's do; those of a help text where the terminal's do."""
    for command in of.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    for group in of.registered_groups:
        if group.typer_instance is not None:
            _unfold_help(group.typer_instance)


_unfold_help(app)


def main() -> None:
    """Run the command; an error of ours is one line on stderr, not a traceback. So is what the system refuses, and a
    peer that takes too long."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="softmrc-plainer")  # names of files may be no text, and no marks in ASCII
    try:
        app()
    except BrokenPipeError:  # `softmrc … | head`: who read has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (MrcError, OSError) as error:
        print(f"softmrc: {on_terminal(words_of(error))}", file=sys.stderr)
        sys.exit(1)
