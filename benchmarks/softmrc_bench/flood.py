"""Forged datagrams at a steady rate: `python -m softmrc_bench.flood RATE HOST:PORT…`, until it is ended.

The payloads look like MRC packets with random contents; the senders are no peers. Loopback only. Floods from
a peer's own address are in `spoofed`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket
import sys
from collections.abc import Iterator, Sequence

from softmrc._support.subprocesses import WorkerProcess, python_command, write_message
from softmrc.errors import ConfigError
from softmrc_bench import _native

LONGEST_S = 600.0
PER_S = 100_000
START_S = 60.0


@contextlib.contextmanager
def running(module: str, *arguments: object) -> Iterator[None]:
    """Another process that floods, until the context ends."""
    flooding = WorkerProcess(python_command(module, *map(str, arguments)))
    try:
        flooding.receive(START_S)
        yield
    finally:
        flooding.kill()


def flood(targets: list[tuple[str, int]], per_s: int = PER_S) -> contextlib.AbstractContextManager[None]:
    """Random datagrams at these addresses, from another process, until the context ends."""
    return running(__name__, per_s, *(f"{host}:{port}" for host, port in targets))


def end_of(text: str) -> tuple[str, int]:
    """HOST:PORT on loopback; nothing here is ever sent elsewhere."""
    host, _, port = text.rpartition(":")
    if not ipaddress.ip_address(host).is_loopback:
        raise ConfigError("target", text, "must be a loopback address and a port")
    return host, int(port)


def send(sockets: Sequence[socket.socket], packets: list[bytes], per_s: int) -> None:
    """These packets by these sockets, in turns."""
    write_message(ready=True)
    _native.flood([sock.fileno() for sock in sockets], packets, per_s, LONGEST_S)


def main() -> None:
    rng = random.Random(1)
    forged = [bytes([rng.choice((0xC6, 0xCA, 0xDC, 0xD1, 0xD8))]) + rng.randbytes(127) for _ in range(64)]
    sockets = []
    for target in map(end_of, sys.argv[2:]):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect(target)
        sockets.append(sock)
    send(sockets, forged, int(sys.argv[1]))


if __name__ == "__main__":
    main()
