"""How two nodes tell each other what a connection needs, over TCP, before the first packet.

    both       → hello: version, a fresh nonce, whether a secret is in use
    connector  → its offer: planes, queue pair, first PSN, memory    sealed with HMAC-SHA256 over both nonces
    listener   → its offer, likewise
    connector  → ready

A seal proves knowledge of the shared secret without sending it, and that nobody changed the offer on the way; fresh
nonces make old ones worthless. Without a secret both ends must be on loopback. Nothing is encrypted: whoever can read
the exchange learns keys, as with RDMA itself.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import secrets
import socket
import time
from typing import Any

from softmrc.errors import ConfigError, RemoteError

VERSION = 1
LARGEST_FRAME = 1 << 20
NONCE_BYTES = 32
LAST_LOOK_S = 0.001


def _object(text: str | bytes) -> dict[str, Any] | None:
    """What a stranger sent, if it is a JSON object; brackets without end are none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class Channel:
    """A TCP connection that carries one JSON object at a time. The socket's timeout is for the handshake as a whole."""

    def __init__(self, sock: socket.socket, role: str, secret: str | bytes | None) -> None:
        self.socket = sock
        self.role = role
        self.secret = secret.encode() if isinstance(secret, str) else secret
        if self.secret is not None and not self.secret:
            raise ConfigError("secret", "", "at least one character, or None on loopback")
        self.nonce = secrets.token_hex(NONCE_BYTES)
        self.peer_nonce = ""
        allowed_s = sock.gettimeout()
        self._until = None if allowed_s is None else time.monotonic() + allowed_s
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def peer_name(self) -> str:
        try:
            host, port = self.socket.getpeername()[:2]
        except OSError:
            return "the peer"
        return f"{host} port {port}"

    def hello(self) -> None:
        """Exchange versions and nonces, or say why not."""
        if self.secret is None:
            self._require_loopback()
        self.send({"softmrc": VERSION, "nonce": self.nonce, "sealed": self.secret is not None})
        theirs = self.receive()
        if theirs.get("softmrc") != VERSION:
            self.refuse(f"this side speaks version {VERSION} of the handshake, yours is {theirs.get('softmrc')}")
            raise RemoteError(
                f"{self.peer_name} speaks version {theirs.get('softmrc')} of the handshake, this side version {VERSION}"
            )
        if theirs.get("sealed") != (self.secret is not None):
            who = "only the peer uses a secret" if theirs.get("sealed") else "only this side uses a secret"
            self.refuse("one side uses a secret and the other does not")
            raise RemoteError(f"{self.peer_name}: {who}; give both the same")
        nonce = theirs.get("nonce")
        if not isinstance(nonce, str) or len(nonce) != 2 * NONCE_BYTES:
            raise RemoteError(f"{self.peer_name} sent no usable nonce")
        self.peer_nonce = nonce

    def _require_loopback(self) -> None:
        hosts = (self.socket.getsockname()[0], self.socket.getpeername()[0])
        if not all(ipaddress.ip_address(host.partition("%")[0]).is_loopback for host in hosts):
            raise ConfigError("secret", None, "a shared secret, for connections that leave the machine")

    def _seal(self, role: str, nonces: tuple[str, str], body: str) -> str:
        text = "\0".join((role, *nonces, body))
        return hmac.new(self.secret or b"", text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()

    def send_sealed(self, offer: dict[str, Any]) -> None:
        body = json.dumps(offer)
        self.send({"body": body, "seal": self._seal(self.role, (self.nonce, self.peer_nonce), body)})

    def receive_sealed(self) -> dict[str, Any]:
        frame = self.receive()
        body, seal = frame.get("body"), frame.get("seal")
        if not isinstance(body, str) or not isinstance(seal, str):
            raise RemoteError(f"{self.peer_name} sent no offer")
        other = "connector" if self.role == "listener" else "listener"
        expected = self._seal(other, (self.peer_nonce, self.nonce), body)
        if not hmac.compare_digest(seal.encode(errors="surrogatepass"), expected.encode()):
            self.refuse("the secret is not the same")
            raise RemoteError(f"{self.peer_name} does not know the secret")
        offer = _object(body)
        if offer is None:
            raise RemoteError(f"{self.peer_name} sent an offer that is none")
        return offer

    def refuse(self, reason: str) -> None:
        """Tell the peer why, as far as it still listens."""
        try:
            self.send({"error": reason})
        except (OSError, RemoteError):
            return

    def send(self, frame: dict[str, Any]) -> None:
        data = json.dumps(frame).encode()
        try:
            self.socket.sendall(len(data).to_bytes(4, "big") + data)
        except OSError as error:
            raise RemoteError(f"{self.peer_name} is gone: {error}") from None

    def receive(self) -> dict[str, Any]:
        size = int.from_bytes(self._exactly(4), "big")
        if size > LARGEST_FRAME:
            raise RemoteError(f"{self.peer_name} does not speak this protocol")
        frame = _object(self._exactly(size))
        if frame is None:
            raise RemoteError(f"{self.peer_name} does not speak this protocol")
        if "error" in frame:
            raise RemoteError(f"{self.peer_name} refused: {frame['error']}")
        return frame

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                if self._until is not None:
                    self.socket.settimeout(max(self._until - time.monotonic(), LAST_LOOK_S))
                more = self.socket.recv(size - len(data))
            except TimeoutError:
                raise RemoteError(f"{self.peer_name} did not finish the handshake in time") from None
            except OSError as error:
                raise RemoteError(f"{self.peer_name} is gone: {error}") from None
            if not more:
                raise RemoteError(f"{self.peer_name} closed the connection during the handshake")
            data += more
        return data

    def is_closed_by_peer(self) -> bool:
        """Whether the other end hung up, found without blocking."""
        try:
            return self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self.socket.close()
