"""Which packets a mapper sends: routes that lead back to where they began, over every cable of the fabric.

    leaf     NIC → leaf → NIC                    tells the NIC's cable
    spine    NIC → leaf → spine → leaf → NIC     with it, the cable between leaf and spine
    square   NIC → leaf → spine → leaf' → spine' → leaf → NIC   with those, which of its directions
    core     NIC → leaf → agg → core → agg → leaf → NIC   in three tiers, the cable between aggregation and core
    next     NIC → leaf → NIC'                   which direction of a NIC's cable: the neighbour's mapper sees it arrive
    across   NIC → leaf → agg → core → agg' → leaf' → NIC'   which direction of a cable to a core, likewise

A round has one of each for every cable it tells of; who sends it, and over which other switches it returns, changes
from round to round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from softmrc.fabric import Shape
from softmrc.fabric.address import DOWNLINK_USID, T0_USID, T1_USID, T2_USID
from softmrc.ops.mapper.components import Components

MAX_LINKS = 6
MAX_SWITCHES = 5


@dataclass(frozen=True)
class ProbeBatch:
    """Packets, one a row. `links` and `switches` (uSIDs) are filled up with -1."""

    source: np.ndarray
    destination: np.ndarray
    plane: np.ndarray
    links: np.ndarray
    switches: np.ndarray
    touched: np.ndarray | None = None  # by component: how many of them touch it, where that was counted before

    def __len__(self) -> int:
        return len(self.source)

    def take(self, rows: np.ndarray) -> ProbeBatch:
        return ProbeBatch(*(column[rows] for column in self.columns()))

    def columns(self) -> tuple[np.ndarray, ...]:
        return self.source, self.destination, self.plane, self.links, self.switches

    @property
    def returns(self) -> np.ndarray:
        """Which of them come back to their sender, whose clock alone then times them."""
        return self.source == self.destination


def joined(batches: list[ProbeBatch]) -> ProbeBatch:
    return ProbeBatch(*(np.concatenate(columns) for columns in zip(*(b.columns() for b in batches), strict=True)))


class Prober:
    """Rounds of packets over a fabric."""

    def __init__(self, components: Components) -> None:
        self.shape = components.shape
        self.components = components
        self._rounds: dict[int, ProbeBatch] = {}
        self._pool: ProbeBatch | None = None

    def pool(self, rounds: int) -> ProbeBatch:
        """The packets of the first few rounds together, to choose from."""
        if self._pool is None:
            self._pool = joined([self.round(number) for number in range(rounds)])
        return self._pool

    def round(self, number: int) -> ProbeBatch:
        """All packets of one round, in an order that spreads each sender's over it; kept, because rounds return."""
        if number not in self._rounds:
            made = self._made(number)
            self._rounds[number] = replace(made, touched=self.components.touched(made.links))
        return self._rounds[number]

    def _made(self, number: int) -> ProbeBatch:
        shape = self.shape
        batches = [self._leaf(), *self._next(number), self._spine(number), *self._square(number)]
        if shape.pods:
            batches += [self._core(number), *self._across(number)]
        whole = joined(batches)
        return whole.take(np.random.default_rng(number).permutation(len(whole)))

    def _batch(self, source: np.ndarray, to: np.ndarray, plane: np.ndarray, links: list, switches: list) -> ProbeBatch:
        count = len(source)
        rows = np.full((count, MAX_LINKS), -1, dtype=np.int32)
        for i, column in enumerate(links):
            rows[:, i] = column
        named = np.full((count, MAX_SWITCHES), -1, dtype=np.int32)
        for i, column in enumerate(switches):
            named[:, i] = column
        return ProbeBatch(source, to, plane, rows, named)

    def _ports(self) -> tuple[np.ndarray, np.ndarray]:
        plane, host = np.divmod(np.arange(self.shape.planes * self.shape.hosts), self.shape.hosts)
        return plane, host

    def _leaf(self) -> ProbeBatch:
        s = self.shape
        plane, host = self._ports()
        links = [s.host_up(plane, host), s.host_down(plane, host)]
        return self._batch(host, host, plane, links, [T0_USID + host // s.hosts_per_leaf])

    def _next(self, number: int) -> list[ProbeBatch]:
        s = self.shape
        if s.hosts_per_leaf < 2:
            return []
        plane, host = self._ports()
        leaf, downlink = np.divmod(host, s.hosts_per_leaf)
        to = leaf * s.hosts_per_leaf + (downlink + 1 + number % (s.hosts_per_leaf - 1)) % s.hosts_per_leaf
        return [self._batch(host, to, plane, [s.host_up(plane, host), s.host_down(plane, to)], [T0_USID + leaf])]

    def _uplinks(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Plane, leaf and uplink of every cable between leaf and spine, and who sends over it in this round."""
        s = self.shape
        plane, rest = np.divmod(np.arange(s.planes * s.leaves * s.spines), s.leaves * s.spines)
        leaf, uplink = np.divmod(rest, s.spines)
        return plane, leaf, uplink, leaf * s.hosts_per_leaf + (number * s.spines + uplink) % s.hosts_per_leaf

    def _t1(self, leaf: np.ndarray, uplink: np.ndarray) -> np.ndarray:
        s = self.shape
        return T1_USID + (leaf // s.leaves_per_pod * s.spines if s.pods else 0) + uplink

    def _spine(self, number: int) -> ProbeBatch:
        s = self.shape
        plane, leaf, uplink, host = self._uplinks(number)
        links = [
            s.host_up(plane, host), s.leaf_up(plane, leaf, uplink), s.leaf_down(plane, leaf, uplink),
            s.host_down(plane, host),
        ]  # fmt: skip
        return self._batch(host, host, plane, links, [T0_USID + leaf, self._t1(leaf, uplink), T0_USID + leaf])

    def _square(self, number: int) -> list[ProbeBatch]:
        s = self.shape
        if s.spines < 2 or s.leaves_per_pod < 2:
            return []
        plane, leaf, uplink, host = self._uplinks(number + 1)
        pod = leaf - leaf % s.leaves_per_pod
        other = pod + (leaf % s.leaves_per_pod + 1 + number % (s.leaves_per_pod - 1)) % s.leaves_per_pod
        back = (uplink + 1 + number // (s.leaves_per_pod - 1) % (s.spines - 1)) % s.spines
        links = [
            s.host_up(plane, host), s.leaf_up(plane, leaf, uplink), s.leaf_down(plane, other, uplink),
            s.leaf_up(plane, other, back), s.leaf_down(plane, leaf, back), s.host_down(plane, host),
        ]  # fmt: skip
        named = [T0_USID + leaf, self._t1(leaf, uplink), T0_USID + other, self._t1(leaf, back), T0_USID + leaf]
        return [self._batch(host, host, plane, links, named)]

    def _cores(self, number: int) -> tuple[np.ndarray, ...]:
        """Plane, leaf, uplink, which core, and who sends, for every cable between aggregation and core."""
        s = self.shape
        per_plane = s.t1_switches * s.cores_per_spine
        plane, rest = np.divmod(np.arange(s.planes * per_plane), per_plane)
        t1, up = np.divmod(rest, s.cores_per_spine)
        pod, uplink = np.divmod(t1, s.spines)
        leaf = pod * s.leaves_per_pod + (number + up) % s.leaves_per_pod
        host = leaf * s.hosts_per_leaf + (number + uplink + up) % s.hosts_per_leaf
        return plane, leaf, uplink, up, host

    def _core(self, number: int) -> ProbeBatch:
        s = self.shape
        plane, leaf, uplink, up, host = self._cores(number)
        t1 = leaf // s.leaves_per_pod * s.spines + uplink
        links = [
            s.host_up(plane, host), s.leaf_up(plane, leaf, uplink), s.t1_up(plane, t1, up), s.t1_down(plane, t1, up),
            s.leaf_down(plane, leaf, uplink), s.host_down(plane, host),
        ]  # fmt: skip
        core = T2_USID + uplink * s.cores_per_spine + up
        return self._batch(host, host, plane, links, [T0_USID + leaf, T1_USID + t1, core, T1_USID + t1, T0_USID + leaf])

    def _across(self, number: int) -> list[ProbeBatch]:
        s = self.shape
        if s.pods < 2:
            return []
        plane, leaf, uplink, up, host = self._cores(number + 1)
        pod = leaf // s.leaves_per_pod
        to_pod = (pod + 1 + number % (s.pods - 1)) % s.pods
        to_leaf = to_pod * s.leaves_per_pod + leaf % s.leaves_per_pod
        to = to_leaf * s.hosts_per_leaf + host % s.hosts_per_leaf
        t1, to_t1 = pod * s.spines + uplink, to_pod * s.spines + uplink
        links = [
            s.host_up(plane, host), s.leaf_up(plane, leaf, uplink), s.t1_up(plane, t1, up),
            s.t1_down(plane, to_t1, up), s.leaf_down(plane, to_leaf, uplink), s.host_down(plane, to),
        ]  # fmt: skip
        core = T2_USID + uplink * s.cores_per_spine + up
        named = [T0_USID + leaf, T1_USID + t1, core, T1_USID + to_t1, T0_USID + to_leaf]
        return [self._batch(host, to, plane, links, named)]


def usids_of(shape: Shape, batch: ProbeBatch) -> np.ndarray:
    """The uSIDs of each row as a switch reads them, the destination's downlink last; zeros behind."""
    rows = np.zeros((len(batch), MAX_SWITCHES + 1), dtype=np.uint16)
    rows[:, :MAX_SWITCHES] = np.maximum(batch.switches, 0)
    length = (batch.switches >= 0).sum(axis=1)
    rows[np.arange(len(batch)), length] = DOWNLINK_USID + batch.destination % shape.hosts_per_leaf
    return rows
