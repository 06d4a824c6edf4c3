"""Random draws that depend on the seed alone: not on the machine, and not on the version of NumPy.

Each purpose has a separate stream, so that one more draw in one place changes nothing in another.
"""

from __future__ import annotations

import zlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _splitmix64(state: np.ndarray) -> np.ndarray:
    z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Prng:
    """A stream of 64-bit numbers, named by its seed and its purpose."""

    def __init__(self, seed: int, purpose: str) -> None:
        with np.errstate(over="ignore"):
            start = np.array([seed & (2**64 - 1)], dtype=np.uint64) + _GOLDEN * np.uint64(zlib.crc32(purpose.encode()))
            self._state = _splitmix64(start)[0]

    def bits(self, count: int) -> np.ndarray:
        with np.errstate(over="ignore"):
            steps = self._state + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64)
            self._state = steps[-1] if count else self._state
            return _splitmix64(steps)

    def below(self, limit: int) -> int:
        return int(self.bits(1)[0] % np.uint64(limit))

    def order(self, count: int) -> np.ndarray:
        """0 … count−1 in random order."""
        return np.argsort(self.bits(count), kind="stable")
