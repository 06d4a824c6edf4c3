"""Which assumption would have to be wrong, and by how much, for the answer to be another one.

Every rate, time and share is moved on its own, up and down, until who loses less changes or MRC's best policy does. A
difference of less than a thousandth of the job's time is no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from softmrc.errors import ConfigError
from softmrc.fabric import closed_form
from softmrc.fabric.description import Description
from softmrc.fabric.losses import POLICIES

FACTORS = (3.0, 10.0, 100.0)
HALVINGS = 8
NO_DIFFERENCE = 0.001  # of the job's time
ASIDE = ("gpu_hour_usd", "gpu_w", "crossing_share")  # no part of what failures take changes with them


@dataclass(frozen=True)
class Verdict:
    """Who loses less (mrc, roce or neither), and MRC's best policy."""

    winner: str
    policy: str


@dataclass(frozen=True)
class Flip:
    """An assumption, what it is, and what it would be where the verdict changes."""

    key: str
    value: float
    flips_at: float
    winner: str
    policy: str
    changes_winner: bool


def verdict(description: Description) -> Verdict:
    lost = {(p, t): closed_form.losses(description, t, p).lost for p in POLICIES for t in ("mrc", "roce")}
    mrc, roce = (min(lost[p, t] for p in POLICIES) for t in ("mrc", "roce"))
    winner = "neither" if abs(mrc - roce) < NO_DIFFERENCE else "mrc" if mrc < roce else "roce"
    return Verdict(winner, min(POLICIES, key=lambda p: lost[p, "mrc"]))


def find(description: Description) -> list[Flip]:
    """The nearest value of each assumption that changes the verdict; nothing for one that does not within ×100."""
    now = verdict(description)
    found = []
    for section, key, value in _assumptions(description):
        nearest = None
        for upward in (True, False):
            hit = _first_change(description, section, key, value, upward, now)
            if hit and (nearest is None or _distance(hit[0], value) < _distance(nearest[0], value)):
                nearest = hit
        if nearest:
            at, there = nearest
            changes = there.winner != now.winner
            found.append(Flip(f"{section}.{key}", value, at, there.winner, there.policy, changes))
    return sorted(found, key=lambda one: (not one.changes_winner, _distance(one.flips_at, one.value)))


def _assumptions(description: Description) -> Iterator[tuple[str, str, float]]:
    for section in ("failures", "job"):
        part = getattr(description, section)
        for one in fields(part):
            value = getattr(part, one.name)
            if isinstance(value, float) and value > 0 and one.name not in ASIDE:
                yield section, one.name, value


def _distance(a: float, b: float) -> float:
    return max(a / b, b / a)


def _moved(description: Description, section: str, key: str, value: float) -> Verdict | None:
    try:
        part: Any = replace(getattr(description, section), **{key: value})
        return verdict(replace(description, **{section: part}))
    except ConfigError:  # beyond what can be, or more than the crews can mend
        return None


def _first_change(
    description: Description, section: str, key: str, value: float, upward: bool, now: Verdict
) -> tuple[float, Verdict] | None:
    same = value
    for factor in FACTORS:
        there = value * factor if upward else value / factor
        if key.endswith("_share"):
            there = min(there, 1.0)
        seen = _moved(description, section, key, there)
        if seen is None:
            return None
        if seen == now:
            same = there
            continue
        for _ in range(HALVINGS):
            middle = (same * there) ** 0.5
            between = _moved(description, section, key, middle)
            if between is None or between == now:
                same = middle
            else:
                there, seen = middle, between
        return there, seen
    return None
