"""The sending half, driven by acknowledgements made by hand: gates, order, timers, refusals, wrap."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import packer
from packer import PSN_MASK, Parsed
from rig import PEER_QPN, QPN, US, Rig, data, only
from softmrc.config import RETRY_FOREVER, CcProfile, EndpointConfig, RtsAttributes
from softmrc.engine import CompletionKind, CompletionStatus, QpState, RefusedPacket, TrafficClass
from softmrc.engine.pair import Pair, PairConfig

EV_PROBE = 1
SUCCESS = CompletionStatus.SUCCESS.value


def acknowledge(rig: Rig, cack: int, msn: int | None = None, **more: Any) -> list[Parsed]:
    sent = rig.receive(packer.sack(QPN, cack & PSN_MASK, **more))
    if msn is not None:
        sent += rig.receive(packer.ack(QPN, cack & PSN_MASK, msn))
    return sent


# Packets.


@pytest.mark.parametrize("first_psn", [0, 0xFFFFFE])
def test_a_message_is_cut_at_the_mtu_and_every_packet_says_where_it_goes(first_psn: int) -> None:
    rig = Rig(mtu=1024, first_psn=first_psn)
    sent = data(rig.post(2500, imm=0xABCD, offset=100))
    assert [p.opcode for p in sent] == [packer.FIRST, packer.MIDDLE, packer.LAST_IMM]
    assert [p.psn for p in sent] == [(first_psn + i) & PSN_MASK for i in range(3)]
    assert [p.va for p in sent] == [0, 1024, 2048]
    assert {p.dmalen for p in sent} == {2500} and {p.rkey for p in sent} == {1}
    assert b"".join(p.payload for p in sent) == rig.source_bytes[100:2600].tobytes()
    assert sent[-1].imm == 0xABCD and {p.dqp for p in sent} == {PEER_QPN}
    assert [p.ack_request for p in sent] == [False, False, True], "the last one asks for a SACK"


def test_rqmsn_counts_immediates_and_repeats_in_every_packet() -> None:
    rig = Rig(mtu=1024)
    sent = data(rig.post(1500)) + data(rig.post(1500, imm=1)) + data(rig.post(10)) + data(rig.post(10, imm=2))
    assert [(p.msn, p.rqmsn) for p in sent] == [(0, 0), (0, 0), (1, 0), (1, 0), (2, 1), (3, 1)]


@pytest.mark.parametrize(("knows", "expected"), [(True, TrafficClass.DATA), (False, TrafficClass.DATA_NO_TRIM)])
# spec: trim-absent
def test_data_is_not_trimmable_when_the_peer_cannot_nack(knows: bool, expected: TrafficClass) -> None:
    rig = Rig(endpoint={"peer_trim_nack": knows})
    rig.post(100)
    assert rig.classes == [expected]


def test_no_timestamp_is_sent_when_they_are_off() -> None:
    assert data(Rig(endpoint={"timestamps": False}).post(10))[0].ticks is None
    assert data(Rig().post(10))[0].ticks is not None


# Gates.


# spec: mpr-gate
def test_nothing_goes_beyond_the_window() -> None:
    rig = Rig(mtu=512, cc={"window_bytes": 1 << 30}, rts={"mpr": 8})
    assert len(data(rig.post(600_000))) == 8 * 128
    assert [p.psn for p in data(acknowledge(rig, 9))] == list(range(1024, 1034))


# spec: mpr-dynamic
def test_the_window_grows_when_the_peer_offers_more() -> None:
    rig = Rig(mtu=512, cc={"window_bytes": 1 << 30}, rtr={"dynamic_mpr": True}, rts={"mpr": 8})
    rig.post(1_000_000)
    sent = data(acknowledge(rig, 9, mpr=10))
    assert sent[-1].psn == 9 + 10 * 128, "cack + MPR is the last allowed"
    assert not data(acknowledge(rig, 9, mpr=8)), "a smaller offer takes nothing back"


# spec: mpr-dynamic
def test_a_window_is_taken_from_the_newest_sack_of_a_peer_that_agreed() -> None:
    for agreed, newest, units, expected in ((True, True, 10, 1289), (True, False, 10, 1033), (False, True, 10, 1033),
                                            (True, True, 7, 1033)):  # fmt: skip
        rig = Rig(mtu=512, cc={"window_bytes": 1 << 30}, rtr={"dynamic_mpr": agreed}, rts={"mpr": 8})
        rig.post(1_000_000)
        rig.receive(packer.sack(QPN, 5, rcvd_bytes=1 << 20))
        sent = data(rig.receive(packer.sack(QPN, 9, mpr=units, rcvd_bytes=(1 << 20) + (256 if newest else -256))))
        assert sent[-1].psn == expected
        assert rig.stats()["acks_refused"] == (units < 8), "an answer reports a window smaller than any"


# spec: mpr-dynamic
def test_a_transport_ack_promises_the_smallest_window_only() -> None:
    """The peer may have shrunk it since the last SACK."""
    rig = Rig(mtu=512, cc={"window_bytes": 1 << 30}, rtr={"dynamic_mpr": True}, rts={"mpr": 64})
    for _ in range(8):
        rig.post(1 << 20)
    rig.receive(packer.sack(QPN, 9, mpr=64, rcvd_bytes=1 << 20))
    assert not data(rig.receive(packer.ack(QPN, 4000, 0xFFFF)))
    sent = data(rig.receive(packer.ack(QPN, 8200, 0xFFFF)))
    assert sent[-1].psn == 8200 + 8 * 128


# spec: cwnd-gate
def test_the_congestion_window_holds_packets_back() -> None:
    rig = Rig(mtu=1024, cc={"window_bytes": 4000})
    sent = data(rig.post(10_000))
    assert len(sent) == 3 and sent[-1].ack_request
    assert len(data(acknowledge(rig, 0))) == 1


def test_a_window_smaller_than_a_packet_still_lets_one_go() -> None:
    rig = Rig(mtu=4096, cc={"window_bytes": 512})
    assert len(data(rig.post(10_000))) == 1
    assert len(data(acknowledge(rig, 0))) == 1


def test_immediates_wait_for_their_turn() -> None:
    rig = Rig(rts={"max_wimm": 2})
    for i in range(4):
        rig.post(10, imm=i)
    assert rig.qp.stats()["packets_sent"] == 2
    rig.receive(packer.sack(QPN, 1))
    assert rig.qp.stats()["packets_sent"] == 2, "a SACK confirms packets, not operations"
    sent = rig.receive(packer.ack(QPN, 0, 0))
    assert [p.imm for p in data(sent)] == [2]


def test_a_full_queue_refuses_and_takes_again() -> None:
    rig = Rig(rts={"max_send_wr": 2})
    rig.post(1)
    rig.post(1)
    with pytest.raises(Exception, match="queue is full"):
        rig.post(1)
    acknowledge(rig, 0, msn=0)
    rig.post(1)


# Completions.


# spec: in-order
def test_completions_need_the_transport_ack_and_come_in_order() -> None:
    rig = Rig()
    for i in range(3):
        rig.post(10, wr_id=i)
    rig.receive(packer.sack(QPN, 2))
    assert not len(rig.sends())
    rig.receive(packer.ack(QPN, 2, 1))
    assert rig.sends()["wr_id"].tolist() == [0, 1]
    rig.receive(packer.ack(QPN, 2, 1))
    assert not len(rig.sends()), "a repeated ACK completes nothing twice"
    rig.receive(packer.ack(QPN, 2, 2))
    done = rig.sends()
    assert done["wr_id"].tolist() == [2] and done["kind"].tolist() == [CompletionKind.WRITE.value]


def test_an_ack_alone_acknowledges_packets_too() -> None:
    rig = Rig()
    rig.post(10)
    rig.receive(packer.ack(QPN, 0, 0))
    assert rig.sends()["status"].tolist() == [SUCCESS]
    assert rig.qp.query()["packets_in_flight"] == 0


def test_an_unsignaled_success_is_silent_and_a_failure_is_not() -> None:
    rig = Rig()
    rig.post(10, signaled=False)
    acknowledge(rig, 0, msn=0)
    assert not len(rig.sends())
    rig.post(10, signaled=False)
    rig.qp.error(rig.now)
    assert len(rig.sends()) == 1


# spec: wrap
def test_message_numbers_wrap() -> None:
    rig = Rig(mtu=512, first_psn=0xFFFF00)
    for i in range(66_000):
        sent = data(rig.post(1, wr_id=i))
        assert sent[0].msn == i & 0xFFFF
        acknowledge(rig, sent[0].psn, msn=i & 0xFFFF)
        assert rig.sends()["wr_id"].tolist() == [i]


# Loss and timers.


# spec: ev-other-path
def test_a_nack_resends_at_once_on_another_path_with_the_rtx_flag() -> None:
    rig = Rig()
    (first,) = data(rig.post(10))
    (again,) = data(rig.receive(packer.nack(QPN, 0, packer.TRIMMED, ticks=first.ticks)))
    assert again.rtx and again.psn == 0 and again.payload == first.payload
    assert rig.classes == [TrafficClass.DATA, TrafficClass.DATA_RETRANSMIT]
    assert rig.routes[0] != rig.routes[1]


def test_a_nack_of_an_earlier_transmission_is_stale() -> None:
    rig = Rig()
    (first,) = data(rig.post(10))
    rig.now += 10 * US
    assert data(rig.receive(packer.nack(QPN, 0, packer.TRIMMED, ticks=first.ticks)))
    assert not data(rig.receive(packer.nack(QPN, 0, packer.TRIMMED, ticks=first.ticks)))


# spec: unexpected-event
@pytest.mark.parametrize(("psn", "is_ours"), [(0, True), (2, True), (3, False), (PSN_MASK, False), (5000, False)])
def test_only_a_packet_that_is_under_way_can_be_refused_for_good(psn: int, is_ours: bool) -> None:
    """A queue pair that had our number before us may have left a last word on the way."""
    rig = Rig()
    assert rig.qp.state == QpState.RTS and not rig.receive(packer.nack(QPN, 0, packer.UNEXPECTED))
    rig.post(3 * 1024)
    rig.receive(packer.nack(QPN, psn, packer.UNEXPECTED))
    assert rig.qp.state == (QpState.ERROR if is_ours else QpState.RTS)
    assert rig.stats()["acks_refused"] == (1 if is_ours else 2)


# spec: unexpected-event
def test_a_peer_in_error_is_believed_though_every_packet_has_arrived() -> None:
    """The transport ACK is missing, and what asks for it again is refused: that packet is not outstanding any more."""
    rig = Rig()
    first, second = data(rig.post(2048))
    rig.receive(packer.sack(QPN, 1, ack_psn=1, ticks=second.ticks))
    assert rig.qp.query()["packets_in_flight"] == 0
    rig.receive(packer.nack(QPN, first.psn, packer.UNEXPECTED))
    assert rig.qp.state == QpState.ERROR


REFUSALS = [packer.NO_BITMAP, packer.NO_PKT_BUFFER, packer.NO_RESOURCE, packer.OUT_OF_WINDOW]
TRIMS = [packer.TRIMMED, packer.TRIMMED_LAST_HOP]


# spec: nack-backoff
@pytest.mark.parametrize("reason", REFUSALS + TRIMS)
def test_what_is_never_taken_is_sent_ever_more_seldom_and_its_retries_are_counted(reason: int) -> None:
    rig = Rig(rts={"timeout": 4, "retry_linear": 2, "retry_exponential": 3})
    sent = data(rig.post(3 * 1024))
    tries = 0
    for _ in range(100_000):
        if rig.qp.state == QpState.ERROR:
            break
        tries += len(sent)
        rig.now += 2 * US
        nacks = [packer.nack(QPN, packet.psn, reason, ticks=packet.ticks) for packet in sent]
        again = [packet for nack in nacks for packet in data(rig.receive(nack))]
        sent = again or data(rig.advance(1))
    assert rig.qp.state == QpState.ERROR, "its retries are counted"
    assert rig.sends()["status"][0] == CompletionStatus.RETRY_EXCEEDED.value
    assert tries < (200 if reason in TRIMS else 150), f"{tries} packets into a peer that takes none"


# spec: nack-backoff
def test_a_wait_grows_while_it_is_in_vain_and_ends_with_progress() -> None:
    rig = Rig(rts={"timeout": 20})

    def refuse(packet: Parsed) -> list[Parsed]:
        rig.now += 5 * US
        return data(rig.receive(packer.nack(QPN, packet.psn, packer.NO_RESOURCE, ticks=packet.ticks)))

    def held_us(packet: Parsed) -> tuple[int, Parsed]:
        """How long a packet that was refused again is held back, and the packet that ends the wait."""
        assert not refuse(packet)
        for us in range(1, 5000):
            if sent := data(rig.advance(1)):
                return us, sent[0]
        raise AssertionError("it is forgotten")

    (first,) = data(rig.post(100))
    (first,) = refuse(first)
    waits = []
    for _ in range(4):
        wait, first = held_us(first)
        waits.append(wait)
    assert all(1.8 * short < long < 2.3 * short for short, long in itertools.pairwise(waits)), waits
    assert not refuse(first)
    (second,) = data(rig.receive(packer.sack(QPN, 0, ack_psn=0, ticks=first.ticks))) or data(rig.post(100))
    assert second.psn == 1, "something got through: no more waiting"
    (second,) = refuse(second)
    assert held_us(second)[0] <= waits[0] + 1, "and the next wait is a short one"


# spec: nack-backoff
@pytest.mark.parametrize(("reason", "times"), [(packer.NO_RESOURCE, 1), (packer.TRIMMED, 3)])
def test_what_was_refused_now_and_then_is_sent_again_at_once_and_progress_forgives(reason: int, times: int) -> None:
    rig = Rig(rts={"timeout": 16})
    for psn in range(20):
        (packet,) = data(rig.post(100))
        for _ in range(times):
            rig.now += 5 * US
            (packet,) = data(rig.receive(packer.nack(QPN, psn, reason, ticks=packet.ticks)))
            assert packet.psn == psn and packet.rtx
        rig.now += 5 * US
        rig.receive(packer.sack(QPN, psn, ack_psn=psn, ticks=packet.ticks, rcvd_bytes=200 * psn))
        rig.receive(packer.ack(QPN, psn, psn))


@pytest.mark.parametrize("reason", REFUSALS)
def test_other_nacks_resend_and_leave_the_path_alone(reason: int) -> None:
    rig = Rig()
    rig.post(10)
    assert len(data(rig.receive(packer.nack(QPN, 0, reason)))) == 1
    assert (rig.qp.evs()["state"] == 0).all()


def test_a_trim_makes_its_path_miss_one_turn_but_not_on_the_last_hop() -> None:
    for reason, skipped in ((packer.TRIMMED, 1), (packer.TRIMMED_LAST_HOP, 0)):
        rig = Rig(evs={"count": 8})
        rig.endpoint.poll_transmit(rig.now, 0)
        rig.qp.post_write(rig.now, 10, remote_va=0, rkey=1)
        rig.drain()
        rig.endpoint.handle_datagram(rig.now, packer.nack(QPN, 0, reason), peer=rig.peer)
        assert (rig.qp.evs()["state"] == 1).sum() == skipped


# spec: ev-loss
def test_a_mark_skips_once_and_always_skip_withdraws() -> None:
    rig = Rig(evs={"count": 8, "spares": 4})
    rig.post(10)
    acknowledge(rig, 0, ack_psn=0, mark=1)
    assert (rig.qp.evs()["state"] == 1).sum() == 1
    rig.post(10)
    acknowledge(rig, 1, ack_psn=1, mark=2)
    evs = rig.qp.evs()
    assert (evs["state"] == 2).sum() == 1 and evs["is_spare"].sum() == 3, "a spare stepped in"


# spec: retransmit-order
def test_the_oldest_gap_goes_first() -> None:
    rig = Rig(mtu=512)
    rig.post(5120)
    rig.endpoint.handle_datagram(rig.now, packer.nack(QPN, 7, packer.NO_RESOURCE), peer=rig.peer)
    rig.endpoint.handle_datagram(rig.now, packer.nack(QPN, 3, packer.NO_RESOURCE), peer=rig.peer)
    assert [p.psn for p in data(rig.drain())] == [3, 7]


# spec: tail-probe
def test_silence_sends_the_tail_again_then_probes_then_the_timer() -> None:
    rig = Rig(rts={"timeout": 8})
    rig.post(10)
    sent = rig.advance(200)
    assert [p.opcode for p in sent] == [packer.ONLY, packer.PROBE, packer.PROBE]
    assert rig.qp.stats()["timeouts"] == 0
    assert len(data(rig.advance(100))) >= 1
    assert rig.qp.stats()["timeouts"] == 1


# spec: tail-probe
def test_each_question_of_silence_takes_another_port() -> None:
    rig = Rig(ports=4, evs={"count": 64, "spray_quantum": 16}, rts={"timeout": 8})
    rig.post(10)
    asked = rig.advance(200)
    assert [p.opcode for p in asked] == [packer.ONLY, packer.PROBE, packer.PROBE]
    assert sorted(port for port, _ in rig.routes) == [0, 1, 2, 3]


# spec: tail-probe
@pytest.mark.parametrize("ports", [2, 3, 4])
def test_questions_go_by_other_ports_than_that_of_the_packet_which_they_are_about(ports: int) -> None:
    """The newest packet may have taken another one, and be answered or not: the oldest waits where it is. Before the
    timer every port is probed, should that one alone work."""
    for seed in range(40):
        evs = {"count": 60, "spray_quantum": 1}
        rig = Rig(ports=ports, mtu=512, evs=evs, endpoint={"seed": seed}, rts={"timeout": 8})
        rig.post(512 * 2)
        (oldest, _), (newest, _) = rig.routes
        assert len(rig.advance(200)) == 3
        asked = [port for port, _ in rig.routes[2:]]
        assert oldest not in asked[:2]
        assert {newest, *asked} == set(range(ports)) or newest == oldest


# spec: tail-probe
def test_the_tail_is_sent_again_once_however_much_is_missing() -> None:
    """Without timestamps the answer to a copy proves nothing; a probe's does."""
    rig = Rig(mtu=512, evs={"count": 64}, endpoint={"timestamps": False})
    rig.post(512 * 10)
    rig.now += 8 * US
    acknowledge(rig, 4, ack_psn=4)
    asked: list[Parsed] = []
    while not asked:
        asked = rig.advance(1)
    assert [(p.opcode, p.psn) for p in asked] == [(packer.LAST, 9)]
    acknowledge(rig, 4, ack_psn=9)
    asked = []
    while not asked:
        asked = rig.advance(1)
    assert asked[0].opcode == packer.PROBE


def test_a_probes_answer_stops_the_alarm_and_is_evidence() -> None:
    rig = Rig(mtu=512, evs={"count": 64})
    rig.post(512 * 10)
    rig.now += 8 * US
    acknowledge(rig, 4, ack_psn=4)
    probes: list[Parsed] = []
    while not probes:
        probes = only(rig.advance(5), packer.PROBE)
    rig.now += 8 * US
    again = data(rig.receive(packer.sack(QPN, 4, probe_id=probes[0].probe_id, rcvd_bytes=5 * 600)))
    assert [p.psn for p in again][:4] == [5, 6, 7, 8], "sent long before the probe, and not there"


def timeouts_until_error(rts: dict[str, Any]) -> tuple[list[float], Rig]:
    rig = Rig(rts=rts, evs={"count": 4})
    rig.post(10)
    times = []
    count = 0
    while rig.qp.state == QpState.RTS:
        due = rig.endpoint.poll_timeout()
        assert due is not None
        rig.now = max(rig.now, due)
        rig.endpoint.handle_timeout(rig.now)
        rig.drain()
        if rig.qp.stats()["timeouts"] > count:
            count = rig.qp.stats()["timeouts"]
            times.append(rig.now / US)
    return times, rig


@pytest.mark.parametrize(("linear", "exponential"), [(0, 0), (7, 0), (3, 4), (0, 6), (7, 10)])
# spec: timer
def test_timers_are_linear_then_exponential_and_end_in_error(linear: int, exponential: int) -> None:
    once = 1.024 * 2**8
    times, rig = timeouts_until_error({"timeout": 8, "retry_linear": linear, "retry_exponential": exponential})
    waits = [once] * linear + [once * 2**k for k in range(1, exponential + 1)]
    # The verdict falls when the wait after the last retry is over too.
    waits.append(once if not exponential and linear else once * 2 ** (exponential + 1))
    assert len(times) == linear + exponential + 1
    gaps = [b - a for a, b in zip([0.0, *times[:-1]], times, strict=True)]
    assert gaps[:-1] == pytest.approx(waits[:-1], rel=0.02)
    assert times[-1] <= sum(waits[:-1]) + once * 2 ** (exponential + 1) + 1
    (done,) = rig.sends()
    assert done["status"] == CompletionStatus.RETRY_EXCEEDED.value


def test_for_ever_means_for_ever() -> None:
    rig = Rig(rts={"timeout": 0, "retry_linear": 0, "retry_exponential": 25})
    rig.post(10)
    rig.advance(60_000_000)
    assert rig.qp.state == QpState.RTS
    assert rig.qp.stats()["timeouts"] > 50
    acknowledge(rig, 0, msn=0)
    assert rig.sends()["status"].tolist() == [SUCCESS]


def test_any_answer_starts_the_count_again() -> None:
    rig = Rig(mtu=512, rts={"timeout": 4, "retry_linear": 2, "retry_exponential": 0})
    rig.post(512 * 20)
    for cack in range(19):
        rig.advance(1.024 * 2**4 * 1.5)
        acknowledge(rig, cack)
    assert rig.qp.state == QpState.RTS


# spec: transport-ack
def test_a_lost_transport_ack_is_asked_for() -> None:
    rig = Rig()
    rig.post(10)
    acknowledge(rig, 0)
    (again,) = data(rig.advance(100))[:1]
    assert again.psn == 0 and again.rtx, "the last packet of the unconfirmed operation"
    rig.receive(packer.ack(QPN, 0, 0))
    assert rig.sends()["status"].tolist() == [SUCCESS]
    assert not rig.advance(10_000), "and then it is quiet"


# Refusals.


@pytest.mark.parametrize(
    ("syndrome", "status"),
    [
        (packer.SYN_INVALID, CompletionStatus.REMOTE_INVALID),
        (packer.SYN_ACCESS, CompletionStatus.REMOTE_ACCESS),
        (packer.SYN_OPERATION, CompletionStatus.REMOTE_OPERATION),
    ],
)
# spec: nak
def test_a_nak_confirms_what_came_before_and_fails_the_rest(syndrome: int, status: CompletionStatus) -> None:
    rig = Rig()
    for i in range(4):
        rig.post(10, wr_id=i)
    rig.qp.post_receive(99)
    rig.receive(packer.ack(QPN, 1, 1, syndrome))
    done = rig.sends()
    assert done["wr_id"].tolist() == [0, 1, 2, 3]
    assert done["status"].tolist() == [SUCCESS, SUCCESS, status.value, CompletionStatus.FLUSHED.value]
    assert rig.receives()["status"].tolist() == [CompletionStatus.FLUSHED.value]
    assert rig.qp.state == QpState.ERROR
    assert not rig.advance(1_000_000), "a dead queue pair is silent"


# spec: unexpected-event
def test_an_unexpected_event_at_the_peer_is_the_end() -> None:
    rig = Rig()
    rig.post(10)
    rig.receive(packer.nack(QPN, 0, packer.UNEXPECTED))
    assert rig.sends()["status"].tolist() == [CompletionStatus.PEER_ERROR.value]


@pytest.mark.parametrize(
    "forged", [packer.sack(QPN, 5), packer.ack(QPN, 5, 0), packer.sack(QPN, 1, bitmap=1, base=700)]
)
def test_acknowledgements_of_what_was_never_sent_change_nothing(forged: bytes) -> None:
    rig = Rig()
    rig.post(10)
    rig.endpoint.poll_events()
    rig.receive(forged)
    assert rig.qp.query()["packets_in_flight"] == 1 and not len(rig.sends())
    assert rig.stats()["acks_refused"] == 1
    assert rig.refusals() == [RefusedPacket.BAD_ACKNOWLEDGEMENT]


def test_bits_beyond_what_was_sent_are_ignored() -> None:
    rig = Rig()
    rig.post(10)
    rig.receive(packer.sack(QPN, PSN_MASK, base=0, bitmap=(1 << 64) - 1))
    assert rig.qp.query()["packets_in_flight"] == 0
    assert [p.psn for p in data(rig.post(10))] == [1]
    assert rig.qp.query()["packets_in_flight"] == 1


# spec: ev-none-left
@pytest.mark.parametrize("lacks_only_the_ack", [False, True])
def test_what_waits_takes_the_first_path_that_answers_long_before_the_next_timer(lacks_only_the_ack: bool) -> None:
    rig = Rig(ports=2, rts={"timeout": 12, "retry_linear": 0, "retry_exponential": RETRY_FOREVER})
    rig.post(100)
    if lacks_only_the_ack:
        acknowledge(rig, 0)
    sent = rig.advance(100_000)
    routes = rig.routes[-len(sent) :]
    probe, path = [(p, r) for p, r in zip(sent, routes, strict=True) if p.opcode == packer.REQUEST][-1]
    assert not data(rig.advance(1_000)), "the questions of the last timer are all asked"
    rig.routes.clear()
    again = rig.receive(packer.response(EV_PROBE, probe.psn, probe.ticks)) + rig.advance(1_000)
    assert [r for p, r in zip(again, rig.routes, strict=True) if data([p])] == [path] * len(data(again))
    assert data(again)


def test_what_is_asked_for_in_a_window_counts_no_port_that_is_down() -> None:
    """Two windows of eight packets are more than a receiver waits for; one alone is less."""
    cc = {"each_port": True, "window_bytes": 8 * 1200}
    rig = Rig(ports=2, cc=cc, endpoint={"sack_threshold_bytes": 4096})
    rig.endpoint.set_port(rig.now, 1, False)
    asked = [p.ack_request for p in data(rig.post(64 << 10))]
    assert len(asked) == 8 and sum(asked) >= 2


PACKETS = 1024


class Impatient:
    """A queue pair between two nodes with the shortest timer there is, and a base round trip far below the real one."""

    def __init__(self, timestamps: bool, retry_linear: int, delay_us: float) -> None:
        self.net = Pair(
            planes=2,
            seed=1,
            network=PairConfig(ports=2, one_way_delay_us=delay_us),
            endpoint=EndpointConfig(ports=2, timestamps=timestamps),
            cc_profile=CcProfile(algorithm="fixed_window", base_rtt_us=4.0, window_bytes=64_000),
        )
        rts = RtsAttributes(timeout=0, retry_linear=retry_linear, retry_exponential=RETRY_FOREVER)
        self.qp, _ = self.net.connect(rts=rts)
        self.net.b.register(length=1 << 22, rkey=1)

    def copies(self) -> int:
        """How many packets are retransmitted, of a message of many."""
        before = self.qp.stats()["packets_retransmitted"]
        self.qp.post_write(self.net.now_ps, 1 << 22, remote_va=0, rkey=1)
        self.net.run_until_completions(0, 1, limit_us=1_000_000.0)
        assert [c["status"] for c in self.net.a.poll_completions(Pair.SEND_CQ)] == [SUCCESS]
        return self.qp.stats()["packets_retransmitted"] - before


# spec: timer-unmeasured
@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("retry_linear", [0, 7])
@pytest.mark.parametrize("delay_us", [50.0, 500.0])
def test_a_timer_far_below_the_round_trip_is_soon_long_enough(
    timestamps: bool, retry_linear: int, delay_us: float
) -> None:
    """Else it would be for ever: what is retransmitted before its answer can come measures no round trip."""
    sender = Impatient(timestamps, retry_linear, delay_us)
    assert sender.copies() < PACKETS, "less than one for each packet"
    assert sender.copies() == 0
    assert sender.qp.query()["smoothed_rtt_us"] >= 2 * delay_us


# spec: timer-outgrown
@pytest.mark.parametrize("retry_linear", [0, 7])
@pytest.mark.parametrize("times", [10, 100])
def test_a_timer_that_round_trips_have_outgrown_is_soon_long_enough(retry_linear: int, times: int) -> None:
    """The same for one that was right once; timestamps tell which copy an answer is to."""
    sender = Impatient(timestamps=True, retry_linear=retry_linear, delay_us=5.0)
    sender.copies()
    for side in (0, 1):
        for plane in (0, 1):
            sender.net.faults(side, plane).delay_us = 5.0 * (times - 1)
    assert sender.copies() < PACKETS, "less than one for each packet"
    assert sender.copies() == 0
    assert sender.qp.query()["smoothed_rtt_us"] >= 5.0 * times
