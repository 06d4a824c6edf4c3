"""Real sockets: goodput and latency of the driver, compared with TCP and plain UDP in alternating rounds.

Two processes, not pinned. TCP gets the same messages, the same buffers and the same freedom.
Ratios are taken round by round and their median reported, because the machine's speed drifts.
"""

from __future__ import annotations

import os
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from softmrc._support.subprocesses import WorkerProcess, python_command
from softmrc.connection import Connection, connect
from softmrc.errors import DeviceError, InternalError
from softmrc_bench import _native, half_open, lanes, links, spoofed_flood
from softmrc_bench.figures import BenchFigure, Sampled, Versus, compared, dumps
from softmrc_bench.flood import flood
from softmrc_bench.receiver import pattern
from softmrc_bench.veth import address_of, planes_of, veth_planes

MESSAGE = 1 << 20
HOT = 4 << 20
COLD = 64 << 20
DEPTH = 16
LOOPBACK = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"]
SECRET = "of the benchmark"  # for planes that are not on loopback
RAW_PACKET = 4136  # what a payload of 4 096 bytes makes on the wire
GSO_BATCH = (4 * 16_360, 16_360)  # the longest that a send takes in packets as long as ours, and one of them
UDP_SEGMENT = 103

TITLE = "Real sockets, two processes"
FIGURES = (
    BenchFigure("goodput_gbps", "goodput: 4 planes on loopback, 1 MiB writes", "Gb/s", 0, True),
    BenchFigure("tcp_gbps", "goodput of one TCP stream, same messages", "Gb/s", 0, True),
    BenchFigure(
        "ratio",
        "goodput on loopback, over one TCP stream",
        "",
        1.3,
        True,
        versus=Versus("one TCP stream", "goodput_gbps", "tcp_gbps", "Gb/s"),
    ),
    BenchFigure(
        "ratio_veth",
        "goodput between namespaces over four jumbo links, over one TCP stream",
        "",
        1.3,
        True,
        versus=Versus("one TCP stream", "veth_gbps", "veth_tcp_gbps", "Gb/s"),
    ),
    BenchFigure(
        "ratio_cold",
        "goodput with cold buffers of 64 MiB on both sides, over one TCP stream",
        "",
        1.3,
        True,
        versus=Versus("one TCP stream", "cold_gbps", "cold_tcp_gbps", "Gb/s"),
    ),
    BenchFigure("ratio_icrc_off", "goodput without ICRC, over one TCP stream", "", 1.3, True),
    BenchFigure("ceiling_gbps", "plain UDP, same GSO batches, no protocol, data discarded", "Gb/s", 0, True),
    BenchFigure(
        "ceiling_ratio",
        "goodput, over plain UDP with the same GSO batches",
        "",
        0,
        True,
        versus=Versus("plain UDP", "goodput_gbps", "ceiling_gbps", "Gb/s"),
    ),
    BenchFigure("raw_udp_gbps", "plain UDP, sendmmsg and recvmmsg, 4 KiB packets", "Gb/s", 0, True),
    BenchFigure(
        "quantum1_ratio",
        "goodput with a new path for every 4 KiB packet, over plain UDP",
        "",
        0.7,
        True,
        versus=Versus("plain UDP, 4 KiB packets", "quantum1_gbps", "raw_udp_gbps", "Gb/s"),
    ),
    BenchFigure("latency_us_p50", "2-byte ping-pong by write with immediate, round trip", "µs", 1e9, False),
    BenchFigure(
        "latency_ratio",
        "2-byte ping-pong, over TCP",
        "",
        1.5,
        False,
        versus=Versus("TCP", "latency_us_p50", "tcp_latency_us_p50", "µs"),
    ),
    BenchFigure("lossy_ratio", "goodput with 1 % loss on every path, over no loss", "", 0.7, True),
    BenchFigure(
        "flood_ratio", "goodput under 100,000 forged packets/s, over the same flood at another port", "", 0.8, True
    ),
    BenchFigure(
        "flood_spoofed_ratio", "same, packets spoofed from the peer's address: worst of three kinds", "", 0.8, True
    ),
    BenchFigure("flood_spoofed_condemned", "paths withdrawn by mistake at the end of a spoofed flood", "", 0, False),
    *half_open.FIGURES,
    *lanes.FIGURES,
    *links.FIGURES,
    BenchFigure("idle_cpu", "share of a core that an idle device uses", "", 0.01, False),
)


def sink(prefix: tuple[str, ...] = ()) -> WorkerProcess:
    """The other process. Neither side is pinned to a core: which cores other work leaves free changes."""
    other = WorkerProcess([*prefix, *python_command("softmrc_bench.receiver")])
    other.receive()
    return other


def tcp_gbps(other: WorkerProcess, host: str, seconds: float, size: int) -> float:
    """One stream, from a buffer of `size` bytes to another, a mebibyte at a time."""
    port = other.ask(do="tcp", host=host, size=size)["port"]
    source = memoryview(bytearray(os.urandom(min(size, 1 << 20)) * (size >> 20)))
    with socket.create_connection((host, port)) as stream:
        start = time.perf_counter()
        sent = 0
        while time.perf_counter() - start < seconds:
            at = sent % size
            stream.sendall(source[at : at + MESSAGE])
            sent += MESSAGE
        stream.shutdown(socket.SHUT_WR)
        stream.recv(1)
        elapsed = time.perf_counter() - start
    if other.receive()["bytes"] != sent:
        raise InternalError("TCP lost bytes")
    return sent * 8 / elapsed / 1e9


class Flow:
    """A connection to the other process, and writes over it."""

    base = 0  # where in the other's memory

    def __init__(
        self, other: WorkerProcess, host: str, size: int, planes: list[str], theirs: list[str], **settings: Any
    ) -> None:
        """`settings` are those of `listen` and `connect`."""
        self.port = other.ask(do="mrc", host=host, size=size, planes=theirs, settings=settings)["port"]
        self.other = other
        self.size = size
        self.connection: Connection = connect(host, self.port, planes=planes, **settings)
        other.receive()
        self.source = self.connection.device.register(bytearray(pattern(size)))

    def gbps(self, seconds: float) -> float:
        """Completed writes of a mebibyte, `DEPTH` at a time."""
        start = time.perf_counter()
        done = self.write_while(lambda: time.perf_counter() - start < seconds)
        return done * MESSAGE * 8 / (time.perf_counter() - start) / 1e9

    def write_while(self, goes_on: Callable[[], bool], message: int = MESSAGE, depth: int = DEPTH) -> int:
        """Write so many at a time until told to stop, and wait for those under way; how many that was."""
        qp, remote = self.connection.qp, self.connection.remote[0]
        posted = done = 0
        while (is_time := goes_on()) or done < posted:
            while is_time and posted - done < depth:
                at = posted * message % self.size
                qp.post_write(self.source, at, message, remote_va=self.base + at, rkey=remote.rkey, wr_id=posted)
                posted += 1
            found = qp.send_cq.wait_array(10.0)
            if not len(found) or found["status"].any():
                raise InternalError(f"writes stopped: {found} {qp!r} {qp.stats()}")
            done += len(found)
        return done

    def tell(self, **order: Any) -> dict[str, Any]:
        """An order to the other process while this flows."""
        return self.other.ask(**order)

    def close(self) -> dict[str, Any]:
        told = self.other.ask(stop=True)
        self.connection.close()
        return told


def raw_gbps(other: WorkerProcess, host: str, seconds: float, message: int = RAW_PACKET, segment: int = 0) -> float:
    """Plain UDP, one pair of sockets; with a segment, the kernel cuts and joins the messages (GSO and GRO)."""
    port = other.ask(do="raw", host=host, seconds=seconds, message=message, joins=bool(segment))["port"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, port))
        if segment:
            sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, segment)
        _native.send(sock.fileno(), message, seconds)
    return other.receive()["bytes_per_s"] * 8 / 1e9


def tcp_latencies_us(other: WorkerProcess, host: str, count: int, size: int) -> list[float]:
    port = other.ask(do="tcp_pong", host=host, size=size)["port"]
    took = []
    with socket.create_connection((host, port)) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        message, answer = b"x" * size, bytearray(size)
        for _ in range(count):
            start = time.perf_counter()
            stream.sendall(message)
            stream.recv_into(answer)
            took.append((time.perf_counter() - start) * 1e6)
    other.receive()
    return took


def mrc_latencies_us(
    other: WorkerProcess, host: str, count: int, size: int, planes: list[str], **settings: Any
) -> list[float]:
    """Write with immediate there and back."""
    port = other.ask(do="pong", host=host, size=size, planes=planes, settings=settings)["port"]
    took = []
    with connect(host, port, planes=planes, memory=bytearray(4096), **settings) as connection:
        qp, remote = connection.qp, connection.remote[0]
        source = connection.device.register(bytearray(4096))
        wait, post, post_recv = qp.recv_cq.wait_array, qp.post_write, qp.post_recv
        for _ in range(count):
            start = time.perf_counter()
            post(source, 0, size, remote_va=0, rkey=remote.rkey, imm=1, signaled=False)
            found = wait(5.0)
            took.append((time.perf_counter() - start) * 1e6)
            if not len(found):
                raise InternalError(f"no pong: {qp!r}")
            post_recv(count=len(found))
        connection.post(remote, 0, b"end", imm=0xFFFFFFFF)
    other.receive()
    return took


def _goodput(rounds: int, seconds: float) -> dict[str, Any]:
    host = LOOPBACK[0]
    with sink() as one, sink() as two, sink() as three:
        plain = Flow(one, host, HOT, LOOPBACK, LOOPBACK)
        no_icrc = Flow(two, host, HOT, LOOPBACK, LOOPBACK, icrc=False)
        rows = []
        for _ in range(rounds):
            tcp, ours, bare = tcp_gbps(three, host, seconds, HOT), plain.gbps(seconds), no_icrc.gbps(seconds)
            rows.append((ours, tcp, bare, raw_gbps(three, host, seconds, *GSO_BATCH)))
        plain.close()
        no_icrc.close()
    return {
        **compared(((ours, tcp) for ours, tcp, _, _ in rows), "goodput_gbps", "tcp_gbps"),
        **compared(((bare, tcp) for _, tcp, bare, _ in rows), "icrc_off_gbps", "tcp_gbps", "ratio_icrc_off"),
        **compared(((ours, raw) for ours, _, _, raw in rows), "goodput_gbps", "ceiling_gbps", "ceiling_ratio"),
    }


def _cold(rounds: int, seconds: float) -> dict[str, Any]:
    host = LOOPBACK[0]
    with sink() as one, sink() as two:
        flow = Flow(one, host, COLD, LOOPBACK, LOOPBACK)
        rows = [(flow.gbps(seconds), tcp_gbps(two, host, seconds, COLD)) for _ in range(rounds)]
        flow.close()
    return compared(rows, "cold_gbps", "cold_tcp_gbps", "ratio_cold")


def _spraying(rounds: int, seconds: float) -> dict[str, Any]:
    host = LOOPBACK[0]
    with sink() as one, sink() as two:
        flow = Flow(one, host, HOT, LOOPBACK, LOOPBACK, quantum=1, mtu=4096)
        rows = [(flow.gbps(seconds), raw_gbps(two, host, seconds)) for _ in range(rounds)]
        flow.close()
    return compared(rows, "quantum1_gbps", "raw_udp_gbps", "quantum1_ratio")


def _latency(rounds: int, count: int) -> dict[str, Any]:
    host = LOOPBACK[0]
    rows = []
    with sink() as other:
        for _ in range(rounds):
            theirs = statistics.median(tcp_latencies_us(other, host, count, 2))
            ours = statistics.median(mrc_latencies_us(other, host, count, 2, LOOPBACK))
            rows.append((ours, theirs))
    return compared(rows, "latency_us_p50", "tcp_latency_us_p50", "latency_ratio")


def _lossy(rounds: int, seconds: float) -> dict[str, Any]:
    rows = []
    with sink() as one:
        flow = Flow(one, LOOPBACK[0], HOT, LOOPBACK, LOOPBACK)
        for _ in range(rounds):
            flow.connection.device.set_faults()
            fair = flow.gbps(seconds)
            flow.connection.device.set_faults(drop=0.01)
            rows.append(flow.gbps(seconds) / fair)
        flow.close()
    return {"lossy_ratio": Sampled(rows)}


def _flood(rounds: int, seconds: float) -> dict[str, Any]:
    """Goodput under forged datagrams at the receiver's ports, over goodput under the same at an unrelated socket."""
    rows = []
    with sink() as one, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bystander:
        bystander.bind((LOOPBACK[0], 0))
        flow = Flow(one, LOOPBACK[0], HOT, LOOPBACK, LOOPBACK)
        peer = flow.connection.peer
        for _ in range(rounds):
            with flood([bystander.getsockname()]):
                elsewhere = flow.gbps(seconds)
            with flood([(str(plane.address), plane.port) for plane in peer.planes]):
                rows.append(flow.gbps(seconds) / elsewhere)
        told = flow.close()
    return {"flood_ratio": Sampled(rows), "flood_strangers": told["strangers"]}


def _flood_spoofed(rounds: int, seconds: float) -> dict[str, Any]:
    with sink() as one:
        flow = Flow(one, LOOPBACK[0], HOT, LOOPBACK, LOOPBACK)
        figures = spoofed_flood.measure(flow, rounds, seconds)
        device = flow.close()["device"]
    return figures | {"flood_spoofed_taken": device["refused_bad_icrc"] + device["endpoint_requests"]}


def _idle(seconds: float) -> dict[str, Any]:
    with sink() as one:
        flow = Flow(one, LOOPBACK[0], HOT, LOOPBACK, LOOPBACK)
        flow.gbps(0.05)
        time.sleep(0.5)
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(seconds)
        after = resource.getrusage(resource.RUSAGE_SELF)
        flow.close()
    used = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return {"idle_cpu": used / seconds}


def _veth(rounds: int, seconds: float) -> dict[str, Any]:
    """Between two namespaces over four jumbo links; null where this machine does not let us make them."""
    try:
        with veth_planes(4, mtu=9000) as lab:
            return lab.inside(0, "softmrc_bench.udp", "veth", str(rounds), str(seconds), lab.names[1])
    except DeviceError as error:
        return {"ratio_veth": None, "veth_refused": str(error)}


def veth_inside(rounds: int, seconds: float, namespace: str) -> dict[str, Any]:
    """Runs in the first namespace."""
    mine, theirs = planes_of(0, 4), planes_of(1, 4)
    host = address_of(1, 0)
    with sink(("ip", "netns", "exec", namespace)) as one, sink(("ip", "netns", "exec", namespace)) as two:
        flow = Flow(one, host, HOT, mine, theirs, secret=SECRET, seal="off")
        rows = [(flow.gbps(seconds), tcp_gbps(two, host, seconds, HOT)) for _ in range(rounds)]
        flow.close()
    return compared(rows, "veth_gbps", "veth_tcp_gbps", "ratio_veth")


def measure(quick: bool = False) -> dict[str, Any]:
    """All figures; `quick` for a look, not for the record."""
    rounds, seconds = (2, 0.4) if quick else (7, 1.0)
    figures = _goodput(rounds, seconds)
    figures |= _cold(rounds, seconds)
    figures |= _spraying(rounds, seconds)
    figures |= _latency(rounds, 500 if quick else 3000)
    figures |= _lossy(rounds, seconds)
    figures |= _flood(rounds, seconds)
    figures |= _flood_spoofed(rounds, seconds)
    with sink() as other:
        figures |= half_open.measure(other, quick)
    figures |= lanes.measure(rounds, seconds)
    figures |= _veth(rounds, seconds)
    figures |= links.measure(quick)
    figures |= _idle(1.0 if quick else 5.0)
    figures["rounds"] = rounds
    return figures


if __name__ == "__main__":
    print(dumps(veth_inside(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])))
