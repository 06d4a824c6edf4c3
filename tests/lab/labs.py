"""Labs for tests: each has a unique name, and is taken down whatever happens."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from softmrc.lab import Lab

SMALL = """
[fabric]
planes = 2
hosts = 4
hosts_per_leaf = 2
spines = 2
host_link_bps = "100M"
fabric_link_bps = "100M"
"""
_made = 0


@contextmanager
def a_lab(text: str) -> Iterator[Lab]:
    """A lab under a name that no other test, process or run has."""
    global _made
    _made += 1
    with Lab.up(text, f"t{os.getpid()}-{_made}") as lab:
        yield lab


@pytest.fixture(scope="module")
def plain() -> Iterator[Lab]:
    with a_lab(SMALL) as lab:
        wait_for_quiet(lab)
        yield lab


@pytest.fixture(scope="module")
def acting() -> Iterator[Lab]:
    """Slow links, so that a queue is easy to fill from here."""
    with a_lab(SMALL.replace("100M", "20M") + "[switch]\necn = true\ntrim = true\n") as lab:
        wait_for_quiet(lab)
        yield lab


def wait_for_quiet(lab: Lab) -> None:
    """Until the kernel's own announcements on new interfaces are over, so that counters count only ours."""
    last = lab.packets()
    quiet = 0
    for _ in range(100):
        time.sleep(0.05)
        now = lab.packets()
        quiet = quiet + 1 if now == last else 0
        if quiet == 10:
            return
        last = now
    pytest.fail("the lab does not fall quiet")


def bound(lab: Lab, host: int, port: int = 4791) -> socket.socket:
    """A UDP socket of a host, on all its addresses."""
    made = lab.socket(host)
    made.bind(("::", port))
    made.setblocking(False)
    return made


def drain(receiver: socket.socket, settle_s: float = 0.05, patience_s: float = 2.0, least: int = 0) -> list[bytes]:
    """Everything that arrives until it has been quiet for a while, and at least `least` if they come in time."""
    found: list[bytes] = []
    end = time.monotonic() + patience_s
    last = time.monotonic()
    while time.monotonic() < end:
        try:
            found.append(receiver.recv(65536))
            last = time.monotonic()
        except BlockingIOError:
            if len(found) >= least and time.monotonic() - last > settle_s:
                break
            time.sleep(0.002)
    return found
