"""Two endpoints, a simulated network between them, and a manual clock.

pair = Pair(planes=4, seed=7)
a, b = pair.connect()
pair.b.register(target := bytearray(1 << 20), rkey=1)
source = pair.a.register(bytearray(b"x" * (1 << 20)), rkey=1)
pair.faults(sender=0, plane=2).black_hole = True
a.post_write(pair.now_ps, 1 << 20, remote_va=0, rkey=1, source=source)
pair.run_us(200)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from softmrc import _core
from softmrc.config import (
    CcProfile,
    EndpointConfig,
    EvProfile,
    InitAttributes,
    RtrAttributes,
    RtsAttributes,
    to_native,
)
from softmrc.engine import EVENT, Endpoint, MemoryRegion, QueuePair
from softmrc.errors import ConfigError

PS_PER_US = 1_000_000


@dataclass(frozen=True)
class PairConfig:
    """The network between the two."""

    seed: int = 1
    ports: int = 4
    starts_at_us: float = 0.0  # what every clock says when the run begins
    one_way_delay_us: float = 4.0
    port_rate_bps: int = 0  # 0: no serialisation delay, no queue
    mark_above_bytes: int = 0
    trim_above_bytes: int = 0
    encode: bool = True
    carry_payload: bool = True


@dataclass(frozen=True)
class ProcessConfig:
    """How a side's process gets round to its work, as a socket driver does: in batches, and late."""

    most_received: int = 64  # packets taken from a plane at a time
    most_waiting: int = 0  # packets that a plane's queue holds, more are lost; 0: any number
    most_sent: int = 256  # packets polled before they leave
    port_burst: int = 0  # packets for one plane before its free capacity is checked again; 0: any number
    pace_us: float = 1.0  # every step of a turn takes up to this long
    hold_up: float = 0.0  # share of steps in which the process loses its core ...
    hold_up_us: float = 0.0  # ... for up to this long


class Pair:
    """Side 0 is `a`, side 1 is `b`; a direction is named by the side that sends."""

    SEND_CQ = 0
    RECV_CQ = 1

    def __init__(
        self,
        planes: int = 4,
        seed: int = 1,
        *,
        network: PairConfig | None = None,
        endpoint: EndpointConfig | None = None,
        ev_profile: EvProfile | None = None,
        cc_profile: CcProfile | None = None,
        processes: tuple[ProcessConfig, ProcessConfig] | None = None,
    ) -> None:
        """Without `processes` every packet is handed over alone, in the instant it arrives."""
        network = dataclasses.replace(network or PairConfig(), seed=seed, ports=planes)
        if not 1 <= planes <= 16:
            raise ConfigError("planes", planes, "must be 1 to 16")
        base = dataclasses.replace(endpoint or EndpointConfig(), ports=planes)
        self._configs = [dataclasses.replace(base, seed=seed * 2 + side) for side in (0, 1)]
        self._profiles = (ev_profile, cc_profile)
        self.planes = planes
        self._native = _core.Mesh(to_native(network, _core.MeshConfig()), [*map(to_native, self._configs)])
        self._starts_at_ps: int = self._native.now_ps
        self._recorders: dict[int, Any] = {}
        self.a, self.b = self._equip(0), self._equip(1)
        for side, process in enumerate(processes or ()):
            self._native.set_process(side, to_native(process))
        self._next_qpn = 0x100

    @property
    def sides(self) -> tuple[Endpoint, Endpoint]:
        return self.a, self.b

    def _equip(self, side: int) -> Endpoint:
        endpoint = Endpoint(_native=self._native.side(side))
        endpoint.add_ev_profile(self._profiles[0])
        endpoint.add_cc_profile(self._profiles[1])
        endpoint.create_cq()
        endpoint.create_cq()
        return endpoint

    def restart(self, side: int, *, seed: int) -> Endpoint:
        """That side's process dies, and another starts on the same ports: an endpoint that knows nothing."""
        self._native.restart(side, to_native(dataclasses.replace(self._configs[side], seed=seed)))
        endpoint = self._equip(side)
        if side == 0:
            self.a = endpoint
        else:
            self.b = endpoint
        if side in self._recorders:
            self._native.set_recorder(side, self._recorders[side])
        return endpoint

    def connect(
        self,
        *,
        mtu: int = 4096,
        first_psn: int = 0,
        rtr: RtrAttributes | None = None,
        rts: RtsAttributes | None = None,
    ) -> tuple[QueuePair, QueuePair]:
        """A queue pair on each side, connected to each other and ready to send both ways."""
        qpn = self._next_qpn
        self._next_qpn += 1
        pairs = (self.a.create_qp(qpn), self.b.create_qp(qpn))
        for qp in pairs:
            qp.init(InitAttributes(send_cq=self.SEND_CQ, recv_cq=self.RECV_CQ))
            receive = dataclasses.replace(
                rtr or RtrAttributes(),
                peer=0,
                dest_qpn=qpn,
                first_psn=first_psn,
                mtu=mtu,
            )
            qp.rtr(self.now_ps, receive)
            qp.rts(self.now_ps, dataclasses.replace(rts or RtsAttributes(), first_psn=first_psn))
        return pairs

    @property
    def now_ps(self) -> int:
        return self._native.now_ps

    @property
    def now_us(self) -> float:
        """Since the run began."""
        return (self._native.now_ps - self._starts_at_ps) / PS_PER_US

    def faults(self, sender: int, plane: int) -> Any:
        """What this direction of this plane does to packets; set its attributes at any time."""
        return self._native.faults(sender, 1 - sender, plane)

    def set_faults(self, **knobs: float | bool) -> None:
        """The same faults on every plane, both ways."""
        for sender in (0, 1):
            for plane in range(self.planes):
                link = self.faults(sender, plane)
                for name, value in knobs.items():
                    setattr(link, name, value)

    def set_plane(self, plane: int, up: bool, *, silently: bool = False) -> None:
        """Cut or repair a cable. Both ends notice at once, unless it happens silently."""
        for sender in (0, 1):
            self.faults(sender, plane).black_hole = not up
            if not silently:
                self.sides[sender].set_port(self.now_ps, plane, up)

    def set_ev_dead(self, sender: int, plane: int, entropy: int, dead: bool = True) -> None:
        self._native.set_ev_dead(sender, 1 - sender, plane, entropy, dead)

    def set_ev_loss(self, sender: int, plane: int, entropy: int, loss: float) -> None:
        self._native.set_ev_loss(sender, 1 - sender, plane, entropy, loss)

    def watch_paths(self) -> None:
        """Keep account of every path from here on, for `last_polled_ps`."""
        self._native.watch_paths()

    def last_polled_ps(self, sender: int, plane: int, entropy: int) -> int | None:
        """When that side's endpoint last gave away a packet for this path; None: never since paths are watched."""
        at = self._native.last_polled_ps(sender, 1 - sender, plane, entropy)
        return at if at >= 0 else None

    def stall_us(self, side: int, duration_us: float) -> None:
        """That side's process is not scheduled for a while."""
        self._native.stall(side, self.now_ps + int(duration_us * PS_PER_US))

    def run_us(self, duration_us: float) -> None:
        self._native.run(self.now_ps + int(duration_us * PS_PER_US))

    def run_until_completions(self, side: int, count: int, limit_us: float, cq: int = SEND_CQ) -> None:
        """Run until that many completions wait on a side's queue, or the limit passes."""
        self._native.run_until_completions(self.now_ps + int(limit_us * PS_PER_US), side, cq, count)

    def pump(
        self,
        qp: QueuePair,
        remote: MemoryRegion,
        *,
        side: int = 0,
        source: MemoryRegion | None = None,
        length: int = 1 << 20,
        count: int = 64,
        depth: int = 16,
        limit_us: float = 1e9,
    ) -> tuple[int, int, int]:
        """Write `count` messages, `depth` at a time, in a native loop: (completed, failed, out of order)."""
        buffer = source.buffer if source is not None else None
        limit = self.now_ps + int(limit_us * PS_PER_US)
        return self._native.pump(
            limit, side, qp.qpn, self.SEND_CQ, remote.rkey, remote.va, remote.length, buffer, length, count, depth
        )

    def record(self) -> None:
        """Start gathering every event of both sides, per-packet ones included."""
        for side in (0, 1):
            self._recorders[side] = _core.Recorder(side)
            self._native.set_recorder(side, self._recorders[side])

    def recording(self) -> np.ndarray:
        """The events gathered since last asked, in time order; field `side` says whose."""
        parts = [np.frombuffer(r.take(), dtype=EVENT) for r in self._recorders.values()]
        events = np.concatenate(parts)
        return events[np.argsort(events["at_ps"], kind="stable")]

    @property
    def trace_hash(self) -> int:
        return self._native.trace_hash

    @property
    def packets_delivered(self) -> int:
        return self._native.packets_delivered

    def data_packets_sent(self, sender: int) -> list[int]:
        """Data packets sent so far on each plane."""
        return [self._native.data_packets_sent(sender, 1 - sender, plane) for plane in range(self.planes)]

    def counters(self) -> dict[str, int]:
        """What the network did to packets."""
        return self._native.counters()

    def __repr__(self) -> str:
        return f"<Pair {self.planes} planes, {self.now_us:,.1f} µs, {self.packets_delivered:,} packets delivered>"
