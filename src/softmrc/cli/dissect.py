"""`softmrc dissect`: a capture, one line a packet."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from softmrc import wire
from softmrc.cli.options import AsJsonLines, print_json
from softmrc.errors import MISSING, ConfigError, printable
from softmrc.wire.keylog import KEYLOG, Keys
from softmrc.wire.wireshark import install_wireshark

FIRST_RECORDS = 4096  # threads write side by side: the earliest is among these
_ICRC_WORDS = {wire.Sum.ABSENT: "absent", wire.Sum.GOOD: "ok", wire.Sum.BAD: "BAD"}


@dataclass(frozen=True)
class DissectedRecord:
    """A record and what was made of it: a frame, or the reason why it is none."""

    record: wire.Record
    frame: wire.Frame | None
    reason: str = ""
    opened: wire.Packet | None = None  # decrypted, where its key is known

    @property
    def closing(self) -> str:
        """What closes the packet, and whether it is right."""
        assert self.frame is not None
        if self.frame.sealed is not None:
            return "decrypted" if self.opened else "encrypted"
        return f"icrc {_ICRC_WORDS[self.frame.icrc]}"

    @property
    def packet(self) -> wire.Packet:
        assert self.frame is not None
        return self.opened or self.frame.packet

    def describe(self) -> str:
        assert self.frame is not None
        sealed, text = self.frame.sealed, self.packet.describe()
        if sealed is None:
            return text
        if not self.opened:
            text = text.replace(" imm 0", " imm hidden")
        return f"{text} key {sealed.qpn:06x}.{sealed.epoch} number {sealed.number}"


class _Columns:
    """Pads each column to the widest value it has held, so that lines align without knowing what comes."""

    def __init__(self, at_least: dict[int, int]) -> None:
        self._widths = Counter(at_least)

    def row(self, *cells: str) -> str:
        padded = []
        for i, cell in enumerate(cells):
            self._widths[i] = max(self._widths[i], len(cell))
            padded.append(cell.ljust(self._widths[i]))
        return " ".join(padded).rstrip()


def dissect(
    capture: Annotated[Path | None, typer.Argument(help="A pcapng or pcap file.", show_default=False)] = None,
    as_json: AsJsonLines = False,
    summary: Annotated[bool, typer.Option("--summary", help="Only count packets, by interface and opcode.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, max=(1 << 62), help="Stop after N packets.")
    ] = None,
    port: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=65535,
            help="A UDP port of MRC. Repeatable. Default: the capture's own; else "
            f"{wire.UDP_PORT} and every port with a correct ICRC.",
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(envvar=KEYLOG, help=f"A key log, to decrypt packets. Default: {KEYLOG}.", show_default=False),
    ] = None,
    install: Annotated[
        bool, typer.Option("--install-wireshark", help="Install the Lua dissector for Wireshark and tshark.")
    ] = False,
) -> None:
    """Print a capture, one packet a line.

    A line has time, plane, addresses, EV, path, ICRC or encryption, and the packet's fields."""
    if install:
        print(install_wireshark())
        return
    if capture is None:
        raise ConfigError("CAPTURE", MISSING, "is missing: a pcapng or pcap file, or --install-wireshark")
    read: Iterator[wire.Record] = itertools.islice(wire.read_pcapng(capture), limit)
    start, records = _earliest(read)
    known = Keys.read(keys) if keys is not None else Keys()
    seen = (_look(record, port or (), known) for record in records)
    if summary:
        _print_counts(seen, as_json)
    elif as_json:
        for one in seen:
            sys.stdout.write(json.dumps(_to_json(one)) + "\n")
    else:
        _print_lines(seen, start)


def _earliest(records: Iterator[wire.Record]) -> tuple[int, Iterator[wire.Record]]:
    """When the capture begins, and all its records; what cannot be read is raised where it is reached."""
    first: list[wire.Record] = []
    failure: wire.CaptureError | None = None
    try:
        first.extend(itertools.islice(records, FIRST_RECORDS))
    except wire.CaptureError as error:
        failure = error

    def all_of_them() -> Iterator[wire.Record]:
        yield from first
        if failure is not None:
            raise failure
        yield from records

    return min((record.time_ns for record in first), default=0), all_of_them()


def _look(record: wire.Record, ports: Collection[int], keys: Keys) -> DissectedRecord:
    try:
        frame = record.parse(ports)
        return DissectedRecord(record, frame, opened=keys.packet(record, frame))
    except wire.Refused as refused:
        cut = "" if record.is_whole else f" (the capture kept {len(record.frame)} of {record.original_size} bytes)"
        return DissectedRecord(record, None, refused.reason + cut)


def _print_lines(seen: Iterator[DissectedRecord], start: int) -> None:
    columns = _Columns({5: len("ce"), 6: len("icrc absent")})
    for one in seen:
        record, frame = one.record, one.frame
        time = _seconds(record.time_ns - start)
        plane = printable(record.interface.name) or str(record.interface.index)
        if frame is None:
            line = f"{time} {plane} not MRC: {one.reason}"
        else:
            route = frame.route
            line = columns.row(
                time, plane, f"{route.source} > {route.destination}", f"ev {frame.ev:08x}",
                f"via {frame.outer.path}" if frame.outer else "", "ce" if frame.marked else "",
                one.closing, one.describe(),
            )  # fmt: skip
        if record.comment:
            line += f"  # {printable(record.comment)}"
        sys.stdout.write(line + "\n")


def _seconds(ns: int) -> str:
    return f"{'-' if ns < 0 else ''}{abs(ns) // 10**9}.{abs(ns) % 10**9:09d}".rjust(14)


def _to_json(one: DissectedRecord) -> dict[str, Any]:
    record = one.record
    about: dict[str, Any] = {
        "time_ns": record.time_ns,
        "interface": record.interface.name or str(record.interface.index),
        "size": record.original_size,
    }
    if record.comment:
        about["comment"] = record.comment
    if one.frame is None:
        return about | {"refused": one.reason}
    frame = one.frame
    packet = one.packet
    body = {name: value for name, value in asdict(packet.body).items() if name != "payload"}
    bth = {name: value for name, value in asdict(packet.bth).items() if name != "opcode"}
    return about | {
        "source": str(frame.route.source),
        "destination": str(frame.route.destination),
        "ev": frame.ev,
        "path": frame.outer.path.usids if frame.outer else None,
        "dscp": frame.dscp,
        "ecn": frame.ecn.name.lower(),
        "trimmed": frame.trimmed,
        "icrc": _ICRC_WORDS[frame.icrc].lower(),
        "sealed": frame.sealed and frame.sealed._asdict() | {"opened": one.opened is not None},
        "udp_checksum": _ICRC_WORDS[frame.udp_checksum].lower(),
        "opcode": packet.opcode.name,
        "bth": bth,
        "body": body | _names(packet),
        "description": " ".join(one.describe().split()),
    }


def _names(packet: wire.Packet) -> dict[str, str]:
    """The names in the place of the numbers, for the fields that have them."""
    fields = {name: getattr(packet.body, name, None) for name in ("mark", "reason", "syndrome", "op")}
    return {name: value.name for name, value in fields.items() if value is not None}


def _print_counts(seen: Iterator[DissectedRecord], as_json: bool) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    for one in seen:
        plane = printable(one.record.interface.name) or str(one.record.interface.index)
        if one.frame is None:
            counts[plane, "not MRC", ""] += 1
        else:
            trimmed = " trimmed" if one.frame.trimmed else ""
            counts[plane, one.frame.packet.opcode.name + trimmed, one.closing] += 1
    for (plane, name, closing), packets in sorted(counts.items()):
        if as_json:
            icrc = closing.removeprefix("icrc ").lower()
            about = {"interface": plane, "opcode": name, "icrc": icrc, "packets": packets}
            print_json(about, is_stream=True)
        else:
            line = f"{packets:9d} {plane:<8} {name:<22} {closing}"
            sys.stdout.write(line.rstrip() + "\n")
    if not as_json:
        sys.stdout.write(f"{counts.total():9d} in all\n")
