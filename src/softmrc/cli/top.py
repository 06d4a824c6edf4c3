"""`softmrc top HOST:PORT`: a load over every plane, and what happens to planes and paths while it runs."""

from __future__ import annotations

import time
from typing import Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from softmrc.cli.perf import END, check_writes, memory_of, post
from softmrc.cli.ping import secret_from, split_address
from softmrc.cli.terminal import LEGENDS, MARKS, a_number, terminal
from softmrc.connection import Connection, connect
from softmrc.engine import EvState

MESSAGE = 1 << 20
DEPTH = 8
RATES = {
    "packets_sent": "packets sent",
    "packets_retransmitted": "sent again",
    "loss_spurious": "needlessly",
    "evs_demoted": "paths withdrawn",
    "evs_revived": "trusted again",
    "timeouts": "timeouts",
}
LEGEND = Text.assemble(
    "paths, in the order of their numbers:  ",
    *(part for state, words in LEGENDS.items() for part in (MARKS[state], f" {words}  ")),
)


def view(connection: Connection, before: dict[str, Any], now: dict[str, Any], span_s: float) -> Group:
    """One screen."""
    table = Table(expand=False)
    for column in ("plane", "state", "Gb/s", "packets/s", "window, B", "paths"):
        table.add_column(column, justify="right" if "/" in column or "," in column else "left")
    evs, query = connection.qp.evs(), connection.qp.query()
    windows = query["port_window_bytes"]
    for number, (old, new) in enumerate(zip(before["planes"], now["planes"], strict=True)):
        rate = (new["bytes_sent"] - old["bytes_sent"]) * 8 / span_s / 1e9
        packets = (new["packets_sent"] - old["packets_sent"]) / span_s
        own = sorted(evs[evs["port"] == number], key=lambda ev: int(ev["value"]))
        marks = Text("").join(MARKS[EvState(int(ev["state"]))] for ev in own)
        state = Text("up", "green") if new["is_up"] else Text("down", "red")
        plane = connection.device.local_planes[number]
        window = f"{windows[number]:,}" if windows else ""
        table.add_row(f"{number} {plane}", state, f"{rate:.3f}", f"{packets:,.0f}", window, marks)
    head = Text.assemble(
        (str(connection.peer), "bold"),
        f"  window {query['window_bytes']:,} B, {query['bytes_in_flight']:,} in flight, "
        f"round trip {query['smoothed_rtt_us']:,.0f} µs, {query['state'].name}",
    )
    deltas = [f"{words} {(now['qp'][name] - before['qp'][name]) / span_s:,.0f}/s" for name, words in RATES.items()]
    return Group(head, table, LEGEND, Text("  ".join(deltas)))


def _sample(connection: Connection) -> dict[str, Any]:
    return {"planes": connection.device.planes(), "qp": connection.qp.stats()}


def top(
    address: str = typer.Argument(help="Where `softmrc perf` listens: HOST:PORT."),
    plane: list[str] = typer.Option([], help="A plane of this side: ADDRESS, ADDRESS%INTERFACE or INTERFACE. Repeat."),
    seconds: float = typer.Option(0.0, min=0.0, max=1e9, callback=a_number, help="Leave after so long; 0: on Ctrl-C."),
    interval_s: float = typer.Option(0.5, min=0.05, max=3600, callback=a_number, help="How often the screen changes."),
    loss: float = typer.Option(
        0.0, min=0.0, max=1.0, callback=a_number, help="Share of packets to lose on every plane."
    ),
    secret: str = typer.Option(None, help="The shared secret; better in SOFTMRC_SECRET."),
) -> None:
    """Watch a load live: planes, the state of every path, window, retransmissions."""
    host, port = split_address(address)
    with connect(host, port, planes=plane or None, secret=secret_from(secret)) as connection:
        connection.device.set_faults(drop=loss)
        source = connection.device.register(bytearray(MESSAGE))
        qp, remote = connection.qp, memory_of(connection, MESSAGE)
        start = shown_at = time.monotonic()
        before = _sample(connection)
        posted = done = 0
        try:
            with Live(console=terminal(), auto_refresh=False) as live:
                while not seconds or time.monotonic() - start < seconds:
                    while posted - done < DEPTH:
                        post(connection, source, MESSAGE)
                        posted += 1
                    found = qp.send_cq.wait_array(interval_s)
                    check_writes(connection, found)
                    done += len(found)
                    span = time.monotonic() - shown_at
                    if span >= interval_s:
                        now = _sample(connection)
                        live.update(view(connection, before, now, span), refresh=True)
                        before, shown_at = now, time.monotonic()
        except KeyboardInterrupt:
            pass
        connection.post(remote, 0, b"end", imm=END)
