"""How two nodes tell each other what a connection needs, over TCP, before the first packet.

    connector → hello: version, a fresh nonce, whether a secret or key is in use; with a key: it, and a share
    listener  → hello likewise, and its proof: HMAC-SHA256 with the secret over both nonces; with a key: its signature
    connector → its offer                                           sealed: an HMAC over step, nonces and offer;
                                                                    with a key signed, too
    listener  → its offer                                           sealed likewise
    connector → ready, and the payload that gets through            sealed likewise
    listener  → ready, if that is less than both had offered        sealed likewise
    either    → goodbye, where packets are sealed                   sealed likewise
    either    → an error in words instead, perhaps to come again    not sealed

What an offer holds: planes, queue pair, first PSN, largest payload, whether packets have an ICRC, how many immediates
and packets may be under way, a key for words about ports, memory, and a share of the keys where packets are sealed
(`softmrc.connection.offer`).

So whoever does not know the secret is told nothing but a nonce, at either end: the listener proves itself before it is
made an offer, and a seal proves the connector before it gets one. Fresh nonces make everything that was said before
worthless. Ends that have keys of their own show them in their hellos, and make a secret there that nobody else has
(`softmrc.connection.identity`). Without a secret both ends must be on loopback. Nothing is encrypted: who can read the
exchange learns memory keys and packet numbers, which are useless where packets are encrypted
(`softmrc.connection.keys`).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import os
import re
import secrets
import socket
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from softmrc._support.weak_registry import WeakRegistry
from softmrc.errors import ConfigError

if TYPE_CHECKING:
    from softmrc.connection.identity import KeyExchange

VERSION = 3  # also raised when packets change so that nodes of before would connect and then not understand each other
LARGEST_HELLO = 1 << 10  # the first frame is anybody's
LARGEST_FRAME = 1 << 18
NONCE = re.compile(r"[0-9a-f]{64}")
LONGEST_WORDS = 200
WHAT_IS_IT = "; is it something else that has this port?"  # said of who has never said anything of ours
ANOTHER = f"does not speak this protocol{WHAT_IS_IT}"

CONNECTOR, LISTENER = "connector", "listener"
LISTENER_KNOWS = "the listener knows the secret"
CONNECTOR_OFFERS = "the connector offers"
LISTENER_OFFERS = "the listener offers"
CONNECTOR_IS_READY = "the connector is ready"
LISTENER_IS_READY = "the listener is ready"  # for smaller packets than were offered
LEAVES = {CONNECTOR: "the connector leaves", LISTENER: "the listener leaves"}

# A peer whose machine is gone says nothing; TCP asks, and so the connection's end is noticed 75 s later. A network that
# is gone for a while ends it no sooner than the queue pair (`DeviceConfig.patience_s` with the defaults).
KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 12}

_channels: WeakRegistry[BootstrapSocket] = WeakRegistry()


class HandshakeError(Exception):
    """Why a handshake ends: what is said of the peer here, and what it is told, if anything. Where the listener was
    `busy`, another try may do."""

    def __init__(self, reason: str, told: str = "", *, busy: bool = False) -> None:
        super().__init__(reason)
        self.told = told
        self.busy = busy

    @property
    def frame(self) -> dict[str, Any]:
        """What it is told, as it is sent."""
        return {"error": self.told, "busy": True} if self.busy else {"error": self.told}


def _shown(words: object) -> str:
    """What a stranger says, fit to be shown: on one line, and short."""
    text = words if isinstance(words, str) else "without words"
    return "".join(c if c.isprintable() else "?" for c in text[:LONGEST_WORDS])


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _object(text: str | bytes) -> dict[str, Any] | None:
    """What a stranger sent, if it is a JSON object; brackets without end are none, nor is NaN."""
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def framed(frame: dict[str, Any]) -> bytes:
    data = json.dumps(frame).encode()
    return len(data).to_bytes(4, "big") + data


class FrameReader:
    """Frames out of a stream of bytes, which come as they like."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._largest = LARGEST_HELLO

    def rest(self) -> bytes:
        """What came after the last frame."""
        return bytes(self._data)

    def add(self, data: bytes) -> None:
        self._data += data

    def next(self) -> dict[str, Any] | None:
        """The next frame, or None while it is not all there."""
        size = int.from_bytes(self._data[:4], "big")
        if size > self._largest:
            raise HandshakeError(ANOTHER)
        if len(self._data) < 4 + size:
            return None
        frame = _object(bytes(self._data[4 : 4 + size]))
        del self._data[: 4 + size]
        self._largest = LARGEST_FRAME
        if frame is None:
            raise HandshakeError(ANOTHER)
        if "error" in frame:
            raise HandshakeError(f"refused: {_shown(frame['error'])}", busy=frame.get("busy") is True)
        return frame


class Authenticator:
    """What one side knows, and shows without saying it. Where two keys meet, the secret is what comes of that."""

    def __init__(self, role: str, secret: bytes | None, meeting: KeyExchange | None = None) -> None:
        self._role = role
        self._secret = secret
        self._meeting = meeting
        self._nonces = {role: secrets.token_hex(32)}

    @property
    def secret(self) -> bytes | None:
        return self._secret

    @property
    def is_of_someone(self) -> bool:
        """Whether it proves anything."""
        return self._secret is not None or self._meeting is not None

    @property
    def peer(self) -> str:
        """The name by which the other side's key is known; empty where it shows none."""
        return self._meeting.peer if self._meeting else ""

    @property
    def is_connector(self) -> bool:
        return self._role == CONNECTOR

    def goodbye(self) -> dict[str, Any]:
        """The last thing that this side says."""
        return self.sealed(LEAVES[self._role], {})

    def goodbye_of_peer(self) -> dict[str, Any]:
        """The last thing that the other side says."""
        return self.sealed(LEAVES[LISTENER if self.is_connector else CONNECTOR], {})

    @property
    def salt(self) -> bytes:
        """What is of this handshake and no other, once both have said hello."""
        return bytes.fromhex(self._nonces[CONNECTOR] + self._nonces[LISTENER])

    def hello(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "softmrc": VERSION,
            "nonce": self._nonces[self._role],
            "sealed": self.is_of_someone,
        }
        if self._meeting:
            said["identity"] = self._meeting.to_wire()
        if self._role == LISTENER:
            said["proof"] = self._seal(LISTENER_KNOWS, "")
            if self._meeting:
                said["signature"] = self._meeting.signature(self.salt)
        return said

    def hear(self, hello: dict[str, Any]) -> None:
        """Take the other side's hello, or say why not."""
        version, is_sealed, nonce = hello.get("softmrc"), hello.get("sealed"), hello.get("nonce")
        if type(version) is not int or version != VERSION:
            shown = version if type(version) is int else "none"
            raise HandshakeError(
                f"speaks version {shown} of the handshake, this side version {VERSION}",
                f"this side speaks version {VERSION} of the handshake, yours is {shown}",
            )
        if is_sealed is not self.is_of_someone:
            who = "uses a secret and this side does not" if is_sealed else "uses no secret and this side does"
            raise HandshakeError(f"{who}; give both the same", "one side uses a secret and the other does not")
        if not isinstance(nonce, str) or not NONCE.fullmatch(nonce):
            raise HandshakeError("sent no usable nonce")
        other = LISTENER if self._role == CONNECTOR else CONNECTOR
        self._nonces[other] = nonce
        self._meet(hello)
        if other == LISTENER:
            self._check(LISTENER_KNOWS, "", hello.get("proof"))

    def _meet(self, hello: dict[str, Any]) -> None:
        shows_key = "identity" in hello
        if shows_key is not (self._meeting is not None):
            who = "by a key and this side by a secret" if shows_key else "by a secret and this side by a key"
            raise HandshakeError(
                f"proves itself {who}; choose one for both", "one side has a key and the other a secret"
            )
        if self._meeting:
            self._secret = self._meeting.hear(hello["identity"], self.salt)
            if self.is_connector:
                self._meeting.check(self.salt, hello.get("signature"))

    def _seal(self, step: str, body: str) -> str:
        text = "\0".join((f"softmrc {VERSION}", step, self._nonces[CONNECTOR], self._nonces[LISTENER], body))
        return hmac.new(self._secret or b"", text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()

    def _check(self, step: str, body: str, seal: object) -> None:
        expected = self._seal(step, body).encode()
        if not isinstance(seal, str) or not hmac.compare_digest(seal.encode(errors="surrogatepass"), expected):
            raise HandshakeError("does not know the secret", "the secret is not the same")

    def sealed(self, step: str, content: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(content)
        frame = {"body": body, "seal": self._seal(step, body)}
        if self._meeting and step == CONNECTOR_OFFERS:
            frame["signature"] = self._meeting.signature(self.salt)
        return frame

    def opened(self, step: str, frame: dict[str, Any]) -> dict[str, Any]:
        body = frame.get("body")
        if not isinstance(body, str):
            raise HandshakeError("sent no offer", "you sent no offer")
        self._check(step, body, frame.get("seal"))
        if self._meeting and step == CONNECTOR_OFFERS:
            self._meeting.check(self.salt, frame.get("signature"))
        content = _object(body)
        if content is None:
            raise HandshakeError("sent an offer that is none", "your offer is none")
        return content


Answer = Callable[[dict[str, Any]], dict[str, Any]]
Call = Generator[dict[str, Any] | None, dict[str, Any], dict[str, Any] | None]


def welcome(
    proof: Authenticator, answer: Answer, narrow: Callable[[object], bool] = lambda _: False
) -> Generator[dict[str, Any] | None, dict[str, Any], dict[str, Any] | None]:
    """The listener's part. It takes frames and yields those to send, and returns the last one, if there is one.
    `answer` makes our offer of the connector's. `narrow` is told the payload that gets through, and says
    whether that is less than both had offered: then the connector waits for our word before it sends anything."""
    first = yield None
    proof.hear(first)
    offer = proof.opened(CONNECTOR_OFFERS, (yield proof.hello()))
    ready = proof.opened(CONNECTOR_IS_READY, (yield proof.sealed(LISTENER_OFFERS, answer(offer))))
    return proof.sealed(LISTENER_IS_READY, {}) if narrow(ready.get("mtu")) else None


def call(
    proof: Authenticator,
    offer: Callable[[], dict[str, Any]],
    accept: Callable[[dict[str, Any]], None],
    narrow: Callable[[int], bool] | None = None,
) -> Call:
    """The connector's part, likewise. `offer` is asked when the listener has proved itself, and `accept` may refuse
    what the listener offers. With `narrow` it yields None when it wants to know what payload gets through, and
    `narrow` says whether that is less than both had offered."""
    proof.hear((yield proof.hello()))
    accept(proof.opened(LISTENER_OFFERS, (yield proof.sealed(CONNECTOR_OFFERS, offer()))))
    if narrow is None:
        return proof.sealed(CONNECTOR_IS_READY, {})
    found = yield None
    ready = proof.sealed(CONNECTOR_IS_READY, found)
    if not narrow(found["mtu"]):
        return ready
    proof.opened(LISTENER_IS_READY, (yield ready))
    return None


class BootstrapSocket:
    """The TCP connection of a handshake. It stays open after that: its end tells the other side that this one has left,
    which the device watches for (`core/udp/bootstrap_watch.h`)."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.peer_name = "the peer"
        self.inbox = FrameReader()
        self.goodbye = b""  # said at the end, where packets are encrypted
        try:
            host, port = sock.getpeername()[:2]
            self.peer_name = f"{host} port {port}"
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE.items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError:  # it has left already, which whoever reads will see
            pass
        _channels.add(self)

    def require_loopback(self) -> None:
        """Without a secret, nothing leaves this machine."""
        hosts = (self.socket.getsockname()[0], self.socket.getpeername()[0])
        if not all(ipaddress.ip_address(host.partition("%")[0]).is_loopback for host in hosts):
            raise ConfigError("secret", None, "a shared secret, for connections that leave the machine")

    def hang_up(self) -> None:
        """The other end notices at once; the descriptor stays until `close`, since others may be using it."""
        with suppress(OSError):
            if self.goodbye:
                self.socket.send(self.goodbye, socket.MSG_DONTWAIT)
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()


def _in_child() -> None:
    """A forked child lets go of its copies: else a parent that is killed would seem to be there while the child is."""
    for channel in _channels:
        channel.close()


os.register_at_fork(after_in_child=_in_child)
