"""Who made what: a lab's record, written before the first namespace and removed after the last.

Nothing that is not in a record is ever touched. A record names namespaces and, once they exist, their inode numbers, so
that one which another process made later under the same name is left alone. A record without a lab behind it is what a
crash leaves, and is all that is needed to clean up.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from softmrc.errors import DeviceError, UsageError

FOLDER = Path("/run/softmrc")
PREFIX = "softmrc"


@dataclass
class LabState:
    """What a lab is, and what it has made."""

    name: str
    description: str  # the TOML text, so that later commands need no file
    namespaces: dict[str, int] = field(default_factory=dict)  # inode numbers; 0 where not known yet
    complete: bool = False
    acts: bool = False  # whether the BPF program is attached
    without: str = ""  # why it is not, although it was requested
    up_s: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)  # what is broken, and how
    flappers: dict[str, tuple[int, int]] = field(default_factory=dict)  # cable: process and its start time

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.json"

    @property
    def file(self) -> Path:
        """Its description, for what runs inside."""
        return FOLDER / f"{self.name}.toml"

    def save(self) -> None:
        """Replace the file at once, so that a crash leaves the old one or the new one."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.file.write_text(self.description)
        draft = self.path.with_suffix(".tmp")
        draft.write_text(json.dumps(asdict(self), indent=1))
        draft.replace(self.path)

    def remove(self) -> None:
        self.file.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def namespace_of(lab: str, node: str) -> str:
    return f"{PREFIX}-{lab}-{node}"


def find(name: str) -> LabState | None:
    """The record of a lab, or None."""
    path = FOLDER / f"{name}.json"
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        return LabState(**fields)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise DeviceError(f"{path} is not readable as a lab's record: {error}") from None


def names() -> list[str]:
    """All labs with a record."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def the_one(name: str | None) -> LabState:
    """The lab of this name; without a name, the only one there is."""
    known = names()
    if name is None:
        if len(known) != 1:
            raise UsageError(f"say which lab with --lab: {', '.join(known)}" if known else "no lab is up")
        name = known[0]
    found = find(name)
    if found is None:
        raise UsageError(f"no lab {name} is up" + (f"; there is {', '.join(known)}" if known else ""))
    return found


@contextmanager
def locked() -> Iterator[None]:
    """One command at a time on this machine: a lock a lab would leave a file behind for every name ever used."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start_time_of(pid: int) -> int:
    """When a process started, in ticks since boot: with its number, its identity. 0: there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def is_alive(pid: int, started: int) -> bool:
    return started != 0 and start_time_of(pid) == started and os.path.exists(f"/proc/{pid}")
