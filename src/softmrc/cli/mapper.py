"""`softmrc mapper …`: what is broken in a fabric, by name."""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from softmrc._support import resources
from softmrc._support.units import as_duration_ns, as_share, share_text
from softmrc.cli.exit_codes import NO
from softmrc.cli.options import AsJson, DeviceName, Seed, print_json, seconds_of
from softmrc.cli.terminal import terminal
from softmrc.errors import ConfigError, UsageError
from softmrc.fabric import Shape, load
from softmrc.ops import control
from softmrc.ops.mapper import Components, Finding, Mapper, MapperSettings, State, denylist_of, ecmp

if TYPE_CHECKING:
    from softmrc.ops.mapper.simulated import SimulatedFabric

mapper_app = typer.Typer(help="Locate faults in a fabric: probe every path.", no_args_is_help=True)
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write a denylist of the broken components to this file.")
]
PortsPerOptic = Annotated[int, typer.Option(min=1, max=64, help="Ports of a leaf that share a transceiver.")]
SIM_KINDS = {"dead": "black_hole", "loss": "loss", "corrupt": "corrupt", "slow": "slow"}


@mapper_app.command("lab")
def lab(
    name: Annotated[str | None, typer.Option("--lab", help="Which lab, if several are up.")] = None,
    duration: Annotated[str, typer.Option(help="How long to probe before the verdict.")] = "3s",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C: print every change.")] = False,
    output: Output = None,
    ports_per_optic: PortsPerOptic = 1,
    as_json: AsJson = False,
) -> None:
    """Probe a lab with real packets over the kernel's SRv6 (needs root).

    With --watch, --json prints one object a line."""
    seconds = seconds_of("--duration", duration, 0.5, 86_400)
    from softmrc.lab import Lab
    from softmrc.ops.mapper.lab_fabric import LabFabric, lab_settings

    found = Lab.find(name)
    settings = lab_settings(found, ports_per_optic)
    with LabFabric(found) as fabric:
        _run(Mapper(fabric, settings), found.name, seconds, watch, output, as_json)


@mapper_app.command("sim")
def sim(
    file: Annotated[
        Path, typer.Argument(help="A fabric file (TOML), or a name of `softmrc examples`.", show_default=False)
    ],
    broken: Annotated[
        list[str] | None,
        typer.Option("--break", metavar="NAME=FAULT", help="FAULT: dead, loss:1%, corrupt:1%, slow:25% or flap:50ms."),
    ] = None,
    duration: Annotated[str, typer.Option(help="Simulated time.")] = "1.4s",
    seed: Seed = 1,
    output: Output = None,
    ports_per_optic: PortsPerOptic = 1,
    as_json: AsJson = False,
) -> None:
    """Probe a simulated fabric with the faults of --break."""
    seconds = seconds_of("--duration", duration, 0.2, 60)
    from softmrc.ops.mapper.simulated import SimulatedFabric

    description = load(resources.find(file, resources.FABRICS, "file"))
    fabric = SimulatedFabric(description.fabric, seed)
    components = Components(description.fabric, ports_per_optic)
    for text in broken or []:
        plant(fabric, components, text, seconds)
    settings = sim_settings(description.fabric, ports_per_optic)
    _run(Mapper(fabric, settings), description.name, seconds, False, output, as_json)


def sim_settings(shape: Shape, lanes: int = 1) -> MapperSettings:
    """A slot is long enough for a round's large packets to be a small part of what a link carries in it."""
    made = MapperSettings(lanes=lanes)
    large_s = made.large_bytes * 8 / min(shape.host_link_bps, shape.fabric_link_bps)
    return replace(made, slot_s=max(made.slot_s, 50 * large_s))


def plant(fabric: SimulatedFabric, components: Components, text: str, seconds: float) -> None:
    """Break what a text such as `p0.leaf0-spine1=loss:1%` says, at once."""
    name, _, how = text.partition("=")
    kind, _, argument = how.partition(":")
    try:
        links = components.named(name).links
    except ConfigError as error:
        raise error.replaced(field="break") from None
    if kind == "flap" and argument:
        period_s = as_duration_ns("--break", argument) / 1e9
        for i in range(int(seconds / period_s) + 1):
            fabric.break_links("heal" if i % 2 else "black_hole", links, i * period_s)
    elif kind == "dead" and not argument:
        fabric.break_links("black_hole", links, 0.0)
    elif kind in ("loss", "corrupt", "slow") and argument and as_share("--break", argument) > 0:
        fabric.break_links(SIM_KINDS[kind], links, 0.0, as_share("--break", argument))
    else:
        raise ConfigError("--break", text, "must be NAME=dead, =loss:1%, =corrupt:1%, =slow:25% or =flap:50ms")


@mapper_app.command("ecmp")
def by_ports(
    others: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Results of other hosts, to combine. Repeatable.")
    ] = None,
    device: DeviceName = None,
    rounds: Annotated[int, typer.Option(min=0, max=100_000, help="Probes over each source port; 0: none.")] = 50,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the results here, for another host to combine.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Probe an ECMP network over each source port of running devices.

    Without --device, over those of all devices of this user."""
    cells = [cell for path in others or [] for cell in ecmp.load(path)]
    if rounds:
        nodes = [control.find_device(device)] if device else control.devices()
        if not nodes:
            raise UsageError("no device is running, so nothing can be probed")
        for node in nodes:
            with node:
                cells += ecmp.probe_all(node, rounds)
    if output is not None:
        ecmp.save(output, cells)
    found = ecmp.judge(cells)
    if as_json:
        rows = [asdict(one) | {"name": one.name, "state": one.state.value} for one in found]
        print_json({"cells": len(cells), "probes": sum(one.sent for one in cells), "findings": rows})
    else:
        table = Table("broken", "what", "how", "evidence")
        for one in found:
            table.add_row(one.name, one.kind, Text(one.how, "red"), f"{one.lost:,} lost, {one.sent - one.lost:,} fine")
        terminal().print(table if found else f"nothing is broken ({sum(one.sent for one in cells):,} probes)")
    if found:
        raise typer.Exit(NO)


def _run(mapper: Mapper, name: str, seconds: float, watch: bool, output: Path | None, as_json: bool) -> None:
    """Steps until the time is over; with `watch` until Ctrl-C, a verdict whenever it changes."""
    console = terminal()
    shown: set[tuple[str, State]] | None = None
    with suppress(KeyboardInterrupt) if watch else nullcontext():
        while True:
            found = mapper.step()
            is_time = mapper.fabric.now_s >= seconds
            keys = {one.key for one in found}
            if is_time and keys != shown:
                shown = keys
                if output is not None:
                    denylist_of(name, mapper.fabric.shape, found).save(output)
                _say(console, mapper, name, found, as_json, watch)
            if is_time and not watch:
                break
    if shown and not watch:
        raise typer.Exit(NO)


def _say(console: Console, mapper: Mapper, name: str, found: list[Finding], as_json: bool, is_stream: bool) -> None:
    if as_json:
        print_json(verdict(mapper, name, found), is_stream)
        return
    clock = time.strftime("%H:%M:%S")
    looked = f"{mapper.sent_packets:,} packets, {share_text(mapper.bandwidth_share(mapper.fabric.now_s))} of a link"
    words = f"{len(found)} component{'s' * (len(found) != 1)} broken" if found else "nothing is broken"
    console.print(Text.assemble((f"fabric {name}", "bold"), f" at {clock}: {words} ({looked})"))
    if found:
        console.print(findings_table(mapper.fabric.shape, found))


def verdict(mapper: Mapper, name: str, found: list[Finding]) -> dict[str, Any]:
    """What a program reads."""
    slot_s = mapper.settings.slot_s
    end = mapper.matrix.first + mapper.matrix.count
    return {
        "fabric": name,
        "seconds": round(mapper.fabric.now_s, 3),
        "packets": mapper.sent_packets,
        "bandwidth_share": mapper.bandwidth_share(mapper.fabric.now_s),
        "findings": [
            {
                "name": one.component.name,
                "kind": one.component.kind.value,
                "state": one.state.value,
                "share": one.share,
                "for_s": round((end - one.since_slot) * slot_s, 3),
                "accused": one.accused,
                "vouched": one.vouched,
                "hosts": list(one.hosts),
            }
            for one in found
        ],
    }


def findings_table(shape: Shape, found: list[Finding]) -> Table:
    table = Table()
    for head in ("broken", "what", "how", "evidence", "hit"):
        table.add_column(head)
    for one in found:
        table.add_row(
            one.component.name, one.component.kind.value, Text(one.how, "red"), _evidence(one), _hit(shape, one)
        )
    return table


def _evidence(one: Finding) -> str:
    bad = {State.SLOW: "late", State.CORRUPTING: "broken"}.get(one.state, "lost")
    return f"{one.accused:,} {bad}, {one.vouched:,} fine"


def _hit(shape: Shape, one: Finding) -> str:
    if len(one.hosts) == shape.hosts:
        return f"all {shape.hosts} hosts"
    if len(one.hosts) == 1:
        return f"host{one.hosts[0]}"
    return f"{len(one.hosts)} hosts, host{one.hosts[0]} to host{one.hosts[-1]}"
