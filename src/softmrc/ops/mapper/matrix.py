"""What came back, slot by slot of time: for every component how many packets that touched it, and every packet that did
not come back.

That is all that inference needs. A packet that came back vouches for each component on its way, so those are counted by
component; a packet that did not accuses all of them, so those are kept, with their routes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softmrc.ops.mapper.components import Components
from softmrc.ops.mapper.probes import MAX_LINKS, ProbeBatch


@dataclass(frozen=True)
class Outcome:
    """What became of a batch, one row a packet."""

    took_ns: np.ndarray  # -1: never came back
    is_corrupt: np.ndarray


class Matrix:
    """A window of slots; the oldest fall out."""

    def __init__(self, components: Components, slots: int) -> None:
        self.components = components
        self.slots = slots
        self.first = 0  # number of the oldest slot
        self.count = 0
        self.passed = np.zeros((slots, len(components)), dtype=np.int32)  # came back, whole or not
        self.broken = np.zeros((slots, len(components)), dtype=np.int32)  # came back broken
        self._lost: list[np.ndarray] = [_none() for _ in range(slots)]
        self._corrupt: list[np.ndarray] = [_none() for _ in range(slots)]
        self._timed: list[tuple[np.ndarray, np.ndarray]] = [(_none(), np.zeros(0)) for _ in range(slots)]

    def open_slot(self) -> int:
        """Begin the next slot, and forget the oldest if there is no room; its number."""
        if self.count == self.slots:
            self.first += 1
            self.count -= 1
        number = self.first + self.count
        at = number % self.slots
        self.passed[at] = 0
        self.broken[at] = 0
        self._lost[at], self._corrupt[at] = _none(), _none()
        self._timed[at] = (_none(), np.zeros(0))
        self.count += 1
        return number

    def add(self, slot: int, batch: ProbeBatch, outcome: Outcome, train: int) -> None:
        """Enter what became of a batch in a slot of the window; the last of each train was timed, 0: none was."""
        at = slot % self.slots
        back = outcome.took_ns >= 0
        bad = back & outcome.is_corrupt.astype(bool)
        touched = self.components.touched(batch.links) if batch.touched is None else batch.touched
        self.passed[at] += touched - self.components.touched(batch.links[~back])
        self.broken[at] += self.components.touched(batch.links[bad])
        self._lost[at] = np.concatenate([self._lost[at], batch.links[~back]])
        self._corrupt[at] = np.concatenate([self._corrupt[at], batch.links[bad]])
        if train:
            chosen = back & batch.returns & (np.arange(len(back)) % train == train - 1)
            rows, took = self._timed[at]
            self._timed[at] = (
                np.concatenate([rows, batch.links[chosen]]), np.concatenate([took, outcome.took_ns[chosen]]),
            )  # fmt: skip

    def numbers(self, last: int | None = None) -> range:
        """The slots of the window, or its last few."""
        end = self.first + self.count
        return range(max(self.first, end - last) if last is not None else self.first, end)

    def lost(self) -> tuple[np.ndarray, np.ndarray]:
        """Routes of lost packets, and the slot of each."""
        return self._rows(self._lost)

    def corrupt(self) -> tuple[np.ndarray, np.ndarray]:
        return self._rows(self._corrupt)

    def _rows(self, kept: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        numbers = self.numbers()
        found = [kept[n % self.slots] for n in numbers]
        slots = np.repeat(np.fromiter(numbers, dtype=np.int64), [len(rows) for rows in found])
        return np.concatenate([*found, _none()]), slots

    def timed(self, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Routes and round trips of the packets that were timed in the last few slots."""
        found = [self._timed[n % self.slots] for n in self.numbers(last)]
        return np.concatenate([*(rows for rows, _ in found), _none()]), np.concatenate([*(t for _, t in found), []])

    def whole(self) -> np.ndarray:
        """By component: packets that touched it and came back, all slots together."""
        return self.passed[self._places()].sum(axis=0)

    def intact(self) -> np.ndarray:
        """By component: packets that touched it and came back whole."""
        return self.whole() - self.broken[self._places()].sum(axis=0)

    def history(self, component: int) -> np.ndarray:
        """By slot: packets that touched a component and came back."""
        return self.passed[self._places(), component]

    def _places(self) -> np.ndarray:
        return np.array([n % self.slots for n in self.numbers()], dtype=np.int64)


def _none() -> np.ndarray:
    return np.zeros((0, MAX_LINKS), dtype=np.int64)
