"""The engine alone: packets per second through a Pair on one core, bytes per queue pair, and how fast a path that died
without a word is bypassed.

Throughput counts each data packet once; its time covers requester, responder, SACKs, headers written and read back,
NSCC, and a new EV for every packet. Payload bytes and the ICRC stay out of it: they are the driver's cost.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from softmrc.config import (
    CcProfile,
    EndpointConfig,
    EvProfile,
    InitAttributes,
    RtrAttributes,
    RtsAttributes,
)
from softmrc.engine import Endpoint, EventType, QueuePair
from softmrc.engine.pair import Pair, PairConfig
from softmrc.errors import InternalError
from softmrc_bench.allocations import allocations, are_counted
from softmrc_bench.figures import BenchFigure, Sampled

PLANES = 4
EVS = 128
MTU = 4096
RTT_US = 8.0
PLANE_RATE_BPS = 100_000_000_000


TITLE = "The engine, on one core"
FIGURES = (
    BenchFigure("packets_per_s", "data packets per second, no loss", "packets/s", 3e6, True),
    BenchFigure("packets_per_s_loss", "data packets per second, 0.1 % loss", "packets/s", 0, True),
    BenchFigure("loss_ratio", "share of the speed kept with 0.1 % loss", "", 0.8, True),
    BenchFigure("qp_bytes_idle", "state of a connected queue pair before its first send", "B", 4 * 1024, False),
    BenchFigure("qp_bytes_active", "state of a queue pair with 64 packets in flight each way", "B", 16 * 1024, False),
    BenchFigure("qp_bytes_full", "state of a queue pair with its window of 1,024 full each way", "B", 64 * 1024, False),
    BenchFigure("bypass_rtt", "a dead path withdrawn and its packets retransmitted, worst case", "RTT", 1.5, False),
    BenchFigure(
        "plane_bypass_rtt",
        "a dead plane withdrawn and its packets retransmitted at ¾ of the rate, worst case",
        "RTT",
        2.5,
        False,
    ),
    BenchFigure("false_bad", "EVs withdrawn by mistake, with jitter of 0.75 RTT and no loss", "EVs", 0, False),
)


def throughput(messages: int, loss: float, seed: int) -> float:
    """Data packets per second of wall time."""
    pair = Pair(PLANES, seed, network=PairConfig(carry_payload=False), ev_profile=EvProfile(count=EVS))
    a, _ = pair.connect(mtu=MTU)
    target = pair.b.register(length=64 << 20, rkey=1)
    pair.pump(a, target, count=64)  # rings grow to their size here, not under the clock
    pair.set_faults(loss=loss)
    before = a.stats()
    start = time.perf_counter()
    completed, _, _ = pair.pump(a, target, count=messages)
    elapsed = time.perf_counter() - start
    after = a.stats()
    if completed != messages:
        raise InternalError(f"{completed} of {messages} messages completed")
    first_sends = (after["packets_sent"] - after["packets_retransmitted"]) - (
        before["packets_sent"] - before["packets_retransmitted"]
    )
    return first_sends / elapsed


def _endpoints(count: int, window_bytes: int) -> list[Endpoint]:
    endpoints = [Endpoint(EndpointConfig(seed=side + 1, ports=PLANES)) for side in (0, 1)]
    for endpoint in endpoints:
        endpoint.add_ev_profile(EvProfile(count=EVS))
        endpoint.add_cc_profile(CcProfile(algorithm="fixed_window", window_bytes=window_bytes))
        endpoint.create_cq()
        endpoint.add_peer()
        endpoint.register(length=1 << 30, rkey=1)
    # The tables that belong to the endpoint grow before the count, so that only queue pairs are counted.
    spare = [endpoint.create_qp(qpn) for endpoint in endpoints for qpn in range(3, 3 + 4 * count)]
    for qp in spare:
        qp.destroy(0)
    return endpoints


def _connect(endpoints: list[Endpoint], count: int) -> list[list[QueuePair]]:
    pairs: list[list[QueuePair]] = [[], []]
    for side, endpoint in enumerate(endpoints):
        for i in range(count):
            qp = endpoint.create_qp(16 + i)
            qp.init(InitAttributes())
            qp.rtr(0, RtrAttributes(dest_qpn=16 + i, mtu=MTU, mpr_dest=8))
            qp.rts(0, RtsAttributes(mpr=8))
            pairs[side].append(qp)
    return pairs


def qp_bytes(in_flight: int, count: int = 64) -> float:
    """Bytes that one queue pair holds with so many packets in flight both ways; the first of each is lost, so that the
    receiver holds its whole window out of order."""
    endpoints = _endpoints(count, window_bytes=1 << 30)
    _, before = allocations()
    pairs = _connect(endpoints, count)
    if in_flight:
        for side in (0, 1):
            for qp in pairs[side]:
                qp.post_write(0, in_flight * MTU, remote_va=0, rkey=1)
        sent: list[list[Any]] = [[], []]
        for side in (0, 1):
            while (transmit := endpoints[side].poll_transmit(0)) is not None:
                sent[side].append(transmit)
        for side in (0, 1):
            for data, _, port, entropy, _ in sent[side]:
                is_first_packet = int.from_bytes(data[9:12], "big") == 0
                if not is_first_packet:
                    endpoints[1 - side].handle_datagram(0, data, peer=0, port=port, entropy=entropy)
        for qp in pairs[0] + pairs[1]:
            if (qp.query()["packets_in_flight"], qp.query()["out_of_order"]) != (in_flight, in_flight - 1):
                raise InternalError(f"{qp!r} is not in the state to be measured")
        # SACKs that wait to be sent are the network's backlog, not the queue pair's state: let them go.
        for endpoint in endpoints:
            while endpoint.poll_transmit(0) is not None:
                pass
        sent.clear()
    _, after = allocations()
    return (after - before) / (2 * count)


def _busy_pair(seed: int, forward_jitter_us: float = 0.0, backward_jitter_us: float = 0.0) -> tuple[Pair, QueuePair]:
    """Four planes of 100 Gb/s under steady load, so that packets leave evenly and not in bursts."""
    pair = Pair(
        PLANES,
        seed,
        network=PairConfig(carry_payload=False, port_rate_bps=PLANE_RATE_BPS, one_way_delay_us=RTT_US / 2),
        ev_profile=EvProfile(count=EVS),
        cc_profile=CcProfile(rate_bps=PLANES * PLANE_RATE_BPS, base_rtt_us=RTT_US),
    )
    for plane in range(PLANES):
        pair.faults(0, plane).path_jitter_us = forward_jitter_us
        pair.faults(1, plane).path_jitter_us = backward_jitter_us
    a, _ = pair.connect(mtu=MTU)
    pair.b.register(length=1 << 30, rkey=1)
    for i in range(64):
        a.post_write(pair.now_ps, 16 << 20, remote_va=0, rkey=1, wr_id=i)
    return pair, a


def _bypass(sent: np.ndarray, on_dead_path: np.ndarray) -> float:
    """Round trips from the first packet lost to the moment the last of them was retransmitted elsewhere."""
    lost = sent[on_dead_path]
    first_ps = last_ps = int(lost["at_ps"].min())
    for psn in np.unique(lost["psn"]):
        again = sent[(sent["psn"] == psn) & (sent["code"] > 1)]
        if not len(again):
            raise InternalError(f"packet {psn} was sent into the dead path and never again")
        last_ps = max(last_ps, int(again["at_ps"].max()))
    return (last_ps - first_ps) / (RTT_US * 1e6)


def bypass(trials: int, whole_plane: bool) -> list[float]:
    """Round trips until a silently dead path (or plane) is out of use, one figure per trial."""
    found = []
    for trial in range(trials):
        pair, a = _busy_pair(seed=100 + trial)
        pair.run_us(40 * RTT_US)
        pair.record()
        evs = a.evs()
        victim = evs[(trial * 37) % len(evs)]
        plane = int(victim["port"])
        if whole_plane:
            pair.faults(0, plane).black_hole = True
        else:
            pair.set_ev_dead(0, plane, int(victim["value"]))
        pair.run_us(6 * RTT_US)
        events = pair.recording()
        sent = events[(events["type"] == EventType.packet_sent.value) & (events["side"] == 0)]
        found.append(_bypass(sent, (sent["port"] == plane) & (whole_plane | (sent["ev"] == victim["value"]))))
    return found


def false_bad(trials: int) -> int:
    """EVs withdrawn although nothing was lost: every path's delay varies by up to 0.75 RTT."""
    condemned = 0
    for trial in range(trials):
        for forward, backward in ((0.75, 0.0), (0.375, 0.375), (0.0, 0.75)):
            pair, a = _busy_pair(1000 + trial, forward * RTT_US, backward * RTT_US)
            pair.run_us(300 * RTT_US)
            condemned += a.stats()["evs_demoted"]
    return condemned


def measure(quick: bool = False) -> dict[str, Any]:
    """All figures; `quick` for a look, not for the record."""
    messages, rounds, trials = (512, 3, 4) if quick else (4096, 5, 16)
    clean, lossy = [], []
    for i in range(rounds):
        clean.append(throughput(messages, 0.0, seed=i + 1))
        lossy.append(throughput(messages, 0.001, seed=i + 1))
    ev_bypass = bypass(trials, whole_plane=False)
    plane_bypass = bypass(trials, whole_plane=True)
    return {
        "packets_per_s": Sampled(clean),
        "packets_per_s_loss": Sampled(lossy),
        "loss_ratio": Sampled(b / a for a, b in zip(clean, lossy, strict=True)),
        "qp_bytes_idle": qp_bytes(0) if are_counted() else None,
        "qp_bytes_active": qp_bytes(64) if are_counted() else None,
        "qp_bytes_full": qp_bytes(1024, count=16) if are_counted() else None,
        "bypass_rtt": Sampled(ev_bypass, max),
        "bypass_rtt_median": Sampled(ev_bypass),
        "plane_bypass_rtt": Sampled(plane_bypass, max),
        "false_bad": false_bad(2 if quick else 6),
        "trials": trials,
        "rounds": rounds,
    }
