"""Who an end is, shown by a key of its own: instead of a secret that all ends share and any of them can give away.

A folder holds the end's private key (Ed25519), and the public keys of those whom it knows:

    key.pem      PKCS #8, as `openssl genpkey -algorithm ed25519` writes it, too; for its owner's eyes only
    known_peers  a line for each peer: its names and addresses, with commas between them, and its key

Who calls wants the key that is known by the name that it called, so that nobody else who is known can take its place.
Who is called takes anybody whom it knows. The file is read again when it has changed; a name may have several keys,
which is how a key is replaced. Both keys, both nonces and a fresh share of X25519 from either end go under either
signature, and into a secret that is good for this one handshake: all that follows is proved with that.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Any

from softmrc import _core
from softmrc.connection import validate
from softmrc.connection.handshake import CONNECTOR, HandshakeError
from softmrc.connection.validate import ProtocolError
from softmrc.errors import ConfigError, DeviceError

KEY, KNOWN = "key.pem", "known_peers"
SIZE, SIGNATURE_SIZE = 32, 64
LABEL = b"softmrc identity "
PEM = re.compile(r"\s*-----BEGIN PRIVATE KEY-----\s+([A-Za-z0-9+/=\s]+)-----END PRIVATE KEY-----\s*")
PKCS8 = bytes.fromhex("302e020100300506032b657004220420")  # in front of the 32 bytes of an Ed25519 key
LINE = re.compile(r"(\S+)\s+([0-9a-f]{64})")
FIRST_LINES = "# names and addresses, with commas between them, and a key; one peer a line\n"


def _plain(name: str) -> str:
    """A name or address as it is compared with others."""
    try:
        return str(ipaddress.ip_address(name.strip()))
    except ValueError:
        return name.strip().lower().rstrip(".")


def _text_of(path: Path, forbidden: int, only: str) -> str:
    """Of a file that is ours, or root's, and nobody's else: `forbidden` are modes it must not have."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid not in (0, os.geteuid()) or stat.S_IMODE(found.st_mode) & forbidden:
                raise ConfigError("identity", str(path), f"a file that {only}")
            return file.read().decode()
    except OSError as error:
        raise ConfigError("identity", str(path), f"a file that can be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError("identity", str(path), "a file of UTF-8 text") from None


def _private_key(path: Path) -> bytes:
    text = _text_of(path, 0o077, f"its owner alone can read: chmod 600 {path}")
    found = PEM.fullmatch(text)
    try:
        der = base64.b64decode("".join(found[1].split()), validate=True) if found else b""
    except binascii.Error:
        der = b""
    if not der.startswith(PKCS8) or len(der) != len(PKCS8) + SIZE:
        raise ConfigError("identity", str(path), "an Ed25519 key in PEM, as `softmrc key new` makes it")
    return der[len(PKCS8) :]


def _known(path: Path) -> dict[bytes, tuple[str, ...]]:
    """Names by key."""
    found: dict[bytes, tuple[str, ...]] = {}
    for number, line in enumerate(_text_of(path, 0o022, f"nobody else can write: chmod go-w {path}").splitlines(), 1):
        if not (words := line.partition("#")[0].strip()):
            continue
        entry = LINE.fullmatch(words)
        names = tuple(_plain(name) for name in entry[1].split(",")) if entry else ()
        if entry is None or not all(names):
            raise ConfigError("identity", f"{path}:{number}", "names with commas between them, and a key of 64 digits")
        key = bytes.fromhex(entry[2])
        found[key] = found.get(key, ()) + names
    return found


def _check_can_sign(folder: object) -> None:
    if not _core.can_seal():
        raise ConfigError("identity", str(folder), "none: built without sealing (OpenSSL's headers were not there)")


class Identity:
    """This end's key, and the peers that it knows."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        _check_can_sign(folder)
        self.folder = Path(folder)
        self._own = _private_key(self.folder / KEY)
        self.public: bytes = _core.ed25519_public(self._own)
        self._known: dict[bytes, tuple[str, ...]] = {}
        self._stamp: tuple[int, ...] = ()
        self.known()

    def known(self) -> dict[bytes, tuple[str, ...]]:
        """Names by key, as the file has them now."""
        path = self.folder / KNOWN
        try:
            now = path.stat()
        except OSError as error:
            raise ConfigError("identity", str(path), f"a file that can be read ({error.strerror})") from None
        stamp = now.st_mtime_ns, now.st_size, now.st_ino, now.st_mode, now.st_uid
        if stamp != self._stamp:
            self._known, self._stamp = _known(path), stamp
        return self._known

    def sign(self, text: bytes) -> bytes:
        return _core.ed25519_sign(self._own, text)

    def __repr__(self) -> str:
        return f"<Identity {self.public.hex()}>"


def make(folder: Path) -> Identity:
    """A new key, in a folder of its own; one that is there is never replaced."""
    _check_can_sign(folder)
    key = secrets.token_bytes(SIZE)
    text = base64.b64encode(PKCS8 + key).decode()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, words in (
            (KEY, f"-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n"),
            (KNOWN, FIRST_LINES),
        ):
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(words)
    except FileExistsError as error:
        raise ConfigError("folder", str(folder), f"one without a key: {error.filename} is there already") from None
    except OSError as error:
        raise DeviceError(error.errno, f"cannot write {folder}: {error.strerror}") from None
    return Identity(folder)


class KeyExchange:
    """Two keys in one handshake."""

    def __init__(self, identity: Identity, role: str, dialled: tuple[str, ...] = ()) -> None:
        self._identity = identity
        self._is_connector = role == CONNECTOR
        self._dialled = {_plain(name) for name in dialled}
        self._drawn = secrets.token_bytes(SIZE)
        self._share = b""  # its public half, when somebody is to see it
        self._keys: list[bytes] = []  # the connector's, and the listener's
        self._shares: list[bytes] = []
        self.peer = ""  # the name by which the other end is known

    def _in_order(self, own: bytes, theirs: bytes) -> list[bytes]:
        return [own, theirs] if self._is_connector else [theirs, own]

    def to_wire(self) -> dict[str, Any]:
        self._share = self._share or _core.x25519_public(self._drawn)
        return {"key": self._identity.public.hex(), "share": self._share.hex()}

    def hear(self, words: object, salt: bytes) -> bytes:
        """The secret that the two ends make, if this one knows the other; nothing is computed for who is not known."""
        if not isinstance(words, dict):
            raise HandshakeError("sent no usable key")
        try:
            key = validate.in_hex("identity.key", words.get("key"), SIZE)
            share = validate.in_hex("identity.share", words.get("share"), SIZE)
        except ProtocolError:
            raise HandshakeError("sent no usable key") from None
        self._recognise(key)
        own, shared = bytes.fromhex(self.to_wire()["share"]), _core.x25519(self._drawn, share)
        if shared is None:
            raise HandshakeError("sent a share that leaves no choice")
        self._drawn = b""
        self._keys, self._shares = self._in_order(self._identity.public, key), self._in_order(own, share)
        return hmac.digest(salt, b"".join((LABEL, shared, *self._keys, *self._shares)), hashlib.sha256)

    # spec: identities
    def _recognise(self, key: bytes) -> None:
        known, path = self._identity.known(), self._identity.folder / KNOWN
        names = known.get(key, ())
        if self._is_connector:
            called = ", ".join(sorted(self._dialled))
            if not any(self._dialled.intersection(others) for others in known.values()):
                raise HandshakeError(
                    f"shows the key {key.hex()}, and {path} has none for {called}", "your key is not known here"
                )
            if self._dialled.isdisjoint(names):
                raise HandshakeError(
                    f"shows the key {key.hex()}, which is not the one that {path} has for {called}",
                    "your key is not the one that is known here by the name that was called",
                )
        elif not names:
            raise HandshakeError(
                f"shows the key {key.hex()}, which {path} does not have", f"your key {key.hex()} is not known here"
            )
        self.peer = names[0]

    def _text(self, salt: bytes, of_connector: bool) -> bytes:
        who = b"connector" if of_connector else b"listener"
        return b"".join((LABEL, who, salt, *self._shares, *self._keys))

    def signature(self, salt: bytes) -> str:
        """That this end has its key, and means this handshake with this peer."""
        return self._identity.sign(self._text(salt, self._is_connector)).hex()

    def check(self, salt: bytes, signature: object) -> None:
        """The other end's, likewise."""
        theirs = self._keys[1 if self._is_connector else 0]
        try:
            signed = validate.in_hex("signature", signature, SIGNATURE_SIZE)
        except ProtocolError:
            signed = bytes(SIGNATURE_SIZE)
        if not _core.ed25519_verify(theirs, self._text(salt, not self._is_connector), signed):
            raise HandshakeError("does not have the key that it shows", "you do not have the key that you show")
