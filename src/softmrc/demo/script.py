"""What breaks, when, and for whom. Times are steps of the training, so that a slow machine sees the same story."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

STEPS = 240
FLAP_S = 0.25


@dataclass(frozen=True, eq=False)
class ScriptedFault:
    """Something that is broken from one step to another."""

    label: str
    start: int
    end: int
    plane: int | None = None  # None: all planes
    rank: int | None = None  # None: for all ranks
    faults: dict[str, Any] = field(default_factory=dict)  # as `Device.set_faults` has them; empty: the port goes down
    flaps: bool = False  # down and up in turn

    @property
    def is_port(self) -> bool:
        return not self.faults


SCRIPT = (
    ScriptedFault("plane 2 black-holed", 30, 60, plane=2, faults={"black_hole": True}),
    ScriptedFault("plane 1 down at rank 1", 80, 105, plane=1, rank=1),
    ScriptedFault("plane 3 flapping at rank 3", 120, 150, plane=3, rank=3, flaps=True),
    ScriptedFault("1 % loss everywhere", 165, 190, faults={"drop": 0.01}),
    ScriptedFault("plane 0 slow, +20 ms", 205, 230, plane=0, faults={"delay_us": 20_000.0}),
)
Order = Callable[[int | None, dict[str, Any]], None]  # to a rank, or to all


class Director:
    """Gives the orders of a script as the steps go by."""

    def __init__(self, script: tuple[ScriptedFault, ...], planes: int, order: Order) -> None:
        self._script = script
        self._planes = planes
        self._order = order
        self.active: list[ScriptedFault] = []
        self._over: set[ScriptedFault] = set()
        self._is_up: dict[ScriptedFault, bool] = {}
        self._turned_at: dict[ScriptedFault, float] = {}

    def at_step(self, step: int, now: float) -> list[tuple[ScriptedFault, bool]]:
        """Begin and end what is due; returns what changed, with whether it began."""
        changed = []
        for fault in self._script:
            wanted = fault.start <= step < fault.end and fault not in self._over
            if wanted and fault not in self.active:
                self.active.append(fault)
                self._begin(fault, now)
                changed.append((fault, True))
            elif not wanted and fault in self.active:
                changed.append(self._stop(fault))
        return changed

    def _stop(self, fault: ScriptedFault) -> tuple[ScriptedFault, bool]:
        self.active.remove(fault)
        self._over.add(fault)
        self._end(fault)
        return fault, False

    def tick(self, now: float) -> list[tuple[ScriptedFault, bool]]:
        """Do what time brings: turn what flaps. Returns what changed, as `at_step` does."""
        for fault in self.active:
            if fault.flaps and now - self._turned_at[fault] >= FLAP_S:
                self._turn(fault, not self._is_up[fault], now)
        return []

    def _begin(self, fault: ScriptedFault, now: float) -> None:
        if fault.is_port:
            self._turn(fault, False, now)
        else:
            self._set_faults(fault, fault.faults)

    def _end(self, fault: ScriptedFault) -> None:
        if fault.is_port:
            self._turn(fault, True, 0.0)
        else:
            self._set_faults(fault, {})

    def _turn(self, fault: ScriptedFault, up: bool, now: float) -> None:
        self._is_up[fault], self._turned_at[fault] = up, now
        self._order(fault.rank, {"do": "port", "plane": fault.plane, "up": up})

    def _set_faults(self, fault: ScriptedFault, faults: dict[str, Any]) -> None:
        for plane in range(self._planes) if fault.plane is None else [fault.plane]:
            self._order(fault.rank, {"do": "faults", "plane": plane, "faults": faults})
