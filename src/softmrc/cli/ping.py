"""`softmrc ping HOST:PORT`: every path to a listening node, one line each."""

from __future__ import annotations

import re
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from softmrc._support.units import ev_text
from softmrc.cli.exit_codes import NO
from softmrc.cli.options import AsJson, Planes, Secret, planes_of, print_json, seconds_of
from softmrc.cli.terminal import Grid, terminal
from softmrc.connection import Connection, connect
from softmrc.device import EventType
from softmrc.engine import EvState
from softmrc.errors import ConfigError

PORT = re.compile("[0-9]{1,5}")


def split_address(text: str) -> tuple[str, int]:
    """HOST:PORT, with an IPv6 host in brackets; several addresses of the host have commas between them."""
    host, _, port = text.rpartition(":")
    if not host or not PORT.fullmatch(port):
        raise ConfigError("address", text, "must be HOST:PORT, for example 10.0.0.2:7000 or [fd00::2]:7000")
    return ",".join(part.strip().strip("[]") for part in host.split(",")), int(port)


def probe_all(connection: Connection, count: int, interval_s: float) -> dict[tuple[int, int], list[float]]:
    """Round trips in µs of every path, by (plane, EV); a probe that was not answered leaves no entry."""
    paths = [(int(ev["port"]), int(ev["value"])) for ev in connection.qp.evs()]
    answers: dict[tuple[int, int], list[float]] = {path: [] for path in paths}
    device = connection.device
    device.poll_events()
    tokens: dict[int, tuple[int, int]] = {}

    def collect() -> None:
        for event in device.poll_events():
            if event.type == EventType.probe_answer and event.psn in tokens:
                answers[tokens.pop(event.psn)].append(event.value / 1e6)

    for turn in range(count):
        for number, path in enumerate(paths):
            token = turn * len(paths) + number
            tokens[token] = path
            device.probe(connection.peer, path[0], path[1], token)
        time.sleep(interval_s)
        collect()
    until = time.monotonic() + 1.0
    while tokens and time.monotonic() < until:
        time.sleep(0.01)
        collect()
    return answers


def seen(answered: int, asked: int, state: EvState) -> str:
    """What the probes showed of a path, and what the connection holds against it. Probes by hand change no state, so a
    path that is GOOD to the connection may be silent here."""
    words = "answers" if answered == asked else "loses" if answered else "silent"
    return words if state == EvState.GOOD else f"{words}, {state.name}"


@dataclass(frozen=True)
class PlaneStatus:
    """What gets through on one plane, as was found out when the connection was made."""

    plane: int
    address: str
    link_mtu: int
    path_mtu: int  # bytes of the largest IP packets that get through; 0: full ones do
    full: int  # bytes of the largest that would leave
    is_narrow: bool

    @classmethod
    def of(cls, connection: Connection, plane: int) -> PlaneStatus:
        sizes, row = connection.discover_mtu(), connection.device.planes()[plane]
        here, path = connection.device.local_planes[plane], row["path_mtu"]
        full = sizes.bytes_of(plane, connection.device.payload(connection.is_sealed))
        return cls(plane, here.interface or str(here), row["link_mtu"], path, full, path > 0)


@dataclass(frozen=True)
class Row:
    """One path."""

    plane: int
    address: str
    path: int
    sent: int
    answered: int
    median_us: float | None
    best_us: float | None
    worst_us: float | None
    seen: str

    @classmethod
    def of(cls, connection: Connection, path: tuple[int, int], times: list[float], count: int, state: EvState) -> Row:
        here = connection.device.local_planes[path[0]]
        median, best, worst = (round(f(times), 1) if times else None for f in (statistics.median, min, max))
        words = seen(len(times), count, state)
        return cls(path[0], here.interface or str(here), path[1], count, len(times), median, best, worst, words)

    def cells(self) -> list[str]:
        figures = [f"{one:,.0f}" if one is not None else "—" for one in (self.median_us, self.best_us, self.worst_us)]
        loss = f"{1 - self.answered / self.sent:.0%}"
        return [f"{self.plane} {self.address}", ev_text(self.path), *figures, loss, self.seen]


def ping(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where a node listens, as `softmrc perf` does.")],
    planes: Planes = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="Probes on every path.")] = 5,
    interval: Annotated[str, typer.Option(help="Pause between two rounds.")] = "100ms",
    as_json: AsJson = False,
    secret: Secret = None,
) -> None:
    """Probe every path to a node: round trip, loss, path MTU."""
    host, port = split_address(address)
    pause_s = seconds_of("--interval", interval, 0.001, 3600)
    with connect(host, port, planes=planes_of(planes), secret=secret or None) as connection:
        carried = [PlaneStatus.of(connection, number) for number in range(len(connection.device.local_planes))]
        answers = probe_all(connection, count, pause_s)
        states = {(int(ev["port"]), int(ev["value"])): EvState(int(ev["state"])) for ev in connection.qp.evs()}
        rows = [Row.of(connection, path, times, count, states[path]) for path, times in answers.items()]
        to = str(connection.peer)
    if as_json:
        found = {"peer": to, "planes": [asdict(one) for one in carried], "paths": [asdict(row) for row in rows]}
        print_json(found)
    else:
        heads = ("plane", "path", "median", "best", "worst", "loss", "seen")
        title = f"{len(rows)} paths to {to}; round trips in µs"
        table = Grid(*heads, spare=("best", "worst", "path", "loss"), title=title)
        for row in rows:
            table.add_row(*row.cells())
        terminal().print(table)
        for one in carried:
            if one.is_narrow:
                print(
                    f"plane {one.plane} {one.address}: packets of up to {one.path_mtu:,} bytes get through, "
                    f"of {one.full:,} they do not"
                )
    if any(row.answered < row.sent for row in rows) or any(one.is_narrow for one in carried):
        raise typer.Exit(NO)
