"""A connector that knows the secret and says whatever it is told to, and visitors that do not even know that."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from softmrc.connection import Connection, Listener, connect
from softmrc.handshake import CONNECTOR_IS_READY, CONNECTOR_OFFERS, LISTENER_OFFERS, Caller, Channel, Refusal

LIMIT_S = 20.0


def honest(**changes: Any) -> dict[str, Any]:
    """What an honest connector on one plane of loopback offers, but for the changes."""
    return {
        "planes": [{"address": "127.0.0.1", "port": 9, "source_ports": [9]}],
        "qpn": 17,
        "first_psn": 5,
        "mtu": 1024,
        "icrc": True,
        "max_wimm": 8,
        "mpr": 8,
        "port_key": 0,
        "regions": [[0, 64, 1]],
    } | changes


def changed_plane(**changes: Any) -> dict[str, Any]:
    return honest(planes=[honest()["planes"][0] | changes])


@contextmanager
def visit(listener: Listener, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.create_connection((host, listener.port), LIMIT_S) as sock:
        yield sock


def heard(sock: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    data = b""
    sock.settimeout(LIMIT_S)
    try:
        while more := sock.recv(1 << 16):
            data += more
    except ConnectionError:
        pass
    return data


def answer_to(
    listener: Listener,
    offer: dict[str, Any],
    secret: bytes | None = None,
    host: str = "127.0.0.1",
    is_ready: bool = True,
) -> Any:
    """What a listener says to an offer under a true seal: the connection that it accepts, or its words of refusal. One
    that is not ready hangs up when it has the listener's offer."""
    with visit(listener, host) as sock:
        liar = Caller(Channel(sock), secret, time.monotonic() + LIMIT_S)
        liar.greet()
        try:
            liar.send(liar._proof.sealed(CONNECTOR_OFFERS, offer))
            liar._proof.opened(LISTENER_OFFERS, liar.receive())
        except Refusal as refusal:
            return str(refusal)
        if not is_ready:
            return "hung up"
        liar.send(liar._proof.sealed(CONNECTOR_IS_READY, {}))
        return listener.accept(LIMIT_S)


def serves_an_honest_one(listener: Listener, **settings: Any) -> bool:
    """Whether data gets through to it."""
    with connect("127.0.0.1", listener.port, **settings) as peer, listener.accept(LIMIT_S) as other:
        peer.write(peer.remote[0], 0, b"hello", imm=1)
        return other.recv(LIMIT_S).imm == 1


def close(answer: Any) -> None:
    if isinstance(answer, Connection):
        answer.close(0.0)


def eventually(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True
