"""A figure of a benchmark: what it means, the rounds it comes from, and the limit it must meet."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


class Sampled(float):
    """One number for several rounds, their median by default. It keeps the rounds."""

    rounds: tuple[float, ...]

    def __new__(cls, rounds: Iterable[float], of: Callable[[Any], float] = statistics.median) -> Sampled:
        kept = tuple(float(one) for one in rounds)
        made = super().__new__(cls, of(kept))
        made.rounds = kept
        return made


def compared(rounds: Iterable[tuple[float, float]], ours: str, theirs: str, ratio: str = "ratio") -> dict[str, Sampled]:
    """Both sides of a comparison and their ratio, by these keys, from (ours, theirs) of each round."""
    rows = list(rounds)
    return {
        ours: Sampled(a for a, _ in rows),
        theirs: Sampled(b for _, b in rows),
        ratio: Sampled(a / b for a, b in rows),
    }


def percentile_99(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


@dataclass(frozen=True)
class Versus:
    """The two measurements behind a ratio: where in the result each is, by dotted keys."""

    rival: str
    ours: str
    theirs: str
    unit: str


@dataclass(frozen=True)
class BenchFigure:
    """A measured value and its limit: a bound, or a target with a tolerance."""

    key: str
    meaning: str
    unit: str
    target: float
    at_least: bool
    tolerance: float = 0.0  # share of the target; 0: the target is a bound
    versus: Versus | None = None

    def holds(self, value: float) -> bool:
        if self.tolerance:
            return abs(value - self.target) <= self.tolerance * self.target
        return value >= self.target if self.at_least else value <= self.target

    @property
    def bound(self) -> str:
        """The limit as text; empty where there is none."""
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


def _at(measured: Any, path: str) -> float | None:
    for key in path.split("."):
        measured = measured.get(key) if isinstance(measured, dict) else None
    return measured


def _value(value: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {"value": value}
    return found | {"rounds": list(value.rounds)} if isinstance(value, Sampled) else found


def rows(figures: Iterable[BenchFigure], values: dict[str, Any], measured: dict[str, Any]) -> list[dict[str, Any]]:
    """The table of a benchmark as data: `values` are by the keys of `figures`, `measured` is the whole result."""
    found = []
    for figure in figures:
        if figure.key not in values:
            continue
        row: dict[str, Any] = {"key": figure.key, "figure": figure.meaning, "unit": figure.unit}
        row |= _value(values[figure.key])
        if figure.bound and row["value"] is not None:
            row |= {"limit": figure.bound, "holds": bool(figure.holds(row["value"]))}
        if (pair := figure.versus) and _at(measured, pair.ours) is not None:
            ours, theirs = ({"key": path} | _value(_at(measured, path)) for path in (pair.ours, pair.theirs))
            row["versus"] = {"rival": pair.rival, "unit": pair.unit, "ours": ours, "theirs": theirs}
        found.append(row)
    return found


def dumps(measured: Any) -> str:
    """JSON that keeps rounds, for a process that measures on behalf of another."""

    def kept(value: Any) -> Any:
        if isinstance(value, Sampled):
            return {"value": float(value), "rounds": value.rounds}
        return {key: kept(one) for key, one in value.items()} if isinstance(value, dict) else value

    return json.dumps(kept(measured))


def loads(text: str) -> Any:
    """What `dumps` wrote."""

    def sampled(value: dict[str, Any]) -> Any:
        if value.keys() != {"value", "rounds"}:
            return value
        return Sampled(value["rounds"], lambda _: value["value"])

    return json.loads(text, object_hook=sampled)
