"""Where ranks find each other: anything with the `set`, `get` and `wait` of torch's Store, and better with its `check`.
This one needs no torch."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

DEFAULT_TIMEOUT = timedelta(seconds=30)
LOOK_EVERY_S = 0.002
LONGEST_NAME = 200


class DirectoryStore:
    """A store in a directory that all ranks see: a file for every key. What ranks say includes keys to their memory, so
    that it is for their own user alone."""

    def __init__(self, path: str | Path, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        self.path = Path(path)
        self.path.mkdir(0o700, parents=True, exist_ok=True)
        self.timeout = timeout

    def _file(self, key: str) -> Path:
        name = key.encode().hex()
        # File systems have a limit for names, and a part of a value needs some letters more.
        return self.path / (name if len(name) <= LONGEST_NAME else hashlib.sha256(key.encode()).hexdigest())

    def set(self, key: str, value: bytes | str) -> None:
        """Say it to everybody; a key appears with its whole value."""
        data = value.encode() if isinstance(value, str) else value
        part = self._file(key).with_suffix(f".{os.getpid()}.{time.monotonic_ns()}")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        part.rename(self._file(key))

    def get(self, key: str) -> bytes:
        """The value, as soon as it is set."""
        self.wait([key])
        return self._file(key).read_bytes()

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all are set."""
        return all(self._file(key).exists() for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Until all are set."""
        until = time.monotonic() + (timeout or self.timeout).total_seconds()
        for key in keys:
            while not self._file(key).exists():
                if time.monotonic() > until:
                    raise TimeoutError(f"{key!r} was not set in time")
                time.sleep(LOOK_EVERY_S)
