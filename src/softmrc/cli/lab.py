"""`softmrc lab …`: a fabric of namespaces on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from softmrc._support import resources
from softmrc._support.files import read_text, write_text
from softmrc._support.units import rate_text
from softmrc.cli.options import AsJson, print_json, seconds_of
from softmrc.cli.terminal import terminal
from softmrc.errors import ConfigError
from softmrc.fabric import Tier, link_name
from softmrc.fabric.drawing import draw
from softmrc.lab import Lab, PortState
from softmrc.lab.faults import usual_mode
from softmrc.lab.lab import take_down

REBOOT = "5s"  # how long a node is gone
lab_app = typer.Typer(help="Build a fabric of network namespaces (needs root).", no_args_is_help=True)
Name = Annotated[str | None, typer.Option("--lab", help="Which lab, if several are up.", show_default=False)]
Plane = Annotated[int, typer.Option(min=0, help="Plane of names without one: leaf0 is p0.leaf0.")]


@lab_app.command("up")
def up(
    file: Annotated[
        Path, typer.Argument(help="A lab file (TOML), or a name of `softmrc examples`.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Build a lab; one that is up already is left as it is."""
    file = resources.find(file, resources.FABRICS, "file")
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in file.stem)[:32] or "mrc"
    start = time.monotonic()
    lab = Lab.up(read_text(file, "file"), stem)
    took = time.monotonic() - start
    shape, wanted = lab.shape, lab.description.switch
    if as_json:
        print_json(_about(lab) | {"up_s": took, "without": lab.record.without})
        return
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


def _about(lab: Lab) -> dict[str, object]:
    shape = lab.shape
    sizes: dict[str, object] = {"planes": shape.planes, "hosts": shape.hosts, "switches": shape.switches}
    return {"lab": lab.name} | sizes | {"cables": shape.cables}


@lab_app.command("down")
def down(
    which: Annotated[str | None, typer.Argument(metavar="LAB", help="Which lab, if several are up.")] = None,
    name: Name = None,
    everything: Annotated[bool, typer.Option("--all", help="All labs, and what a crash left behind.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a lab and everything it made."""
    start = time.monotonic()
    if which is not None and name is not None and which != name:
        raise ConfigError("--lab", name, f"must be the same lab as {which}", "Give only one of the two.")
    gone = take_down(which or name, everything)
    if as_json:
        print_json({"labs": gone})
        return
    words = ", ".join(gone) if gone else "no lab"
    print(f"{words}: down in {time.monotonic() - start:.2f} s")


@lab_app.command("inspect")
def inspect(
    node: Annotated[str | None, typer.Argument(help="Only the ports of this node, as p0.leaf0.")] = None,
    name: Name = None,
    plane: Plane = 0,
    as_json: AsJson = False,
) -> None:
    """Show nodes, faults, and what every port has sent."""
    lab = Lab.find(name)
    states = lab.ports(queues=True)
    if node is not None:
        wanted = lab.shape.parse_node(node, plane)
        states = [state for state in states if state.node == wanted]
    if as_json:
        print_json(_as_json(lab, states))
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
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="SVG file; - is stdout. Default: LAB.svg.")
    ] = None,
    name: Name = None,
) -> None:
    """Draw a lab as SVG, with faults in red."""
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
    node: Annotated[str, typer.Argument(help="A host or a switch, as host0.", show_default=False)],
    command: Annotated[list[str], typer.Argument(help="What to run there, after --", show_default=False)],
    name: Name = None,
) -> None:
    """Run a command in a node's network namespace."""
    Lab.find(name).execute(node, command)


@lab_app.command("fail")
def fail(
    target: Annotated[
        str, typer.Argument(help="A cable or a node: leaf0-spine1, p2.host3-leaf1, spine1.", show_default=False)
    ],
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="FAULT",
            help="Cables: down (default), blackhole, loss=1%, corrupt=1%, slow=25%, flap=50ms. Nodes: "
            "reboot (default), blackhole.",
        ),
    ] = None,
    name: Name = None,
    plane: Plane = 0,
    duration: Annotated[
        str | None, typer.Option(help=f"Heal after this time. Default: never; a reboot: {REBOOT}.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Break a cable or a node."""
    lab, mode = Lab.find(name), mode or usual_mode(target)
    length_s = seconds_of("--duration", duration or REBOOT, 0.001) if duration or mode == "reboot" else None
    broken = lab.fail(target, mode, plane)
    if not as_json:
        print(f"{broken}: {mode}" + (f", back in {length_s:g} s" if length_s else ""), flush=True)
    if length_s is not None:
        try:
            time.sleep(length_s)
        finally:
            lab.heal(broken)
    if as_json:
        print_json({"element": broken, "mode": mode, "healed_after_s": length_s})
    elif length_s is not None:
        print(f"{broken}: healed")


@lab_app.command("heal")
def heal(
    target: Annotated[str | None, typer.Argument(help="What to repair. Default: everything.")] = None,
    name: Name = None,
    plane: Plane = 0,
    as_json: AsJson = False,
) -> None:
    """Repair what is broken."""
    healed = Lab.find(name).heal(target, plane)
    if as_json:
        print_json({"healed": healed})
        return
    print("\n".join(f"{each}: healed" for each in healed) or "nothing is broken")
