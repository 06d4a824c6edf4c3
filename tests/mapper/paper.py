"""A fabric on paper: what becomes of a packet is worked out from its links alone, without simulator or kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softmrc.fabric import Shape
from softmrc.ops.mapper.mapper import ProbeSchedule
from softmrc.ops.mapper.matrix import Outcome


class PaperFabric:
    """Links lose, break and delay as configured; `gone` returns which links carry nothing at a time."""

    def __init__(self, shape: Shape, seed: int = 1) -> None:
        self.shape = shape
        self.rng = np.random.default_rng(seed)
        self.loss = np.zeros(shape.links + 1)
        self.corrupt = np.zeros(shape.links + 1)
        self.rate = np.ones(shape.links + 1)
        self.gone = lambda _now_s: np.zeros(0, dtype=np.int64)
        self.now_s = 0.0

    def send(self, flights: Sequence[ProbeSchedule], slot_s: float) -> list[Outcome]:
        found = []
        for flight in flights:
            rows = flight.batch.links
            is_gone = np.zeros(self.shape.links + 1, dtype=bool)
            is_gone[self.gone(self.now_s)] = True
            is_gone[-1] = False
            lost = is_gone[rows].any(axis=1)
            lost |= (self.rng.random(rows.shape) < self.loss[rows]).any(axis=1)
            broken = (self.rng.random(rows.shape) < self.corrupt[rows]).any(axis=1)
            wire_ns = flight.bytes * 8e9 / self.shape.host_link_bps
            took = np.where(rows >= 0, 1000 + wire_ns / self.rate[rows], 0).sum(axis=1)
            took += self.rng.exponential(wire_ns / 10, len(rows))
            found.append(Outcome(np.where(lost, -1, took).astype(np.int64), broken & ~lost))
            self.now_s += slot_s
        return found
