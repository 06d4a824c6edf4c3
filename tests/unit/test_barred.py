"""Paths that are worse than others without being dead: passed over for a while, and given no more than their share."""

from __future__ import annotations

from collections import Counter

import packer
import parts
from rig import QPN, US, Rig, data
from softmrc import _core
from softmrc.config import CcProfile, EvProfile, to_native

RTT = 8 * US
SPAN = 5 * RTT
ALL = 0xFFFF


def make(count: int = 8, ports: int = 1) -> parts.EvSet:
    return parts.EvSet(to_native(EvProfile(count=count)), ports, 3)


def picked(evs: parts.EvSet, now: int, count: int = 64) -> Counter[int]:
    return Counter(evs.pick(ALL, parts.NO_EV, now) for _ in range(count))


# spec: ev-barred
def test_a_barred_path_is_passed_over_until_its_time_and_then_once_more() -> None:
    evs = make()
    evs.suspend(2, 0, SPAN)
    assert 2 not in picked(evs, 0) + picked(evs, SPAN - 1)
    assert evs.rows()[2][2] == _core.EvState.SKIP
    assert picked(evs, SPAN)[2] >= 7, "skipped once more, then in every round of eight"


# spec: ev-barred ev-replace
def test_a_path_that_replaces_a_barred_one_is_free_and_so_is_the_ports_count() -> None:
    evs = make()
    for round_ in range(5):
        for ev in (2, 5):
            evs.suspend(ev, 0, SPAN)
            evs.replace(ev, 1000 + round_)
    assert min(picked(evs, 0).values()) >= 7, "all eight take their turns"
    for ev in range(4):
        evs.suspend(ev, 0, SPAN)
    assert not {0, 1, 2, 3} & set(picked(evs, 0)), "and half of them can be barred, as ever"


# spec: ev-barred
def test_a_mark_is_not_a_bar() -> None:
    evs = make()
    evs.on_congestion(2)
    assert picked(evs, 0)[2] >= 6


# spec: ev-skip
def test_one_packet_restores_one_skipped_path_however_often_it_looks() -> None:
    evs = make()
    for ev in range(1, 8):
        evs.on_congestion(ev)
    assert set(evs.search([ALL] * 6)) == {0}
    assert sum(row[2] == _core.EvState.SKIP for row in evs.rows()) == 6
    evs.on_congestion(0)
    (first, second) = evs.search([ALL] * 2)
    assert first == second != parts.NO_EV, "the one restored, as nothing else is left"


# spec: ev-barred
def test_each_relapse_doubles_the_bar_up_to_sixteen_times_and_calm_forgets() -> None:
    evs = make()
    now = 0
    for factor in (1, 2, 4, 8, 16, 16):
        evs.suspend(0, now, SPAN)
        assert 0 not in picked(evs, now + factor * SPAN - 1)
        now += factor * SPAN
        assert 0 in picked(evs, now)
    now += 17 * SPAN
    evs.suspend(0, now, SPAN)
    assert 0 in picked(evs, now + SPAN)


# spec: ev-barred
def test_no_more_than_half_of_a_port_is_barred_at_once() -> None:
    """When most of its paths are bad, none of them is worse than the others."""
    evs = make(16, ports=2)
    for ev in range(8):
        evs.suspend(ev, 0, SPAN)
    on_port = {i for i, row in enumerate(evs.rows()) if row[1] == 0}
    assert set(picked(evs, 1, 256)) & on_port == {4, 5, 6, 7}


# spec: ev-barred
def test_where_nothing_else_is_left_a_barred_path_is_used() -> None:
    evs = make(2)
    evs.suspend(0, 0, SPAN)
    evs.deny(1)
    assert evs.pick(ALL, parts.NO_EV, 1) == 0
    assert evs.pick(ALL, 0, 1) == 0, "even the one to avoid"


# spec: ev-barred
def test_a_path_that_left_the_rotation_is_barred_no_more() -> None:
    evs = make()
    for _ in range(3):
        for ev in range(8):
            evs.suspend(ev, 0, SPAN)
        for ev in range(8):
            evs.deny(ev)
            evs.allow(ev)
        assert set(picked(evs, 1)) == set(range(8))


def running(evs: int) -> Rig:
    return Rig(mtu=512, evs={"count": evs}, cc={"window_bytes": 32 * 1024}, rts={"timeout": 20})


# spec: ev-share-in-flight
def test_a_path_that_does_not_answer_is_given_no_more_than_its_share() -> None:
    """Everything is acknowledged but what one path carries; no SACK tells enough for a verdict."""
    rig = running(evs=8)
    sent = data(rig.post(400 * 512))
    slow = rig.routes[0][1]
    carried = Counter(route[1] for route in rig.routes)
    before = carried[slow]
    for step in range(40):
        rig.now += US // 10
        psn = next(i for i in range(step, len(rig.routes)) if rig.routes[i][1] != slow)
        rig.receive(packer.sack(QPN, packer.PSN_MASK, ack_psn=psn, ticks=sent[psn].ticks or 0, rcvd_bytes=512 * step))
    carried = Counter(route[1] for route in rig.routes)
    others = [count for ev, count in carried.items() if ev != slow]
    assert carried[slow] <= before + 2 and min(others) > carried[slow]


# spec: loss-holes
def test_what_one_path_holds_is_missed_at_once_and_not_as_cack_reaches_it() -> None:
    """Three packets are missing; one SACK shows the gaps too early for a verdict, a later one speaks of others."""
    rig = Rig(mtu=512, evs={"count": 64}, cc={"window_bytes": 1 << 30}, rts={"timeout": 20})
    first = data(rig.post(64 * 512))
    rig.now += 8 * US
    everything = (1 << 64) - 1
    missing = 1 << 10 | 1 << 20 | 1 << 30
    shown = {"base": 0, "bitmap": everything & ~missing, "ooo": 53}
    rig.receive(packer.sack(QPN, 9, ack_psn=63, ticks=first[63].ticks or 0, rcvd_bytes=32_000, **shown))
    assert rig.stats()["lost_across_evs"] == 0, "nothing sent later has been acknowledged"
    rig.now += 40 * US
    second = data(rig.post(64 * 512))
    rig.now += 8 * US
    for received in (64_000, 64_256):
        said = {"ack_psn": 64, "ticks": second[0].ticks or 0, "base": 64, "bitmap": 1, "ooo": 54}
        rig.receive(packer.sack(QPN, 9, rcvd_bytes=received, **said))
    assert rig.stats()["lost_across_evs"] == 3


# spec: loss-undone
def test_a_verdict_that_is_undone_gives_back_what_it_took_from_the_window() -> None:
    nscc = parts.Controller(to_native(CcProfile()), 4096)
    full = nscc.window
    nscc.on_loss(0, 4096, 100_000)
    assert nscc.window == full - 4096
    nscc.on_loss_undone(4096)
    assert nscc.window == full
    nscc.on_loss_undone(4096)
    assert nscc.window == full, "and never more than the largest window"


# spec: window-hints
def test_hints_divide_the_first_window_and_not_the_largest() -> None:
    alone = parts.Controller(to_native(CcProfile()), 4096)
    shared = parts.Controller(to_native(CcProfile()), 4096, 16)
    assert shared.window == alone.window / 16
    for step in range(1, 400):
        shared.on_ack(step * RTT, RTT, int(shared.window), marked=False, delay=0, in_flight=0)
    assert shared.window == alone.window


# spec: window-shared
def test_queue_pairs_that_send_share_what_may_be_in_flight() -> None:
    profile = CcProfile(rate_bps=400_000_000_000, base_rtt_us=8.0)
    nscc = parts.Controller(to_native(profile), 4096)
    bdp = 400_000
    assert nscc.window_of(1) == nscc.window == 1.5 * bdp
    assert nscc.window_of(4) == 2 * bdp / 4
    assert nscc.window_of(1000) == 8 * 4096, "a share too small to be acknowledged in time is of no use"
    unlimited = parts.Controller(to_native(CcProfile(shared_window_bdp=0.0)), 4096)
    assert unlimited.window_of(1000) == unlimited.window


# spec: window-shared
def test_a_queue_pair_counts_while_it_has_messages_and_no_longer() -> None:
    rig = Rig(mtu=512, cc={"algorithm": "nscc"})
    alone = rig.qp.query()["window_bytes"]
    others = [rig.another_qp(QPN + 1 + i) for i in range(3)]
    for other in others:
        other.post_write(rig.now, 512, remote_va=0, rkey=1, source=rig.source)
    rig.post(512)
    assert rig.qp.query()["window_bytes"] == alone * 2 / 1.5 / 4
    others[0].error(rig.now)
    assert rig.qp.query()["window_bytes"] == int(alone * 2 / 1.5 / 3)
    for other in others:
        other.destroy(rig.now)
    assert rig.qp.query()["window_bytes"] == alone
