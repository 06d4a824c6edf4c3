"""When is a packet lost? The evidence, and the window that keeps mere reordering from being evidence."""

from __future__ import annotations

from typing import Any

import pytest

import parts
from softmrc import _core
from softmrc.config import CcProfile, EvProfile
from softmrc.engine.pair import Pair, PairConfig

US = 1_000_000
RTT, TARGET = 8 * US, 6 * US
MOST = TARGET + RTT // 4


def warm(spread: int = 0) -> Any:
    """Watched for long enough, with one packet acknowledged `spread` behind its successors each epoch."""
    loss = parts.Loss()
    now = 0
    for _ in range(4):
        now += 9 * RTT
        loss.on_acked(now, now - RTT, RTT)
        loss.on_sack_done()
        if spread:
            loss.on_acked(now + 1, now - RTT - spread, RTT)
            loss.on_sack_done()
    return loss


def test_what_one_sack_reports_together_did_not_overtake_itself() -> None:
    loss = warm()
    loss.on_acked(100 * RTT, 99 * RTT, RTT)
    loss.on_acked(100 * RTT, 98 * RTT, RTT)
    loss.on_sack_done()
    assert loss.reorder_window(RTT, RTT, TARGET) == RTT // 4


def test_where_endpoints_are_processes_it_has_a_least_length() -> None:
    assert warm().reorder_window(RTT, RTT, TARGET, least=10 * US) == 10 * US


def test_the_window_is_at_its_widest_until_the_spread_is_known() -> None:
    assert parts.Loss().reorder_window(RTT, RTT, TARGET) == MOST


def test_without_spread_it_is_a_quarter_round_trip() -> None:
    assert warm().reorder_window(RTT, RTT, TARGET) == RTT // 4


# spec: loss-across-evs
def test_it_grows_with_the_spread_that_was_seen_and_no_further_than_the_target() -> None:
    assert warm(spread=US).reorder_window(RTT, RTT, TARGET) == RTT // 4 + US
    assert warm(spread=100 * US).reorder_window(RTT, RTT, TARGET) == MOST


# spec: loss-undone
def test_an_undone_verdict_widens_it_at_once_and_calm_narrows_it_again() -> None:
    loss = warm()
    loss.on_lag(3 * US)
    assert loss.reorder_window(RTT, RTT, TARGET) == RTT // 4 + 3 * US
    for epoch in range(3):
        now = (100 + 10 * epoch) * RTT
        loss.on_acked(now, now - RTT, RTT)
    assert loss.reorder_window(RTT, RTT, TARGET) == RTT // 4


def test_an_answered_probe_is_as_good_as_a_packet() -> None:
    loss = parts.Loss()
    loss.on_probe_answered(42)
    loss.on_probe_answered(41)
    assert loss.latest_acked_sent == 42


def busy_pair(**network: Any) -> tuple[Pair, Any, Any]:
    pair = Pair(
        4,
        seed=9,
        network=PairConfig(**network),
        ev_profile=EvProfile(count=64),
        cc_profile=CcProfile(algorithm="fixed_window", window_bytes=512 * 1024),
    )
    a, _ = pair.connect()
    return pair, a, pair.b.register(length=1 << 26, rkey=1)


# spec: loss-same-ev
def test_random_loss_is_found_by_order_on_the_path_not_by_the_timer() -> None:
    pair, a, remote = busy_pair()
    pair.set_faults(loss=0.002, spares_control=True)
    assert pair.pump(a, remote, count=200, length=1 << 20) == (200, 0, 0)
    stats = a.stats()
    assert stats["lost_same_ev"] + stats["lost_across_evs"] > 50
    assert stats["timeouts"] <= 1
    # What was in flight on a path when it was withdrawn is retransmitted on suspicion; nothing else should be.
    assert stats["loss_spurious"] <= stats["lost_with_path"] + 0.1 * pair.counters()["lost"]


def test_a_dead_plane_is_left_within_a_few_round_trips() -> None:
    pair, a, remote = busy_pair()
    pair.pump(a, remote, count=50, length=1 << 20)
    pair.record()
    died_at = pair.now_ps
    for sender in (0, 1):
        pair.faults(sender, 1).black_hole = True
    pair.pump(a, remote, count=50, length=1 << 20)
    events = pair.recording()
    sent = events[(events["type"] == _core.EventType.packet_sent.value) & (events["side"] == 0) & (events["port"] == 1)]
    last = int(sent["at_ps"].max()) - died_at
    assert last < 6 * RTT, f"data still went to the dead plane after {last / US:.0f} µs"
    assert a.stats()["timeouts"] == 0


def test_different_delays_on_different_paths_are_not_loss() -> None:
    pair, a, remote = busy_pair()
    pair.set_faults(path_jitter_us=3.0)
    pair.pump(a, remote, count=100, length=1 << 20)
    before = a.stats()["loss_spurious"]
    pair.pump(a, remote, count=400, length=1 << 20)
    stats = a.stats()
    assert pair.counters()["lost"] == 0
    assert stats["loss_spurious"] - before < 0.001 * stats["packets_sent"]


@pytest.mark.parametrize("keep", ["data", "acknowledgements"])
def test_a_lost_tail_needs_no_timer(keep: str) -> None:
    """The last packet of a burst, or everything said about it, is lost; the tail probe finds out."""
    pair, a, remote = busy_pair()
    pair.pump(a, remote, count=10, length=1 << 18)
    sender = 0 if keep == "data" else 1
    a.post_write(pair.now_ps, 4096, remote_va=0, rkey=1)
    for plane in range(4):
        pair.faults(sender, plane).black_hole = True
    pair.run_us(6.0)
    for plane in range(4):
        pair.faults(sender, plane).black_hole = False
    pair.run_us(100.0)
    assert len(pair.a.poll_completions()) == 1
    assert a.stats()["timeouts"] == 0


def test_a_flow_of_one_packet_at_a_time_learns_which_path_is_dead() -> None:
    """With nothing sent after it, a lost packet's only witness is the copy that silence sent."""
    pair = Pair(
        4,
        seed=9,
        ev_profile=EvProfile(count=16),
        cc_profile=CcProfile(algorithm="fixed_window", window_bytes=512),
    )
    a, _ = pair.connect()
    remote = pair.b.register(length=1 << 20, rkey=1)
    pair.faults(0, 2).black_hole = True
    assert pair.pump(a, remote, count=60, length=100, depth=1)[0] == 60
    tail_probes = a.stats()["tail_probes"]
    assert pair.pump(a, remote, count=200, length=100, depth=1)[0] == 200
    assert a.stats()["tail_probes"] - tail_probes <= 4
