"""Fixed ports for tests: outside the range of the kernel's ephemeral ports, so that no other
process of a busy machine gets one by chance between the moment it was found free and its use. Where the kernel gives
out all of them, that chance is taken."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

BASE = 10_000
STRIDE = 16  # the most ports that a test may want in a row
_start = os.getpid() * 31  # processes that ask at once begin at different rows
_calls = itertools.count()
_marks: list[socket.socket] = []


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


def _rows() -> list[int]:
    """Where a row of ports may begin: outside the kernel's range, or anywhere if that leaves none."""
    kernels, all_rows = _ephemeral(), range(BASE, 65_536 - STRIDE, STRIDE)
    outside = [first for first in all_rows if first + STRIDE <= kernels.start or first >= kernels.stop]
    return outside or list(all_rows)


def _is_ours(first: int) -> bool:
    """Take the row for this process, until it ends: a name that only one socket of a network namespace can have."""
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        mark.bind(f"\0softmrc-test-ports-{first}")
    except OSError:
        mark.close()
        return False
    _marks.append(mark)
    return True


def free_ports(count: int = 1) -> int:
    """The first of so many free ports in a row at any IPv4 address, by UDP or TCP. No two calls are given
    the same, nor are two processes that ask here."""
    assert 1 <= count <= STRIDE
    rows = _rows()
    for _ in rows:
        first = rows[(_start + next(_calls)) % len(rows)]
        if _is_ours(first) and all(_is_free(port) for port in range(first, first + count)):
            return first
    raise AssertionError("every port is taken")
