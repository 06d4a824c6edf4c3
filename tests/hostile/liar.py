"""A connector that knows the secret and sends whatever a test gives it, and clients that do not know the secret.

The layouts of frames and offers are written here once more, apart from the core's, so that they can hold every lie.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import parts
from softmrc import _core
from softmrc._core import Credentials, HandshakeEvent
from softmrc.connection import Connection, Listener, connect
from softmrc.errors import HandshakeError

LIMIT_S = 20.0
NONE, OF_SECRET, OF_KEY = range(3)  # what a hello says that its sender authenticates itself by
HELLO, CONFIRM, SESSION, REFUSAL = b"HCSE"
OFFER, READY, NARROWED, GOODBYE = range(1, 5)  # what a frame of the session begins with


def frame(kind: int, body: bytes = b"") -> bytes:
    return struct.pack(">IB", len(body) + 1, kind) + body


def hello(
    kind: int = NONE,
    message: bytes = b"",
    version: int = _core.HANDSHAKE_VERSION,
    wire: int = _core.WIRE_VERSION,
    magic: bytes = b"SMRC",
) -> bytes:
    return frame(HELLO, magic + struct.pack(">HHB", version, wire, kind) + message)


def session(step: int, content: bytes = b"") -> bytes:
    """A frame of a session that nothing encrypts."""
    return frame(SESSION, bytes([step]) + content)


def frames(said: bytes) -> list[bytes]:
    """The whole ones of what was said."""
    found = []
    while len(said) >= 4 and (size := 4 + int.from_bytes(said[:4], "big")) <= len(said):
        found.append(said[:size])
        said = said[size:]
    return found


def credentials(secret: str | bytes | None) -> Credentials:
    if secret is None:
        return Credentials.none()
    return Credentials.of_secret(secret.encode() if isinstance(secret, str) else secret)


def honest(**changes: Any) -> dict[str, Any]:
    """What an honest connector on one plane of loopback offers, but for the changes."""
    return {
        **{"mtu": 1024, "icrc": 1, "encrypted": 0, "cipher": 0, "max_wimm": 8, "mpr": 8},
        **{"qpn": 17, "first_psn": 5, "port_key": 0, "planes": [plane()]},
        **{"regions": [(0, 64, 1)], "more": b""},
    } | changes


def plane(**changes: Any) -> dict[str, Any]:
    return {"address": "127.0.0.1", "port": 9, "source_ports": [9]} | changes


def changed_plane(**changes: Any) -> dict[str, Any]:
    return honest(planes=[plane(**changes)])


def _encoded_plane(one: dict[str, Any]) -> bytes:
    address = ipaddress.ip_address(one["address"]).packed
    ports = one["source_ports"]
    head = struct.pack(">B", one.get("family", len(address) == 4)) + address
    return head + struct.pack(f">HH{len(ports)}H", one["port"], one.get("port_count", len(ports)), *ports)


def encoded(offer: dict[str, Any]) -> bytes:
    """An offer as bytes. The counts are what is there, unless the offer says others."""
    get, planes, regions = offer.get, offer["planes"], offer["regions"]
    pairs = struct.pack(
        ">IIQB", offer["qpn"], offer["first_psn"], offer["port_key"], get("plane_count", len(planes))
    ) + b"".join(map(_encoded_plane, planes))
    copies = get("copies", 1)
    return b"".join([
        struct.pack(">IBBBII", *(offer[key] for key in ("mtu", "icrc", "encrypted", "cipher", "max_wimm", "mpr"))),
        struct.pack(">B", get("qp_count", copies)) + pairs * copies,
        struct.pack(">H", get("region_count", len(regions))) + b"".join(struct.pack(">QQI", *one) for one in regions),
        offer["more"],
    ])  # fmt: skip


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
    """Speaks to the other end as one that is authenticated, step by step."""

    def __init__(
        self, sock: socket.socket, secret: str | bytes | Credentials | None = None, is_connector: bool = True
    ) -> None:
        self._socket = sock
        own = secret if isinstance(secret, Credentials) else credentials(secret)
        self.handshake = parts.Handshake(is_connector, own)
        self._socket.settimeout(LIMIT_S)

    def greet(self) -> None:
        """Until both ends know who the other is. What a connector says last is not sent yet: it goes with its offer."""
        self.receive(HandshakeEvent.IDENTIFIED)
        self.handshake.allow()

    def offer(self, words: dict[str, Any] | bytes) -> bytes:
        """What the listener offers in turn."""
        self.handshake.offer(words if isinstance(words, bytes) else encoded(words))
        self.send()
        self.receive(HandshakeEvent.OFFERED)
        return self.handshake.content

    def be_ready(self, mtu: int = 0, waits: bool = False) -> None:
        self.handshake.ready(mtu, waits)
        self.send()

    def be_ready_and_leave(self) -> None:
        """In one segment."""
        self.handshake.ready(0, False)
        self._socket.sendall(self.handshake.take_outgoing() + self.handshake.goodbye())

    def is_told_that_the_listener_is_ready(self) -> bool:
        self.receive(HandshakeEvent.DONE)
        return bool(self.handshake.is_done)

    def send(self) -> None:
        self._socket.sendall(self.handshake.take_outgoing())

    def receive(self, awaited: HandshakeEvent) -> None:
        while (event := self.handshake.next_event()) is HandshakeEvent.NONE:
            self.send()
            data = self._socket.recv(1 << 16)
            if not data:
                raise HandshakeError("closed the connection during the handshake")
            self.handshake.on_bytes(data)
        assert event is awaited


class Recorder:
    """Passes a session on between a connector and a listener, and keeps what each side said."""

    def __init__(self, port: int) -> None:
        self.said: dict[str, bytes] = {"connector": b"", "listener": b""}
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._to = port
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._server, self._server.accept()[0] as near, socket.create_connection(("127.0.0.1", self._to)) as far:
            back = threading.Thread(target=self._pass_on, args=("listener", far, near))
            back.start()
            self._pass_on("connector", near, far)
            back.join(LIMIT_S)

    def _pass_on(self, who: str, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.said[who] += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def stop(self) -> None:
        self._thread.join(LIMIT_S)


def answer_to(
    listener: Listener,
    offer: dict[str, Any] | bytes,
    secret: str | None = None,
    host: str = "127.0.0.1",
    is_ready: bool = True,
) -> Any:
    """What a listener says to an offer of one that is authenticated: the connection that it accepts, or its words of
    refusal. One that is not ready hangs up when it has the listener's offer."""
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


def serves_an_honest_one(listener: Listener, port: int = 0, **settings: Any) -> bool:
    """Whether data gets through to it, by another port if one is given."""
    with connect("127.0.0.1", port or listener.port, **settings) as peer, listener.accept(LIMIT_S) as other:
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


def pending(listener: Listener) -> int:
    """Handshakes that are under way there, or that hear why they are not."""
    return listener._acceptor._native.pending


def is_left_as_it_was(listener: Listener) -> bool:
    """No pending handshake, and nothing that was made for a refused one."""
    device = listener.device

    def is_so() -> bool:
        made = listener._acceptor._pending
        return device._native.cq_count == 1 and len(device._regions) == 1 and not made and not pending(listener)

    return eventually(is_so)
