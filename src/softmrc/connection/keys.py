"""Whether packets are encrypted, and the keys of groups. The key schedule is the core's (`core/host/sealing.h`).

Ranks of a group have no handshakes one by one. Each publishes a share of X25519, drawn for this group alone, in a
record that the secret authenticates; keys are made of two ranks' shares and the secret. So a
process without the secret cannot take a rank's place, and learning it later does not reveal earlier packets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softmrc import _core
from softmrc._core import Cipher, SealKeys
from softmrc.connection import validate
from softmrc.connection.identity import GET_LIBCRYPTO, NO_LIBCRYPTO
from softmrc.connection.validate import ProtocolError
from softmrc.errors import ConfigError, DeviceError
from softmrc.wire import keylog

if TYPE_CHECKING:
    from softmrc.device import Device

SHARE_BYTES = 32


def is_wanted(device: Device, has_secret: bool) -> bool:
    """Whether this device encrypts packets to peers that it shares a secret with: as its `seal` says, and with "auto"
    unless nothing leaves the machine."""
    choice = device.config.seal
    if choice == "on" and not has_secret:
        raise ConfigError(
            "seal", choice, "needs a shared secret, from which keys are derived", "Set SOFTMRC_SECRET, or seal = 'off'."
        )
    stays_here = all(plane.address.is_loopback for plane in device.local_planes)
    wanted = choice == "on" or (choice == "auto" and has_secret and not stays_here)
    if wanted and not _core.can_seal():
        raise ConfigError("seal", choice, NO_LIBCRYPTO, f"{GET_LIBCRYPTO} Or set seal = 'off'.")
    if wanted:
        keylog.check()
    return wanted


@dataclass(frozen=True)
class PeerEncryption:
    """What the other end says about encryption."""

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
    """This rank's part of the keys."""

    def __init__(self) -> None:
        self._native = _core.KeyShare()
        self._roots: dict[tuple[bytes, bytes, bytes], bytes] = {}  # with whom several queue pairs are

    def to_wire(self) -> dict[str, Any]:
        return {"cipher": _core.faster_cipher().name, "share": self._native.public.hex()}

    def forget(self) -> None:
        """When the keys are made: who gets into this process later should not be able to make them again."""
        self._native.forget()
        self._roots.clear()

    def keys(
        self, theirs: PeerEncryption, secret: bytes, salt: bytes, first: bool, own_qpn: int, their_qpn: int
    ) -> SealKeys:
        """Those of one queue pair. One of the two ends is the `first`; both must agree on which."""
        about = theirs.share, secret, salt
        if about not in self._roots:
            try:
                self._roots[about] = self._native.shared_with(theirs.share, secret, salt)
            except DeviceError:
                allowed = "a point of Curve25519 that is not of small order"
                raise ProtocolError("seal.share", theirs.share.hex(), allowed) from None
        return _core.packet_keys(self._roots[about], first, own_qpn, theirs.cipher, their_qpn)
