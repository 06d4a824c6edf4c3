"""Which components are broken, from the probes that came back and those that did not.

Every packet that came back vouches for the components on its path, every one that did not accuses them. A component (a
direction, a cable, an optical module, a switch, ...) is blamed by likelihood: how much better does "this component
loses a share q" explain the accusations than chance does, given how often it was vouched for? The best explanation goes
first, unless several smaller components explain the same packets better; what is left is explained next.

How it is broken is read off the clock: lost in one stretch that lasts (dead), in several (flapping), or here and there
(lossy). Slow components are found by round trips, the same way: a packet in time clears every link that it crossed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from softmrc._support.units import share_text
from softmrc.ops.mapper.components import Component, Components
from softmrc.ops.mapper.matrix import Matrix

LEAST_SHARE = 0.003  # of packets that a component loses, to be named: well below one in a hundred
LEAST_ACCUSED = 3
LEAST_GAIN = 18.0  # nats
PRICE = 8.0  # nats that each further component must be worth
MAX_COMPONENTS = 32
MAX_ROWS = 20_000  # accusations that are looked at; of more, a sample stands for all
CHANCE = 1e-4  # below which a stretch without a single survivor is no accident


class State(StrEnum):
    DEAD = "dead"
    LOSSY = "lossy"
    FLAPPING = "flapping"
    CORRUPTING = "corrupting"
    SLOW = "slow"


@dataclass(frozen=True)
class Finding:
    """One component that is broken, how, and how that is known."""

    component: Component
    state: State
    share: float  # of packets lost or broken; of a slow component, of its rate that is left
    since_slot: int
    accused: int  # packets that speak against it
    vouched: int  # packets that speak for it
    hosts: tuple[int, ...] = field(repr=False)  # who is hit
    stretches: int = 0  # without a single survivor

    @property
    def key(self) -> tuple[str, State]:
        return self.component.name, self.state

    @property
    def how(self) -> str:
        """How it is broken, in words."""
        share = share_text(self.share)
        return {
            State.DEAD: "dead",
            State.LOSSY: f"loses {share}",
            State.CORRUPTING: f"breaks {share}",
            State.FLAPPING: f"flapping, gone {self.stretches} times",
            State.SLOW: f"slow, {share} of its rate left",
        }[self.state]


@dataclass(frozen=True)
class _Blame:
    number: int
    share: float
    rows: np.ndarray  # of the accusations, those that it explains


class _Accusations:
    """Lost packets as pairs (packet, component on its way), so that all components are judged at once by counting."""

    def __init__(self, components: Components, rows: np.ndarray, vouched: np.ndarray, floor: float) -> None:
        self.components = components
        self.weight = 1.0
        self.chosen = np.arange(len(rows))
        if len(rows) > MAX_ROWS:
            self.weight = len(rows) / MAX_ROWS
            self.chosen = np.random.default_rng(len(rows)).choice(len(rows), MAX_ROWS, replace=False)
        self.packet, self.component = components.pairs(rows[self.chosen])
        self.vouched = vouched.astype(float)
        self.floor = floor

    def explain(self, open_: np.ndarray, below: int) -> tuple[float, list[_Blame]]:
        """The best explanation of the packets that are still open by components of fewer than so many links."""
        total, open_ = 0.0, open_.copy()
        blamed: list[_Blame] = []
        while len(blamed) < MAX_COMPONENTS:
            gain, best = self._best(open_, below)
            if gain is None:
                break
            rows = np.zeros(len(open_), dtype=bool)
            rows[self.packet[self.component == best.number]] = True
            rows &= open_
            size = int(self.components.sizes[best.number])
            finer = self.explain(rows, size) if size > 1 else (0.0, [])
            if finer[0] - PRICE * len(finer[1]) > gain - PRICE:
                total += finer[0]
                blamed += finer[1]
                for one in finer[1]:
                    open_ &= ~one.rows
                open_ &= ~rows  # what even those leave open is noise around them
            else:
                total += gain
                blamed.append(_Blame(best.number, best.share, rows))
                open_ &= ~rows
        return total, blamed

    def _best(self, open_: np.ndarray, below: int) -> tuple[float | None, _Blame]:
        counts = np.bincount(self.component[open_[self.packet]], minlength=len(self.components)) * self.weight
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(counts > 0, counts / (counts + self.vouched), 0.0)
            for_it = np.where(counts > 0, counts * np.log(share / self.floor), 0.0)
            against = np.where(self.vouched > 0, self.vouched * np.log1p(-np.minimum(share, 1 - 1e-12)), 0.0)
        gain = for_it + against
        gain[(counts < LEAST_ACCUSED) | (share < LEAST_SHARE) | (self.components.sizes >= below)] = -np.inf
        most = gain.max(initial=-np.inf)
        nothing = _Blame(-1, 0.0, np.zeros(0, dtype=bool))
        if most < LEAST_GAIN:
            return None, nothing
        equal = np.flatnonzero(gain >= most - 1e-9 * abs(most))
        best = int(equal[np.argmin(self.components.rank[equal])])
        return float(gain[best]), _Blame(best, float(share[best]), nothing.rows)


def find_losses(components: Components, matrix: Matrix, floor: float = 1e-6) -> list[Finding]:
    """What is dead, lossy or flapping. `floor` is the share that is lost without anything being broken."""
    rows, slots = matrix.lost()
    found = []
    for blame, component, mine in _blamed(components, rows, matrix.whole(), floor):
        ok = matrix.history(blame.number)
        lost = np.bincount(slots[mine] - matrix.first, minlength=matrix.count)
        state, since, stretches = _read_clock(ok, lost)
        share = 1.0 if state is State.DEAD else blame.share
        found.append(
            Finding(
                component, state, share, matrix.first + since, int(lost.sum()), int(ok.sum()),
                tuple(components.hosts_hit(component).tolist()), stretches,
            )
        )  # fmt: skip
    return found


def find_corruption(components: Components, matrix: Matrix, floor: float = 1e-6) -> list[Finding]:
    """What flips bits: packets came back over it, and their checksum does not hold."""
    rows, slots = matrix.corrupt()
    intact = matrix.intact()
    found = []
    for blame, component, mine in _blamed(components, rows, intact, floor):
        since = int(slots[mine].min())
        vouched = int(intact[blame.number])
        hit = tuple(components.hosts_hit(component).tolist())
        found.append(Finding(component, State.CORRUPTING, blame.share, since, int(mine.sum()), vouched, hit))
    return found


def _blamed(
    components: Components, rows: np.ndarray, vouched: np.ndarray, floor: float
) -> list[tuple[_Blame, Component, np.ndarray]]:
    """Each component that is to blame, and which of all accusations name it."""
    if not len(rows):
        return []
    accusations = _Accusations(components, rows, vouched, floor)
    _, blamed = accusations.explain(np.ones(len(accusations.chosen), dtype=bool), 1 << 60)
    found = []
    for blame in blamed:
        component = components.component(blame.number)
        on = np.zeros(len(components.of_link) + 1, dtype=bool)
        on[list(component.links)] = True
        found.append((blame, component, on[rows].any(axis=1)))
    return found


def _read_clock(ok: np.ndarray, lost: np.ndarray) -> tuple[State, int, int]:
    """How a component loses, from what came back and what did not in each slot: state, since when, stretches."""
    used = np.flatnonzero((ok > 0) | (lost > 0))
    first = int(np.flatnonzero(lost > 0)[0])
    if not ok.any():
        return State.DEAD, first, 1
    share = lost.sum() / (lost.sum() + ok.sum())
    stretches: list[tuple[int, int, int]] = []  # first and last place in `used`, packets
    start, packets = -1, 0
    for place, slot in enumerate([*used.tolist(), -1]):
        is_out = slot >= 0 and ok[slot] == 0
        if is_out:
            start, packets = (place, 0) if start < 0 else (start, packets)
            packets += int(lost[slot])
        elif start >= 0:
            if packets * np.log(share) < np.log(CHANCE):
                stretches.append((start, place - 1, packets))
            start = -1
    # A slot at the edge of a stretch is half inside.
    inside = np.zeros(len(used), dtype=bool)
    for begin, end, _ in stretches:
        inside[max(begin - 1, 0) : end + 2] = True
    if not stretches or lost[used][inside].sum() < 0.6 * lost.sum():
        return State.LOSSY, first, 0
    if len(stretches) == 1 and stretches[0][1] == len(used) - 1:
        return State.DEAD, int(used[stretches[0][0]]), 1
    return State.FLAPPING, first, len(stretches)


def find_slow(
    components: Components, matrix: Matrix, last: int, serialisation_ns: float, known: list[Finding]
) -> list[Finding]:
    """What has less than two thirds of its rate, from the round trips of large packets in the last few slots."""
    rows, took = matrix.timed(last)
    if len(rows) < 3:
        return []
    length = (rows >= 0).sum(axis=1)
    excess = np.zeros(len(rows))
    for links in np.unique(length):
        of_it = length == links
        excess[of_it] = took[of_it] - np.quantile(took[of_it], 0.2)
    limit = serialisation_ns / 2
    least = np.full(components.shape.links + 1, np.inf)  # the last place is that of "no link"
    np.minimum.at(least, rows, excess[:, None])
    seen = np.bincount(rows[rows >= 0], minlength=components.shape.links)
    is_slow = (least[:-1] > limit) & (seen >= 3)
    accused = np.flatnonzero((excess > limit) & np.append(is_slow, False)[rows].any(axis=1))
    if not len(accused):
        return []
    on = components.of_link >= 0
    of_component, link = components.of_link[on], np.repeat(np.arange(components.shape.links), on.sum(axis=1))
    measured = np.bincount(of_component, weights=(seen[link] >= 3), minlength=len(components))
    slow = np.bincount(of_component, weights=is_slow[link], minlength=len(components))
    may = (slow == measured) & (measured * 2 >= components.sizes) & (slow > 0)
    pairs = np.where(rows[accused][:, :, None] >= 0, components.of_link[rows[accused]], -1).reshape(len(accused), -1)
    return _cover(components, matrix, rows[accused], excess[accused], pairs, may, serialisation_ns, seen, known)


def _cover(
    components: Components, matrix: Matrix, rows: np.ndarray, excess: np.ndarray, pairs: np.ndarray, may: np.ndarray,
    serialisation_ns: float, seen: np.ndarray, known: list[Finding],
) -> list[Finding]:  # fmt: skip
    """The fewest components that all late packets have in common."""
    found: list[Finding] = []
    open_ = np.ones(len(rows), dtype=bool)
    unstable = {link for one in known if one.state in (State.DEAD, State.FLAPPING) for link in one.component.links}
    while open_.any() and len(found) < MAX_COMPONENTS:
        counts = np.zeros(len(components) + 1, dtype=np.int64)
        for row in pairs[open_]:
            counts[np.unique(row)] += 1
        counts = np.where(may, counts[:-1], 0)
        most = counts.max()
        if most < 2:
            break
        equal = np.flatnonzero(counts == most)
        component = components.component(int(equal[np.argmin(components.rank[equal])]))
        crossed = np.isin(rows, component.links).sum(axis=1)
        mine = open_ & (crossed > 0)
        open_ &= ~mine
        if unstable.issuperset(component.links):
            continue
        extra = float(np.min(excess[mine] / crossed[mine]))
        hit = tuple(components.hosts_hit(component).tolist())
        vouched = int(seen[list(component.links)].sum()) - int(crossed[mine].sum())
        left = serialisation_ns / (serialisation_ns + extra)
        found.append(Finding(component, State.SLOW, left, matrix.first, int(mine.sum()), max(vouched, 0), hit))
    return found
