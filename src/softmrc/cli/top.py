"""`softmrc top`: what running devices do, live. It queries their control sockets and does not disturb them.

With `--load HOST:PORT` there is a load to look at: writes to a `softmrc perf` over every plane, from a device of this
process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from softmrc._support.files import runtime_folder
from softmrc.cli.marks import LEGENDS, MARKS
from softmrc.cli.options import DeviceName, Planes, Secret, planes_of, seconds_of
from softmrc.cli.perf import END, check_writes, memory_of, post
from softmrc.cli.ping import split_address
from softmrc.cli.terminal import Grid, a_number, terminal
from softmrc.connection import connect
from softmrc.engine import EvState
from softmrc.errors import MISSING, ConfigError, RemoteError, UsageError, printable
from softmrc.ops import control

MESSAGE = 1 << 20
DEPTH = 8
MAX_MARKS = 64  # paths of a plane that are shown one by one
COUNTS = {
    "packets_retransmitted": "retransmitted",
    "loss_spurious": "needlessly",
    "evs_demoted": "paths withdrawn",
    "evs_revived": "revived",
    "timeouts": "timeouts",
}
LEGEND = Text.assemble(
    "paths:  ", *(part for state, words in LEGENDS.items() for part in (MARKS[state], f" {words}  "))
)
HEADS = ("plane", "state", "out, Gb/s", "in, Gb/s", "packets/s", "window, B", "paths")
Work = Callable[[float], None]  # does something for so many seconds


class DeviceView:
    """A device and its last sample."""

    def __init__(self, node: control.DeviceClient) -> None:
        self._node = node
        self._info = node.info()
        self._before = self._look()

    def _look(self) -> dict[str, Any]:
        return {"at": time.monotonic(), "planes": self._node.stats()["planes"], "qps": self._node.queue_pairs()}

    def draw(self) -> RenderableType:
        """What it did since then."""
        try:
            now = self._look()
        except (RemoteError, UsageError) as error:
            return Text(f"{self._node.name}: {error}", "yellow")
        before, self._before = self._before, now
        span_s = max(now["at"] - before["at"], 1e-3)
        grid = Grid(*HEADS, spare=("packets/s", "window, B", "in, Gb/s", "state"), folds="paths")
        for number, (old, new) in enumerate(zip(before["planes"], now["planes"], strict=False)):
            grid.add_row(
                *self._row(number, old, new, span_s), window_of(now["qps"], number), paths_of(now["qps"], number)
            )
        return Group(self._head(now["qps"]), grid, changes(before["qps"], now["qps"], span_s))

    def _head(self, qps: list[dict[str, Any]]) -> Text:
        flight = sum(qp.get("bytes_in_flight") or 0 for qp in qps)
        trips = [qp.get("smoothed_rtt_us") or 0 for qp in qps if (qp.get("stats") or {}).get("packets_sent")]
        trip = f", round trip {max(trips):,.0f} µs at most" if trips else ""
        many = f"{len(qps)} queue pair{'s' * (len(qps) != 1)}"
        program = printable(str(self._info.get("program", "")))
        return Text.assemble((self._node.name, "bold"), f"  {program}\n{many}, {flight:,} B in flight{trip}")

    def _row(self, number: int, old: dict[str, Any], new: dict[str, Any], span_s: float) -> list[str | Text]:
        def rate(name: str) -> float:
            return (new[name] - old[name]) / span_s

        planes = self._info.get("planes") or []
        plane = planes[number] if number < len(planes) else {}
        where = plane.get("interface") or plane.get("address", "?")
        state = Text("up", "green") if new["is_up"] else Text("down", "red")
        speeds = [f"{rate(name) * 8e-9:.3f}" for name in ("bytes_sent", "bytes_received")]
        return [f"{number} {where}", state, *speeds, f"{rate('packets_sent') + rate('packets_received'):,.0f}"]


def window_of(qps: list[dict[str, Any]], plane: int) -> str:
    """How much all queue pairs together may have in flight there; empty where their windows know no planes."""
    windows = [qp["port_window_bytes"][plane] for qp in qps if len(qp.get("port_window_bytes") or ()) > plane]
    return f"{sum(windows):,}" if windows else ""


def paths_of(qps: list[dict[str, Any]], plane: int) -> Text:
    """The paths of a plane, of all queue pairs, in their order; where those are many, how many are in which state."""
    states = [
        getattr(EvState, one["state"].upper()) for qp in qps for one in qp.get("evs") or () if one["plane"] == plane
    ]
    if len(states) <= MAX_MARKS:
        return Text("").join(MARKS[state] for state in states)
    counted = [Text.assemble(MARKS[state], f" {states.count(state)}") for state in EvState if state in states]
    return Text("  ").join(counted)


def changes(before: list[dict[str, Any]], now: list[dict[str, Any]], span_s: float) -> Text:
    """What happened to packets and paths, a second; queue pairs that came or went in between do not count."""
    old = {qp["qpn"]: qp.get("stats") or {} for qp in before}
    new = {qp["qpn"]: qp.get("stats") or {} for qp in now if qp["qpn"] in old}
    grown = {name: sum(new[qpn].get(name, 0) - old[qpn].get(name, 0) for qpn in new) for name in COUNTS}
    return Text("  ".join(f"{words} {max(grown[name], 0) / span_s:,.0f}/s" for name, words in COUNTS.items()))


@contextmanager
def load_on(address: str, planes: list[str] | None, loss: float, secret: str | None) -> Iterator[Work]:
    """Writes to a `softmrc perf`, eight at a time, by a device of this process."""
    host, port = split_address(address)
    with connect(host, port, planes=planes, secret=secret or None) as connection:
        if not connection.device.control:
            raise UsageError("top needs control sockets, and SOFTMRC_CONTROL=0 disables them")
        connection.device.set_faults(drop=loss)
        source = connection.device.register(bytearray(MESSAGE))
        remote, under_way = memory_of(connection, MESSAGE), 0

        def work(seconds: float) -> None:
            nonlocal under_way
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                while under_way < DEPTH:
                    post(connection, source, MESSAGE)
                    under_way += 1
                found = connection.qp.send_cq.wait_array(left)
                check_writes(connection, found)
                under_way -= len(found)

        yield work
        connection.post(remote, 0, b"end", imm=END)


def watched(device: str | None) -> list[DeviceView]:
    """The one that is named, or all of this user's."""
    nodes = control.devices() if device is None else [control.find_device(device)]
    found = []
    for node in nodes:
        with suppress(RemoteError, UsageError):  # it has just ended or does not answer
            found.append(DeviceView(node))
    if not found:
        raise UsageError(
            f"no running device of yours in {runtime_folder()}; --load HOST:PORT makes a load, against a `softmrc perf`"
        )
    return found


def look(sights: list[DeviceView], work: Work, seconds: float, interval_s: float) -> None:
    """Draw until the time is over, or Ctrl-C; where there is no terminal, once, at the end."""
    console = terminal()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    until = time.monotonic() + seconds if seconds else float("inf")
    drawn: RenderableType = ""
    with live or nullcontext(), suppress(KeyboardInterrupt):
        while (left := until - time.monotonic()) > 0:
            work(min(interval_s, left))
            drawn = Group(*(sight.draw() for sight in sights), LEGEND)
            if live is not None:
                live.update(drawn, refresh=True)
    if live is None:
        console.print(drawn)


def top(
    device: DeviceName = None,
    duration: Annotated[str, typer.Option(help="Stop after this time. Default: on Ctrl-C.", show_default=False)] = "0",
    interval: Annotated[str, typer.Option(help="Time between updates.")] = "500ms",
    load: Annotated[str | None, typer.Option("--load", help="Generate load against this `softmrc perf`.")] = None,
    planes: Planes = None,
    loss: Annotated[
        float, typer.Option(min=0.0, max=1.0, callback=a_number, help="With --load: share of its packets to drop.")
    ] = 0.0,
    secret: Secret = None,
) -> None:
    """Watch running devices: planes, paths, retransmissions.

    Without --device, all devices of this user. --planes, --loss and --secret are of the load."""
    seconds = seconds_of("--duration", duration)
    interval_s = seconds_of("--interval", interval, 0.05, 3600)
    if load is None:
        for name, value in (("--planes", planes), ("--loss", loss), ("--secret", secret)):
            if value:
                raise ConfigError(name, MISSING, "works only with --load HOST:PORT")
        look(watched(device), time.sleep, seconds, interval_s)
        return
    if device is not None:
        raise ConfigError("--device", device, "cannot be combined with --load")
    with load_on(load, planes_of(planes), loss, secret) as work:
        look(watched(str(os.getpid())), work, seconds, interval_s)
