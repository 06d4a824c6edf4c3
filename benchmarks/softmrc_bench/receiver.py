"""The other process of a measurement: takes orders as JSON lines on stdin, answers on stdout, and receives.

Run as `python -m softmrc_bench.receiver`. Orders: mrc, tcp, raw, pong (MRC), tcp_pong, crowd; each serves one peer.
"""

from __future__ import annotations

import random
import resource
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from softmrc._support.subprocesses import read_messages, write_message
from softmrc.connection import listen
from softmrc.device import Device, QueuePair
from softmrc_bench import _native

TCP_CHUNK = 1 << 20
SO_RCVBUFFORCE = 33
UDP_GRO = 104
IPPROTO_MPTCP = 262


def _tcp_listener(host: str, protocol: int = 0) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    server.bind((host, 0))
    server.listen()
    write_message(port=server.getsockname()[1])
    server.settimeout(30)
    return server


def tcp(host: str, size: int, **_: Any) -> None:
    """Receive until the end into a buffer of `size` bytes, used round and round; then confirm with one byte."""
    with _tcp_listener(host) as server, server.accept()[0] as peer:
        buffer = memoryview(bytearray(size))
        at = total = 0
        while got := peer.recv_into(buffer[at : at + TCP_CHUNK]):
            at = (at + got) % size
            total += got
        peer.sendall(b"!")
    write_message(bytes=total)


def tcp_pong(host: str, size: int, **_: Any) -> None:
    """Return every message of `size` bytes."""
    with _tcp_listener(host) as server, server.accept()[0] as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(size)
        while peer.recv_into(buffer):
            peer.sendall(buffer)
    write_message(done=True)


def rss_mib() -> float:
    """What this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def mrc(host: str, size: int, planes: list[str], settings: dict[str, Any], flows: int = 1, **_: Any) -> None:
    """Be written to until told to stop, by so many connections."""
    memory = bytearray(size)
    with listen(host, memory=memory, planes=planes, **settings) as listener:
        write_message(port=listener.port)
        connections = [listener.accept(30) for _ in range(flows)]
        write_message(connected=True)
        rss = rss_mib()
        _obey(listener.device, [connection.qp for connection in connections], memory)
        rows = listener.device.planes()
        write_message(
            stats=connections[0].qp.stats(),
            strangers=sum(row["strangers"] for row in rows),
            packets=sum(row["packets_received"] for row in rows),
            device=listener.device.stats(),
            refused=listener.refused.count,
            rss_growth_mib=rss_mib() - rss,
        )
        for connection in connections:
            connection.close()


def crowd(host: str, **_: Any) -> None:
    """Accept one peer while other connections are pending."""
    with listen(host, planes=[host]) as listener:
        write_message(port=listener.port)
        listener.accept(60).close()
        refused = listener.refused.count
    write_message(refused=refused)


def pattern(size: int) -> bytes:
    """What a buffer of this size must hold after every byte was written."""
    return random.Random(size).randbytes(1 << 20) * (size >> 20)


class PlacedBytes:
    """The bytes that some queue pairs place from now on, in bins of 1 ms. A thread reads their counters every
    millisecond; between two readings the bytes are taken to have come evenly."""

    def __init__(self, qps: list[QueuePair], bins: int) -> None:
        self.started_ns = time.monotonic_ns()
        self._qps = qps
        self._edges_ns = self.started_ns + np.arange(bins + 1) * 1_000_000
        self._readings = [(self.started_ns, self._placed())]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _placed(self) -> int:
        return sum(qp.stats()["bytes_placed"] for qp in self._qps)

    def _run(self) -> None:
        while self._readings[-1][0] < self._edges_ns[-1] and not self._stopped.wait(1e-3):
            self._readings.append((time.monotonic_ns(), self._placed()))

    def bins(self) -> list[float]:
        at_ns, placed = zip(*self._readings.copy(), strict=True)
        return np.diff(np.interp(self._edges_ns, at_ns, placed)).tolist()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def _obey(device: Device, qps: list[QueuePair], memory: bytearray) -> None:
    """Orders during a flow: placed bytes in bins of 1 ms, the count of bytes that are wrong, faults."""
    placed: PlacedBytes | None = None
    for order in read_messages():
        if "start" in order:
            if placed:
                placed.stop()
            placed = PlacedBytes(qps, int(order["start"]))
            write_message(started_ns=placed.started_ns)
        elif "faults" in order:
            device.set_faults(**order["faults"])
            write_message(done=True)
        elif "read" in order:
            write_message(bins=placed.bins() if placed else [])
        elif "check" in order:
            wanted = np.frombuffer(pattern(len(memory)), dtype=np.uint8)
            write_message(corrupt=int(np.count_nonzero(np.frombuffer(memory, dtype=np.uint8) != wanted)))
        else:
            break
    if placed:
        placed.stop()


def mptcp(bins: int, **_: Any) -> None:
    """Bytes received in 1 ms bins since the peer connected. Every address listens, for subflows that join later."""
    with _tcp_listener("", IPPROTO_MPTCP) as server, server.accept()[0] as peer:
        counts = [0] * bins
        buffer = bytearray(1 << 18)
        start_ns = time.monotonic_ns()
        while got := peer.recv_into(buffer):
            bin_number = (time.monotonic_ns() - start_ns) // 1_000_000
            if bin_number < bins:
                counts[bin_number] += got
    write_message(bins=counts, started_ns=start_ns)


def pong(host: str, size: int, planes: list[str], settings: dict[str, Any], **_: Any) -> None:
    """Return every write with immediate by one of the same size."""
    with listen(host, memory=bytearray(4096), planes=planes, **settings) as listener:
        write_message(port=listener.port)
        connection = listener.accept(30)
        qp, remote = connection.qp, connection.remote[0]
        source = listener.device.register(bytearray(4096))
        wait, post = qp.recv_cq.wait_array, qp.post_write
        while True:
            found = wait(5.0)
            if not len(found) or found["imm"][-1] == 0xFFFFFFFF:
                break
            post(source, 0, size, remote_va=0, rkey=remote.rkey, imm=1, signaled=False)
            qp.post_recv(count=len(found))
        connection.close()
    write_message(done=True)


def raw(host: str, seconds: float, message: int, joins: bool, **_: Any) -> None:
    """Plain UDP: bytes per second received."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, joins)
        sock.bind((host, 0))
        write_message(port=sock.getsockname()[1])
        write_message(bytes_per_s=_native.receive(sock.fileno(), message, seconds + 5))


ORDERS: dict[str, Any] = {
    "tcp": tcp,
    "mptcp": mptcp,
    "tcp_pong": tcp_pong,
    "mrc": mrc,
    "pong": pong,
    "raw": raw,
    "crowd": crowd,
}


def main() -> None:
    write_message(ready=True)
    for order in read_messages():
        ORDERS[order.pop("do")](**order)


if __name__ == "__main__":
    main()
