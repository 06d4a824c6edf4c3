"""What is broken in the fabric, for the page: the mapper of a lab, or a denylist file."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from softmrc.errors import MrcError
from softmrc.fabric import Shape
from softmrc.fabric.denylist import Denylist
from softmrc.fabric.drawing import draw
from softmrc.ops.mapper import Mapper

MAX_CHANGES = 100


class Source(Protocol):
    """Says what is broken now, as (name, kind, state, words); may take its time."""

    def broken(self) -> list[tuple[str, str, str, str]]: ...


class DenylistSource:
    """A file that a mapper writes elsewhere; without one nothing is known to be broken."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def broken(self) -> list[tuple[str, str, str, str]]:
        time.sleep(0.5)
        if self._path is None or not self._path.exists():
            return []
        return [(one.name, one.kind, one.state, "") for one in Denylist.load(self._path).entries]


class MapperSource:
    """A mapper in the same process, run a step at a time."""

    def __init__(self, mapper: Mapper) -> None:
        self._mapper = mapper

    def broken(self) -> list[tuple[str, str, str, str]]:
        return [(one.component.name, one.component.kind.value, one.state.value, one.how) for one in self._mapper.step()]


class FabricWatch:
    """Polls a source in a separate thread, and remembers what changed when."""

    def __init__(self, name: str, shape: Shape, source: Source) -> None:
        self.name, self.shape = name, shape
        self._source = source
        self._lock = threading.Lock()
        self._broken: list[tuple[str, str, str, str]] = []
        self._changes: deque[dict[str, Any]] = deque(maxlen=MAX_CHANGES)
        self._error = ""
        self._looked_at = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="softmrc-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                found = self._source.broken()
            except Exception as trouble:  # of a file, or of a mapper that is short of something: it is polled again
                with self._lock:  # that repairs nothing
                    self._error = str(trouble) or type(trouble).__name__
                self._ends.wait(1)
                continue
            with self._lock:
                self._note(found)
                self._error, self._looked_at = "", time.time()

    def _note(self, found: list[tuple[str, str, str, str]]) -> None:
        before, now = {one[:3] for one in self._broken}, {one[:3] for one in found}
        for name, _, state in sorted(now - before):
            self._changes.append({"at": time.time(), "type": "broken", "text": f"{name} is {state}"})
        for name, _, state in sorted(before - now):
            self._changes.append({"at": time.time(), "type": "recovered", "text": f"{name} is no longer {state}"})
        self._broken = found

    def verdict(self) -> dict[str, Any]:
        with self._lock:
            keys = ("name", "kind", "state", "words")
            return {
                "name": self.name,
                "hosts": self.shape.hosts,
                "error": self._error,
                "looked_at": self._looked_at,
                "broken": [dict(zip(keys, one, strict=True)) for one in self._broken],
                "changes": list(self._changes),
            }

    def drawing(self) -> str:
        """The fabric, what is broken in red. One direction of a cable is drawn as the cable."""
        with self._lock:
            names = {name.replace(">", "-") for name, *_ in self._broken}
        for name in list(names):
            with suppress(MrcError, ValueError):
                near, _, far = name.partition(".")[2].partition("-")
                names.add(f"{name.partition('.')[0]}.{far}-{near}")
        return draw(self.shape, f"fabric {self.name}", names)
