"""`softmrc lab …`: a fabric of namespaces on this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from softmrc._support import resources
from softmrc._support.files import read_text, write_text
from softmrc._support.units import as_duration_ns, rate_text
from softmrc.cli.terminal import terminal
from softmrc.errors import ConfigError
from softmrc.fabric import Tier, link_name
from softmrc.fabric.drawing import draw
from softmrc.lab import Lab, PortState
from softmrc.lab.faults import usual_mode
from softmrc.lab.lab import take_down

REBOOT = "5s"  # how long a node is gone
lab_app = typer.Typer(help="A fabric of network namespaces on this machine (needs root).", no_args_is_help=True)
Name = Annotated[str | None, typer.Option("--lab", help="Which lab, if several are up.", show_default=False)]
Plane = Annotated[int, typer.Option(min=0, help="The plane of a name that does not say: leaf0 is p0.leaf0.")]


@lab_app.command("up")
def up(
    file: Annotated[
        Path, typer.Argument(help="A lab file (TOML), or a name of `softmrc examples`.", show_default=False)
    ],
) -> None:
    """Build a lab; one that is up already is left as it is."""
    file = resources.find(file, resources.FABRICS, "file")
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in file.stem)[:32] or "mrc"
    start = time.monotonic()
    lab = Lab.up(read_text(file, "file"), stem)
    took = time.monotonic() - start
    shape, wanted = lab.shape, lab.description.switch
    print(
        f"lab {lab.name}: {shape.hosts} hosts × {shape.planes} planes × ({shape.leaves} + {shape.t1_switches}"
        + (f" + {shape.t2_switches}" if shape.pods else "")
        + f" switches), {shape.cables} cables of {rate_text(shape.fabric_link_bps)}, up in {took:.2f} s"
    )
    if lab.record.without:
        print(f"without ECN and trimming: {lab.record.without}")
    elif wanted.ecn or wanted.trim:
        acts = [word for word, on in (("ECN", wanted.ecn), ("trimming", wanted.trim)) if on]
        print(" and ".join(acts) + " in the kernel")


@lab_app.command("down")
def down(
    which: Annotated[str | None, typer.Argument(metavar="LAB", help="Which lab, if several are up.")] = None,
    name: Name = None,
    everything: Annotated[bool, typer.Option("--all", help="Every lab, and what a crash left behind.")] = False,
) -> None:
    """Remove a lab and everything it made."""
    start = time.monotonic()
    if which is not None and name is not None and which != name:
        raise ConfigError("--lab", name, f"the same lab as {which}, or only one of them")
    gone = take_down(which or name, everything)
    words = ", ".join(gone) if gone else "no lab"
    print(f"{words}: down in {time.monotonic() - start:.2f} s")


@lab_app.command("inspect")
def inspect(
    node: Annotated[str | None, typer.Argument(help="Only this node's ports. p0.leaf0")] = None,
    name: Name = None,
    plane: Plane = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """What is up, what is broken, and what every port has sent."""
    lab = Lab.find(name)
    states = lab.ports(queues=True)
    if node is not None:
        wanted = lab.shape.parse_node(node, plane)
        states = [state for state in states if state.node == wanted]
    if as_json:
        print(json.dumps(_as_json(lab, states), indent=2))
        return
    console = terminal()
    broken = ", ".join(f"{what} ({how})" for what, how in lab.record.failures.items()) or "nothing"
    console.print(Text.assemble((f"lab {lab.name}", "bold"), f", built in {lab.record.up_s:.2f} s; broken: {broken}"))
    console.print(_ports_table(lab, states) if node is not None else _nodes_table(lab, states))


def _as_json(lab: Lab, states: list[PortState]) -> dict[str, object]:
    ports: list[dict[str, object]] = [
        {
            "link": link_name(lab.shape, s.link),
            "node": lab.shape.name_of(s.node),
            "port": s.port,
            "up": s.is_up,
            "packets": s.packets,
            "bytes": s.bytes,
            "dropped": s.dropped,
            "waiting_bytes": s.waiting_bytes,
            "marked": s.counts.marked,
            "trimmed": s.counts.trimmed,
            "lost": s.counts.lost,
            "black_holed": s.counts.black_holed,
            "corrupted": s.counts.corrupted,
        }
        for s in states
    ]
    return {"name": lab.name, "failures": lab.record.failures, "ports": ports}


def _ports_table(lab: Lab, states: list[PortState]) -> Table:
    table = Table()
    for head in ("port", "to", "state", "packets", "MB", "dropped", "marked", "trimmed", "lost"):
        table.add_column(head, justify="left" if head in ("port", "to", "state") else "right")
    for s in states:
        to = lab.shape.name_of(lab.shape.ends(s.link)[1]).rpartition(".")[2]
        lost = s.counts.lost + s.counts.black_holed
        state = Text("up") if s.is_up else Text("down", "red")
        table.add_row(
            s.port, to, state, f"{s.packets:,}", f"{s.bytes / 1e6:,.2f}", f"{s.dropped:,}",
            f"{s.counts.marked:,}", f"{s.counts.trimmed:,}", f"{lost:,}",
        )  # fmt: skip
    return table


def _nodes_table(lab: Lab, states: list[PortState]) -> Table:
    """Nodes in rows, their ports added up."""
    table = Table()
    for head in ("node", "ports up", "packets", "MB", "dropped", "marked", "trimmed", "lost"):
        table.add_column(head, justify="left" if head == "node" else "right")
    by_node: dict[str, list[PortState]] = {}
    for state in states:
        by_node.setdefault(lab.shape.name_of(state.node), []).append(state)
    last = None
    for name, own in by_node.items():
        group = (own[0].node.tier is Tier.HOST, own[0].node.plane)
        if last is not None and group != last:
            table.add_section()
        last = group
        ready = sum(s.is_up for s in own)
        shown = Text(f"{ready}/{len(own)}", "" if ready == len(own) else "red")
        counts = [s.counts for s in own]
        table.add_row(
            name, shown, f"{sum(s.packets for s in own):,}", f"{sum(s.bytes for s in own) / 1e6:,.2f}",
            f"{sum(s.dropped for s in own):,}", f"{sum(c.marked for c in counts):,}",
            f"{sum(c.trimmed for c in counts):,}", f"{sum(c.lost + c.black_holed for c in counts):,}",
        )  # fmt: skip
    return table


@lab_app.command("graph")
def graph(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the SVG; - is stdout.")] = None,
    name: Name = None,
) -> None:
    """Draw a lab as SVG, what is broken in red."""
    lab = Lab.find(name)
    picture = draw(lab.shape, f"lab {lab.name}", lab.record.failures)
    if output is not None and str(output) == "-":
        print(picture, end="")
        return
    path = output or Path(f"{lab.name}.svg")
    write_text(path, picture)
    print(path)


@lab_app.command("exec", context_settings={"ignore_unknown_options": True})
def execute(
    node: Annotated[str, typer.Argument(help="A host or a switch. host0", show_default=False)],
    command: Annotated[list[str], typer.Argument(help="What to run there, after --", show_default=False)],
    name: Name = None,
) -> None:
    """Run a command inside a node: `softmrc lab exec host0 -- ip -6 route`."""
    Lab.find(name).execute(node, command)


@lab_app.command("fail")
def fail(
    target: Annotated[str, typer.Argument(help="leaf0-spine1, p2.host3-leaf1, spine1", show_default=False)],
    mode: Annotated[
        str | None,
        typer.Option(
            help="default: down for cables, reboot for nodes; blackhole, loss=1%, corrupt=1%, slow=25%, flap=50ms; "
            "a node: reboot, blackhole"
        ),
    ] = None,
    name: Name = None,
    plane: Plane = 0,
    lasting: Annotated[
        str | None, typer.Option("--for", help=f"Heal after this time, e.g. 3s. A reboot always heals: {REBOOT}")
    ] = None,
) -> None:
    """Break a cable or a node."""
    lab, mode = Lab.find(name), mode or usual_mode(target)
    length_ns = as_duration_ns("for", lasting or REBOOT) if lasting or mode == "reboot" else None
    broken = lab.fail(target, mode, plane)
    print(f"{broken}: {mode}" + (f", back in {length_ns / 1e9:g} s" if length_ns else ""), flush=True)
    if length_ns is not None:
        try:
            time.sleep(length_ns / 1e9)
        finally:
            lab.heal(broken)
        print(f"{broken}: healed")


@lab_app.command("heal")
def heal(
    target: Annotated[str | None, typer.Argument(help="What to repair; without it, everything.")] = None,
    name: Name = None,
    plane: Plane = 0,
) -> None:
    """Repair what is broken."""
    healed = Lab.find(name).heal(target, plane)
    print("\n".join(f"{each}: healed" for each in healed) or "nothing is broken")
