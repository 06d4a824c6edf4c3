"""The way back for a withdrawn EV: when it is probed, how many answers it needs, what slows it down."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import parts
from softmrc.config import CcProfile, EndpointConfig, to_native
from softmrc.engine.pair import Pair, PairConfig

MS = 1_000_000_000
ANY = 0xFFFF


def prober(**config: Any) -> Any:
    return parts.EvProber(to_native(EndpointConfig(**config)))


def probe_times(p: Any, until: int) -> list[int]:
    """When probes go out while nothing is answered."""
    times = []
    while p.deadline is not None and p.deadline <= until:
        now = p.deadline
        if p.next_due(now, ANY, ANY) is not None:
            times.append(now)
    return times


# spec: ev-fast-return
def test_a_first_fall_is_probed_at_once_then_each_millisecond_backing_off_to_a_second() -> None:
    p = prober()
    p.add(7, 0, 0, 5 * MS)
    times = probe_times(p, 9000 * MS)
    gaps = [b - a for a, b in pairwise(times)]
    assert times[0] == 5 * MS
    assert gaps[:10] == [MS * 2**k for k in range(10)]
    assert set(gaps[10:]) == {1000 * MS}


# spec: ev-revival
def test_three_answers_in_a_row_bring_it_back_as_fast_as_they_come() -> None:
    p = prober()
    p.add(7, 0, 0, 0)
    for nth in range(3):
        now = nth * 10_000
        assert p.next_due(now, ANY, ANY) == 7
        assert p.on_answer(7, now + 10_000) is (nth == 2)


def test_a_silence_in_between_starts_the_count_again_and_doubles_the_wait() -> None:
    p = prober()
    p.add(7, 0, 0, 0)
    p.next_due(0, ANY, ANY)
    p.on_answer(7, 10)
    p.next_due(10, ANY, ANY)
    assert p.deadline == 10 + MS
    assert p.next_due(10 + MS, ANY, ANY) == 7
    assert p.deadline == 10 + MS + 2 * MS
    assert not p.on_answer(7, 10 + MS + 5), "the first of a new row"
    assert p.deadline == 10 + MS + 5, "an answer returns the cadence to the first one"


@pytest.mark.parametrize("damping", [1, 2, 5, 20])
# spec: ev-flap-damping
def test_each_relapse_doubles_the_wait_up_to_the_maximum(damping: int) -> None:
    p = prober()
    p.add(7, 0, damping, 0)
    assert p.deadline == min(MS * 2 ** (damping - 1), 1000 * MS)


def test_a_damped_ev_is_probed_at_the_cadence_not_at_once() -> None:
    p = prober()
    p.add(7, 0, 1, 0)
    p.next_due(MS, ANY, ANY)
    p.on_answer(7, MS + 10)
    assert p.deadline == MS + 10 + MS


def test_an_answer_that_nobody_waits_for_counts_for_nothing() -> None:
    p = prober(revival_answers=1)
    p.add(7, 0, 0, 0)
    assert not p.on_answer(7, 0)
    assert not p.on_answer(8, 0)


# spec: ev-none-left
def test_with_no_ev_left_all_are_probed_now_and_one_answer_is_enough() -> None:
    p = prober()
    for ev in (1, 2):
        p.add(ev, 0, 5, 0)
    p.set_none_left(True, 10)
    assert {p.next_due(10, ANY, ANY), p.next_due(10, ANY, ANY)} == {1, 2}
    assert p.on_answer(2, 20)


def test_a_port_that_is_down_is_not_probed_and_hurried_when_it_is_back() -> None:
    p = prober()
    p.add(7, 3, 0, 0)
    assert p.next_due(0, 0b0111, ANY) is None
    assert p.deadline == MS
    p.probe_port_now(3, 10)
    assert p.deadline == 10
    assert p.next_due(10, ANY, ANY) == 7


def test_a_busy_port_keeps_its_patient_due() -> None:
    p = prober()
    p.add(7, 3, 0, 0)
    assert p.next_due(0, ANY, 0b0111) is None
    assert p.deadline == 0
    assert p.next_due(10, ANY, ANY) == 7


def test_an_answer_has_a_round_trip_to_come() -> None:
    p = prober()
    p.add(7, 0, 0, 0)
    p.next_due(0, ANY, ANY, round_trip=5 * MS)
    assert p.deadline == 5 * MS


def test_an_ev_returns_on_a_path_longer_than_the_cadence() -> None:
    """A round trip of 6 ms against a cadence of 1 ms: the row of answers must not be broken by impatience."""
    pair = Pair(2, network=PairConfig(one_way_delay_us=3000), cc_profile=CcProfile(base_rtt_us=6000))
    a, _ = pair.connect()
    remote = pair.b.register(length=1 << 24, rkey=1)
    ev = a.evs()[0]
    pair.set_ev_loss(0, int(ev["port"]), int(ev["value"]), 1.0)
    pair.pump(a, remote, length=1 << 20, count=16)
    assert a.stats()["evs_demoted"] >= 1
    pair.set_ev_loss(0, int(ev["port"]), int(ev["value"]), 0.0)
    pair.run_us(3_000_000)
    assert (a.evs()["state"] == 0).all(), a.evs()
