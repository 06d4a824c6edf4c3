"""A window for each of some links that say nothing: what it makes of their speeds, distances and queues."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

import pytest

import parts
from softmrc.config import CcProfile, DeviceConfig, EndpointConfig, EvProfile, RtrAttributes, RtsAttributes, to_native
from softmrc.engine.pair import Pair, PairConfig, ProcessConfig

MBPS = 1_000_000
MTU = 1408
OVERHEAD = 82
KIB = 1024
MESSAGE = 1 << 18
MS = 1_000_000_000  # ps
# A device's own loop: it takes some microseconds for everything, and now and then loses its core.
PROCESSES = (ProcessConfig(pace_us=5.0, hold_up=0.002, hold_up_us=400.0),) * 2


class Seen(NamedTuple):
    share: float  # goodput over what the links carry
    resent: float  # share of packets
    queue_us: float  # how much longer than the distance a round trip took at last


class Links:
    """Two nodes with the defaults of a device, and between them a link for every speed."""

    def __init__(self, *speeds_mbps: float, queue_bytes: int = 384 * KIB, one_way_us: float = 20.0,
                 seed: int = 1, processes: Any = PROCESSES, **settings: Any) -> None:  # fmt: skip
        config = DeviceConfig(**settings)
        planes = len(speeds_mbps)
        self.speeds_mbps = speeds_mbps
        self.one_way_us = one_way_us
        self.pair = Pair(
            planes,
            seed=seed,
            network=PairConfig(one_way_delay_us=one_way_us, encode=False),
            endpoint=EndpointConfig(sack_threshold_bytes=config.sack_threshold_bytes),
            ev_profile=EvProfile(count=4 * planes, spray_quantum=config.quantum_for(MTU), leaves_slow_ports=True),
            cc_profile=config.cc_profile([0] * planes),
            processes=processes,
        )
        rtr, rts = RtrAttributes(mpr_dest=config.mpr), RtsAttributes(mpr=config.mpr, timeout=config.timeout)
        self.a, self.b = self.pair.connect(mtu=MTU, rtr=rtr, rts=rts)
        self.remote = self.pair.b.register(length=1 << 20, rkey=1)
        for plane, mbps in enumerate(speeds_mbps):
            self.set_speed(plane, mbps, queue_bytes)

    def set_speed(self, plane: int, mbps: float, queue_bytes: int = 384 * KIB) -> None:
        for sender in (0, 1):
            weather = self.pair.faults(sender, plane)
            weather.neck_bps, weather.neck_bytes = int(mbps * MBPS), queue_bytes

    def send(self, seconds: float) -> Seen:
        """As much as the links carry in this time."""
        carried = sum(self.speeds_mbps) * MBPS * MTU / (MTU + OVERHEAD)
        count = max(int(carried * seconds / 8 / MESSAGE), 32)
        before, started_us = self.a.stats(), self.pair.now_us
        assert self.pair.pump(self.a, self.remote, count=count, length=MESSAGE, depth=32) == (count, 0, 0)
        after, took_s = self.a.stats(), (self.pair.now_us - started_us) / 1e6
        sent, again = (after[key] - before[key] for key in ("packets_sent", "packets_retransmitted"))
        queue_us = self.a.query()["smoothed_rtt_us"] - 2 * self.one_way_us
        return Seen(count * MESSAGE * 8 / took_s / carried, again / sent, queue_us)


# spec: queue-delay
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mbps", [25, 100, 1_000, 10_000])
def test_links_of_any_speed_are_filled_and_not_overrun(mbps: float, seed: int) -> None:
    seen = Links(mbps, mbps, seed=seed, queue_bytes=max(384 * KIB, mbps * 375)).send(1.0)
    assert seen.share > 0.9, seen
    assert seen.resent < 0.005, seen


# spec: port-windows port-lag
@pytest.mark.parametrize("speeds", [(1_000, 250), (1_000, 100), (250, 1_000, 500, 100)])
def test_each_link_carries_what_it_can(speeds: tuple[float, ...]) -> None:
    """One window over all of them is as fast as the slowest times their number."""
    links = Links(*speeds)
    seen = links.send(1.0)
    assert seen.share > 0.9, seen
    assert seen.resent < 0.005, seen
    assert links.a.stats()["ports_left_slow"] == 0


@pytest.mark.parametrize("one_way_us", [500.0, 5_000.0])
def test_a_distance_is_filled(one_way_us: float) -> None:
    seen = Links(200, 200, one_way_us=one_way_us).send(4.0)
    assert seen.share > 0.9, seen
    assert seen.resent < 0.005, seen


def test_the_queue_is_about_as_long_as_was_asked_for() -> None:
    for queue_us in (500.0, 2_000.0):
        links = Links(1_000, 1_000, queue_us=queue_us, queue_bytes=16 << 20)
        links.send(0.3)
        assert links.send(0.3).queue_us == pytest.approx(queue_us, rel=0.6)


def test_a_queue_too_short_for_the_target_is_found_by_its_losses() -> None:
    links = Links(1_000, 1_000, queue_bytes=64 * KIB)
    links.send(1.0)
    seen = links.send(2.0)
    assert seen.share > 0.85, seen
    assert seen.resent < 0.01, seen


def test_losses_that_are_nobodys_fault_do_not_close_the_window() -> None:
    links = Links(1_000, 1_000)
    links.pair.set_faults(loss=0.01, neck_bps=1_000 * MBPS, neck_bytes=384 * KIB)
    assert links.send(1.0).share > 0.8


def test_a_link_that_changes_its_speed_is_followed() -> None:
    links = Links(1_000, 1_000)
    links.send(0.5)
    for speeds in ((100, 1_000), (1_000, 1_000)):
        links.speeds_mbps = speeds
        links.set_speed(0, speeds[0])
        links.send(0.5)
        assert links.send(0.5).share > 0.9, speeds


def test_a_way_that_becomes_longer_is_no_queue() -> None:
    links = Links(1_000, 1_000)
    links.send(0.2)
    for plane in (0, 1):
        links.pair.faults(0, plane).delay_us = 5_000.0
    links.send(2.0)
    assert links.send(1.0).share > 0.8


def grown(start: int, is_first: bool) -> tuple[float, float]:
    """A window before and after thirty round trips, each of which it fills; after the start or while it lasts."""
    profile = CcProfile("queue_delay", start_bytes=start, target_delay_us=1e6)
    one = parts.Controller(to_native(profile), MTU)
    now = 0
    if not is_first:
        one.on_loss(now, MTU, 0)  # that ends the start, by half
        one.on_loss_undone(MTU)
    before = one.window
    for _ in range(30):
        fits = int(one.window / MTU)
        now += 2 * MS
        for n in range(fits):
            one.on_ack(now, MS, MTU, False, 0, (fits - 1 - n) * MTU)
    return before, one.window


# spec: queue-delay
@pytest.mark.parametrize("is_first", [True, False])
def test_a_window_that_has_no_room_for_another_packet_grows(is_first: bool) -> None:
    """However small it is: of 2.9 packets' worth two are less than three quarters."""
    for tenths in range(20, 100):
        before, after = grown(MTU * tenths // 10 * (1 if is_first else 2), is_first)
        assert before == pytest.approx(MTU * tenths / 10, abs=1), f"{tenths / 10} packets"
        assert after > 2 * before, f"{tenths / 10} packets"


# spec: queue-burst
def test_after_a_pause_no_more_is_sent_at_once_than_a_queue_takes() -> None:
    """Ten milliseconds of distance and a target of one: a window of eleven, of which one goes at once."""
    profile = DeviceConfig().cc_profile([0])
    one = parts.Controller(to_native(profile), MTU)
    now, base_rtt = 0, 10 * MS
    while one.window < 500_000:
        now += base_rtt
        for _ in range(8):
            one.on_ack(now, base_rtt, int(one.window / 8), False, 0, int(one.window * 7 / 8))
    whole = one.window
    one.on_ack(now, base_rtt, MTU, False, 0, 0)
    at_once = one.window
    assert at_once == pytest.approx(whole / 11, rel=0.1)
    one.on_ack(now, base_rtt, MTU, False, 0, int(at_once))
    assert one.window == pytest.approx(at_once + 2 * MTU, abs=1), "two for one"


def test_two_connections_share_a_link() -> None:
    """Within a second one may be ahead; neither starves, and by and large they are alike."""
    shares = []
    for seed in range(1, 8):
        links = Links(1_000, seed=seed)
        other, _ = links.pair.connect(mtu=MTU, rtr=RtrAttributes(mpr_dest=64), rts=RtsAttributes(mpr=64))
        for qp in (links.a, other):
            for _ in range(600):
                qp.post_write(links.pair.now_ps, MESSAGE, remote_va=0, rkey=1)
        links.pair.run_us(1_000_000)
        sent = [qp.stats()["bytes_sent"] for qp in (links.a, other)]
        assert sum(sent) * 8 > 0.85e9
        shares.append(min(sent) / max(sent))
    assert min(shares) > 0.1 and statistics.median(shares) > 0.5, shares


def test_packets_a_little_shorter_than_full_ones_fill_a_window() -> None:
    """Two packets for each that arrives, though only one arrives at a time and the next may be longer by a header."""
    one = parts.Controller(to_native(DeviceConfig().cc_profile([0])), MTU)
    now, rtt, short = 0, 10 * MS, MTU - 4
    one.on_loss(now, 64 * MTU, 0)
    in_flight = 2
    for _ in range(200):  # each round trip, everything that was sent arrives, one packet after the other
        now += rtt
        sent = 0
        for left in reversed(range(in_flight)):
            one.on_ack(now, rtt, short, False, 0, (left + sent) * short)
            while (left + sent) * short + MTU <= one.window:
                sent += 1
        in_flight = max(sent, 1)
        if in_flight > 100:
            return
    raise AssertionError(f"{in_flight} packets in flight after 200 round trips")
