"""What counts as evidence of loss, and against whom: copies, coverage, and NACKs that are slower than SACKs."""

from __future__ import annotations

from typing import Any

import pytest

import packer
from packer import Parsed
from rig import QPN, US, Rig, data, only
from softmrc.engine import EvState

RTT_US = 8.0
W_US = 8.0  # until the spread is known: the delay target and a quarter round trip
PATIENT = {"window_bytes": 1 << 30}


def verdicts(rig: Rig) -> int:
    stats = rig.stats()
    return stats["lost_same_ev"] + stats["lost_across_evs"]


def bad_evs(rig: Rig) -> list[int]:
    return [int(ev["value"]) for ev in rig.qp.evs() if ev["state"] == EvState.ASSUMED_BAD.value]


def sent_twice() -> tuple[Rig, list[Parsed], Parsed]:
    """Four packets over two paths, then silence, so that the newest goes again, by the path of an older one."""
    rig = Rig(evs={"count": 2}, cc=PATIENT)
    first = data(rig.post(4 * 1024))
    again: list[Parsed] = []
    while not again:
        again = data(rig.advance(1.0))
    assert [p.psn for p in again] == [3] and rig.routes[-1] == rig.routes[2] != rig.routes[3]
    rig.advance(RTT_US)
    return rig, first, again[0]


# spec: loss-copies
@pytest.mark.parametrize("as_trigger", [False, True], ids=["in the bitmap", "as the trigger"])
def test_the_first_copy_arriving_late_says_nothing_about_the_second_ones_path(as_trigger: bool) -> None:
    rig, first, _ = sent_twice()
    told = {"ack_psn": 3, "ticks": first[3].ticks} if as_trigger else {"ack_psn": 0, "ticks": first[0].ticks}
    rig.receive(packer.sack(QPN, 0, base=1, bitmap=0b100, ooo=1, rcvd_bytes=2048, **told))
    assert rig.qp.query()["packets_in_flight"] == 2
    assert verdicts(rig) == 0 and not bad_evs(rig)


# spec: loss-copies
def test_a_timestamp_proves_that_the_second_copy_arrived() -> None:
    rig, _, again = sent_twice()
    rig.receive(packer.sack(QPN, 0, ack_psn=3, ticks=again.ticks, base=1, bitmap=0b100, ooo=1, rcvd_bytes=2048))
    assert verdicts(rig) == 2, "one was overtaken on its own path, the other by more than W"


# spec: loss-copies
def test_after_a_nack_only_the_second_copy_can_arrive() -> None:
    rig = Rig(evs={"count": 2}, cc=PATIENT)
    first = data(rig.post(4 * 1024))
    rig.now += 4 * US
    again = data(rig.receive(packer.nack(QPN, 3, packer.TRIMMED, ticks=first[3].ticks or 0)))
    assert [p.psn for p in again] == [3] and rig.routes[-1] == rig.routes[2]
    rig.advance(4.0)
    rig.receive(packer.sack(QPN, 1, ack_psn=1, ticks=first[1].ticks or 0, base=2, bitmap=0b10, ooo=1, rcvd_bytes=3072))
    assert rig.stats()["lost_same_ev"] == 1 and rig.stats()["loss_spurious"] == 0


# spec: loss-covered
def test_what_no_sack_had_room_for_is_not_lost() -> None:
    """The receiver has it all but two packets; its first SACK has room for the newer block only."""
    rig = Rig(mtu=512, evs={"count": 64}, cc=PATIENT, rts={"timeout": 20})
    sent = data(rig.post(64 * 512))
    rig.now += int(3 * W_US * US)
    sent += data(rig.post(64 * 512))
    rig.now += int(RTT_US * US)
    everything = (1 << 64) - 1
    rig.receive(
        packer.sack(
            QPN, 1, ack_psn=127, ticks=sent[127].ticks or 0, base=64, bitmap=everything, ooo=125, rcvd_bytes=64_000
        )
    )
    assert verdicts(rig) == 1, "the one after cack, which every SACK covers"
    missing = 1 << 2 | 1 << 40
    rig.receive(packer.sack(QPN, 1, ack_psn=127, base=0, bitmap=everything & ~missing, ooo=125, rcvd_bytes=64_000))
    assert verdicts(rig) == 2 and rig.qp.query()["packets_in_flight"] == 2


# spec: loss-covered
def test_with_nothing_out_of_order_everything_behind_cack_is_covered() -> None:
    rig = Rig(mtu=512, evs={"count": 64}, cc=PATIENT, rts={"timeout": 20})
    rig.post(8 * 512)
    probes = only(rig.advance(50.0), packer.PROBE)
    rig.receive(packer.sack(QPN, 3, probe_id=probes[0].probe_id, ooo=0, rcvd_bytes=2048))
    assert verdicts(rig) >= 3


def overtaken(**endpoint: Any) -> tuple[Rig, Parsed, int, bytes]:
    """Two rounds over four paths. All arrive but the first packet; its path, and the SACK that reports it."""
    rig = Rig(evs={"count": 4}, cc=PATIENT, rts={"timeout": 20}, endpoint=endpoint)
    sent = data(rig.post(9 * 1024))
    rig.now += int(RTT_US * US)
    sack = packer.sack(QPN, 0, ack_psn=8, ticks=sent[8].ticks or 0, base=0, bitmap=0b111111101, ooo=7, rcvd_bytes=9000)
    return rig, sent[1], rig.routes[1][1], sack


# spec: trim-late-nack
def test_a_path_is_given_time_for_the_nack_that_explains_a_missing_packet() -> None:
    rig, trimmed, _, sack = overtaken()
    again = data(rig.receive(sack))
    assert [p.psn for p in again] == [1] and rig.stats()["lost_same_ev"] == 1, "it is retransmitted at once"
    assert not bad_evs(rig)
    rig.advance(W_US / 2)
    rig.receive(packer.nack(QPN, 1, packer.TRIMMED, ticks=trimmed.ticks or 0))
    rig.advance(4 * W_US)
    assert not bad_evs(rig) and rig.stats()["evs_demoted"] == 0


# spec: trim-late-nack
@pytest.mark.parametrize("resent", [False, True])
@pytest.mark.parametrize("last_hop", [False, True])
def test_a_late_nack_reports_congestion_as_one_in_time_does(resent: bool, last_hop: bool) -> None:
    """SACK evidence came first; the path is stepped over and the congestion noted all the same, and once only."""
    rig, trimmed, ev, sack = overtaken()
    rig.endpoint.handle_datagram(rig.now, sack, peer=rig.peer)
    if resent:
        rig.drain()
    reason = packer.TRIMMED_LAST_HOP if last_hop else packer.TRIMMED
    rig.endpoint.handle_datagram(rig.now, packer.nack(QPN, 1, reason, ticks=trimmed.ticks or 0), peer=rig.peer)
    states = {int(e["value"]): EvState(int(e["state"])) for e in rig.qp.evs()}
    assert states[ev] == (EvState.GOOD if last_hop else EvState.SKIP)
    assert len(data(rig.drain())) == (0 if resent else 1), "the copy under way is not touched"
    for _ in range(3):
        assert not data(rig.receive(packer.nack(QPN, 1, reason, ticks=trimmed.ticks or 0)))
    assert rig.stats()["trims_reported"] == 1


# spec: trim-late-nack
@pytest.mark.parametrize("after_us", [0.0, RTT_US / 2, RTT_US])
def test_without_timestamps_the_copy_is_meant_where_its_nack_can_have_come(after_us: float) -> None:
    rig, _, _, sack = overtaken(timestamps=False)
    assert data(rig.receive(sack))
    rig.now += int(after_us * US)
    for _ in range(3):
        again = data(rig.receive(packer.nack(QPN, 1, packer.TRIMMED)))
        assert [p.psn for p in again] == ([1] if after_us == RTT_US else []), "no sooner than any round trip"
        after_us = 0.0


# spec: trim-late-nack
def test_a_late_nack_lifts_a_sentence() -> None:
    """Withdrawn because something sent much later came through; but its header arrived, so the path lives."""
    rig = Rig(evs={"count": 4}, cc={**PATIENT, "window_bytes": 1 << 20}, rts={"timeout": 20})
    (first,) = data(rig.post(1024))
    ev = rig.routes[0][1]
    rig.now += int(20 * RTT_US * US)
    (second,) = data(rig.post(1024))
    rig.now += int(RTT_US * US)
    said = {"ack_psn": 1, "ticks": second.ticks or 0, "base": 0, "bitmap": 2, "ooo": 1}
    for received in (1024, 1280):
        rig.receive(packer.sack(QPN, -1 & packer.PSN_MASK, rcvd_bytes=received, **said))
    assert bad_evs(rig) == [ev] and rig.stats()["lost_across_evs"] == 1
    for _ in range(3):
        rig.receive(packer.nack(QPN, 0, packer.TRIMMED, ticks=first.ticks or 0))
    assert not bad_evs(rig) and rig.stats()["evs_restored"] == 1 and rig.stats()["trims_reported"] == 1


# spec: trim-late-nack
def test_without_timestamps_any_nack_explains_it() -> None:
    rig, _, _, sack = overtaken(timestamps=False)
    rig.receive(sack)
    rig.receive(packer.nack(QPN, 1, packer.TRIMMED))
    rig.advance(4 * W_US)
    assert rig.stats()["evs_demoted"] == 0


# spec: trim-late-nack
def test_without_a_nack_it_is_condemned() -> None:
    rig, _, ev, sack = overtaken()
    rig.receive(sack)
    rig.advance(2 * W_US)
    assert rig.stats()["evs_demoted"] == 1 and ev in bad_evs(rig)


# spec: trim-late-nack
def test_a_nack_of_the_copy_does_not_explain_the_first() -> None:
    rig, _, ev, sack = overtaken()
    again = data(rig.receive(sack))
    rig.receive(packer.nack(QPN, 1, packer.TRIMMED, ticks=again[0].ticks or 0))
    rig.advance(2 * W_US)
    assert ev in bad_evs(rig)


# spec: trim-late-nack
def test_a_network_that_does_not_trim_explains_nothing() -> None:
    rig = Rig(evs={"count": 4}, cc=PATIENT, rts={"timeout": 20}, endpoint={"peer_trim_nack": False})
    sent = data(rig.post(9 * 1024))
    rig.now += int(RTT_US * US)
    rig.receive(packer.sack(QPN, 0, ack_psn=8, ticks=sent[8].ticks or 0, bitmap=0b11111110, ooo=7, rcvd_bytes=9000))
    assert bad_evs(rig) == [rig.routes[1][1]]


def test_in_one_batch_a_nack_may_follow_the_sack() -> None:
    rig, trimmed, _, sack = overtaken()
    rig.endpoint.begin_batch()
    rig.receive(sack)
    rig.receive(packer.nack(QPN, 1, packer.TRIMMED, ticks=trimmed.ticks or 0))
    rig.endpoint.end_batch(rig.now)
    assert verdicts(rig) == 0 and rig.stats()["lost_nacked"] == 1


# spec: sack-all-news
def test_sacks_that_waited_report_everything_between_them() -> None:
    rig = Rig(endpoint={"sack_threshold_bytes": 1024})
    for psn in range(1, 200):
        raw = packer.write(QPN, psn, bytes(64), opcode=packer.ONLY, va=rig.va, rkey=0x77)
        rig.endpoint.handle_datagram(rig.now, raw, peer=rig.peer)
    sacks = only(rig.drain(), packer.SACK)
    told = {(s.base + bit) & packer.PSN_MASK for s in sacks for bit in range(64) if s.bitmap >> bit & 1}
    assert told == set(range(1, 200)) and len(sacks) == 4


# spec: loss-copies rtt-valid
@pytest.mark.parametrize("copy", [0, 1])
def test_without_timestamps_the_path_tells_two_copies_apart(copy: int) -> None:
    rig = Rig(evs={"count": 4}, cc=PATIENT, rts={"timeout": 20}, endpoint={"timestamps": False})
    rig.post(1024)
    while len(rig.routes) < 2:
        rig.advance(RTT_US)
    first, second = (entropy for _, entropy in rig.routes)
    assert first != second
    before = rig.qp.query()["smoothed_rtt_us"]
    rig.now += 3 * US
    rig.receive(packer.sack(QPN, 0, ack_psn=0, entropy=(first, second)[copy], rcvd_bytes=1200))
    assert rig.qp.query()["smoothed_rtt_us"] == (3.0 if copy else before)


# spec: loss-covered
@pytest.mark.parametrize("counted", [101, 102])
def test_a_long_stretch_that_was_lost_is_found_at_once(counted: int) -> None:
    """No SACK ever speaks of the middle of it; but what we know of is all there is, if it is as much as is counted."""
    cc = {**PATIENT, "window_bytes": 1 << 20}
    rig = Rig(mtu=512, evs={"count": 64}, cc=cc, rts={"timeout": 20, "mpr": 8})
    sent = data(rig.post(300 * 512))
    rig.now += int(RTT_US * US)
    for base, out_of_order in ((200, 64), (264, 100)):
        bitmap = (1 << min(64, 300 - base)) - 1
        ticks = sent[base].ticks or 0
        rig.receive(packer.sack(QPN, 9, ack_psn=base, ticks=ticks, base=base, bitmap=bitmap, ooo=out_of_order,
                                rcvd_bytes=600 * (10 + out_of_order)))  # fmt: skip
    rig.sent_at.clear()
    rig.now += int(20 * RTT_US * US)
    (late,) = [p for p in data(rig.post(512)) if p.psn == 300]
    rig.now += int(RTT_US * US)
    again: set[int] = set()
    for more in (0, 1024):
        said = {"ack_psn": 300, "ticks": late.ticks or 0, "base": 264, "bitmap": (1 << 37) - 1, "ooo": counted}
        again |= {p.psn for p in data(rig.receive(packer.sack(QPN, 9, rcvd_bytes=600 * 111 + more, **said)))}
    assert (again >= set(range(10, 200))) == (counted == 101)
