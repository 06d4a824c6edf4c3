"""A plane that is slow, but loses nothing, must not hold up the others."""

from __future__ import annotations

import pytest

from softmrc.config import CcProfile, EvProfile
from softmrc.engine import QueuePair
from softmrc.engine.pair import Pair, PairConfig

CONTROL = CcProfile(algorithm="fixed_window", window_bytes=1 << 20, base_rtt_us=200.0, min_reorder_window_us=200.0)


class Slow:
    """Four planes of 10 Gb/s with 100 µs each way."""

    def __init__(self, *, leaves: bool = True, seed: int = 5) -> None:
        profile = EvProfile(count=16, leaves_slow_ports=leaves)
        network = PairConfig(one_way_delay_us=100.0, port_rate_bps=10_000_000_000)
        self.pair = Pair(4, seed=seed, ev_profile=profile, cc_profile=CONTROL, network=network)
        self.a, _ = self.pair.connect()
        self.remote = self.pair.b.register(length=1 << 20, rkey=1)

    def slow_down(self, plane: int, delay_us: float) -> None:
        for sender in (0, 1):
            self.pair.faults(sender, plane).delay_us = delay_us

    def narrow(self, plane: int, share: float) -> None:
        """A cable somewhere on this plane falls back to a share of its rate."""
        for sender in (0, 1):
            self.pair.faults(sender, plane).neck_bps = int(share * 10_000_000_000)

    def send(self, count: int, depth: int = 16) -> float:
        """How long that took, in µs."""
        started = self.pair.now_us
        assert self.pair.pump(self.a, self.remote, count=count, length=1 << 18, depth=depth) == (count, 0, 0)
        return self.pair.now_us - started

    def left(self) -> int:
        return self.a.stats()["ports_left_slow"]

    def send_until_left(self, falls: int) -> None:
        for _ in range(10):
            self.send(200)
            if self.left() == falls:
                return
        raise AssertionError(f"left {self.left()} times, not {falls}")


def good_on(qp: QueuePair, plane: int) -> int:
    evs = qp.evs()
    return int(((evs["port"] == plane) & (evs["state"] == 0)).sum())


# spec: slow-port
@pytest.mark.parametrize("delay_us", [500.0, 2_000.0, 20_000.0])
def test_a_slow_plane_is_left_and_found_again(delay_us: float) -> None:
    rig = Slow()
    fair_us = rig.send(200)
    assert rig.left() == 0
    rig.slow_down(2, delay_us)
    rig.send(200)
    assert good_on(rig.a, 2) == 0
    assert rig.send(200) < 1.6 * fair_us, "three planes of four carry on"
    rig.slow_down(2, 0.0)
    rig.send(1_500)
    assert good_on(rig.a, 2) == 4
    assert rig.send(200) < 1.1 * fair_us


# spec: slow-port
@pytest.mark.parametrize("delay_us", [2_000.0, 20_000.0])
def test_messages_one_at_a_time_leave_it_too(delay_us: float) -> None:
    rig = Slow()
    fair_us = rig.send(100, depth=1)
    rig.slow_down(1, delay_us)
    rig.send(100, depth=1)
    assert rig.send(100, depth=1) < 2 * fair_us


# spec: slow-port
@pytest.mark.parametrize("share", [0.5, 0.25, 0.1, 0.01])
def test_a_plane_that_fell_back_is_left_and_rarely_tried(share: float) -> None:
    """Its probes are answered in time, so it returns and falls again, after longer and longer waits."""
    rig = Slow()
    fair_us = rig.send(200)
    rig.narrow(1, share)
    rig.send(2_000)
    falls = rig.left()
    assert rig.send(4_000) < 1.43 * 20 * fair_us
    assert rig.left() - falls <= 8


@pytest.mark.parametrize("share", [0.5, 0.25, 0.1])
def test_without_the_rule_it_holds_up_all(share: float) -> None:
    rig = Slow(leaves=False)
    fair_us = rig.send(200)
    rig.narrow(1, share)
    rig.send(2_000)
    assert rig.send(4_000) > 1.46 * 20 * fair_us and rig.left() == 0


@pytest.mark.parametrize("seed", range(12))
def test_planes_that_are_all_slow_stay(seed: int) -> None:
    rig = Slow(seed=seed)
    rig.send(200)
    for plane in range(4):
        rig.slow_down(plane, 2_000.0)
    rig.send(400)
    assert rig.left() == 0


def test_the_last_plane_stays_however_slow() -> None:
    rig = Slow()
    rig.send(200)
    rig.slow_down(3, 2_000.0)
    for plane in range(3):
        rig.pair.a.set_port(rig.pair.now_ps, plane, False)
    rig.send(50)
    assert good_on(rig.a, 3) == 4


def test_a_plane_whose_paths_the_controller_replaced_is_judged_anew() -> None:
    """It is in use again, so it must be possible to leave it again."""
    rig = Slow()
    rig.send(200)
    rig.slow_down(2, 300.0)
    rig.send_until_left(1)
    assert good_on(rig.a, 2) == 0
    for ev in (rig.a.evs()["port"] == 2).nonzero()[0]:
        rig.a.replace_ev(rig.pair.now_ps, int(ev), 1000 + int(ev))
    assert good_on(rig.a, 2) == 4
    rig.send_until_left(2)
    assert good_on(rig.a, 2) == 0
