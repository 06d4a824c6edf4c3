"""Keys of encrypted packets, on request, to decrypt captures of a connection while debugging, as with browsers.

SOFTMRC_KEYLOG names a file. Every end appends the first secret of each direction of its connections, one a line:

    AES_256_GCM 00abcd 93d1...     the cipher, the receiver's queue pair, the secret; all later keys follow from it

Who has this file can read what was captured, and write in the name of either end while the connection lasts.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from softmrc import wire
from softmrc._core import Cipher, Inbound, Opened
from softmrc._support.files import open_own, unreadable
from softmrc.errors import MISSING, ConfigError

KEYLOG = "SOFTMRC_KEYLOG"
LATEST_PS = 1 << 62  # a moment of the core's; a damaged capture may have later ones
LINE = re.compile(r"(\w+) ([0-9a-f]{6}) ([0-9a-f]{64})")


def check() -> None:
    """Check that the key log, if one is set, can be written. Called before anything is sent, so that no error to the
    peer contains a path of this host."""
    if path := os.environ.get(KEYLOG):
        try:
            os.close(open_own(path, is_anew=False))
        except OSError as error:
            raise ConfigError(KEYLOG, path, f"cannot be written: {error.strerror}") from None


@dataclass
class Keys:
    """What opens captured packets. Each number opens once for each key: a capture of both ends has packets twice."""

    _known: dict[int, list[tuple[Cipher, bytes]]] = field(default_factory=dict)
    _open: dict[tuple[int, int], Inbound] = field(default_factory=dict)
    _began_ns: int | None = None  # the capture

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Keys:
        """A key log; a line that is none is refused."""
        keys = cls()
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    found = LINE.fullmatch(line.strip())
                    if not found or found[1] not in Cipher.__members__:
                        raise ConfigError(
                            "keys",
                            MISSING,
                            "must be lines of a cipher, a queue pair and a secret",
                            where=f"{path}:{number}",
                        )
                    secrets = keys._known.setdefault(int(found[2], 16), [])
                    if (one := (Cipher[found[1]], bytes.fromhex(found[3]))) not in secrets:
                        secrets.append(one)
        except OSError as error:
            raise unreadable("keys", Path(path), error) from None
        return keys

    def packet(self, record: wire.Record, frame: wire.Frame) -> wire.Packet | None:
        """The decrypted packet, if one of the keys opens it."""
        if frame.sealed is None:
            return None
        if self._began_ns is None:
            self._began_ns = record.time_ns
        since_ps = min(max(0, record.time_ns - self._began_ns) * 1000, LATEST_PS)
        for number, (cipher, secret) in enumerate(self._known.get(frame.sealed.qpn, ())):
            place = frame.sealed.qpn, number
            if place not in self._open:
                self._open[place] = Inbound(cipher, secret)
            how, packet = self._open[place].open(since_ps, record.udp_payload, frame.trimmed)
            if how == Opened.FRESH and packet is not None:
                return wire.Packet.parse(packet, trimmed=frame.trimmed)
        return None
