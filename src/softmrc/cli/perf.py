"""`softmrc perf`: bandwidth and latency between two nodes, over all planes, by message size."""

from __future__ import annotations

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from softmrc.cli.options import AsJsonLines, Planes, Secret, planes_of, print_json, seconds_of
from softmrc.cli.ping import split_address
from softmrc.cli.terminal import terminal
from softmrc.connection import Connection, Message, Refusals, RemoteRegion, connect, listen
from softmrc.device import MemoryRegion
from softmrc.engine import CompletionStatus
from softmrc.errors import RemoteError, UsageError

SIZES = tuple(1 << shift for shift in range(1, 25, 2)) + (1 << 24,)
LARGEST = max(SIZES)
MEMORY = 32 << 20
ECHO, QUIET, END = 1, 2, 3
IDLE_S = 60.0  # for which a client may do nothing
ANSWER_S = 10.0  # for which a server may
REPORT_S, MOST_REPORTED = 1.0, 5  # how often a server reports clients that it refused, and how many at once


def serve(host: str, port: int, once: bool, console: Console, **settings: Any) -> None:
    """Serve clients concurrently: a silent one does not delay others."""
    with listen(host, port, memory=bytearray(MEMORY), **settings) as listener:
        planes = ", ".join(map(str, listener.device.local_planes))
        console.print(f"listening on {host} port {listener.port}, planes {planes}", highlight=False, soft_wrap=True)
        source = listener.device.register(bytearray(max(SIZES)))
        before, due = 0, 0.0
        while True:
            try:
                connection = listener.accept(REPORT_S)
            except TimeoutError:
                connection = None
            if time.monotonic() >= due:
                before, due = report(listener.refused, before, console), time.monotonic() + REPORT_S
            if connection is None:
                continue
            if once:
                if attend(connection, source, console):
                    return
                continue
            threading.Thread(target=attend, args=(connection, source, console), daemon=True).start()


def report(refused: Refusals, before: int, console: Console) -> int:
    """Print a line for each client that was refused since there were so many; the first few. How many there are now."""
    new = refused.count - before
    reasons = refused.reasons[-new:][:MOST_REPORTED] if new else ()
    for reason in reasons:
        console.print(f"refused: {reason}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if new > len(reasons):
        console.print(f"refused: {new - len(reasons):,} more", style="yellow", soft_wrap=True)
    return refused.count


def attend(connection: Connection, source: MemoryRegion, console: Console) -> bool:
    """One client, from beginning to end. Whether it has written anything: `softmrc ping` comes and does not."""
    console.print(f"serving {connection.peer_name}")
    has_written = False
    try:
        with connection:
            try:
                echo(connection, source)
            finally:
                has_written = connection.qp.stats()["packets_received"] > 0
    except RemoteError as error:
        console.print(str(error), style="yellow")
    except UsageError:
        if not connection.device.is_closed:
            raise
        # The command ends, and this with it.
    return has_written


def echo(connection: Connection, source: MemoryRegion) -> None:
    """Return each ECHO; leave at END."""
    while (message := next_message(connection)).imm != END:
        if message.imm == ECHO:
            return_echo(connection, source, message.length)


def next_message(connection: Connection) -> Message:
    """Some clients write and say nothing (`softmrc top`); one that never writes is disconnected."""
    while True:
        heard = connection.qp.stats()["packets_received"]
        try:
            return connection.recv(IDLE_S)
        except TimeoutError:
            if connection.qp.stats()["packets_received"] == heard:
                raise RemoteError(f"{connection.peer_name} has sent nothing for {IDLE_S:g} s") from None


def return_echo(connection: Connection, source: MemoryRegion, length: int) -> None:
    """A client may ask for as much, and as often, as ours do; one that asks for more is the one at fault."""
    if length > source.length:
        raise RemoteError(f"{connection.peer_name} asks for an echo of {length:,} bytes: at most {source.length:,}")
    try:
        rkey = memory_of(connection).rkey
        connection.qp.post_write(source, 0, length, remote_va=0, rkey=rkey, imm=ECHO, signaled=False)
    except UsageError as error:
        raise RemoteError(f"{connection.peer_name} asks for echoes and does not take them: {error}") from None


def memory_of(connection: Connection, least: int = 0) -> RemoteRegion:
    """Where a peer lets this side write."""
    if not connection.remote:
        raise RemoteError(f"{connection.peer_name} offers no memory to write to: is it `softmrc perf`?")
    if connection.remote[0].length < least:
        offered = f"offers {connection.remote[0].length:,} bytes to write to, of {least:,} that are needed"
        raise RemoteError(f"{connection.peer_name} {offered}: is it `softmrc perf`?")
    return connection.remote[0]


def post(connection: Connection, source: MemoryRegion, size: int, remote_va: int = 0, **more: Any) -> None:
    """A write to a server; raises with the reason if the connection has ended."""
    try:
        connection.qp.post_write(source, 0, size, remote_va=remote_va, rkey=connection.remote[0].rkey, **more)
    except UsageError:
        connection.check_alive()
        raise


def check_writes(connection: Connection, found: np.ndarray) -> None:
    """Raise if a write has failed."""
    for status in found["status"][found["status"] != 0].tolist():
        raise RemoteError(f"writes failed: peer {connection.peer} {connection.why(CompletionStatus(status))}")


def await_echo(connection: Connection) -> None:
    try:
        message = connection.recv(ANSWER_S)
    except TimeoutError:
        raise RemoteError(f"{connection.peer_name} returns no echo: is it `softmrc perf`?") from None
    if message.imm != ECHO:
        raise RemoteError(f"{connection.peer_name} answers otherwise than `softmrc perf` does")


def latency_us(connection: Connection, size: int, count: int) -> float:
    """Half a round trip, median."""
    source = connection.device.register(bytearray(size))
    memory_of(connection, size)
    took = []
    for _ in range(count):
        start = time.perf_counter()
        post(connection, source, size, imm=ECHO, signaled=False)
        await_echo(connection)
        took.append((time.perf_counter() - start) * 1e6 / 2)
    return statistics.median(took)


def bandwidth_gbps(connection: Connection, size: int, seconds: float, depth: int = 32) -> float:
    """Writes of one size, `depth` at a time."""
    source = connection.device.register(bytearray(size))
    memory_of(connection, MEMORY)
    posted = done = 0
    start = time.perf_counter()
    while (is_time := time.perf_counter() - start < seconds) or done < posted:
        while is_time and posted - done < depth:
            post(connection, source, size, posted % 2 * size % (MEMORY - size + 1))
            posted += 1
        found = connection.qp.send_cq.wait_array(ANSWER_S)
        check_writes(connection, found)
        if not len(found):
            raise RemoteError(f"{connection.peer_name} has acknowledged nothing for {ANSWER_S:g} s")
        done += len(found)
    return done * size * 8 / (time.perf_counter() - start) / 1e9


def together_gbps(connections: list[Connection], size: int, seconds: float) -> float:
    """All of them at once, each in a separate thread."""
    with ThreadPoolExecutor(len(connections)) as threads:
        return sum(threads.map(lambda one: bandwidth_gbps(one, size, seconds), connections))


def perf(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="The server to measure against. Without it, be the server.")
    ] = "",
    host: Annotated[str, typer.Option(help="Server: the address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Server: the TCP port to listen on.")] = 7471,
    planes: Planes = None,
    duration: Annotated[str, typer.Option(help="Client: time to measure each size.")] = "500ms",
    size: Annotated[
        list[int] | None,
        typer.Option(min=1, max=LARGEST, help="Client: bytes of a message. Repeatable. Default: 2 B to 16 MiB."),
    ] = None,
    as_json: AsJsonLines = False,
    once: Annotated[bool, typer.Option("--once", help="Server: exit after the first client that measures.")] = False,
    threads: Annotated[
        int, typer.Option(min=0, max=64, help="Threads; a client opens a connection in each. Default: by cores.")
    ] = 0,
    secret: Secret = None,
) -> None:
    """Measure bandwidth and latency between two nodes.

    Run `softmrc perf` on one node and `softmrc perf HOST:PORT` on the other."""
    console = terminal()
    seconds = seconds_of("--duration", duration, 0.05, 3600)
    settings: dict[str, Any] = {"planes": planes_of(planes), "secret": secret or None, "lanes": threads}
    if not address:
        serve(host, port, once, console, **settings)
        return
    far_host, far_port = split_address(address)
    with ExitStack() as stack:
        connection = stack.enter_context(connect(far_host, far_port, memory=bytearray(max(SIZES)), **settings))
        memory_of(connection, MEMORY)
        connections = [connection]
        for _ in range(1, threads):
            more = connect(far_host, far_port, device=connection.device, secret=settings["secret"])
            connections.append(stack.enter_context(more))
        if not as_json:
            here = ", ".join(map(str, connection.device.local_planes))
            console.print(f"{here} → {connection.peer}", highlight=False, soft_wrap=True)
            print(HEAD)
        for one in size or SIZES:
            one_way = latency_us(connection, one, 200 if one < 1 << 20 else 10)
            rate = together_gbps(connections, one, seconds)
            _print_row(one, one_way, rate, as_json)
        for each in connections:
            each.post(memory_of(each), 0, b"end", imm=END)


HEAD = f"{'bytes':>12} {'one way, µs':>14} {'Gb/s':>10} {'messages/s':>14}"


def _print_row(size: int, one_way_us: float, gbps: float, as_json: bool) -> None:
    """As soon as it is measured."""
    messages = gbps * 1e9 / 8 / size
    if as_json:
        row = {"bytes": size, "one_way_us": one_way_us, "gbps": gbps, "messages_per_s": messages}
        print_json(row, is_stream=True)
    else:
        print(f"{size:>12,} {one_way_us:>14,.1f} {gbps:>10,.3f} {messages:>14,.0f}", flush=True)
