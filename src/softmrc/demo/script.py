"""What breaks, when, and for whom. Every fault begins at a step of the training and lasts so many seconds, so that two
jobs of different speed meet the same faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

STEPS = 120  # of a job
FLAP_S = 0.25
SHARE = 0.6  # of the time between two faults during which one lasts, at the pace of an undisturbed job
LEAST_S, MOST_S = 0.3, 3.0


@dataclass(frozen=True)
class ScriptedFault:
    """Something that is broken for a while."""

    label: str
    kind: str  # a key of what its network can break
    planes: tuple[int, ...]
    rank: int | None = None  # whose links; None: all of them
    step: int = 0
    lasts_s: float = 2.0
    delay_s: float = 0.0  # after the step before has ended: gradients are then on their way

    @property
    def flaps(self) -> bool:
        return self.kind == "flap"


def scripted(faults: tuple[ScriptedFault, ...], steps: int, step_s: float) -> tuple[ScriptedFault, ...]:
    """The faults, spread evenly over a job whose steps take so long. Each ends before the next one begins."""
    every = steps / len(faults)
    lasts_s = min(max(SHARE * every * step_s, LEAST_S), MOST_S)
    at_steps = [int(every * (at + 0.3)) for at in range(len(faults))]
    return tuple(
        replace(one, step=step, lasts_s=lasts_s, delay_s=step_s / 2) for one, step in zip(faults, at_steps, strict=True)
    )


Break = Callable[[ScriptedFault, bool], None]  # begin it, or repair it


class Director:
    """Breaks and repairs what a script says, as steps and time go by; one fault at a time."""

    def __init__(self, script: tuple[ScriptedFault, ...], break_it: Break) -> None:
        self._waiting = list(script)
        self._break = break_it
        self.active: ScriptedFault | None = None
        self._is_broken = False
        self._began_at = self._turned_at = 0.0
        self._due_at = math.inf

    def tick(self, step: int, now: float) -> list[tuple[ScriptedFault, bool]]:
        """Do what is due; returns what began (True) or ended."""
        changed = []
        if self.active is not None and now - self._began_at >= self.active.lasts_s:
            changed.append((self.active, False))
            self.stop()
        if self.active is None and self._waiting and step >= self._waiting[0].step:
            self._due_at = min(self._due_at, now + self._waiting[0].delay_s)
        if now >= self._due_at:
            self.active = self._waiting.pop(0)
            self._began_at, self._due_at = now, math.inf
            self._turn(True, now)
            changed.append((self.active, True))
        elif self.active is not None and self.active.flaps and now - self._turned_at >= FLAP_S:
            self._turn(not self._is_broken, now)
        return changed

    def stop(self) -> None:
        """Repair what is broken."""
        if self.active is not None:
            if self._is_broken:
                self._turn(False, 0.0)
            self.active = None

    def _turn(self, is_broken: bool, now: float) -> None:
        assert self.active is not None
        self._is_broken, self._turned_at = is_broken, now
        self._break(self.active, is_broken)
