"""Two devices on loopback, connected by hand: what most tests of the driver stand on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from softmrc.device import Completion, CompletionQueue, Device, QueuePair

LIMIT_S = 10.0  # a bound, not a measurement: no wait should take more than a moment
FOUR = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")


def connect(a: Device, b: Device, **rts: Any) -> tuple[QueuePair, QueuePair]:
    """A queue pair on each, ready to send both ways."""
    qps = a.create_qp(a.create_cq(), a.create_cq()), b.create_qp(b.create_cq(), b.create_cq())
    peers = a.add_peer(qps[1].reached_at), b.add_peer(qps[0].reached_at)
    mtu = min(a.mtu, b.mtu)
    for qp, other, peer in zip(qps, reversed(qps), peers, strict=True):
        qp.init()
        qp.rtr(peer, dest_qpn=other.qpn, first_psn=other.first_psn, mtu=mtu)
        qp.rts(**rts)
    return qps


@contextmanager
def pair(
    planes: tuple[str, ...] = FOUR, rts: dict[str, Any] | None = None, **config: Any
) -> Iterator[tuple[QueuePair, QueuePair]]:
    with Device(planes, **config) as a, Device(planes, **config) as b:
        yield connect(a, b, **(rts or {}))


def drain(queue: CompletionQueue, count: int, limit_s: float = 20.0) -> list[Completion]:
    """So many completions, or fewer when the limit passes."""
    found: list[Completion] = []
    until = time.monotonic() + limit_s
    while len(found) < count and (left := until - time.monotonic()) > 0:
        found += queue.wait(left)
    return found


def eventually(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    """Whether it becomes true before the limit; the limit is generous, since tests share their machine."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def outcome_of(waits: Callable[[], Any], close: Callable[[], None]) -> Any:
    """What waiting ends with when another thread closes."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(waits())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    time.sleep(0.05)
    close()
    thread.join(LIMIT_S)
    return found[0] if found else "still waiting"
