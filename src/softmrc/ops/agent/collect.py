"""What the devices of this host say, asked at most twice a second however many look, and kept for a few minutes.

It queries all devices at once, each in a separate thread, with a short timeout. A device that misses it is left out
and queried in the background until it answers, so a stopped process delays no request.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from softmrc._support.files import runtime_folder
from softmrc.errors import MrcError
from softmrc.ops import control

KEPT = 300  # samples of a plane's rates
LEAST_AGE_S = 0.5
TIMEOUT_S = 0.5  # with all devices together
MAX_EVENTS = 500
MAX_DEVICES = 64


@dataclass
class DeviceSample:
    """One device, as it last answered."""

    name: str
    info: dict[str, Any]
    stats: dict[str, Any]
    queue_pairs: list[dict[str, Any]]
    at: float


@dataclass
class PolledDevice:
    """A device that is known, and what it was last asked."""

    node: control.DeviceClient
    info: dict[str, Any] = field(default_factory=dict)  # as it once answered
    under_way: Future[tuple[DeviceSample, control.EventBatch]] | None = None
    is_late: bool = False


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
        self._where = runtime_folder()
        self._lock = threading.Lock()
        self._asked: dict[str, PolledDevice] = {}
        self._threads = ThreadPoolExecutor(MAX_DEVICES, "softmrc-collect")
        self._seen: dict[str, DeviceSample] = {}
        self._rates: dict[tuple[str, int], Rates] = {}
        self._asked_at = 0.0
        self.events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self.events_lost = 0
        self.failures = 0

    def look(self) -> list[DeviceSample]:
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
            for one in self._asked.values():
                one.node.close()
            self._asked.clear()
            self._asked_at = float("inf")  # no device is queried any more
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask_all(self) -> None:
        self._take()  # what came since: who was late may be here again
        self._find()
        for one in self._asked.values():
            if one.under_way is None:
                one.under_way = self._threads.submit(_ask, one.node, one.info)
        wait([one.under_way for one in self._asked.values() if one.under_way and not one.is_late], TIMEOUT_S)
        self._take()
        for name, one in self._asked.items():
            if one.under_way is not None:
                one.is_late = True
                self._seen.pop(name, None)

    def _find(self) -> None:
        """Add new devices."""
        try:
            found = control.devices(self._where, besides=self._asked)
        except MrcError:
            self.failures += 1
            return
        for node in found:
            if len(self._asked) < MAX_DEVICES:
                self._asked[node.name] = PolledDevice(node)
            else:
                node.close()

    def _take(self) -> None:
        """Take the answers. A device that timed out may be stopped and is queried again; other failures remove it."""
        for name, one in list(self._asked.items()):
            if one.under_way is None or not one.under_way.done():
                continue
            answer, one.under_way = one.under_way, None
            try:
                seen, told = answer.result()
            except MrcError as error:
                self.failures += 1
                self._seen.pop(name, None)
                if not isinstance(error, control.DeviceTimeout):
                    self._forget(name)
                continue
            one.info, one.is_late = seen.info, False
            self._keep(seen, told)

    def _forget(self, name: str) -> None:
        self._asked.pop(name).node.close()
        for key in [key for key in self._rates if key[0] == name]:
            del self._rates[key]

    def _keep(self, seen: DeviceSample, told: control.EventBatch) -> None:
        self._seen[seen.name] = seen
        for plane, row in enumerate(seen.stats.get("planes", [])):
            rates = self._rates.setdefault((seen.name, plane), Rates())
            rates.add(seen.at, int(row.get("bytes_sent", 0)), int(row.get("bytes_received", 0)))
        self.events_lost += told.lost
        for event in told.events:
            if event.get("type") not in ("packet_refused", "probe_answer"):
                self.events.append({"device": seen.name} | event)


def _ask(node: control.DeviceClient, info: dict[str, Any]) -> tuple[DeviceSample, control.EventBatch]:
    """All that is wanted of a device; who it is does not change."""
    info = info or node.info()
    stats, now = node.stats(), time.time()
    queue_pairs = node.queue_pairs()
    return DeviceSample(node.name, info, stats, queue_pairs, now), node.events()
