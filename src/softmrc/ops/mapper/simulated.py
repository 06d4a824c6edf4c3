"""A simulated fabric to map: the simulator's links, switches and faults, and the mapper's packets on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from softmrc import _core
from softmrc.config import CcProfile, EndpointConfig, EvProfile, to_native
from softmrc.errors import InternalError
from softmrc.fabric import Shape
from softmrc.ops.mapper.matrix import Outcome
from softmrc.ops.mapper.probes import usids_of
from softmrc.sim.faults import native_kind
from softmrc.sim.native import SHAPE

if TYPE_CHECKING:
    from softmrc.ops.mapper.mapper import ProbeSchedule

PS_PER_S = 1_000_000_000_000
_LONGEST_TRIP_PS = 1000 * PS_PER_S
_ENDLESS = 1 << 62


class SimulatedFabric:
    """A fabric under simulated time, without other traffic."""

    def __init__(self, shape: Shape, seed: int = 1) -> None:
        self.shape = shape
        config = _core.NetworkConfig()
        config.seed = seed
        fabric = _core.FabricConfig()
        for key in SHAPE:
            setattr(fabric, key, getattr(shape, key))
        fabric.host_link_bps, fabric.fabric_link_bps = shape.host_link_bps, shape.fabric_link_bps
        config.fabric = fabric
        config.endpoint = to_native(EndpointConfig(ports=shape.planes))
        config.set_ev_profile(to_native(EvProfile(count=max(shape.planes, 1))))
        config.set_cc_profile(to_native(CcProfile(rate_bps=shape.planes * shape.host_link_bps)))
        self._network = _core.Network(config)
        self._next_ps = 0

    @property
    def now_s(self) -> float:
        return self._next_ps / PS_PER_S

    def break_links(self, kind: str, links: Sequence[int], at_s: float, value: float = 0.0) -> None:
        """Schedule a fault (a kind of `softmrc.sim`'s, or "heal") of these links."""
        for link in links:
            self._network.add_fault(round(at_s * PS_PER_S), native_kind(kind), int(link), value)

    def send(self, flights: Sequence[ProbeSchedule], slot_s: float) -> list[Outcome]:
        slot_ps = round(slot_s * PS_PER_S)
        found = []
        for flight in flights:
            batch, start = flight.batch, self._next_ps
            count = len(batch)
            at = start + np.arange(count, dtype=np.int64) * slot_ps // max(count, 1)
            bytes_ = np.full(count, flight.bytes, dtype=np.uint32)
            columns = (batch.source.astype(np.uint32), batch.plane.astype(np.uint32), bytes_)
            self._network.add_shots(at, *columns, usids_of(self.shape, batch))
            # Without traffic the run ends when the last packet is back or lost.
            if self._network.run(start + slot_ps + _LONGEST_TRIP_PS, _ENDLESS):
                raise InternalError("a simulated survey did not end")
            took, is_corrupt = self._network.take_shots()
            took_ps = np.frombuffer(took, dtype=np.int64)
            outcome = Outcome(np.where(took_ps >= 0, took_ps // 1000, -1), np.frombuffer(is_corrupt, dtype=np.uint8))
            found.append(outcome)
            self._next_ps = max(start + slot_ps, self._network.now_ps)
        return found
