"""What nodes shall not use, in a file: the directed links of what is broken, and why.

Links, not EVs: a file of a few lines then serves every pair of hosts, each of which works out its own EVs. A list that
would take every path of a pair takes none of them: a bad path is better than none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmrc._support.files import read_text
from softmrc.errors import ConfigError, DeviceError
from softmrc.fabric.address import AddressPlan
from softmrc.fabric.host import FILE as FABRIC
from softmrc.fabric.host import NUMBER, FabricHost
from softmrc.fabric.shape import Shape

VERSION = 1
MAX_BYTES = 16 << 20
FILE = "SOFTMRC_DENYLIST"


@dataclass(frozen=True)
class DenylistEntry:
    """One component that must not be used."""

    name: str
    kind: str
    state: str
    share: float
    links: tuple[str, ...]


@dataclass(frozen=True)
class Denylist:
    """Entries, for a fabric of this name."""

    fabric: str
    entries: tuple[DenylistEntry, ...] = ()
    written: str = ""

    def save(self, path: Path) -> None:
        """Write it whole or not at all: nodes may be reading."""
        entries = [
            {"name": e.name, "kind": e.kind, "state": e.state, "share": e.share, "links": list(e.links)}
            for e in self.entries
        ]
        text = json.dumps({"denylist": VERSION, "fabric": self.fabric, "written": self.written, "entries": entries})
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            draft.write_text(text + "\n")
            draft.replace(path)
        except OSError as error:
            raise DeviceError(f"cannot write {path}: {error.strerror}") from None

    @classmethod
    def load(cls, path: Path) -> Denylist:
        """The list in a file; refused in one sentence where it is none."""
        text = read_text(path, "denylist")
        if len(text) > MAX_BYTES:
            raise ConfigError("denylist", str(path), f"must be at most {MAX_BYTES:,} bytes long")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError(
                "denylist", str(path), "must be a denylist in JSON, as `softmrc mapper` writes it"
            ) from None
        return cls._read(found, str(path))

    @classmethod
    def _read(cls, found: Any, source: str) -> Denylist:
        def refuse(what: str) -> ConfigError:
            return ConfigError("denylist", source, f"must be a denylist as `softmrc mapper` writes it ({what})")

        if not isinstance(found, dict) or found.get("denylist") != VERSION:
            raise refuse(f'"denylist": {VERSION} is missing')
        entries = found.get("entries")
        if not isinstance(entries, list):
            raise refuse("no list of entries")
        read = []
        for i, one in enumerate(entries):
            links = one.get("links") if isinstance(one, dict) else None
            if not isinstance(links, list) or not links or not all(isinstance(name, str) for name in links):
                raise refuse(f"entry {i} has no links")
            share = one.get("share", 1.0)
            if isinstance(share, bool) or not isinstance(share, (int, float)):
                raise refuse(f"entry {i}: share must be a number, and is {share!r}")
            name, kind, state = (str(one.get(key, "")) for key in ("name", "kind", "state"))
            read.append(DenylistEntry(name, kind, state, float(share), tuple(links)))
        return cls(str(found.get("fabric", "")), tuple(read), str(found.get("written", "")))

    @classmethod
    def from_environment(cls) -> Denylist | None:
        """The list that every process of this node loads at start, if the environment names one."""
        name = os.environ.get(FILE)
        return cls.load(Path(name)) if name else None

    def links(self, shape: Shape) -> set[int]:
        """The directed links of all entries; one that the fabric does not have is refused."""
        return {_link_of(shape, name) for entry in self.entries for name in entry.links}

    def evs(self, plan: AddressPlan, source: int, destination: int) -> list[int]:
        """The EVs of a pair of hosts that cross a link of the list; none, if it would be all of them."""
        denied = {ev for link in self.links(plan.shape) for ev in plan.evs_over(link, source, destination)}
        return sorted(denied) if len(denied) < plan.evs(source, destination) else []


def at_start() -> Callable[[Any], list[int]] | None:
    """The list that this process loads at start, if it is given one: the EVs to leave, by a peer's address."""
    listed = Denylist.from_environment()
    if listed is None:
        return None
    here = FabricHost.from_environment()
    if here is None:
        raise ConfigError(
            FILE, os.environ[FILE], "needs a fabric", f"Set {FABRIC} and {NUMBER} to the fabric file and this host."
        )
    listed.links(here.description.fabric)

    def denied(address: Any) -> list[int]:
        to = here.host_at(0, address)
        return [] if to is None else listed.evs(here.plan, here.host, to)

    return denied


def _link_of(shape: Shape, name: str) -> int:
    near, arrow, far = name.partition(">")
    if not arrow:
        raise ConfigError("denylist link", name, "must be a directed link, as p0.leaf0>spine1")
    cable = shape.parse_cable(f"{near}-{far}")
    up, down = shape.links_of(cable)
    plane = f"p{cable.plane}."
    lower = shape.name_of(cable.lower).removeprefix(plane)
    return up if near.removeprefix(plane) == lower else down
