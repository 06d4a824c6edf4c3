"""The way back: acknowledgements and answers when a plane works in one direction only."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from softmrc.config import CcProfile, EvProfile
from softmrc.engine.pair import Pair, PairConfig

PROFILE = EvProfile(count=16)
CONTROL = CcProfile(algorithm="fixed_window", window_bytes=256 * 1024)


def one_way_pair(planes: int) -> tuple[Pair, object, object]:
    pair = Pair(planes, seed=3, ev_profile=PROFILE, cc_profile=CONTROL)
    a, _ = pair.connect()
    return pair, a, pair.b.register(length=1 << 26, rkey=1)


@pytest.mark.parametrize("direction", [0, 1])
# spec: reverse-paths
def test_a_plane_dead_in_one_direction_costs_one_plane_at_most(direction: int) -> None:
    pair, a, remote = one_way_pair(4)
    pair.pump(a, remote, count=8, length=1 << 18)
    pair.faults(direction, 2).black_hole = True
    assert pair.pump(a, remote, count=400, length=1 << 18, limit_us=200_000) == (400, 0, 0)
    assert a.stats()["timeouts"] <= 2


def test_replies_leave_a_dead_way_back_within_a_few_milliseconds() -> None:
    """Data keeps arriving on the plane; its acknowledgements must not go on vanishing there."""
    pair, a, remote = one_way_pair(2)
    pair.faults(1, 0).black_hole = True
    pair.pump(a, remote, count=1000, length=1 << 18)
    swallowed = pair.counters()["swallowed"]
    pair.pump(a, remote, count=200, length=1 << 18)
    probes = pair.counters()["swallowed"] - swallowed
    assert probes < 40, "only probes of the dead way may still be lost there"
    sent = pair.data_packets_sent(0)
    assert min(sent) > 0.3 * max(sent), f"a plane that carries data well should go on doing so: {sent}"


def test_out_on_one_plane_and_back_on_another() -> None:
    """No plane works both ways, yet a path lives in each direction. Every probe's answer tries the wrong way first."""
    pair, a, remote = one_way_pair(2)
    pair.faults(0, 1).black_hole = True
    pair.faults(1, 0).black_hole = True
    assert pair.pump(a, remote, count=20, length=1 << 16, limit_us=3_000_000) == (20, 0, 0)
    started = pair.now_us
    assert pair.pump(a, remote, count=50, length=1 << 18, limit_us=3_000_000) == (50, 0, 0)
    assert pair.now_us - started < 500_000


def test_an_idle_receiver_stops_probing() -> None:
    pair, a, remote = one_way_pair(4)
    pair.pump(a, remote, count=4, length=1 << 18)
    pair.run_us(10_000)
    before = pair.packets_delivered
    pair.run_us(1_000_000)
    assert pair.packets_delivered == before


def test_the_last_plane_of_eight_is_found_by_asking_everywhere() -> None:
    """Every EV stays good, since the floor shields them all; only asking tells which plane still lives."""
    pair = Pair(8, seed=4, ev_profile=EvProfile(count=128, min_active=128), cc_profile=CONTROL)
    a, _ = pair.connect()
    remote = pair.b.register(length=1 << 20, rkey=1)
    for plane in range(8):
        for sender in (0, 1):
            pair.faults(sender, plane).black_hole = plane != 5
    assert pair.pump(a, remote, count=1, length=100, limit_us=3_000) == (1, 0, 0)
    assert pair.pump(a, remote, count=20, length=1 << 16, limit_us=200_000) == (20, 0, 0)


@pytest.mark.parametrize("dead", [0, 1, 2, 3])
# spec: tail-probe
def test_one_message_at_a_time_needs_no_timer_when_a_plane_dies(dead: int) -> None:
    """The plane drops a packet that nothing follows: its probe must not take the same path again."""
    profile = EvProfile(count=64, spray_quantum=16)
    pair = Pair(4, seed=dead, ev_profile=profile, cc_profile=CONTROL)
    a, _ = pair.connect()
    remote = pair.b.register(length=1 << 20, rkey=1)
    assert pair.pump(a, remote, count=50, length=100, depth=1) == (50, 0, 0)
    for sender in (0, 1):
        pair.faults(sender, dead).black_hole = True
    assert pair.pump(a, remote, count=400, length=100, depth=1) == (400, 0, 0)
    stats = a.stats()
    assert stats["tail_probes"] > 0 and stats["timeouts"] == 0


def busy_pair(count: int) -> tuple[Pair, Callable[[], None]]:
    """Two nodes, so many queue pairs between them, and what makes each of a's write once."""
    pair = Pair(4, seed=3, ev_profile=PROFILE, cc_profile=CONTROL)
    qps = [pair.connect()[0] for _ in range(count)]
    pair.b.register(length=1 << 16, rkey=1)

    def write() -> None:
        for qp in qps:
            qp.post_write(pair.now_ps, 100, remote_va=0, rkey=1)

    return pair, write


def probes_in(pair: Pair, write: Callable[[], None], milliseconds: int) -> int:
    """How many probes a gets while every queue pair writes ten times a millisecond."""
    before = pair.a.stats()["endpoint_requests"]
    for _ in range(10 * milliseconds):
        write()
        pair.run_us(100)
    return pair.a.stats()["endpoint_requests"] - before


@pytest.mark.parametrize("dead", [None, 2])
def test_many_queue_pairs_to_a_peer_probe_a_port_as_often_as_one(dead: int | None) -> None:
    pair, write = busy_pair(48)
    probes_in(pair, write, 3)
    if dead is not None:
        pair.faults(1, dead).black_hole = True
    assert 4 <= probes_in(pair, write, 20) <= 4 * (20 + 1)


def test_what_one_queue_pair_finds_out_about_a_port_the_others_know() -> None:
    pair, write = busy_pair(48)
    probes_in(pair, write, 3)
    pair.faults(1, 2).black_hole = True
    probes_in(pair, write, 4)
    swallowed = pair.counters()["swallowed"]
    probes_in(pair, write, 10)
    assert pair.counters()["swallowed"] - swallowed <= 2 * 10, "only probes are lost on the dead way back"


def test_who_asked_for_the_others_may_be_gone() -> None:
    """Its findings do not outlive it by more than a round."""
    pair = Pair(2, seed=3, ev_profile=PROFILE, cc_profile=CONTROL)
    first, far = pair.connect()
    second, _ = pair.connect()
    remote = pair.b.register(length=1 << 20, rkey=1)
    pair.faults(1, 0).black_hole = True
    pair.pump(first, remote, count=400, length=1 << 18)
    far.destroy(pair.now_ps)
    pair.faults(1, 0).black_hole = False
    pair.faults(1, 1).black_hole = True
    assert pair.pump(second, remote, count=400, length=1 << 18, limit_us=200_000) == (400, 0, 0)
    swallowed = pair.counters()["swallowed"]
    assert pair.pump(second, remote, count=200, length=1 << 18, limit_us=200_000) == (200, 0, 0)
    assert pair.counters()["swallowed"] - swallowed < 40


def test_a_way_back_that_was_found_is_known_to_the_next_message() -> None:
    """No plane works both ways, and round trips are longer than a round of probes: no path is ever healthy."""
    pair = Pair(5, seed=3, network=PairConfig(one_way_delay_us=2_500.0), ev_profile=EvProfile(count=10))
    a, _ = pair.connect()
    remote = pair.b.register(length=1 << 20, rkey=1)
    assert pair.pump(a, remote, count=10, length=1 << 14, depth=1) == (10, 0, 0)
    for plane in range(5):
        pair.faults(0, plane).black_hole = plane != 4
        pair.faults(1, plane).black_hole = plane != 1
    assert pair.pump(a, remote, count=4, length=1 << 14, depth=1, limit_us=30_000_000) == (4, 0, 0)
    started = pair.now_us
    assert pair.pump(a, remote, count=20, length=1 << 14, depth=1, limit_us=60_000_000) == (20, 0, 0)
    assert pair.now_us - started < 20 * 500_000
