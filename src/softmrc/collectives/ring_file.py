"""The file: a page that says whose it is, then three rings of records. Written by one process, read by any."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from softmrc.errors import ConfigError, printable, words_of

VERSION = 1
HEAD_BYTES = 4096
MAX_PLANES = 16
MAX_RANKS = 65536
LATEST_S = 1e11  # since 1970; what says it was later, or is no number, is none of our records
UNFINISHED = ".new"  # ends the name of a recording until it has its head
INTERVAL_S = 0.02  # from one sample to the next
OPERATION = np.dtype(
    [("number", "<u8"), ("kind", "<u4"), ("bytes", "<u8"), ("begun", "<f8"), ("ended", "<f8")]
)  # ended 0: under way
SAMPLE = np.dtype(
    [
        ("number", "<u8"),
        ("at", "<f8"),
        ("waited", "<f8"),  # seconds that callers waited for a processor, since the beginning
        ("retransmitted", "<u8"),
        ("twice", "<u8"),  # packets that came a second time
        ("timeouts", "<u8"),
        ("left_slow", "<u8"),
        ("received", "<u8", (MAX_PLANES,)),  # bytes
    ]
)
NOTE = np.dtype(
    [("number", "<u8"), ("at", "<f8"), ("kind", "<u4"), ("peer", "<i4"), ("plane", "<i4"), ("value", "<f8")]
)
LENGTHS = {"operations": 2048, "samples": 4096, "notes": 4096}
DTYPES = {"operations": OPERATION, "samples": SAMPLE, "notes": NOTE}
SIZE = HEAD_BYTES + sum(LENGTHS[name] * DTYPES[name].itemsize for name in LENGTHS)


class PathEvent(IntEnum):
    """What happened to the paths of one plane towards one peer. Value: how many, packets or paths."""

    LOST = 1  # packets were found lost
    SILENT = 2  # no path there is good any more
    BACK = 3  # some are good again
    LEFT_SLOW = 4  # the plane was left because it held up the others


@dataclass(frozen=True)
class Owner:
    """Whose recording it is."""

    group: str
    rank: int
    size: int
    pid: int
    program: str
    planes: tuple[str, ...]
    run: str = ""  # the same for all ranks that met, and for no others

    def head(self) -> bytes:
        """The first page; of the program as much as fits."""
        program = self.program[:500]
        while True:
            head = json.dumps({"recording": VERSION} | self.__dict__ | {"program": program}).encode()
            over = len(head) - HEAD_BYTES
            if over <= 0:
                return head.ljust(HEAD_BYTES, b" ")
            if not program:
                raise ConfigError("group", f"{self.group[:20]}…", "is too long a name for a recording")
            program = program[: -(over // 12 + 1)]  # a character has twelve bytes at most: \ud83d\ude00


class RingFile:
    """A recording that is written."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self.path = path
        head = owner.head()
        unfinished = path.with_name(path.name + UNFINISHED)
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "r+b") as file:
                os.posix_fallocate(descriptor, 0, SIZE)  # a full disk found later, by the mapping, is fatal
                file.write(head)
            os.link(unfinished, path)  # readers see it complete or not at all; unlike a rename it replaces no other
        finally:
            unfinished.unlink(missing_ok=True)
        self._rings = _rings(path, "r+")
        self._counts = dict.fromkeys(LENGTHS, 0)

    def add(self, ring: str, *values: Any) -> int:
        """Write a record over the oldest; its number, from 1."""
        self._counts[ring] += 1
        number = self._counts[ring]
        self._rings[ring][number % LENGTHS[ring]] = (number, *values)
        return number

    def end_operation(self, number: int, at: float) -> None:
        """Unless it has been overwritten."""
        row = self._rings["operations"][number % LENGTHS["operations"]]
        if row["number"] == number:
            row["ended"] = at

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Recording:
    """What a recording held when it was read: each ring in order, whole records only."""

    owner: Owner
    operations: np.ndarray
    samples: np.ndarray
    notes: np.ndarray


def read(path: Path) -> Recording:
    """A recording, as it is now; a file that is none is refused."""
    try:
        if path.stat().st_size != SIZE:
            raise ValueError(f"it has another length than {SIZE:,} bytes")
        with path.open("rb") as file:
            found = json.loads(file.read(HEAD_BYTES))
        rings = _rings(path, "r")
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            "recording", str(path), f"must be a recording of the flight recorder ({words_of(error)})"
        ) from None
    try:
        if found["recording"] != VERSION:
            raise ValueError(f"version {found['recording']}")
        planes = tuple(str(one) for one in found["planes"])
        numbers = (int(found["rank"]), int(found["size"]), int(found["pid"]))
        owner = Owner(str(found["group"]), *numbers, str(found["program"]), planes, str(found.get("run", "")))
        if not 0 <= owner.rank < owner.size <= MAX_RANKS:
            raise ValueError(f"rank {owner.rank} of {owner.size}")
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            "recording", str(path), f"must be a recording of the flight recorder ({printable(str(error))})"
        ) from None
    kept = {}
    for name, ring in rings.items():
        rows = np.array(ring)
        rows = rows[(rows["number"] > 0) & _makes_sense(name, rows, owner)]
        kept[name] = rows[np.argsort(rows["number"])]
    return Recording(owner, kept["operations"], kept["samples"], kept["notes"])


def _makes_sense(ring: str, rows: np.ndarray, owner: Owner) -> np.ndarray:
    """Which records can have been written by a recorder: a file may be damaged, or half of a record be written."""
    if ring == "operations":
        begun, ended = rows["begun"], rows["ended"]
        return _is_time(begun) & ((ended == 0) | (_is_time(ended) & (ended >= begun)))
    if ring == "samples":
        return _is_time(rows["at"]) & _is_time(rows["waited"])
    plane, peer = rows["plane"], rows["peer"]
    is_somewhere = (plane >= 0) & (plane < MAX_PLANES) & (peer >= 0) & (peer < owner.size)
    return _is_time(rows["at"]) & np.isfinite(rows["value"]) & is_somewhere


def _is_time(seconds: np.ndarray) -> np.ndarray:
    return (seconds >= 0) & (seconds <= LATEST_S)  # of what is no number, neither


def _rings(path: Path, mode: Any) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    at = HEAD_BYTES
    for name, length in LENGTHS.items():
        found[name] = np.memmap(path, dtype=DTYPES[name], mode=mode, offset=at, shape=(length,))
        at += length * DTYPES[name].itemsize
    return found
