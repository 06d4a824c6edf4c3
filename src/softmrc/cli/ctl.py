"""`softmrc ctl …`: inspect and control running devices of this user."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from softmrc._core import EvState
from softmrc._support.units import as_duration_ns, ev_text, qpn_text
from softmrc.cli.lazy import LazyCommand, group_of
from softmrc.cli.terminal import MARKS, Grid, a_number, say, terminal
from softmrc.errors import ConfigError, MrcError, RemoteError, UsageError, printable
from softmrc.ops import control

if TYPE_CHECKING:
    from softmrc.fabric import AddressPlan
    from softmrc.fabric.denylist import Denylist

GROUPS = (
    LazyCommand("profile", "softmrc.cli.profiles", "profile_app",
          "Profiles that queue pairs are given: formats, EVs, congestion control."),
)  # fmt: skip
ctl_app = typer.Typer(cls=group_of(*GROUPS), help="Inspect and control your running devices.", no_args_is_help=True)
Device = Annotated[str | None, typer.Option("--device", "-d", help="4711-0, or 4711 if that process has one.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, one object a line.")]
Watch = Annotated[
    float, typer.Option("--watch", "-w", min=0, max=3600, callback=a_number, help="Repeat every N seconds.")
]


def a_qpn(text: str) -> int:
    """As `ctl qps` shows it, 0x8bac38, or as a number."""
    return _up_to(text, 0xFFFFFF, "queue pair's number")


def an_ev_value(text: str) -> int:
    """As `ctl evs` shows it, 0x0000c34f, or as a number."""
    return _up_to(text, 0xFFFFFFFF, "value of an EV")


def _up_to(text: str, most: int, what: str) -> int:
    try:
        found = int(text, 0)
    except ValueError:
        found = -1
    if not 0 <= found <= most:
        raise typer.BadParameter(f"{text} is no {what}: 0 to {most:#x}")
    return found


Qpn = Annotated[
    int | None, typer.Option("--qpn", parser=a_qpn, metavar="QPN", help="Of this queue pair only, as `ctl qps` has it.")
]
OneQpn = Annotated[int, typer.Argument(parser=a_qpn, metavar="QPN", help="As `ctl qps` has it: 0x8bac38.")]
Evs = Annotated[list[int] | None, typer.Option("--ev", min=0, max=65535, help="An index; may be repeated.")]
Plane = Annotated[int | None, typer.Option("--plane", min=0, max=31, help="All EVs of this plane.")]
Profile = Annotated[
    int | None, typer.Option("--profile", min=1, help="The list of this EV profile, and all queue pairs that use it.")
]
MAX_NAMED = 4  # queue pairs in one line
SHOWN_EV = re.compile("0x[0-9a-fA-F]+")
Stop = Annotated[bool, typer.Option("--stop", help="Stop at the first failure.")]


def _again(watch: float, show: Callable[[], None]) -> None:
    """Once, or until Ctrl-C."""
    show()
    with suppress(KeyboardInterrupt):
        while watch:
            time.sleep(watch)
            show()


def say_rows(as_json: bool, rows: list[dict[str, Any]], table: Callable[[], Grid]) -> None:
    if as_json:
        for row in rows:
            print(json.dumps(row), flush=True)
    else:
        terminal().print(table())


@ctl_app.command("devices")
def devices(as_json: AsJson = False, watch: Watch = 0) -> None:
    """List running devices."""
    _again(watch, lambda: _devices(as_json))


def _devices(as_json: bool) -> None:
    rows = []
    for node in control.devices():
        with node:
            try:
                found = node.info()
            except (RemoteError, UsageError) as error:
                found = {"error": str(error)}
            rows.append({"device": node.name} | {key: value for key, value in found.items() if key != "ok"})
    if not rows and not as_json:
        print("no device is running")
        return

    def table() -> Grid:
        shown = Grid("device", "kind", "planes", "program", spare=("kind", "planes"), folds="program")
        for row in rows:
            planes = ", ".join(str(plane.get("address", "?")) for plane in row.get("planes") or [])
            program = printable(str(row.get("program", row.get("error", ""))))[:60]
            shown.add_row(row["device"], str(row.get("kind", "?")), planes, program)
        return shown

    say_rows(as_json, rows, table)


@ctl_app.command("planes")
def planes(device: Device = None, as_json: AsJson = False, watch: Watch = 0) -> None:
    """Planes of a device: administrative and link state, MTU, counters."""
    with control.find_device(device) as node:
        _again(watch, lambda: _planes(node, as_json))


def _mtu(row: dict[str, Any]) -> Text:
    """Of the link; and the largest packets that get through, where full ones do not."""
    link, path = row.get("link_mtu") or 0, row.get("path_mtu") or 0
    return Text(f"{link:,}, path {path:,}", "red") if path else Text(f"{link:,}" if link else "")


def _planes(node: control.DeviceClient, as_json: bool) -> None:
    rows = [{"plane": i} | row for i, row in enumerate(node.stats()["planes"])]

    def table() -> Grid:
        counted = ("packets sent", "packets received", "bad ICRC")
        heads = ("plane", "interface", "MTU", "state", "admin", "link", "GSO", *counted)
        shown = Grid(*heads, spare=("bad ICRC", "link", "admin", "packets received", "GSO"))
        for row in rows:
            state = Text("up", "green") if row["is_up"] else Text("down", "red")
            words = ["up" if row.get(key, row["is_up"]) else "down" for key in ("is_admin_up", "is_link_up")]
            # Of a device that does not say, nothing is known.
            gso = {True: Text("on"), False: Text("off", "red")}.get(row.get("has_gso", ""), Text(""))
            counts = [f"{row.get(key) or 0:,}" for key in ("packets_sent", "packets_received", "bad_icrc")]
            shown.add_row(str(row["plane"]), row.get("interface", ""), _mtu(row), state, *words, gso, *counts)
        return shown

    say_rows(as_json, rows, table)


@ctl_app.command("qps")
def queue_pairs(device: Device = None, qpn: Qpn = None, as_json: AsJson = False, watch: Watch = 0) -> None:
    """Queue pairs, and the state of each of their paths."""
    with control.find_device(device) as node:
        _again(watch, lambda: _queue_pairs(node, qpn, as_json))


def _queue_pairs(node: control.DeviceClient, qpn: int | None, as_json: bool) -> None:
    rows = node.queue_pairs(qpn)

    def table() -> Grid:
        heads = ("qpn", "state", "peer", "in flight, B", "round trip, µs", "retransmitted", "paths")
        shown = Grid(*heads, spare=("in flight, B", "round trip, µs", "peer", "retransmitted"), folds="paths")
        for row in rows:
            peer = ", ".join(((row.get("peer") or {}).get("planes") or [])[:1])
            marks = Text("").join(MARKS[getattr(EvState, one["state"].upper())] for one in (row.get("evs") or [])[:64])
            again = (row.get("stats") or {}).get("packets_retransmitted", 0)
            flight, trip = row.get("bytes_in_flight") or 0, row.get("smoothed_rtt_us") or 0
            shown.add_row(qpn_text(row["qpn"]), row["state"], peer, f"{flight:,}", f"{trip:,.0f}", f"{again:,}", marks)
        return shown

    say_rows(as_json, rows, table)


@ctl_app.command("evs")
def evs(
    qpn: OneQpn, device: Device = None, as_json: AsJson = False,
    watch: Watch = 0,
) -> None:  # fmt: skip
    """The EVs of one queue pair: index, value, plane, state."""
    with control.find_device(device) as node:
        _again(watch, lambda: _evs(node, qpn, as_json))


def _evs(node: control.DeviceClient, qpn: int, as_json: bool) -> None:
    rows = [one for qp in node.queue_pairs(qpn) for one in qp.get("evs") or []]

    def table() -> Grid:
        shown = Grid("ev", "value", "plane", "state", "packets lost")
        for row in rows:
            state = row["state"] + (" (spare)" if row.get("is_spare") else "")
            shown.add_row(str(row["ev"]), ev_text(row["value"]), str(row["plane"]), state, str(row.get("drops") or 0))
        return shown

    say_rows(as_json, rows, table)


def _change(word: str, help_text: str) -> None:
    """A command that denies or allows: the two differ in a word."""

    def command(
        device: Device = None, qpn: Qpn = None, ev: Evs = None, plane: Plane = None, profile: Profile = None,
        stop: Stop = False, as_json: AsJson = False,
    ) -> None:  # fmt: skip
        with control.find_device(device) as node:
            if not ev and plane is None:
                raise UsageError(f"say which EVs to {word}: --ev N, which may be repeated, or --plane P")
            change = node.deny if word == "deny" else node.allow
            batch = change(ev or None, qpn=qpn, plane=plane, profile=profile, stop=stop)
            if word == "deny":
                _warn_of_dead_ends(node, qpn)
        _tell(batch, "denied" if word == "deny" else "allowed", as_json)

    ctl_app.command(word, help=help_text)(command)


_change("deny", "Keep queue pairs off EVs; without --qpn and --profile all. Exit status 1 if some could not be denied.")
_change("allow", "Let queue pairs use EVs again that were denied.")


def _warn_of_dead_ends(node: control.DeviceClient, qpn: int | None) -> None:
    """Denying the last path of a queue pair stops it."""
    pairs = [one for one in node.queue_pairs(qpn) if one.get("evs")]
    ended = [qpn_text(one["qpn"]) for one in pairs if all(ev["state"] == "denied" for ev in one["evs"])]
    if ended:
        shown = ", ".join(ended[:MAX_NAMED]) + (f" and {len(ended) - MAX_NAMED} more" * (len(ended) > MAX_NAMED))
        words = f"no path is left to queue pair{'s' * (len(ended) > 1)} {shown}: nothing is sent there until"
        print(f"softmrc: {words} `softmrc ctl allow` allows one again", file=sys.stderr)


def _tell(batch: control.BatchResult, word: str, as_json: bool) -> None:
    if as_json:
        failed = [{_whose(one)[0]: _whose(one)[1], "ev": one.ev, "error": one.error} for one in batch.failed]
        print(json.dumps({"done": batch.done, "failed": failed}))
    else:
        print(f"{batch.done} {word}")
        for one in batch.failed:
            whose = f"profile {one.profile}" if one.profile else f"queue pair {qpn_text(one.qpn)}"
            say(f"{whose}, EV {one.ev}: {one.error}")
    if batch.failed:
        raise typer.Exit(1)


def _whose(failed: control.BatchFailure) -> tuple[str, int]:
    return ("profile", failed.profile) if failed.profile else ("qpn", failed.qpn)


@ctl_app.command("replace")
def replace(
    number: Annotated[
        int,
        typer.Argument(
            parser=a_qpn, metavar="QPN", help="A queue pair, as `ctl qps` has it; with --profile a profile."
        ),
    ],
    ev: Annotated[int, typer.Argument(min=0, max=65535, help="Its index, or its place in the list.")],
    value: Annotated[str, typer.Argument(help="Another path: 49999 or 0xc34f; of a wide one, hexadecimal text.")],
    profile: Annotated[bool, typer.Option("--profile", help="In an EV profile's list.")] = False,
    all_copies: Annotated[bool, typer.Option("--all-copies", help="And in queue pairs that use the profile.")] = False,
    device: Device = None,
) -> None:
    """Replace an EV by another path."""
    if all_copies and not profile:
        raise ConfigError("all-copies", all_copies, "with --profile only")
    # Longer ones are no number of 32 bits; whether they are wide values, the device says.
    is_number = value.isascii() and (value.isdecimal() or SHOWN_EV.fullmatch(value)) and len(value) <= 10
    new = int(value, 16 if "x" in value else 10) if is_number else value
    with control.find_device(device) as node:
        if profile:
            node.replace(None, ev, new, profile=number, all_copies=all_copies)
        else:
            node.replace(number, ev, new)
    print(f"EV {ev} of {f'profile {number}' if profile else f'queue pair {qpn_text(number)}'} is {ev_text(new)}")


@ctl_app.command("port")
def port(
    plane: Annotated[int, typer.Argument(min=0, max=31)],
    state: Annotated[str, typer.Argument(help="up or down")],
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Take a plane out of service, or put it back; its link has a state of its own."""
    if state not in ("up", "down"):
        raise ConfigError("state", state, "up or down")
    with control.find_device(device) as node:
        node.set_port(plane, state == "up")
        _planes(node, as_json)


@ctl_app.command("faults")
def faults(
    text: Annotated[
        str | None, typer.Argument(help="e.g. drop=0.01 or 2:black_hole; '' clears; omit to show current faults.")
    ] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Break the planes of a device, as SOFTMRC_FAULTS does, or show how they are broken."""
    with control.find_device(device) as node:
        found = node.faults() if text is None else node.set_faults(text)

    def table() -> Grid:
        shown = Grid("plane", "faults")
        for number, row in enumerate(found):
            active = {name: value for name, value in row.items() if value and name != "reorder_delay_us"}
            words = [name if value is True else f"{name}={value:g}" for name, value in active.items()]
            shown.add_row(str(number), ", ".join(words) or "none")
        return shown

    say_rows(as_json, found, table)


@ctl_app.command("capture")
def capture(
    file: Annotated[Path | None, typer.Argument(help="The pcapng file to write.")] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the running capture.")] = False,
    device: Device = None,
) -> None:
    """Begin or end a capture of what a device sends and receives; `softmrc dissect` reads it."""
    if (file is None) != stop:
        raise UsageError("either the name of a file to capture into, or --stop")
    with control.find_device(device) as node:
        found = node.capture(None if file is None else str(file.absolute()))
    say(f"{found['packets']:,} packets in {found['path']}" if stop else f"capturing to {found['path']}")


@ctl_app.command("probe")
def probe(
    peer: Annotated[int, typer.Argument(min=0, help="The device's number of the peer, as `ctl qps --json` has it.")],
    plane: Annotated[int, typer.Argument(min=0, max=31)],
    ev: Annotated[
        list[int],
        typer.Option("--ev", parser=an_ev_value, metavar="VALUE", help="As `ctl evs` has it; may be repeated."),
    ],
    device: Device = None,
    timeout: Annotated[str, typer.Option(help="How long to wait.")] = "1s",
    dscp: Annotated[int | None, typer.Option(min=0, max=63, help="DSCP of the probes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Probe selected paths to a peer."""
    with control.find_device(device) as node:
        found = control.probe(node, peer, plane, ev, as_duration_ns("timeout", timeout) / 1e9, dscp)
    rows = [asdict(one) for one in found]

    def table() -> Grid:
        shown = Grid("ev", "answer", "round trip, µs", "peer's part, µs", "came by plane")
        for one in found:
            word = "yes" if one.took_ns is not None else "none" if one.asked else "not sent"
            trip = "" if one.took_ns is None else f"{one.took_ns / 1000:,.0f}"
            came = "" if one.arrival_plane is None else str(one.arrival_plane)
            part = "" if one.service_ns is None else f"{one.service_ns / 1000:,.1f}"
            shown.add_row(ev_text(one.ev), word, trip, part, came)
        return shown

    say_rows(as_json, rows, table)


@ctl_app.command("events")
def events(
    device: Device = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", help=f"{', '.join(control.EVENT_TYPES)}; may be repeated.")
    ] = None,
    as_json: AsJson = False,
    watch: Watch = 0,
) -> None:
    """Events of ports, paths and queue pairs; how many the device no longer holds."""
    with control.find_device(device) as node:
        _again(watch, lambda: _events(node, types or [], as_json))


def _events(node: control.DeviceClient, types: list[str], as_json: bool) -> None:
    told = node.events(types)
    if told.lost:
        print(
            json.dumps({"lost": told.lost}) if as_json else f"({told.lost:,} events before these are no longer known)"
        )
    for one in told.events:
        if as_json:
            print(json.dumps(one), flush=True)
            continue
        clock = time.strftime("%H:%M:%S", time.localtime(one["at"])) + f"{one['at'] % 1:.6f}"[1:]
        say(f"{clock} {one['type']:<15} {printable(str(one.get('text', '')))}")


@ctl_app.command("push")
def push(
    denylist: Annotated[Path, typer.Argument(help="A denylist, as `softmrc mapper` writes it.")],
    fabric: Annotated[Path, typer.Option("--fabric", help="The fabric file that its links are of.")],
    as_json: AsJson = False,
) -> None:
    """Apply a denylist to every running device: deny what it names, allow again what it no longer names.
    Exit status 1 if one did not do all of it; the others have."""
    from softmrc._support import resources
    from softmrc.fabric import AddressPlan, load
    from softmrc.fabric.denylist import Denylist

    found, description = Denylist.load(denylist), load(resources.find(fabric, resources.FABRICS, "fabric"))
    plan = AddressPlan(description.fabric, description.addressing)
    found.links(description.fabric)
    nodes = control.devices()
    if not nodes:
        raise UsageError("no device is running")
    failures = [why for node in nodes if (why := _push(node, found, plan, as_json))]
    if failures:
        raise UsageError(f"of {len(nodes)} devices {len(failures)} did not apply the whole list: {'; '.join(failures)}")


def _push(node: control.DeviceClient, denylist: Denylist, plan: AddressPlan, as_json: bool) -> str:
    """Apply the list to one device; errors do not stop the others."""
    try:
        with node:
            done = control.push(node, denylist, plan)
    except MrcError as error:
        if as_json:
            print(json.dumps({"device": node.name, "error": str(error)}))
        return str(error)
    if as_json:
        print(json.dumps({"device": node.name} | asdict(done)))
    else:
        failed = f", {done.failed} failed" if done.failed else ""
        left = f"{done.skipped} queue pairs left alone"
        print(f"{node.name}: {done.denied} denied, {done.allowed} allowed, {left}{failed}")
    return f"device {node.name} could not deny or allow {done.failed} paths" if done.failed else ""
