"""The loop: send rounds over every path, look at what came back, look closer where something is wrong, and say what.

What carries the packets is a `ProbeTransport`: the simulator, or a lab's kernel. The mapper knows neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import numpy as np

from softmrc.errors import ConfigError
from softmrc.fabric import Shape, link_name
from softmrc.fabric.denylist import Denylist, DenylistEntry
from softmrc.ops.mapper.components import Components
from softmrc.ops.mapper.inference import Finding, State, find_corruption, find_losses, find_slow
from softmrc.ops.mapper.matrix import Matrix, Outcome
from softmrc.ops.mapper.probes import ProbeBatch, Prober

SMALL_BYTES = 128
PERIOD = 120  # rounds, after which the choice of senders begins again
POOLED = 48  # rounds from which a closer look takes its packets
RIPE = 30  # accusations after which nothing closer is needed
MAX_FOCUSED = 40_000  # packets of one closer look


@dataclass(frozen=True)
class ProbeSchedule:
    """Packets of one size that leave evenly spread over a slot. Of a train of equal rows only the last is timed."""

    batch: ProbeBatch
    bytes: int
    train: int = 0  # 0: none is timed


class ProbeTransport(Protocol):
    """Whatever carries packets along the routes they name."""

    shape: Shape

    def send(self, flights: Sequence[ProbeSchedule], slot_s: float) -> list[Outcome]:
        """Send them, a slot after the other, and wait for what comes back."""
        ...

    @property
    def now_s(self) -> float: ...


@dataclass(frozen=True)
class MapperSettings:
    """How a mapper works. A slot has one round; a step ends with a verdict."""

    slot_s: float = 0.005
    step_slots: int = 40
    window_slots: int = 200
    large_every: int = 5  # slots; large packets show slow components
    large_bytes: int = 4200
    train: int = 1  # how many large ones follow each other, where a link lets a burst pass at any rate
    burst_bytes: int = 0  # that burst
    lanes: int = 1  # ports of a leaf that share a transceiver
    floor: float = 1e-6  # share of packets that is lost without anything being broken
    focus_crossings: int = 1500  # of each suspect link, in a closer look; 0: none

    def __post_init__(self) -> None:
        for name, low, high in (
            ("slot_s", 1e-5, 60), ("step_slots", 1, 10_000), ("window_slots", 1, 100_000), ("large_every", 1, 1000),
            ("large_bytes", SMALL_BYTES, 65_000), ("train", 1, 100), ("floor", 1e-9, 0.1),
            ("focus_crossings", 0, 1_000_000),
        ):  # fmt: skip
            if not low <= getattr(self, name) <= high:
                raise ConfigError(name, getattr(self, name), f"must be {low:g} to {high:g}")
        if self.window_slots < self.step_slots:
            raise ConfigError(
                "window_slots", self.window_slots, f"must be at least the {self.step_slots} slots of a step"
            )
        if not 0 <= self.burst_bytes < self.train * self.large_bytes:
            raise ConfigError(
                "burst_bytes", self.burst_bytes, f"must be 0 to less than a train, {self.train} large packets"
            )


def denylist_of(fabric: str, shape: Shape, findings: Iterable[Finding]) -> Denylist:
    """A list of everything that was found, as a denylist."""
    entries = tuple(
        DenylistEntry(
            one.component.name,
            one.component.kind.value,
            one.state.value,
            round(one.share, 6),
            tuple(link_name(shape, link) for link in one.component.links),
        )
        for one in findings
    )
    return Denylist(fabric, entries, datetime.now(UTC).isoformat(timespec="seconds"))


@dataclass
class Mapper:
    """Watches a fabric. Call `step` again and again: each call sends a step's packets and returns what is broken."""

    fabric: ProbeTransport
    settings: MapperSettings = field(default_factory=MapperSettings)
    shared: Prober | None = None  # rounds that another mapper of the same shape made before

    def __post_init__(self) -> None:
        shape = self.fabric.shape
        self.prober = self.shared or Prober(Components(shape, self.settings.lanes))
        self.components = self.prober.components
        self.matrix = Matrix(self.components, self.settings.window_slots)
        self.sent_packets = 0
        self.sent_bytes = np.zeros(shape.links, dtype=np.int64)  # by link, as if every packet crossed its whole way
        self._round = 0

    def step(self) -> list[Finding]:
        """Send one step, then look closer at suspects; everything that is broken now."""
        settings = self.settings
        flights, slots = [], []
        for _ in range(settings.step_slots):
            is_large = self._round % settings.large_every == 0
            batch = self.prober.round(self._round % PERIOD)
            flights.append(self._large(batch) if is_large else ProbeSchedule(batch, SMALL_BYTES))
            slots.append(self.matrix.open_slot())
            self._round += 1
        self._fly(flights, slots)
        found = find_losses(self.components, self.matrix, settings.floor)
        corrupt = find_corruption(self.components, self.matrix, settings.floor)
        if self._look_closer(found + corrupt):
            found = find_losses(self.components, self.matrix, settings.floor)
            corrupt = find_corruption(self.components, self.matrix, settings.floor)
        return found + corrupt + self._slow(found)

    def _fly(self, flights: list[ProbeSchedule], slots: list[int]) -> None:
        for flight, slot, outcome in zip(flights, slots, self.fabric.send(flights, self.settings.slot_s), strict=True):
            self.matrix.add(slot, flight.batch, outcome, flight.train)
            self.sent_packets += len(flight.batch)
            rows = flight.batch.links
            self.sent_bytes += flight.bytes * np.bincount(rows[rows >= 0], minlength=len(self.sent_bytes))

    def _large(self, batch: ProbeBatch) -> ProbeSchedule:
        train = self.settings.train
        if train > 1:
            batch = batch.take(np.repeat(np.flatnonzero(batch.returns), train))
        return ProbeSchedule(batch, self.settings.large_bytes, train)

    def _slow(self, losses: list[Finding]) -> list[Finding]:
        shape = self.fabric.shape
        rate = min(shape.host_link_bps, shape.fabric_link_bps)
        last = max(self.settings.step_slots, 4 * self.settings.large_every)
        beyond = self.settings.large_bytes * self.settings.train - self.settings.burst_bytes
        return find_slow(self.components, self.matrix, last, beyond * 8e9 / rate, losses)

    def _look_closer(self, found: list[Finding]) -> bool:
        """More packets over what is suspected on thin evidence, spread over a few extra slots."""
        settings = self.settings
        suspects = self._suspects(found)
        if not settings.focus_crossings or not suspects.any():
            return False
        pool = self.prober.pool(POOLED)
        chosen = np.flatnonzero(np.append(suspects, False)[pool.links].any(axis=1))
        counts = np.bincount(pool.links[chosen][pool.links[chosen] >= 0], minlength=len(suspects))[suspects]
        times = int(np.ceil(settings.focus_crossings / max(counts.min(), 1)))
        times = min(times, settings.focus_crossings, max(MAX_FOCUSED // max(len(chosen), 1), 1))
        parts = np.array_split(np.tile(chosen, times), max(min(settings.window_slots // 10, 20), 1))
        flights = [ProbeSchedule(pool.take(part), SMALL_BYTES) for part in parts if len(part)]
        self._fly(flights, [self.matrix.open_slot() for _ in flights])
        return True

    def _suspects(self, found: list[Finding]) -> np.ndarray:
        """Links that lost packets accuse and that no well-founded finding explains."""
        ripe = np.zeros(len(self.sent_bytes) + 1, dtype=bool)
        for one in found:
            if one.accused >= RIPE or one.state is State.DEAD:
                ripe[list(one.component.links)] = True
        suspects = np.zeros(len(self.sent_bytes) + 1, dtype=bool)
        for rows, _ in (self.matrix.lost(), self.matrix.corrupt()):
            open_ = rows[~ripe[rows].any(axis=1)]
            suspects[open_[-64:]] = True
        suspects[-1] = False
        return suspects[:-1] & ~ripe[:-1]

    def bandwidth_share(self, seconds: float) -> float:
        """The largest share of a link's rate that the mapper used so far."""
        shape = self.fabric.shape
        return float(self.sent_bytes.max()) * 8 / seconds / min(shape.host_link_bps, shape.fabric_link_bps)
