"""Identity of an end, proved by its own key, instead of a secret that all ends share and any of them can leak.

A folder holds the end's private key (X25519), and the public keys of those whom it knows:

    key.pem      PKCS #8, as `openssl genpkey -algorithm x25519` writes it, too; for its owner's eyes only
    known_peers  a line for each peer: its names and addresses, with commas between them, and its key

A connector accepts only the key known by the name that it dialled, so no other known peer can take its place. A
listener accepts every known key. The file is read again when it has changed; a name may have several keys,
which is how a key is replaced. That either end has its key is proved by the core's handshake (Noise XX).
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import re
import secrets
import stat
from pathlib import Path

from softmrc import _core
from softmrc._support.files import unreadable
from softmrc.errors import MISSING, ConfigError, DeviceError, HandshakeError

NO_LIBCRYPTO = "needs libcrypto, which this build does not have"
GET_LIBCRYPTO = "Install its headers (on Debian: libssl-dev) and build again."
KEY, KNOWN = "key.pem", "known_peers"
SIZE = 32
PEM = re.compile(r"\s*-----BEGIN PRIVATE KEY-----\s+([A-Za-z0-9+/=\s]+)-----END PRIVATE KEY-----\s*")
PKCS8 = bytes.fromhex("302e020100300506032b656e04220420")  # in front of the 32 bytes of an X25519 key
LINE = re.compile(r"(\S+)\s+([0-9a-fA-F]{64})")
FIRST_LINES = "# names and addresses, with commas between them, and a key; one peer a line\n"


def _plain(name: str) -> str:
    """A name or address as it is compared with others."""
    try:
        return str(ipaddress.ip_address(name.strip()))
    except ValueError:
        return name.strip().lower().rstrip(".")


def _unreadable(path: Path, error: OSError) -> ConfigError:
    if path.name == KEY and isinstance(error, FileNotFoundError):
        return ConfigError(
            "identity", str(path.parent), "has no key", f"Create one with `softmrc key new {path.parent}`."
        )
    return unreadable("identity", path, error)


def _without_waiting(path: str, flags: int) -> int:
    """The other end of a pipe may never be opened."""
    return os.open(path, flags | os.O_NONBLOCK)


def _text_of(path: Path, forbidden: int, only: str) -> str:
    """The text of a file that only we or root own: `forbidden` are modes it must not have."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError("identity", str(path), "must be a regular file")
            if found.st_uid not in (0, os.geteuid()) or stat.S_IMODE(found.st_mode) & forbidden:
                raise ConfigError("identity", str(path), f"must be a file that {only}")
            return file.read().decode()
    except OSError as error:
        raise _unreadable(path, error) from None
    except UnicodeDecodeError:
        raise ConfigError("identity", str(path), "must be UTF-8 text") from None


def _private_key(path: Path) -> bytes:
    text = _text_of(path, 0o077, f"its owner alone can read: chmod 600 {path}")
    found = PEM.fullmatch(text)
    try:
        der = base64.b64decode("".join(found[1].split()), validate=True) if found else b""
    except binascii.Error:
        der = b""
    if not der.startswith(PKCS8) or len(der) != len(PKCS8) + SIZE:
        raise ConfigError("identity", str(path), "must be an X25519 key in PEM, as `softmrc key new` makes it")
    return der[len(PKCS8) :]


def _known(path: Path) -> dict[bytes, tuple[str, ...]]:
    """Names by key."""
    found: dict[bytes, tuple[str, ...]] = {}
    for number, line in enumerate(
        _text_of(path, 0o022, f"only its owner can write: chmod go-w {path}").splitlines(), 1
    ):
        if not (words := line.partition("#")[0].strip()):
            continue
        entry = LINE.fullmatch(words)
        names = tuple(_plain(name) for name in entry[1].split(",")) if entry else ()
        if entry is None or not all(names):
            problem = "must be names with commas between them, and a key of 64 hexadecimal digits"
            raise ConfigError("identity", MISSING, problem, where=f"{path}:{number}")
        key = bytes.fromhex(entry[2])
        found[key] = found.get(key, ()) + names
    return found


def _check_can_sign(folder: object) -> None:
    if not _core.can_seal():
        raise ConfigError("identity", str(folder), NO_LIBCRYPTO, GET_LIBCRYPTO)


class Identity:
    """This end's key, and the peers that it knows."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        _check_can_sign(folder)
        self.folder = Path(folder)
        self._own = _private_key(self.folder / KEY)
        self.public: bytes = _core.x25519_public(self._own)
        self._known: dict[bytes, tuple[str, ...]] = {}
        self._stamp: tuple[int, ...] = ()
        self.known()

    def known(self) -> dict[bytes, tuple[str, ...]]:
        """Names by key, as the file has them now."""
        path = self.folder / KNOWN
        try:
            now = path.stat()
        except OSError as error:
            raise _unreadable(path, error) from None
        stamp = now.st_mtime_ns, now.st_size, now.st_ino, now.st_mode, now.st_uid
        if stamp != self._stamp:
            self._known, self._stamp = _known(path), stamp
        return self._known

    @property
    def credentials(self) -> _core.Credentials:
        return _core.Credentials.of_key(self._own)

    # spec: identities
    def name_of(self, key: bytes, dialled: tuple[str, ...] | None = None) -> str:
        """The name by which the peer that proved this key is known; for a connector, only the name that it dialled.
        Raises HandshakeError."""
        known, path = self.known(), self.folder / KNOWN
        names = known.get(key, ())
        if dialled is None:
            if not names:
                its = f"has the key {key.hex()}, which {path} does not have"
                raise HandshakeError(its, f"your key {key.hex()} is not known here")
            return names[0]
        called = {_plain(name) for name in dialled}
        if not called.isdisjoint(names):
            return names[0]
        who = ", ".join(sorted(called))
        if any(not called.isdisjoint(others) for others in known.values()):
            raise HandshakeError(
                f"has the key {key.hex()}, which is not the one that {path} has for {who}",
                "your key is not the one that is known here by the name that was called",
            )
        raise HandshakeError(f"has the key {key.hex()}, and {path} has none for {who}", "your key is not known here")

    def __repr__(self) -> str:
        return f"<Identity {self.public.hex()}>"


def make(folder: Path) -> Identity:
    """A new key, in a separate folder; an existing key is never replaced."""
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
        if not folder.is_dir():
            raise ConfigError("folder", str(folder), "must be a folder, and is a file") from None
        raise ConfigError(
            "folder", str(folder), f"has a key already ({error.filename})", "Name another folder."
        ) from None
    except OSError as error:
        raise DeviceError(error.errno, f"cannot write {folder}: {error.strerror}") from None
    return Identity(folder)
