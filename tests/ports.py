"""Fixed ports for tests: outside the range from which the kernel gives ports to whoever names none, so that no other
process of a busy machine gets one by chance between the moment it was found free and its use."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

BASE = 10_000
STRIDE = 16  # the most ports that a test may want in a row
_calls = itertools.count()


def _ephemeral() -> range:
    least, most = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return range(int(least), int(most) + 1)


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET, kind) as one:
            try:
                one.bind(("", port))
            except OSError:
                return False
    return True


def free_ports(count: int = 1) -> int:
    """The first of so many ports in a row that nobody has at any IPv4 address, by UDP or TCP. No two calls of a
    process, and rarely two processes, are given the same."""
    assert 1 <= count <= STRIDE
    taken = _ephemeral()
    steps = [port for port in range(BASE, 65_536 - STRIDE, STRIDE) if port not in taken and port + STRIDE not in taken]
    for _ in range(len(steps)):
        first = steps[(os.getpid() * 31 + next(_calls)) % len(steps)]
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise AssertionError("every port is taken")
