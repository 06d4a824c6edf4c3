"""The receiving half, fed with packets made by hand: what it places, what it releases, what it says."""

from __future__ import annotations

import random

import pytest

import packer
from packer import FIRST, LAST, LAST_IMM, MIDDLE, ONLY, ONLY_IMM, PSN_MASK
from rig import PEER_QPN, QPN, RKEY, Rig, data, only
from softmrc.engine import CompletionStatus, QpState, RefusedPacket, TrafficClass, Trim
from softmrc.errors import ConfigError, UsageError

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


def test_bytes_that_come_fast_are_acknowledged_by_time_and_those_that_ask_at_once() -> None:
    rig = Rig(endpoint={"sack_threshold_bytes": 2048, "sack_gap_us": 50.0})
    counts = [len(only(only_write(rig, psn, b"a"), packer.SACK)) for psn in range(12)]
    assert counts == [0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], "four times as many, within the gap"
    assert only(only_write(rig, 12, b"a", ack_request=True), packer.SACK)
    rig.now += 50_000_000
    assert [len(only(only_write(rig, psn, b"a"), packer.SACK)) for psn in (13, 14)] == [0, 1]


def test_a_sack_that_was_held_back_leaves_when_the_gap_is_over() -> None:
    """The sender may have a window so small that nothing more comes until it hears."""
    rig = Rig(endpoint={"sack_threshold_bytes": 2048, "sack_gap_us": 50.0})
    assert [len(only(only_write(rig, psn, b"a"), packer.SACK)) for psn in range(4)] == [0, 1, 0, 0]
    assert not only(rig.advance(49.0), packer.SACK)
    (sack,) = only(rig.advance(2.0), packer.SACK)
    assert sack.cack == 3
    assert not only(rig.advance(500.0), packer.SACK), "once"


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
    assert sack.mpr == 20


def test_a_window_that_was_not_agreed_on_does_not_change() -> None:
    with pytest.raises(UsageError, match="dynamic_mpr"):
        Rig().qp.set_receive_window(20)
    with pytest.raises(ConfigError, match="8 to 255"):
        Rig(rtr={"dynamic_mpr": True}).qp.set_receive_window(7)


# spec: mpr-dynamic
def test_what_was_offered_stays_good_when_the_window_shrinks() -> None:
    rig = Rig(rtr={"dynamic_mpr": True, "mpr_dest": 64})
    only_write(rig, 0, b"a")
    rig.qp.set_receive_window(8)
    (sack,) = only(only_write(rig, 1, b"a", ack_request=True), packer.SACK)
    assert sack.mpr == 8
    promised = 1 + 64 * 128
    assert not only(only_write(rig, promised - 1, b"a"), packer.NACK), "the last PSN that was ever offered"
    trimmed = packer.write(QPN, promised - 2, b"a", va=rig.va, rkey=RKEY, trimmed=True)
    assert [p.reason for p in rig.receive(trimmed, trim=Trim.TRIMMED)] == [packer.TRIMMED]
    assert only(only_write(rig, promised + 1, b"a"), packer.NACK)
    for psn in range(2, 1500):
        only_write(rig, psn, b"a")
    assert rig.stats()["packets_out_of_window"] == 1


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


# A message with its packets, as (opcode, payload bytes).
WHOLE = ((FIRST, MTU), (MIDDLE, MTU), (LAST, 100))
LENGTH = 2 * MTU + 100


def piece(psn: int, opcode: int, size: int, **more: object) -> bytes:
    settings = {"opcode": opcode, "va": 0x1000, "rkey": RKEY, "dmalen": LENGTH, "msn": 0, **more}
    return packer.write(QPN, psn, bytes(size), **settings)  # type: ignore[arg-type]


LIES = {
    "begins in the middle": [piece(0, MIDDLE, MTU)],
    "begins at the end": [piece(0, LAST, 100)],
    "a message of the wrong number": [piece(0, ONLY, 100, dmalen=100, msn=1)],
    "a number that stays": [piece(0, ONLY, 4, dmalen=4, msn=0), piece(1, ONLY, 4, dmalen=4, msn=0)],
    "a number that jumps": [piece(0, ONLY, 4, dmalen=4, msn=0), piece(1, ONLY, 4, dmalen=4, msn=2)],
    "numbers differ inside a message": [piece(0, *WHOLE[0]), piece(1, *WHOLE[1], msn=1), piece(2, *WHOLE[2])],
    "a message inside a message": [piece(0, *WHOLE[0]), piece(1, ONLY, 4, dmalen=4), piece(2, *WHOLE[2])],
    "begins twice": [piece(0, *WHOLE[0]), piece(1, *WHOLE[0])],
    "ends too soon": [piece(0, *WHOLE[0]), piece(1, *WHOLE[2])],
    "ends too late": [piece(0, *WHOLE[0]), piece(1, *WHOLE[1]), piece(2, *WHOLE[1]), piece(3, *WHOLE[2])],
    "lengths differ": [piece(0, *WHOLE[0]), piece(1, MIDDLE, MTU, dmalen=5 * MTU)],
    "immediates begin at one": [piece(0, ONLY_IMM, 4, dmalen=4, rqmsn=1)],
    "an immediate's number comes twice": [
        piece(0, ONLY_IMM, 4, dmalen=4, rqmsn=0), piece(1, ONLY_IMM, 4, dmalen=4, rqmsn=0, msn=1)],
    "an immediate's number jumps": [
        piece(0, ONLY_IMM, 4, dmalen=4, rqmsn=0), piece(1, ONLY_IMM, 4, dmalen=4, rqmsn=2, msn=1)],
    "an immediate's number comes twice, behind another": [
        piece(0, ONLY, 4, dmalen=4), piece(1, ONLY_IMM, 4, dmalen=4, msn=1), piece(2, ONLY_IMM, 4, dmalen=4, msn=2)],
    "immediates in the wrong order": [
        piece(0, ONLY_IMM, 4, dmalen=4, rqmsn=1), piece(1, ONLY_IMM, 4, dmalen=4, rqmsn=0, msn=1)],
    "an immediate's number changes inside its message": [
        piece(0, *WHOLE[0], rqmsn=0), piece(1, *WHOLE[1], rqmsn=1), piece(2, LAST_IMM, 100, rqmsn=0)],
    "nothing, in two packets": [piece(0, FIRST, 0, dmalen=0), piece(1, LAST, 0, dmalen=0)],
}  # fmt: skip


@pytest.mark.parametrize("order", ["as sent", "backwards", "the first one last"])
@pytest.mark.parametrize("lie", LIES)
# spec: message-order
def test_messages_that_no_honest_peer_sends_are_refused(lie: str, order: str) -> None:
    """In whatever order they arrive; an immediate is never stranded without a word."""
    rig = Rig()
    rig.qp.post_receive(wr_id=1)
    rig.qp.post_receive(wr_id=2)
    said = []
    packets = LIES[lie]
    for raw in {"as sent": packets, "backwards": packets[::-1], "the first one last": packets[1:] + packets[:1]}[order]:
        said += rig.receive(raw)
    assert packer.SYN_INVALID in [p.syndrome for p in only(said, packer.ACK)]
    assert rig.qp.state == QpState.ERROR and RefusedPacket.INVALID_REQUEST in rig.refusals()
    assert rig.stats()["refused_invalid_request"] >= 1
    rig.check_guards()


@pytest.mark.parametrize("seed", range(20))
# spec: message-order in-order
def test_honest_messages_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(peer_first_psn=PSN_MASK - 20)
    packets, lengths, psn, immediates = [], [], PSN_MASK - 20, 0
    for msn in range(40):
        length = rng.choice([0, 1, MTU - 1, MTU, MTU + 1, rng.randint(0, 5 * MTU)])
        has_imm = rng.random() < 0.5
        count = max(1, -(-length // MTU))
        for i in range(count):
            last = i + 1 == count
            opcode = (ONLY_IMM if has_imm else ONLY) if count == 1 else FIRST if i == 0 else MIDDLE
            if last and count > 1:
                opcode = LAST_IMM if has_imm else LAST
            size = length - i * MTU if last else MTU
            raw = packer.write(QPN, psn & PSN_MASK, bytes([msn + 1]) * size, opcode=opcode, va=rig.va, rkey=RKEY,
                               dmalen=length, msn=msn, rqmsn=immediates, imm=msn)  # fmt: skip
            packets.append(raw)
            psn += 1
        if has_imm:
            rig.qp.post_receive(wr_id=immediates)
            lengths.append((length, msn))
            immediates += 1
    for block in range(0, len(packets), 16):
        some = packets[block : block + 16]
        rng.shuffle(some)
        for raw in some:
            rig.receive(raw)
    done = rig.receives()
    assert [(int(c["length"]), int(c["imm"])) for c in done] == lengths and rig.qp.state == QpState.RTS
    assert list(done["wr_id"]) == list(range(immediates)) and not rig.refusals()


# spec: zero-length
@pytest.mark.parametrize("imm", [None, 7])
def test_a_message_without_bytes_is_one_packet_that_names_no_memory(imm: int | None) -> None:
    sender = Rig()
    (packet,) = data(sender.post(0, imm=imm, wr_id=3))
    assert packet.opcode == (ONLY if imm is None else ONLY_IMM) and packet.payload == b"" and packet.dmalen == 0
    rig = Rig()
    rig.qp.post_receive(wr_id=9)
    raw = packer.write(QPN, 0, b"", opcode=packet.opcode, va=0xDEAD, rkey=0xBAD, imm=imm)
    (ack,) = only(rig.receive(raw), packer.ACK)
    assert (ack.syndrome, ack.msn) == (packer.SYN_ACK, 0) and rig.untouched()
    assert [(int(c["length"]), int(c["imm"])) for c in rig.receives()] == ([] if imm is None else [(0, 7)])
    sender.receive(packer.sack(QPN, 0, ack_psn=0, ticks=packet.ticks))
    sender.receive(packer.ack(QPN, 0, 0))
    (done,) = sender.sends()
    assert (done["wr_id"], done["length"], done["status"]) == (3, 0, CompletionStatus.SUCCESS.value)
