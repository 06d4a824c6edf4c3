"""The demo: 64 MiB through a network that does everything wrong and loses a whole plane half-way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softmrc.config import CcProfile, EvProfile
from softmrc.engine import EventType, EvState
from softmrc.engine.pair import Pair, PairConfig

PLANES = 4
EVS_PER_PLANE = 32
PLANE_RATE_BPS = 100_000_000_000
BASE_RTT_US = 8.0
TOTAL_BYTES = 64 << 20
MESSAGE_BYTES = 1 << 20
LOST_PLANE = 2
FAULTS = {
    "loss": 0.002,
    "duplicate": 0.002,
    "reorder": 0.02,
    "reorder_delay_us": 3.0,
    "corrupt": 0.001,
    "trim": 0.005,
    "mark": 0.01,
}


@dataclass(frozen=True)
class DemoResult:
    """What happened."""

    seed: int
    simulated_us: float
    plane_lost_us: float
    messages: int
    in_order: bool
    bytes_equal: bool
    network: dict[str, int]
    sender: dict[str, int]
    receiver: dict[str, int]
    bad_icrc: int
    ev_states: dict[str, list[int]]  # state → EVs per plane, at the end
    bin_us: float
    goodput_bps: np.ndarray  # [plane, bin]

    @property
    def succeeded(self) -> bool:
        return self.bytes_equal and self.in_order and self.messages == TOTAL_BYTES // MESSAGE_BYTES

    def rate_bps(self, start_us: float, end_us: float) -> float:
        """Goodput over all planes between two moments."""
        start = int(start_us / self.bin_us)
        end = max(int(end_us / self.bin_us), start + 1)
        return float(self.goodput_bps[:, start:end].sum(axis=0).mean())


def run(seed: int = 1, bins: int = 60) -> DemoResult:
    """Move the bytes, break the plane, check everything."""
    pair = Pair(
        PLANES,
        seed,
        network=PairConfig(port_rate_bps=PLANE_RATE_BPS, one_way_delay_us=BASE_RTT_US / 2),
        ev_profile=EvProfile(count=PLANES * EVS_PER_PLANE),
        cc_profile=CcProfile(rate_bps=PLANES * PLANE_RATE_BPS, base_rtt_us=BASE_RTT_US),
    )
    pair.set_faults(**FAULTS)
    a, b = pair.connect()
    data = np.random.default_rng(seed).integers(0, 256, TOTAL_BYTES, dtype=np.uint8)
    landing = np.zeros(TOTAL_BYTES, dtype=np.uint8)
    source = pair.a.register(data, rkey=1)
    target = pair.b.register(landing, rkey=2)
    pair.record()

    messages = TOTAL_BYTES // MESSAGE_BYTES
    for i in range(messages):
        a.post_write(
            pair.now_ps,
            MESSAGE_BYTES,
            remote_va=target.va + i * MESSAGE_BYTES,
            rkey=target.rkey,
            source=source,
            offset=i * MESSAGE_BYTES,
            wr_id=i,
        )
    pair.run_until_completions(side=0, count=messages // 2, limit_us=1e6)
    plane_lost_us = pair.now_us
    pair.set_plane(LOST_PLANE, up=False, silently=True)
    pair.run_until_completions(side=0, count=messages, limit_us=1e6)
    simulated_us = pair.now_us

    done = pair.a.poll_completions()
    events = pair.recording()
    evs = a.evs()
    return DemoResult(
        seed=seed,
        simulated_us=simulated_us,
        plane_lost_us=plane_lost_us,
        messages=int((done["status"] == 0).sum()),
        in_order=bool((done["wr_id"] == np.arange(len(done))).all()),
        bytes_equal=bool(np.array_equal(data, landing)),
        network=pair.counters(),
        sender=a.stats(),
        receiver=b.stats(),
        bad_icrc=pair.a.stats()["refused_bad_icrc"] + pair.b.stats()["refused_bad_icrc"],
        ev_states={
            state.name: [int(((evs["port"] == p) & (evs["state"] == state.value)).sum()) for p in range(PLANES)]
            for state in EvState
        },
        bin_us=simulated_us / bins,
        goodput_bps=_goodput(events, simulated_us, bins),
    )


def _goodput(events: np.ndarray, simulated_us: float, bins: int) -> np.ndarray:
    """Bits per second that landed in the receiver's memory, by plane and time."""
    placed = events[events["type"] == EventType.packet_placed.value]
    which = np.minimum((placed["at_ps"] / 1e6 / simulated_us * bins).astype(int), bins - 1)
    bits = np.zeros((PLANES, bins))
    np.add.at(bits, (placed["port"], which), placed["ev"] * 8.0)
    return bits / (simulated_us / bins * 1e-6)
