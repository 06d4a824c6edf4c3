"""The receiving half, fed with packets made by hand: what it places, what it releases, what it says."""

from __future__ import annotations

import pytest

import packer
from packer import FIRST, LAST, LAST_IMM, MIDDLE, ONLY, ONLY_IMM, PSN_MASK
from rig import PEER_QPN, QPN, RKEY, Rig, only
from softmrc.engine import CompletionStatus, QpState, RefusedPacket, TrafficClass, Trim

MTU = 1024


def only_write(rig: Rig, psn: int, payload: bytes, *, at: int = 0, **more: object) -> list[packer.Parsed]:
    raw = packer.write(QPN, psn & PSN_MASK, payload, va=rig.va + at, rkey=RKEY, **more)  # type: ignore[arg-type]
    return rig.receive(raw)


@pytest.mark.parametrize("first", [0, PSN_MASK - 1])
# spec: placement
def test_packets_are_placed_in_any_order_and_confirmed_in_order(first: int) -> None:
    rig = Rig(peer_first_psn=first)
    body = bytes(range(256)) * 10
    pieces = [(FIRST, body[:MTU], 0), (MIDDLE, body[MTU : 2 * MTU], MTU), (LAST, body[2 * MTU :], 2 * MTU)]
    for i in (2, 0):
        opcode, payload, at = pieces[i]
        sent = only_write(rig, first + i, payload, at=at, opcode=opcode, dmalen=len(body), ack_request=True)
        assert not only(sent, packer.ACK), "the message is not whole"
        assert rig.memory[at : at + len(payload)].tobytes() == payload
    (sack,) = only(sent, packer.SACK)
    assert sack.cack == first & PSN_MASK and sack.ooo == 1
    assert sack.bitmap >> ((first + 2 - sack.base) & PSN_MASK) & 1
    opcode, payload, at = pieces[1]
    sent = only_write(rig, first + 1, payload, at=at, opcode=opcode, dmalen=len(body))
    (ack,) = only(sent, packer.ACK)
    assert (ack.syndrome, ack.msn, ack.psn, ack.dqp) == (packer.SYN_ACK, 0, (first + 2) & PSN_MASK, PEER_QPN)
    assert rig.memory[: len(body)].tobytes() == body
    rig.check_guards()


def test_replies_are_control_traffic_and_reflect_their_trigger() -> None:
    rig = Rig()
    raw = packer.write(QPN, 0, b"x", va=rig.va, rkey=RKEY, ticks=1234, ack_request=True)
    (sack,) = only(rig.receive(raw, entropy=0xBEEF), packer.SACK)
    assert (sack.ack_psn, sack.entropy, sack.ticks, sack.mark) == (0, 0xBEEF, 1234, 0)
    assert set(rig.classes) == {TrafficClass.CONTROL}


# spec: sack-triggers
def test_a_sack_is_due_on_request_on_rtx_on_a_mark_and_after_enough_bytes() -> None:
    rig = Rig(endpoint={"sack_threshold_bytes": 4096})
    assert only(only_write(rig, 0, b"a", ack_request=True), packer.SACK)
    assert only(only_write(rig, 1, b"a", rtx=True), packer.SACK)
    (marked,) = only(rig.receive(packer.write(QPN, 2, b"a", va=rig.va, rkey=RKEY), ce=True), packer.SACK)
    assert marked.mark == 1
    counts = [len(only(only_write(rig, psn, b"a"), packer.SACK)) for psn in range(3, 11)]
    assert counts == [0, 0, 0, 1, 0, 0, 0, 1], "each small packet counts as 1024 bytes"


def test_the_first_packet_can_be_acknowledged_at_once() -> None:
    assert only(only_write(Rig(endpoint={"sack_first_packet": True}), 0, b"a"), packer.SACK)
    assert not only(only_write(Rig(), 0, b"a"), packer.SACK)


def test_duplicates_are_answered_and_change_nothing() -> None:
    rig = Rig()
    only_write(rig, 1, b"new", at=8)
    (sack,) = only_write(rig, 1, b"BAD", at=8)
    assert sack.opcode == packer.SACK and rig.memory[8:11].tobytes() == b"new"
    only_write(rig, 0, b"old")
    sent = only_write(rig, 0, b"BAD")
    assert {p.opcode for p in sent} == {packer.SACK, packer.ACK}, "an old packet gets its ACK again"
    assert rig.memory[:3].tobytes() == b"old"
    assert rig.stats()["packets_duplicate"] == 2


@pytest.mark.parametrize("units", [8, 255])
# spec: window
def test_beyond_the_window_is_dropped_and_nacked(units: int) -> None:
    rig = Rig(rtr={"mpr_dest": units})
    edge = units * 128
    (nack,) = only_write(rig, edge, b"x")
    assert (nack.opcode, nack.reason, nack.nack_psn) == (packer.NACK, packer.OUT_OF_WINDOW, edge)
    assert rig.untouched() and rig.refusals()[-1] == RefusedPacket.OUT_OF_WINDOW
    assert not only(only_write(rig, edge - 1, b"x"), packer.NACK), "the last one inside"


# spec: reliability-probe
def test_a_probe_is_answered_with_the_state_of_things() -> None:
    rig = Rig()
    only_write(rig, 0, b"a")
    only_write(rig, 2, b"a")
    sent = rig.receive(packer.probe(QPN, 0xFACE, ticks=77))
    (sack,) = only(sent, packer.SACK)
    assert (sack.answers_probe, sack.probe_id, sack.cack, sack.ticks, sack.ooo) == (True, 0xFACE, 0, 77, 1)
    assert only(sent, packer.ACK), "and a confirmation that may have been lost"


# spec: immediates
def test_immediates_wait_for_their_turn() -> None:
    rig = Rig()
    for wr_id in (70, 71, 72):
        rig.qp.post_receive(wr_id)
    only_write(rig, 2, b"c", opcode=ONLY_IMM, imm=2, rqmsn=2, msn=2)
    only_write(rig, 1, b"b", opcode=ONLY_IMM, imm=1, rqmsn=1, msn=1)
    assert not len(rig.receives())
    only_write(rig, 0, b"aa", opcode=ONLY_IMM, imm=0, rqmsn=0, msn=0)
    done = rig.receives()
    assert done["imm"].tolist() == [0, 1, 2] and done["wr_id"].tolist() == [70, 71, 72]
    assert done["length"].tolist() == [2, 1, 1] and done["msn"].tolist() == [0, 1, 2]


def test_an_immediate_completes_only_when_its_whole_message_is_there() -> None:
    rig = Rig()
    rig.qp.post_receive(1)
    only_write(rig, 1, b"z", opcode=LAST_IMM, imm=9, dmalen=MTU + 1, at=MTU)
    assert not len(rig.receives())
    only_write(rig, 0, bytes(MTU), opcode=FIRST, dmalen=MTU + 1)
    assert rig.receives()["length"].tolist() == [MTU + 1]


def test_no_receive_posted_is_an_error_for_both_and_confirms_what_came_before() -> None:
    rig = Rig()
    only_write(rig, 0, b"a")
    sent = only_write(rig, 1, b"b", opcode=ONLY_IMM, imm=1, msn=1)
    (nak,) = [p for p in only(sent, packer.ACK) if p.syndrome != packer.SYN_ACK]
    assert (nak.syndrome, nak.msn) == (packer.SYN_OPERATION, 0)
    assert rig.qp.state == QpState.ERROR


def test_more_immediates_than_agreed_is_an_error() -> None:
    rig = Rig(rtr={"max_wimm_dest": 4})
    (nak,) = only_write(rig, 9, b"x", opcode=ONLY_IMM, rqmsn=4)
    assert nak.syndrome == packer.SYN_INVALID and rig.qp.state == QpState.ERROR
    assert rig.untouched()


def test_an_error_flushes_receives_and_tells_whoever_asks() -> None:
    rig = Rig()
    rig.qp.post_receive(5)
    rig.qp.error(rig.now)
    assert rig.receives()["status"].tolist() == [CompletionStatus.FLUSHED.value]
    for raw in (packer.write(QPN, 0, b"x", va=rig.va, rkey=RKEY), packer.probe(QPN, 1)):
        (nack,) = rig.receive(raw)
        assert (nack.opcode, nack.reason) == (packer.NACK, packer.UNEXPECTED)
    assert not rig.receive(packer.nack(QPN, 0, packer.UNEXPECTED)), "two dead queue pairs do not talk"
    assert rig.untouched()


# spec: trim-nack
def test_a_trimmed_header_is_nacked_at_once_and_writes_nothing() -> None:
    rig = Rig()
    raw = packer.write(QPN, 3, bytes(100), va=rig.va, rkey=RKEY, ticks=55, trimmed=True)
    for trim, reason in ((Trim.TRIMMED, packer.TRIMMED), (Trim.TRIMMED_LAST_HOP, packer.TRIMMED_LAST_HOP)):
        (nack,) = rig.receive(raw, trim=trim, entropy=42)
        assert (nack.reason, nack.nack_psn, nack.entropy, nack.ticks) == (reason, 3, 42, 55)
    assert rig.untouched()


def test_a_trimmed_header_of_something_seen_gets_a_sack() -> None:
    rig = Rig()
    only_write(rig, 0, b"a")
    (sack,) = rig.receive(packer.write(QPN, 0, b"a", va=rig.va, rkey=RKEY, trimmed=True), trim=Trim.TRIMMED)
    assert sack.opcode == packer.SACK


def test_an_endpoint_that_cannot_nack_keeps_quiet() -> None:
    rig = Rig(endpoint={"trim_nack": False})
    assert not rig.receive(packer.write(QPN, 0, b"a", va=rig.va, rkey=RKEY, trimmed=True), trim=Trim.TRIMMED)
    assert rig.stats()["packets_trimmed"] == 1


def test_the_offered_window_travels_only_when_it_is_dynamic() -> None:
    for dynamic in (False, True):
        rig = Rig(rtr={"dynamic_mpr": dynamic, "mpr_dest": 16})
        (sack,) = only(only_write(rig, 0, b"a", ack_request=True), packer.SACK)
        assert sack.mpr == (16 if dynamic else 0)
        rig.qp.set_receive_window(20)
        (sack,) = only(only_write(rig, 1, b"a", ack_request=True), packer.SACK)
        assert sack.mpr == (20 if dynamic else 0)


def test_the_penalty_travels_and_its_end_is_told_more_than_once() -> None:
    rig = Rig()
    rig.qp.set_receiver_penalty(33)
    (sack,) = only(only_write(rig, 0, b"a", ack_request=True), packer.SACK)
    assert (sack.penalty, sack.restore) == (33, False)
    rig.qp.set_receiver_penalty(0)
    sacks = [only(only_write(rig, psn, b"a", ack_request=True), packer.SACK)[0] for psn in range(1, 20)]
    assert all(s.penalty == 0 for s in sacks)
    assert sacks[0].restore and sacks[1].restore and not sacks[-1].restore


def test_rcvd_bytes_never_runs_backwards_and_counts_headers() -> None:
    rig = Rig()
    seen = [only(only_write(rig, psn, bytes(300), ack_request=True), packer.SACK)[0].rcvd_bytes for psn in range(50)]
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(50 * (300 + 12 + 4 + 4 + 16 + 52), abs=512)


# spec: sack-bitmap
def test_the_bitmap_reports_every_block_in_turn() -> None:
    """Far-out-of-order arrivals spread over many blocks are all reported within as many SACKs."""
    rig = Rig(rtr={"mpr_dest": 16}, endpoint={"sack_threshold_bytes": 1 << 20})
    arrived = set(range(1, 1500, 70))
    for psn in sorted(arrived):
        only_write(rig, psn, b"x")
    reported: set[int] = set()
    for _ in range(40):
        (sack,) = only(only_write(rig, 1499 - 1499 % 70 + 1, b"x", rtx=True), packer.SACK)
        reported |= {sack.base + bit for bit in range(64) if sack.bitmap >> bit & 1}
    assert arrived <= reported
    assert sack.ooo == len(arrived | {1499 - 1499 % 70 + 1})


def test_opcode_only_with_last_flag_and_lengths_must_agree() -> None:
    for raw in (
        packer.write(QPN, 0, b"x", va=0x1000, rkey=RKEY, dmalen=2),
        packer.write(QPN, 0, bytes(10), va=0x1000, rkey=RKEY, opcode=FIRST, dmalen=5000),
        packer.write(QPN, 0, bytes(MTU + 4), va=0x1000, rkey=RKEY),
        packer.write(QPN, 0, bytes(7), va=0x1000, rkey=RKEY, opcode=LAST, dmalen=MTU + 8),
        packer.write(QPN, 0, b"x", va=0x1000, rkey=RKEY, opcode=ONLY, dmalen=0),
    ):
        rig = Rig()
        (nak,) = rig.receive(raw)
        assert nak.syndrome == packer.SYN_INVALID and rig.untouched() and rig.qp.state == QpState.ERROR
