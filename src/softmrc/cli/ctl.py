"""`softmrc ctl …`: inspect and control running devices of this user."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from softmrc._core import EvState
from softmrc._support.units import ev_text, qpn_text
from softmrc.cli.exit_codes import NO
from softmrc.cli.lazy import LazyCommand, group_of
from softmrc.cli.marks import MARKS
from softmrc.cli.options import AsJson, AsJsonLines, DeviceName, print_json, seconds_of
from softmrc.cli.terminal import Grid, say, terminal
from softmrc.errors import MISSING, ConfigError, MrcError, RemoteError, UsageError, printable
from softmrc.ops import control

GROUPS = (
    LazyCommand("profile", "softmrc.cli.profiles", "profile_app",
          "Manage profiles of queue pairs: formats, EVs, congestion control."),
)  # fmt: skip
ctl_app = typer.Typer(cls=group_of(*GROUPS), help="Inspect and control your running devices.", no_args_is_help=True)
All = Annotated[bool, typer.Option("--all", help="All running devices of this user.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")]


def _an_interval(text: str | None) -> str | None:
    """Checked before a device is looked for."""
    if text is not None:
        seconds_of("--interval", text, 0.01, 3600)
    return text


Interval = Annotated[
    str | None,
    typer.Option("--interval", callback=_an_interval, help="Repeat at this interval. Default with --watch: 1s."),
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
        raise typer.BadParameter(f"must be a {what}, 0 to {most:#x}")
    return found


Qpn = Annotated[
    int | None, typer.Option("--qpn", parser=a_qpn, metavar="QPN", help="Only this queue pair, as `ctl qps` shows it.")
]
OneQpn = Annotated[int, typer.Argument(parser=a_qpn, metavar="QPN", help="As `ctl qps` shows it: 0x8bac38.")]
Evs = Annotated[list[int] | None, typer.Option("--ev", min=0, max=65535, help="Index of an EV. Repeatable.")]
Plane = Annotated[int | None, typer.Option("--plane", min=0, max=31, help="All EVs of this plane (an index).")]
PlaneIndex = Annotated[int, typer.Argument(min=0, max=31, help="Index of a plane, as `ctl planes` shows it.")]
Profile = Annotated[
    int | None, typer.Option("--profile", min=1, help="The list of this EV profile, and all queue pairs that use it.")
]
MAX_NAMED = 4  # queue pairs in one line
SHOWN_EV = re.compile("0x[0-9a-fA-F]+")
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failure.")]
Row = dict[str, Any]
NONE_RUNS = "no device of yours is running: none is in {}"


def targets(device: str | None, everything: bool) -> list[control.DeviceClient]:
    """The devices that a command disturbs, which must be named."""
    if device is not None and everything:
        raise ConfigError("--all", MISSING, "cannot be combined with --device")
    if device is not None:
        return [control.find_device(device)]
    nodes = control.devices()
    if not everything:
        there = ", ".join(node.name for node in nodes) or "none is running"
        raise ConfigError("--device", MISSING, "is missing", f"Say -d NAME, or --all for every device: {there}.")
    if not nodes:
        raise UsageError(NONE_RUNS.format(control.runtime_folder()))
    return nodes


def each(nodes: list[control.DeviceClient], do: Callable[[control.DeviceClient], Row]) -> list[Row]:
    """What became of it on each device. One that fails does not stop the others, unless it is the only one."""
    found = []
    for node in nodes:
        try:
            with node:
                found.append({"device": node.name} | do(node))
        except MrcError as error:
            if len(nodes) == 1:
                raise
            found.append({"device": node.name, "error": str(error)})
    return found


def print_rows(as_json: bool, key: str, rows: list[Row], table: Callable[[], Grid], is_stream: bool = False) -> None:
    if as_json:
        print_json({key: rows}, is_stream)
    else:
        terminal().print(table())


def print_devices(as_json: bool, found: list[Row], text: Callable[[Row], object]) -> None:
    """Of each device what became of it; exits with NO where one failed."""
    if as_json:
        print_json({"devices": found})
    for row in () if as_json else found:
        if "error" in row:
            say(f"softmrc: {row['error']}", stderr=True)
            continue
        shown = text(row)
        head = f"{row['device']}: " if len(found) > 1 else ""
        if isinstance(shown, Grid):
            if head:
                say(head)
            terminal().print(shown)
        else:
            say(f"{head}{shown}")
    if any("error" in row for row in found):
        raise typer.Exit(NO)


def again(watch: bool, interval: str | None, show: Callable[[bool], None]) -> None:
    """Once, or until Ctrl-C; `show` hears whether more follows."""
    is_watched = watch or interval is not None
    pause_s = seconds_of("--interval", interval or "1s")
    show(is_watched)
    with suppress(KeyboardInterrupt):
        while is_watched:
            time.sleep(pause_s)
            show(is_watched)


@ctl_app.command("devices")
def devices(as_json: AsJson = False, watch: Watch = False, interval: Interval = None) -> None:
    """List running devices."""
    again(watch, interval, lambda more: _devices(as_json, more))


def _devices(as_json: bool, is_stream: bool) -> None:
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

    print_rows(as_json, "devices", rows, table, is_stream)


@ctl_app.command("planes")
def planes(device: DeviceName = None, as_json: AsJson = False, watch: Watch = False, interval: Interval = None) -> None:
    """Show the planes of a device: state, MTU, counters."""
    with control.find_device(device) as node:
        again(watch, interval, lambda more: _planes(node, as_json, more))


def _mtu(row: dict[str, Any]) -> Text:
    """Of the link; and the largest packets that get through, where full ones do not."""
    link, path = row.get("link_mtu") or 0, row.get("path_mtu") or 0
    return Text(f"{link:,}, path {path:,}", "red") if path else Text(f"{link:,}" if link else "")


def _plane_rows(node: control.DeviceClient) -> list[Row]:
    return [{"plane": i} | row for i, row in enumerate(node.stats()["planes"])]


def _planes(node: control.DeviceClient, as_json: bool, is_stream: bool) -> None:
    rows = _plane_rows(node)
    print_rows(as_json, "planes", rows, lambda: _planes_table(rows), is_stream)


def _planes_table(rows: list[Row]) -> Grid:
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


@ctl_app.command("qps")
def queue_pairs(
    device: DeviceName = None, qpn: Qpn = None, as_json: AsJson = False, watch: Watch = False, interval: Interval = None
) -> None:
    """Show queue pairs and the state of each of their paths."""
    with control.find_device(device) as node:
        again(watch, interval, lambda more: _queue_pairs(node, qpn, as_json, more))


def _queue_pairs(node: control.DeviceClient, qpn: int | None, as_json: bool, is_stream: bool) -> None:
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

    print_rows(as_json, "queue_pairs", rows, table, is_stream)


@ctl_app.command("evs")
def evs(
    qpn: OneQpn, device: DeviceName = None, as_json: AsJson = False, watch: Watch = False, interval: Interval = None
) -> None:
    """Show the EVs of a queue pair: index, value, plane, state."""
    with control.find_device(device) as node:
        again(watch, interval, lambda more: _evs(node, qpn, as_json, more))


def _evs(node: control.DeviceClient, qpn: int, as_json: bool, is_stream: bool) -> None:
    rows = [one for qp in node.queue_pairs(qpn) for one in qp.get("evs") or []]

    def table() -> Grid:
        shown = Grid("ev", "value", "plane", "state", "packets lost")
        for row in rows:
            state = row["state"] + (" (spare)" if row.get("is_spare") else "")
            shown.add_row(str(row["ev"]), ev_text(row["value"]), str(row["plane"]), state, str(row.get("drops") or 0))
        return shown

    print_rows(as_json, "evs", rows, table, is_stream)


def _change(word: str, help_text: str) -> None:
    """A command that denies or allows: the two differ in a word."""

    def command(
        device: DeviceName = None, everything: All = False, qpn: Qpn = None, ev: Evs = None, plane: Plane = None,
        profile: Profile = None, fail_fast: FailFast = False, as_json: AsJson = False,
    ) -> None:  # fmt: skip
        if not ev and plane is None:
            raise ConfigError(
                "--ev", MISSING, f"is missing: which EVs to {word}", "Say --ev N, which you may repeat, or --plane N."
            )

        def change(node: control.DeviceClient) -> Row:
            act = node.deny if word == "deny" else node.allow
            batch = act(ev or None, qpn=qpn, plane=plane, profile=profile, stop=fail_fast)
            if word == "deny":
                _warn_of_dead_ends(node, qpn)
            return _batch_row(batch)

        found = each(targets(device, everything), change)
        done = {"deny": "denied", "allow": "allowed"}[word]
        print_devices(as_json, found, lambda row: "\n".join([f"{row['done']} {done}", *map(_failure, row["failed"])]))
        if any(row["failed"] or not row["done"] for row in found):
            raise typer.Exit(NO)

    ctl_app.command(word, help=help_text)(command)


OF_ALL = "\n\nNeeds --device or --all. Without --qpn and --profile, of all queue pairs."
_change("deny", "Deny EVs: queue pairs do not send on them." + OF_ALL)
_change("allow", "Allow EVs that were denied." + OF_ALL)


def _warn_of_dead_ends(node: control.DeviceClient, qpn: int | None) -> None:
    """Denying the last path of a queue pair stops it."""
    pairs = [one for one in node.queue_pairs(qpn) if one.get("evs")]
    ended = [qpn_text(one["qpn"]) for one in pairs if all(ev["state"] == "denied" for ev in one["evs"])]
    if ended:
        shown = ", ".join(ended[:MAX_NAMED]) + (f" and {len(ended) - MAX_NAMED} more" * (len(ended) > MAX_NAMED))
        words = f"no path is left to queue pair{'s' * (len(ended) > 1)} {shown}: nothing is sent there until"
        print(f"softmrc: {words} `softmrc ctl allow` allows one again", file=sys.stderr)


def _batch_row(batch: control.BatchResult) -> Row:
    failed = [
        {"profile" if one.profile else "qpn": one.profile or one.qpn, "ev": one.ev, "error": one.error}
        for one in batch.failed
    ]
    return {"done": batch.done, "failed": failed}


def _failure(one: Row) -> str:
    whose = f"profile {one['profile']}" if "profile" in one else f"queue pair {qpn_text(one['qpn'])}"
    return f"{whose}, EV {one['ev']}: {one['error']}"


@ctl_app.command("replace")
def replace(
    number: Annotated[
        int, typer.Argument(parser=a_qpn, metavar="QPN", help="As `ctl qps` shows it. With --profile: its number.")
    ],
    ev: Annotated[int, typer.Argument(min=0, max=65535, help="Index of the EV.")],
    value: Annotated[str, typer.Argument(help="New value: 49999 or 0xc34f; of a wide EV, hexadecimal text.")],
    profile: Annotated[bool, typer.Option("--profile", help="In an EV profile's list.")] = False,
    all_copies: Annotated[
        bool, typer.Option("--all-copies", help="With --profile: also in queue pairs that use it.")
    ] = False,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Replace an EV by another path. Needs --device."""
    if all_copies and not profile:
        raise ConfigError("--all-copies", MISSING, "works only with --profile")
    # Longer ones are no number of 32 bits; whether they are wide values, the device says.
    is_number = value.isascii() and (value.isdecimal() or SHOWN_EV.fullmatch(value)) and len(value) <= 10
    new = int(value, 16 if "x" in value else 10) if is_number else value

    if device is None:
        raise ConfigError("--device", MISSING, "is missing", "Say -d NAME: the device of this queue pair or profile.")
    with control.find_device(device) as node:
        if profile:
            node.replace(None, ev, new, profile=number, all_copies=all_copies)
        else:
            node.replace(number, ev, new)
    if as_json:
        print_json({"device": node.name, "profile" if profile else "qpn": number, "ev": ev, "value": new})
    else:
        print(f"EV {ev} of {f'profile {number}' if profile else f'queue pair {qpn_text(number)}'} is {ev_text(new)}")


@ctl_app.command("port")
def port(
    plane: PlaneIndex,
    state: Annotated[str, typer.Argument(metavar="up|down", help="The new administrative state.")],
    device: DeviceName = None,
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """Take a plane out of service, or put it back.

    Needs --device or --all. This is the administrative state; the link has its own."""
    if state not in ("up", "down"):
        raise ConfigError("up|down", state, "must be up or down")

    def change(node: control.DeviceClient) -> Row:
        node.set_port(plane, state == "up")
        return {"planes": _plane_rows(node)}

    print_devices(as_json, each(targets(device, everything), change), lambda row: _planes_table(row["planes"]))


@ctl_app.command("faults")
def faults(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="FAULTS", help="For example drop=0.01 or 2:black_hole; '' clears. Omit to show the current faults."
        ),
    ] = None,
    device: DeviceName = None,
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """Inject faults into the planes of devices, or show them.

    To inject or clear faults, name the device (-d NAME) or use --all. FAULTS is as in SOFTMRC_FAULTS."""
    nodes = targets(device, everything or (text is None and device is None))
    found = each(nodes, lambda node: {"faults": node.faults() if text is None else node.set_faults(text)})
    print_devices(as_json, found, lambda row: _faults_table(row["faults"]))


def _faults_table(planes: list[Row]) -> Grid:
    shown = Grid("plane", "faults")
    for number, row in enumerate(planes):
        active = {name: value for name, value in row.items() if value and name != "reorder_delay_us"}
        words = [name if value is True else f"{name}={value:g}" for name, value in active.items()]
        shown.add_row(str(number), ", ".join(words) or "none")
    return shown


@ctl_app.command("capture")
def capture(
    file: Annotated[Path | None, typer.Argument(help="The pcapng file to write.")] = None,
    stop: Annotated[bool, typer.Option("--stop", help="End the running capture.")] = False,
    device: DeviceName = None,
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """Capture what a device sends and receives; end it with --stop.

    Needs --device or --all; with --all each device has a file, whose name ends with the device's."""
    if file is None and not stop:
        raise ConfigError("FILE", MISSING, "is missing: a file to capture into, or --stop")
    if file is not None and stop:
        raise ConfigError("--stop", MISSING, f"cannot be combined with a file to capture into, {file}")

    def change(node: control.DeviceClient) -> Row:
        own = file and (file.with_stem(f"{file.stem}-{node.name}") if everything else file)
        return node.capture(None if own is None else str(own.absolute()))

    def words(row: Row) -> str:
        return f"{row['packets']:,} packets in {row['path']}" if stop else f"capturing to {row['path']}"

    print_devices(as_json, each(targets(device, everything), change), words)


@ctl_app.command("probe")
def probe(
    peer: Annotated[int, typer.Argument(min=0, help="Number of the peer, as `ctl qps --json` shows it.")],
    plane: PlaneIndex,
    ev: Annotated[
        list[int],
        typer.Option(
            "--ev", parser=an_ev_value, metavar="VALUE", help="Value of an EV, as `ctl evs` shows it. Repeatable."
        ),
    ],
    device: DeviceName = None,
    timeout: Annotated[str, typer.Option(help="How long to wait for answers.")] = "1s",
    dscp: Annotated[int | None, typer.Option(min=0, max=63, help="DSCP of the probes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Probe selected paths to a peer."""
    with control.find_device(device) as node:
        found = control.probe(node, peer, plane, ev, seconds_of("--timeout", timeout, 0.001, 3600), dscp)
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

    print_rows(as_json, "probes", rows, table)
    if any(one.took_ns is None for one in found):
        raise typer.Exit(NO)


@ctl_app.command("events")
def events(
    device: DeviceName = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help=f"{', '.join(control.EVENT_TYPES)}. Repeatable."),
    ] = None,
    as_json: AsJsonLines = False,
    watch: Watch = False,
    interval: Interval = None,
) -> None:
    """Show events of ports, paths and queue pairs."""
    with control.find_device(device) as node:
        again(watch, interval, lambda _: _events(node, types or [], as_json))


def _events(node: control.DeviceClient, types: list[str], as_json: bool) -> None:
    found = node.events(types)
    if found.lost and as_json:
        print_json({"lost": found.lost}, is_stream=True)
    elif found.lost:
        print(f"({found.lost:,} earlier events were overwritten)")
    for one in found.events:
        if as_json:
            print_json(one, is_stream=True)
            continue
        clock = time.strftime("%H:%M:%S", time.localtime(one["at"])) + f"{one['at'] % 1:.6f}"[1:]
        say(f"{clock} {one['type']:<15} {printable(str(one.get('text', '')))}")


@ctl_app.command("push")
def push(
    denylist: Annotated[Path, typer.Argument(help="A denylist, as `softmrc mapper` writes it.")],
    fabric: Annotated[Path, typer.Option("--fabric", help="The fabric file of the denylist's links.")],
    as_json: AsJson = False,
) -> None:
    """Apply a denylist to every running device.

    Denies what it names, and allows again what it names no more. A device that fails does not stop the others."""
    from softmrc._support import resources
    from softmrc.fabric import AddressPlan, load
    from softmrc.fabric.denylist import Denylist

    wanted, description = Denylist.load(denylist), load(resources.find(fabric, resources.FABRICS, "--fabric"))
    plan = AddressPlan(description.fabric, description.addressing)
    wanted.links(description.fabric)
    nodes = control.devices()
    if not nodes:
        raise UsageError(NONE_RUNS.format(control.runtime_folder()))
    found = each(nodes, lambda node: asdict(control.push(node, wanted, plan)))
    print_devices(as_json, found, _pushed)
    if any(row["failed"] for row in found):
        raise typer.Exit(NO)


def _pushed(row: Row) -> str:
    failed = f", {row['failed']} failed" if row["failed"] else ""
    return f"{row['denied']} denied, {row['allowed']} allowed, {row['skipped']} queue pairs left alone{failed}"
