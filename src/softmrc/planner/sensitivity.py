"""Which assumption would have to be wrong, and by how much, for the answer to be another one.

Every rate, time and share is moved on its own, up and down, until who loses less changes, and until MRC's best policy
does, whichever comes first; every whole number is tried at what it can be. A difference of less than a thousandth of
the job's time is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from softmrc.errors import ConfigError
from softmrc.fabric.description import Description
from softmrc.planner import closed_form
from softmrc.planner.availability import POLICIES

FACTORS = (2.0, 5.0, 10.0, 30.0, 100.0)
HALVINGS = 8
NO_DIFFERENCE = 0.001  # of the job's time
ASIDE = ("gpu_hour_usd", "gpu_w", "crossing_share")  # no part of what failures take changes with them
CREWS = tuple(n * 10**k for k in range(5) for n in (1, 2, 5))


@dataclass(frozen=True)
class Comparison:
    """Who loses less (mrc, roce or neither), and MRC's best policy."""

    winner: str
    policy: str


@dataclass(frozen=True)
class BreakEven:
    """An assumption, what it is, and what it would be where the verdict changes."""

    key: str
    value: float
    flips_at: float
    winner: str
    policy: str
    changes_winner: bool


@dataclass(frozen=True)
class SensitivityResult:
    """What was found, and which assumptions could not be moved as far as others: the last value that could be."""

    flips: list[BreakEven]
    ends: dict[str, float]


def verdict(description: Description) -> Comparison:
    lost = {(p, t): closed_form.losses(description, t, p).lost for p in POLICIES for t in ("mrc", "roce")}
    mrc, roce = (min(lost[p, t] for p in POLICIES) for t in ("mrc", "roce"))
    winner = "neither" if abs(mrc - roce) < NO_DIFFERENCE else "mrc" if mrc < roce else "roce"
    return Comparison(winner, min(POLICIES, key=lambda p: lost[p, "mrc"]))


def find(description: Description) -> SensitivityResult:
    """Of each assumption the nearest value with which another loses less, and the nearest with which MRC had
    better do something else, if it comes before that."""
    now = verdict(description)
    found: list[BreakEven] = []
    ends: dict[str, float] = {}
    for section, key, value in _assumptions(description):
        name = f"{section}.{key}"
        walks, end = _walks(description, section, key, value)
        if end is not None:
            ends[name] = end
        winner = _nearest(value, [_change(walk, lambda there: there.winner != now.winner) for walk in walks])
        policy = _nearest(value, [_change(walk, lambda there: there.policy != now.policy) for walk in walks])
        if policy and winner and _distance(policy[0], value) >= _distance(winner[0], value):
            policy = None
        for hit, changes in ((winner, True), (policy, False)):
            if hit:
                found.append(BreakEven(name, value, hit[0], hit[1].winner, hit[1].policy, changes))
    found.sort(key=lambda one: (not one.changes_winner, _distance(one.flips_at, one.value)))
    return SensitivityResult(found, ends)


def _assumptions(description: Description) -> Iterator[tuple[str, str, float]]:
    for section in ("failures", "job"):
        part = getattr(description, section)
        for one in fields(part):
            value = getattr(part, one.name)
            moves = value > 0 if isinstance(value, float) else section == "failures"
            if moves and one.name not in ASIDE:
                yield section, one.name, value


def _distance(a: float, b: float) -> float:
    return max(a / b, b / a) if a and b else float("inf")


Walk = tuple[
    Callable[[float], "Comparison | None"], list[tuple[float, "Comparison"]], bool
]  # how, where, if between as well


def _walks(description: Description, section: str, key: str, value: float) -> tuple[list[Walk], float | None]:
    """Away from what is assumed, step by step, and where that ended before its time."""

    def moved(to: float) -> Comparison | None:
        try:
            part: Any = replace(getattr(description, section), **{key: to})
            return verdict(replace(description, **{section: part}))
        except ConfigError:  # beyond what can be, or more than the crews can mend
            return None

    if isinstance(value, int):
        tried = ((to, moved(to)) for to in _whole_numbers(description, key, value))
        return [(moved, [(to, there)], False) for to, there in tried if there], None
    walks: list[Walk] = []
    end = None
    for upward in (True, False):
        steps, reached = [], value
        for factor in FACTORS:
            to = value * factor if upward else value / factor
            to = min(to, 1.0) if key.endswith("_share") else to
            there = moved(to)
            if there is None:
                to, there = _last(moved, reached, to)
                end = to
            if there is not None and to != reached:
                steps.append((to, there))
            if to in (end, reached):
                break
            reached = to
        walks.append((moved, [(value, verdict(description)), *steps], True))
    return walks, end


def _whole_numbers(description: Description, key: str, value: int) -> list[int]:
    planes = range(1, description.fabric.planes + 1)
    most = description.machines
    found: dict[str, Sequence[int]] = {
        "planes_per_cable": planes,
        "planes_per_optic": planes,
        "links_per_optic": (1, 2, 4, 8, 16, 32, 64),
        "crews": CREWS,
        "hosts_per_feed": [to for to in (1, *(int(value * f) for f in FACTORS)) if to <= most],
    }
    return sorted((to for to in found[key] if to != value), key=lambda to: _distance(to, value or CREWS[-1]))


def _last(moved: Callable[[float], Comparison | None], good: float, bad: float) -> tuple[float, Comparison | None]:
    """The last value that can be, between one that can and one that cannot."""
    for _ in range(HALVINGS):
        middle = (good * bad) ** 0.5
        good, bad = (good, middle) if moved(middle) is None else (middle, bad)
    return good, moved(good)


def _change(walk: Walk, is_other: Callable[[Comparison], bool]) -> tuple[float, Comparison] | None:
    """The first value of a walk where the verdict is another in this respect."""
    moved, steps, is_between = walk
    for at, (to, there) in enumerate(steps):
        if not is_other(there):
            continue
        if is_between and at:
            same = steps[at - 1][0]
            for _ in range(HALVINGS):
                middle = (same * to) ** 0.5
                between = moved(middle)
                if between is None or not is_other(between):
                    same = middle
                else:
                    to, there = middle, between
        return to, there
    return None


def _nearest(value: float, hits: list[tuple[float, Comparison] | None]) -> tuple[float, Comparison] | None:
    return min((hit for hit in hits if hit), key=lambda hit: _distance(hit[0], value or CREWS[-1]), default=None)
