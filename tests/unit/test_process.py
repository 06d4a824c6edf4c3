"""Endpoints driven by processes, as sockets drive them: in batches, plane by plane, and late."""

from __future__ import annotations

import numpy as np
import pytest

from softmrc.config import CcProfile, EndpointConfig, EvProfile, RtrAttributes, RtsAttributes
from softmrc.engine import EventType, QpState
from softmrc.engine.pair import Pair, PairConfig, ProcessConfig

IDLE = ProcessConfig(pace_us=0.2)
FEW = ProcessConfig(most_received=2, most_sent=4, pace_us=0.2)
# As devices on sockets have it.
SOFTWARE = CcProfile(learn_base_rtt=True, min_base_rtt_us=2_000, min_reorder_window_us=2_000, trimming=False)


def pump(process: ProcessConfig, seed: int = 1, count: int = 40) -> tuple[Pair, dict[str, int]]:
    pair = Pair(4, seed, ev_profile=EvProfile(count=32), cc_profile=SOFTWARE, processes=(process, process))
    a, _ = pair.connect(rtr=RtrAttributes(mpr_dest=64), rts=RtsAttributes(mpr=64, timeout=16))
    source, target = np.random.default_rng(seed).integers(0, 256, 100_000, dtype=np.uint8), bytearray(100_000)
    remote, region = pair.b.register(target, rkey=1), pair.a.register(source, rkey=2)
    assert pair.pump(a, remote, source=region, length=100_000, count=count, limit_us=1e8) == (count, 0, 0)
    assert bytes(target) == source.tobytes()
    return pair, a.stats()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("process", [IDLE, FEW], ids=["idle", "few"])
def test_what_lies_unread_is_not_lost(process: ProcessConfig, seed: int) -> None:
    """Nothing is lost, so nothing may be found lost, though acknowledgements wait plane by plane to be read."""
    _, stats = pump(process, seed)
    assert (stats["lost_same_ev"], stats["lost_across_evs"], stats["evs_demoted"]) == (0, 0, 0)


def test_verdicts_of_a_batch_fall_though_the_driver_sends_inside_it() -> None:
    """Two ways at once: transmissions are polled while a batch is open, and no verdict that it owes gets lost."""
    process = ProcessConfig(most_received=2, pace_us=0.2)
    pair = Pair(4, 5, ev_profile=EvProfile(count=32), cc_profile=SOFTWARE, processes=(process, process))
    qps = pair.connect(rtr=RtrAttributes(mpr_dest=64), rts=RtsAttributes(mpr=64, timeout=16))
    pair.set_faults(loss=0.02)
    for side, qp in enumerate(qps):
        pair.sides[1 - side].register(length=1 << 20, rkey=3)
        for number in range(40):
            qp.post_write(pair.now_ps, 100_000, remote_va=0, rkey=3, wr_id=number)
    pair.run_us(60_000)
    for side, qp in enumerate(qps):
        assert len(pair.sides[side].poll_completions(Pair.SEND_CQ)) == 40
        assert qp.stats()["timeouts"] == 0


def test_a_short_queue_overflows_and_what_it_lost_is_sent_again() -> None:
    pair, stats = pump(ProcessConfig(most_waiting=8, pace_us=5.0))
    assert pair.counters()["overflowed"] > 0 and stats["packets_retransmitted"] > 0


def test_packets_leave_later_than_they_were_polled() -> None:
    """A process that is held up for long between polling and sending lets its packets leave that late."""
    late = ProcessConfig(pace_us=0.0, hold_up=1.0, hold_up_us=1_000.0)
    pair = Pair(1, 1, network=PairConfig(one_way_delay_us=1.0), processes=(late, IDLE))
    a, b = pair.connect()
    pair.b.register(length=1 << 20, rkey=1)
    a.post_write(0, 1000, remote_va=0, rkey=1)
    times = []
    while not times or not b.stats()["packets_placed"]:
        pair.run_us(10)
        times.append(pair.now_us)
        assert pair.now_us < 5_000
    assert pair.now_us > 20


def test_a_restarted_process_knows_nothing_and_can_be_connected_to() -> None:
    pair = Pair(2, 1, endpoint=EndpointConfig(), processes=(IDLE, IDLE))
    a, _ = pair.connect()
    pair.b.register(length=1 << 20, rkey=1)
    a.post_write(0, 500_000, remote_va=0, rkey=1)
    pair.run_us(3)
    fresh = pair.restart(1, seed=77)
    pair.run_us(2_000)
    assert fresh.stats()["refused_unknown_qp"] > 0
    told = fresh.poll_events()
    assert (told["type"] == EventType.packet_refused.value).all() and len(told)
    a.error(pair.now_ps)
    a.destroy(pair.now_ps)
    assert len(pair.a.poll_completions(Pair.SEND_CQ)) == 1
    remote = fresh.register(length=1 << 20, rkey=1)
    again, _ = pair.connect(first_psn=1 << 20)
    assert pair.pump(again, remote, length=100_000, count=5, limit_us=1e5) == (5, 0, 0)
    assert again.state == QpState.RTS


@pytest.mark.parametrize("floods", [0, 8])
def test_verdicts_do_not_wait_for_an_inflow_that_never_ends(floods: int) -> None:
    """One side writes and loses packets, while more comes in than it can read."""
    slow = ProcessConfig(most_received=64, pace_us=5.0)
    fixed = CcProfile(algorithm="fixed_window", window_bytes=1 << 18)
    network = PairConfig(one_way_delay_us=20, carry_payload=False)
    pair = Pair(2, 3, network=network, cc_profile=fixed, processes=(slow, ProcessConfig(pace_us=0.05)))
    a, _ = pair.connect(mtu=1024)
    others = [pair.connect(mtu=1024)[1] for _ in range(floods)]
    for side in pair.sides:
        side.register(length=1 << 26, rkey=1)
    for plane in range(2):
        pair.faults(0, plane).loss = 0.01
    for _ in range(20):
        a.post_write(pair.now_ps, 100_000, remote_va=0, rkey=1)
    for _ in range(60):
        for other in others:
            while other.query()["messages"] < 20:
                other.post_write(pair.now_ps, 1_000_000, remote_va=0, rkey=1)
        pair.run_us(500)
        if a.query()["messages"] == 0:
            break
    stats = a.stats()
    assert a.query()["messages"] == 0 and stats["lost_timeout"] == 0
    assert stats["lost_same_ev"] + stats["lost_across_evs"] >= 10
