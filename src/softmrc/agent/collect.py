"""What the devices of this host say, asked at most once a second however many look, and kept for a few minutes."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from softmrc import control
from softmrc.errors import MrcError

KEPT = 300  # samples of a plane's rates
LEAST_AGE_S = 0.5
MOST_EVENTS = 500
MOST_DEVICES = 64


@dataclass
class Seen:
    """One device, as it last answered."""

    name: str
    info: dict[str, Any]
    stats: dict[str, Any]
    queue_pairs: list[dict[str, Any]]
    at: float


@dataclass
class Rates:
    """What a plane sent and received in a second, over the last minutes: (time, sent, received) in bits a second."""

    points: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    last: tuple[float, int, int] | None = None

    def add(self, at: float, sent: int, received: int) -> None:
        if self.last is not None and at > self.last[0]:
            span = at - self.last[0]
            rates = (max(0, sent - self.last[1]) * 8 / span, max(0, received - self.last[2]) * 8 / span)
            self.points.append((at, *rates))
        self.last = (at, sent, received)


class Collector:
    """Asks the devices of this user and remembers. Safe to use from several threads."""

    def __init__(self) -> None:
        self._where = control.folder()
        self._lock = threading.Lock()
        self._nodes: dict[str, control.Node] = {}
        self._seen: dict[str, Seen] = {}
        self._rates: dict[tuple[str, int], Rates] = {}
        self._asked_at = 0.0
        self.events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self.events_lost = 0
        self.failures = 0

    def look(self) -> list[Seen]:
        """Every device as it is now, or was half a second ago."""
        with self._lock:
            if time.monotonic() - self._asked_at >= LEAST_AGE_S:
                self._ask_all()
                self._asked_at = time.monotonic()
            return list(self._seen.values())

    def rates(self) -> dict[tuple[str, int], list[tuple[float, float, float]]]:
        with self._lock:
            return {key: list(rates.points) for key, rates in self._rates.items()}

    def recent_events(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self.events)

    def close(self) -> None:
        with self._lock:
            for node in self._nodes.values():
                node.close()
            self._nodes.clear()

    def _ask_all(self) -> None:
        self._find()
        for name, node in list(self._nodes.items()):
            try:
                self._seen[name] = self._ask(node)
            except MrcError:
                self.failures += 1
                self._forget(name)

    def _find(self) -> None:
        """New devices join; those whose sockets are gone leave when they do not answer."""
        try:
            found = control.devices(self._where)
        except MrcError:
            self.failures += 1
            return
        for node in found:
            if node.name in self._nodes or len(self._nodes) >= MOST_DEVICES:
                node.close()
                continue
            self._nodes[node.name] = node

    def _forget(self, name: str) -> None:
        self._nodes.pop(name).close()
        self._seen.pop(name, None)
        for key in [key for key in self._rates if key[0] == name]:
            del self._rates[key]

    def _ask(self, node: control.Node) -> Seen:
        known = self._seen.get(node.name)
        info = known.info if known else node.info()
        stats, now = node.stats(), time.time()
        for plane, row in enumerate(stats.get("planes", [])):
            rates = self._rates.setdefault((node.name, plane), Rates())
            rates.add(now, int(row.get("bytes_sent", 0)), int(row.get("bytes_received", 0)))
        told = node.events()
        self.events_lost += told.lost
        for event in told.events:
            if event.get("type") not in ("packet_refused", "probe_answer"):
                self.events.append({"device": node.name} | event)
        queue_pairs: list[dict[str, Any]] = []
        with suppress(KeyError):
            queue_pairs = node.queue_pairs()
        return Seen(node.name, info, stats, queue_pairs, now)
