"""A figure of a bench: what it means, and what it must reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BenchFigure:
    """A measured value beside what it must reach: a bound, or a target and how far from it is near enough."""

    key: str
    meaning: str
    unit: str
    target: float
    at_least: bool
    tolerance: float = 0.0  # share of the target; 0: the target is a bound

    def holds(self, value: float) -> bool:
        if self.tolerance:
            return abs(value - self.target) <= self.tolerance * self.target
        return value >= self.target if self.at_least else value <= self.target

    @property
    def bound(self) -> str:
        """What it must be, in words; empty where it is only shown."""
        if self.tolerance:
            return f"{self.target:,.10g} ± {self.tolerance * 100:g} %"
        if self.target or not self.at_least:
            return f"{'≥' if self.at_least else '≤'} {self.target:,.10g}"
        return ""


def flat(figures: dict[str, Any]) -> dict[str, Any]:
    """{"A": {"x": 1}, "y": 2} as {"A.x": 1, "y": 2}."""
    found: dict[str, Any] = {}
    for key, value in figures.items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": one for name, one in value.items()}
        else:
            found[key] = value
    return found
