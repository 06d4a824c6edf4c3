"""How long a connect takes while many half-open connections, which never send anything, are pending.

Another process listens, so that its work is its own. The first connect of a pair is made before the crowd comes.
"""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack
from typing import Any

from softmrc.connection import connect
from softmrc_bench.figures import BenchFigure, Sampled, Versus

PENDING = 1000
HOST = "127.0.0.1"

FIGURES = (
    BenchFigure(
        "accept_under_attack_ms",
        "time to connect while 1,000 half-open handshakes are pending",
        "ms",
        200,
        False,
        versus=Versus("no pending handshakes", "accept_under_attack_ms", "accept_alone_ms", "ms"),
    ),
)


def accept_ms(sink: Any, tries: int, pending: int) -> float:
    """The median time of `connect` to a listener in the other process, with this many pending handshakes."""
    _allow_descriptors(pending + 256)
    took = []
    for _ in range(tries):
        port = sink.ask(do="crowd", host=HOST)["port"]
        with ExitStack() as crowd:
            for _ in range(pending):
                crowd.enter_context(socket.create_connection((HOST, port), 30))
            start = time.perf_counter()
            connect(HOST, port, planes=[HOST], timeout_s=30).close()
            took.append((time.perf_counter() - start) * 1e3)
        sink.receive()
    return Sampled(took)


def measure(sink: Any, quick: bool = False) -> dict[str, float]:
    tries = 3 if quick else 9
    return {
        "accept_under_attack_ms": accept_ms(sink, tries, PENDING),
        "accept_alone_ms": accept_ms(sink, tries, 0),
    }


def _allow_descriptors(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
