"""Whether packets are sealed, and the keys that two ends make for it.

Each end tells the other a share of X25519, drawn for this connection alone, inside what it offers and proves with the
secret. So whoever does not know the secret cannot take an end's place, nobody computes anything for a stranger, and who
learns the secret later cannot read what was said before.

    prk  = HKDF-Extract(salt: both nonces, X25519 of both shares | the secret)
    keys = HKDF-Expand(prk, "softmrc seal" | which direction | both shares | both queue pairs)
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softmrc import _core
from softmrc._core import Cipher, SealKeys
from softmrc.connection import validate
from softmrc.connection.validate import ProtocolError
from softmrc.errors import ConfigError
from softmrc.wire import keylog

if TYPE_CHECKING:
    from softmrc.device import Device

SHARE_BYTES = 32
LABEL = b"softmrc seal"


def is_wanted(device: Device, has_secret: bool) -> bool:
    """Whether this device seals what goes to peers that it shares a secret with: as its `seal` says, and with "auto"
    unless nothing leaves the machine."""
    choice = device.config.seal
    if choice == "on" and not has_secret:
        raise ConfigError("seal", choice, "a shared secret, which keys are made of; or seal='off'")
    stays_here = all(plane.address.is_loopback for plane in device.local_planes)
    wanted = choice == "on" or (choice == "auto" and has_secret and not stays_here)
    if wanted and not _core.can_seal():
        raise ConfigError("seal", choice, "'off': built without sealing (OpenSSL's headers were not there)")
    if wanted:
        keylog.check()
    return wanted


@dataclass(frozen=True)
class PeerEncryption:
    """What the other end says about sealing."""

    cipher: Cipher
    share: bytes

    @classmethod
    def parse(cls, name: str, value: object) -> PeerEncryption | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ProtocolError(name, value, "nothing, or a cipher and a share")
        cipher, share = value.get("cipher"), value.get("share")
        if not isinstance(cipher, str) or cipher not in Cipher.__members__:
            raise ProtocolError(f"{name}.cipher", cipher, " or ".join(Cipher.__members__))
        return cls(Cipher[cipher], validate.in_hex(f"{name}.share", share, SHARE_BYTES))


class KeyShare:
    """This end's part of the keys."""

    def __init__(self) -> None:
        self._own = secrets.token_bytes(SHARE_BYTES)
        self._shared: dict[bytes, bytes] = {}  # with whom several queue pairs are
        self._public: bytes = _core.x25519_public(self._own)
        self._cipher = _core.faster_cipher()

    def to_wire(self) -> dict[str, Any]:
        return {"cipher": self._cipher.name, "share": self._public.hex()}

    def forget(self) -> None:
        """When the keys are made: who gets into this process later should not be able to make them again."""
        self._own = b""
        self._shared.clear()

    def _shared_with(self, share: bytes) -> bytes:
        if share not in self._shared:
            shared = _core.x25519(self._own, share)
            if shared is None:
                raise ProtocolError("seal.share", share.hex(), "a point of Curve25519 that is not of small order")
            self._shared[share] = shared
        return self._shared[share]

    def keys(
        self, theirs: PeerEncryption, secret: bytes, salt: bytes, first: bool, own_qpn: int, their_qpn: int
    ) -> SealKeys:
        """Those of one queue pair. One of the two ends is the `first`; both must agree on which."""
        prk = hmac.digest(salt, self._shared_with(theirs.share) + secret, hashlib.sha256)
        ends = [self._public + own_qpn.to_bytes(4, "big"), theirs.share + their_qpn.to_bytes(4, "big")]
        about = b"".join(ends if first else reversed(ends))
        # Both have to be good at it, or the slower one would hold up the other.
        both = {self._cipher, theirs.cipher}
        cipher = self._cipher if len(both) == 1 else Cipher.CHACHA20_POLY1305
        way = {True: b"\1", False: b"\2"}
        send, receive = (
            hmac.digest(prk, LABEL + way[who] + about + b"\1", hashlib.sha256) for who in (first, not first)
        )
        keylog.note(cipher, their_qpn, send)
        keylog.note(cipher, own_qpn, receive)
        return SealKeys(cipher, send, receive)
