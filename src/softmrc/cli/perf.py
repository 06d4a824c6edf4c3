"""`softmrc perf`: bandwidth and latency between two nodes, over all planes, by message size."""

from __future__ import annotations

import statistics
import time
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from softmrc.cli.ping import secret_from, split_address
from softmrc.cli.terminal import terminal
from softmrc.connection import Connection, RemoteRegion, connect, listen
from softmrc.errors import RemoteError, UsageError
from softmrc.verbs import MemoryRegion

SIZES = tuple(1 << shift for shift in range(1, 25, 2)) + (1 << 24,)
MEMORY = 32 << 20
ECHO, QUIET, END = 1, 2, 3


def serve(host: str, port: int, planes: list[str], secret: str | None, once: bool, console: Console) -> None:
    """Answer clients, one after the other."""
    with listen(host, port, memory=bytearray(MEMORY), planes=planes or None, secret=secret) as listener:
        console.print(f"listening on {host} port {listener.port}, {listener.device!r}")
        source = listener.device.register(bytearray(max(SIZES)))
        while True:
            try:
                with listener.accept() as connection:
                    console.print(f"serving {connection.peer_name}")
                    echo(connection, source)
            except RemoteError as error:
                console.print(str(error), style="yellow")
            if once:
                return


def echo(connection: Connection, source: MemoryRegion) -> None:
    """Return each ECHO; leave at END."""
    while (message := connection.recv()).imm != END:
        if message.imm == ECHO:
            return_echo(connection, source, message.length)


def return_echo(connection: Connection, source: MemoryRegion, length: int) -> None:
    """A client may ask for as much, and as often, as ours do; one that asks for more is the one at fault."""
    if length > source.length:
        raise RemoteError(f"{connection.peer_name} asks for an echo of {length:,} bytes: at most {source.length:,}")
    try:
        rkey = memory_of(connection).rkey
        connection.qp.post_write(source, 0, length, remote_va=0, rkey=rkey, imm=ECHO, signaled=False)
    except UsageError as error:
        raise RemoteError(f"{connection.peer_name} asks for echoes and does not take them: {error}") from None


def memory_of(connection: Connection) -> RemoteRegion:
    """Where a peer lets this side write."""
    if not connection.remote:
        raise RemoteError(f"{connection.peer_name} offers no memory to write to")
    return connection.remote[0]


def latency_us(connection: Connection, size: int, count: int) -> float:
    """Half a round trip, median."""
    source = connection.device.register(bytearray(size))
    qp, remote = connection.qp, memory_of(connection)
    took = []
    for _ in range(count):
        start = time.perf_counter()
        qp.post_write(source, 0, size, remote_va=0, rkey=remote.rkey, imm=ECHO, signaled=False)
        connection.recv(10)
        took.append((time.perf_counter() - start) * 1e6 / 2)
    return statistics.median(took)


def bandwidth_gbps(connection: Connection, size: int, seconds: float, depth: int = 32) -> float:
    """Writes of one size, `depth` at a time."""
    source = connection.device.register(bytearray(size))
    qp, remote = connection.qp, memory_of(connection)
    posted = done = 0
    start = time.perf_counter()
    while (is_time := time.perf_counter() - start < seconds) or done < posted:
        while is_time and posted - done < depth:
            qp.post_write(source, 0, size, remote_va=posted % 2 * size % (MEMORY - size + 1), rkey=remote.rkey)
            posted += 1
        found = qp.send_cq.wait_array(10)
        if not len(found) or found["status"].any():
            raise RemoteError(f"writes to {connection.peer} failed: {qp!r}")
        done += len(found)
    return done * size * 8 / (time.perf_counter() - start) / 1e9


def perf(
    address: str = typer.Argument("", help="The server's HOST:PORT; without it, be the server."),
    host: str = typer.Option("127.0.0.1", help="Server: where to listen."),
    port: int = typer.Option(7471, help="Server: the TCP port to listen on."),
    plane: list[str] = typer.Option([], help="A plane of this side: ADDRESS, ADDRESS%INTERFACE or INTERFACE. Repeat."),
    seconds: float = typer.Option(0.5, min=0.05, help="Client: time for each size."),
    once: bool = typer.Option(False, help="Server: leave after the first client."),
    secret: str = typer.Option(None, help="The shared secret; better in SOFTMRC_SECRET."),
) -> None:
    """Measure bandwidth and latency between two nodes: a server here, a client there."""
    console = terminal()
    if not address:
        serve(host, port, plane, secret_from(secret), once, console)
        return
    far_host, far_port = split_address(address)
    settings: dict[str, Any] = {"planes": plane or None, "secret": secret_from(secret), "memory": bytearray(max(SIZES))}
    with connect(far_host, far_port, **settings) as connection:
        table = Table(title=f"{connection.device!r} → {connection.peer}", title_justify="left")
        for column in ("bytes", "latency µs, one way", "Gb/s", "messages/s"):
            table.add_column(column, justify="right")
        for size in SIZES:
            one_way = latency_us(connection, size, 200 if size < 1 << 20 else 10)
            rate = bandwidth_gbps(connection, size, seconds)
            table.add_row(f"{size:,}", f"{one_way:,.1f}", f"{rate:,.3f}", f"{rate * 1e9 / 8 / size:,.0f}")
        connection.post(memory_of(connection), 0, b"end", imm=END)
    if not table.row_count:
        raise UsageError("nothing was measured")
    console.print(table)
