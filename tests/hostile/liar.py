"""A connector that knows the secret and says whatever it is told to, and visitors that do not even know that."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from softmrc.connection import Connection, Listener, connect
from softmrc.connection.handshake import (
    CONNECTOR,
    CONNECTOR_IS_READY,
    CONNECTOR_OFFERS,
    LISTENER_IS_READY,
    LISTENER_OFFERS,
    VERSION,
    Authenticator,
    FrameReader,
    HandshakeError,
    framed,
)

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


class Liar:
    """Speaks to a listener under true seals, step by step."""

    def __init__(self, sock: socket.socket, secret: bytes | None = None) -> None:
        self._socket, self._inbox, self._proof = sock, FrameReader(), Authenticator(CONNECTOR, secret)
        self._socket.settimeout(LIMIT_S)

    def greet(self) -> None:
        self._socket.sendall(framed(self._proof.hello()))
        self._proof.hear(self._receive())

    def offer(self, words: dict[str, Any]) -> dict[str, Any]:
        """What the listener offers in turn."""
        self._socket.sendall(framed(self._proof.sealed(CONNECTOR_OFFERS, words)))
        return self._proof.opened(LISTENER_OFFERS, self._receive())

    def be_ready(self, **words: Any) -> None:
        self._socket.sendall(framed(self._proof.sealed(CONNECTOR_IS_READY, words)))

    def be_ready_and_leave(self) -> None:
        """In one breath."""
        both = self._proof.sealed(CONNECTOR_IS_READY, {}), self._proof.goodbye()
        self._socket.sendall(b"".join(map(framed, both)))

    def is_told_that_the_listener_is_ready(self) -> bool:
        return self._proof.opened(LISTENER_IS_READY, self._receive()) == {}

    def _receive(self) -> dict[str, Any]:
        while (frame := self._inbox.next()) is None:
            data = self._socket.recv(1 << 16)
            if not data:
                raise HandshakeError("closed the connection during the handshake")
            self._inbox.add(data)
        return frame


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
        liar = Liar(sock, secret)
        liar.greet()
        try:
            liar.offer(offer)
        except HandshakeError as refusal:
            return str(refusal)
        if not is_ready:
            return "hung up"
        liar.be_ready()
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


def is_left_as_it_was(listener: Listener) -> bool:
    """Nobody half connected, and nothing that was made for one that was refused."""
    device = listener.device

    def is_so() -> bool:
        return device._native.cq_count == 1 and len(device._regions) == 1 and not listener._acceptor._pending

    return eventually(is_so)


def hello(**changes: Any) -> bytes:
    return framed({"softmrc": VERSION, "nonce": "0" * 64, "sealed": True} | changes)
