"""What the packets of an attacker can do who can forge any source address, but cannot read our packets.

Such a forger knows addresses and ports, perhaps a queue pair's number; not its PSNs, not the number at the other end,
no key. Nothing that it sends may stop a connection, end it, or cost much.
"""

from __future__ import annotations

import pytest

import packer
from packer import NACK, REQUEST, RESPONSE
from rig import PEER_QPN, QPN, Rig, data, only
from softmrc.config import InitAttributes, RtrAttributes, RtsAttributes
from softmrc.engine import CompletionStatus, EventType, QpState, RefusedPacket

PORT_STATUS, EV_PROBE = 0, 1
KEY, PEER_KEY = 0x0123456789ABCDEF, 0xFEDCBA9876543210
KEYS = {"port_key": KEY, "peer_port_key": PEER_KEY}


def ports_used(rig: Rig) -> set[int]:
    rig.routes.clear()
    rig.post(512 * 60)
    return {port for port, _ in rig.routes}


def another_connection(rig: Rig, qpn: int, **keys: int) -> None:
    rig.qp = rig.endpoint.create_qp(qpn)
    rig.qp.init(InitAttributes(send_cq=rig.send_cq, recv_cq=rig.recv_cq))
    rig.qp.rtr(rig.now, RtrAttributes(peer=rig.peer, dest_qpn=PEER_QPN, mtu=rig.mtu, **keys))
    rig.qp.rts(rig.now, RtsAttributes())


# Ports.


# spec: last-port
@pytest.mark.parametrize("mask", [0, 1, 0b100000, 0xFFFFFFE0, 0b01000])
def test_no_update_takes_the_last_port(mask: int) -> None:
    """Of no port, of ports that do not exist, of one that is down here."""
    rig = Rig(ports=4, mtu=512, evs={"count": 16})
    rig.endpoint.set_port(rig.now, 2, False)
    (update, *_) = only(rig.drain(), REQUEST)
    rig.receive(packer.response(PORT_STATUS, update.psn))
    rig.refusals()
    assert not only(rig.receive(packer.request(PORT_STATUS, 7, mask=mask)), RESPONSE), "if it is true it comes again"
    assert rig.refusals() == [RefusedPacket.LAST_PORT] and rig.stats()["refused_last_port"] == 1
    assert ports_used(rig) == {0, 1, 3}
    assert only(rig.receive(packer.request(PORT_STATUS, 8, mask=0b00110)), RESPONSE)
    assert ports_used(rig) == {0, 1}, "an honest one is believed"
    another_connection(rig, QPN + 1)
    rig.drain()
    assert ports_used(rig) == {0, 1}, "and the next connection works"


def test_what_is_said_of_the_last_port_may_become_true() -> None:
    """The peer's only port was down here when it said so. It was not answered, so it says it again."""
    rig = Rig(ports=2, mtu=512, evs={"count": 8})
    rig.endpoint.set_port(rig.now, 1, False)
    rig.receive(packer.request(PORT_STATUS, 7, mask=0b100))
    rig.endpoint.set_port(rig.now, 1, True)
    assert only(rig.receive(packer.request(PORT_STATUS, 7, mask=0b100)), RESPONSE)
    assert ports_used(rig) == {1}


def test_timers_run_while_there_is_no_port() -> None:
    rig = Rig(ports=2, rts={"timeout": 4, "retry_linear": 3, "retry_exponential": 2})
    for port in (0, 1):
        rig.endpoint.set_port(rig.now, port, False)
    assert not rig.post(5000)
    rig.advance(10_000)
    assert [int(c["status"]) for c in rig.sends()] == [CompletionStatus.RETRY_EXCEEDED.value]


# spec: port-keys
@pytest.mark.parametrize("key", [0, 1, KEY ^ 1, PEER_KEY])
def test_where_keys_were_agreed_on_no_other_update_is_believed(key: int) -> None:
    rig = Rig(ports=4, mtu=512, evs={"count": 16}, rtr=KEYS)
    rig.endpoint.poll_events()
    assert not rig.receive(packer.request(PORT_STATUS, 7, mask=0b00010, key=key))
    assert rig.refusals() == [RefusedPacket.UNPROVEN] and rig.stats()["refused_unproven"] == 1
    assert ports_used(rig) == {0, 1, 2, 3}
    (answer,) = only(rig.receive(packer.request(PORT_STATUS, 7, mask=0b00110, key=KEY)), RESPONSE)
    assert answer.key == PEER_KEY and ports_used(rig) == {0, 1}


# spec: port-keys
@pytest.mark.parametrize("key", [0, 1, KEY ^ 1, PEER_KEY])
def test_where_keys_were_agreed_on_no_other_answer_ends_an_update(key: int) -> None:
    rig = Rig(ports=4, rtr=KEYS)
    rig.endpoint.set_port(rig.now, 2, False)
    updates = only(rig.drain(), REQUEST)
    assert {u.key for u in updates} == {PEER_KEY}
    rig.receive(packer.response(PORT_STATUS, updates[0].psn, key=key))
    assert only(rig.advance(10_000), REQUEST), "it goes on being said"
    rig.receive(packer.response(PORT_STATUS, updates[0].psn, key=KEY))
    assert not only(rig.advance(10_000), REQUEST)
    for number in range(50):
        assert not rig.receive(packer.response(PORT_STATUS, number, key=key)), "a forger cannot make us speak"


def test_towards_a_peer_without_keys_nothing_changes() -> None:
    rig = Rig(ports=4, mtu=512, evs={"count": 16})
    rig.endpoint.set_port(rig.now, 2, False)
    assert {u.key for u in only(rig.drain(), REQUEST)} == {0}
    (answer,) = only(rig.receive(packer.request(PORT_STATUS, 7, mask=0b00110)), RESPONSE)
    assert answer.key == 0 and ports_used(rig) == {0, 1}


def test_without_keys_a_forged_word_is_put_right_however_many_there_are() -> None:
    """Its answer reaches the peer that never said it, and that peer says how it is: once a second, but in the end."""
    rig = Rig(ports=4)
    rig.endpoint.set_port(rig.now, 2, False)
    (update, *_) = only(rig.drain(), REQUEST)
    rig.receive(packer.response(PORT_STATUS, update.psn))
    for forged in (update.psn + 100, update.psn + 200):
        said = only(rig.receive(packer.response(PORT_STATUS, forged & 0xFFFF)) + rig.advance(1_500_000), REQUEST)
        assert {u.mask for u in said} == {0b10110}
        rig.receive(packer.response(PORT_STATUS, said[-1].psn))
        said = only(rig.receive(packer.response(PORT_STATUS, forged + 1 & 0xFFFF)), REQUEST)
        rig.receive(packer.response(PORT_STATUS, said[-1].psn))
        assert not only(rig.receive(packer.response(PORT_STATUS, forged + 2 & 0xFFFF)), REQUEST), "not so soon"
        said = only(rig.advance(1_500_000), REQUEST)
        assert {u.mask for u in said} == {0b10110}, "but in the end"
        rig.receive(packer.response(PORT_STATUS, said[-1].psn))
    assert not only(rig.advance(10_000_000), REQUEST)


def test_every_connection_vouches_and_each_of_their_keys_is_shown() -> None:
    """The peer may have closed its end of one of them, and know no longer what it gave there."""
    rig = Rig(ports=2, mtu=512, evs={"count": 8}, rtr=KEYS)
    another_connection(rig, QPN + 1, port_key=KEY + 1, peer_port_key=PEER_KEY + 1)
    for number, key in ((7, KEY), (8, KEY + 1)):
        (answer,) = only(rig.receive(packer.request(PORT_STATUS, number, mask=0b110, key=key)), RESPONSE)
        assert answer.key == key - KEY + PEER_KEY
    rig.endpoint.set_port(rig.now, 1, False)
    shown = [u.key for u in only(rig.drain() + rig.advance(2000), REQUEST)]
    assert set(shown) == {PEER_KEY, PEER_KEY + 1}


# spec: port-keys
def test_a_connection_without_a_key_does_not_unlock_those_that_have_one() -> None:
    rig = Rig(ports=2, mtu=512, evs={"count": 8}, rtr=KEYS)
    another_connection(rig, QPN + 1)
    assert not only(rig.receive(packer.request(PORT_STATUS, 7, mask=0b010)), RESPONSE)
    assert rig.endpoint.stats()["refused_unproven"] == 1
    (answer,) = only(rig.receive(packer.request(PORT_STATUS, 8, mask=0b110, key=KEY)), RESPONSE)
    assert answer.key == PEER_KEY


# Answers that end a connection.


def sending(**more: int) -> Rig:
    """Four messages of two packets are under way; the first is confirmed."""
    rig = Rig(first_psn=0x1234, mtu=512, **more)
    for _ in range(4):
        rig.post(1024)
    rig.receive(packer.ack(QPN, 0x1235, 0))
    assert len(rig.sends()) == 1
    rig.endpoint.poll_events()
    return rig


# spec: pdcids
@pytest.mark.parametrize(("psn", "pdcids"), [
    (0x1236, {"spdcid": 0}), (0x1236, {"spdcid": PEER_QPN + 1}), (0x1236, {"dpdcid": QPN + 1}), (0x1236, {"dpdcid": 0}),
    (0x1235, {}), (0x123C, {}), (0, {}),
])  # fmt: skip
def test_a_fatal_nack_counts_for_what_is_under_way_and_for_this_pair(psn: int, pdcids: dict[str, int]) -> None:
    rig = sending()
    rig.receive(packer.nack(QPN, psn, packer.UNEXPECTED, **pdcids))
    wanted = RefusedPacket.WRONG_PAIR if pdcids else RefusedPacket.BAD_ACKNOWLEDGEMENT
    assert rig.refusals() == [wanted] and rig.qp.state == QpState.RTS
    rig.receive(packer.nack(QPN, 0x1236, packer.UNEXPECTED))
    assert rig.qp.state == QpState.ERROR


# spec: nak
@pytest.mark.parametrize("syndrome", [packer.SYN_INVALID, packer.SYN_ACCESS, packer.SYN_OPERATION, 0x20])
@pytest.mark.parametrize(("cack", "msn"), [
    (0x123C, 3), (0x1234, 0), (0, 0), (0x1235 + (1 << 23), 0),  # packets never sent, or long confirmed
    (0x1235, 0xFFFF), (0x1235, 4), (0x1236, 1), (0x1235, 0x8000),  # operations never posted, confirmed, or not covered
])  # fmt: skip
def test_a_refusal_counts_only_for_what_is_under_way(cack: int, msn: int, syndrome: int) -> None:
    rig = sending()
    rig.receive(packer.ack(QPN, cack, msn, syndrome))
    assert rig.qp.state == QpState.RTS and rig.refusals() == [RefusedPacket.BAD_ACKNOWLEDGEMENT]
    assert not len(rig.sends()), "nor does it confirm anything"


@pytest.mark.parametrize(("cack", "msn", "done"), [(0x1235, 0, 0), (0x1236, 0, 0), (0x1237, 1, 1), (0x123B, 1, 1)])
def test_an_honest_refusal_counts(cack: int, msn: int, done: int) -> None:
    rig = sending()
    rig.receive(packer.ack(QPN, cack, msn, packer.SYN_ACCESS))
    assert rig.qp.state == QpState.ERROR
    statuses = [int(c["status"]) for c in rig.sends()]
    assert statuses[:done] == [0] * done and statuses[done] == CompletionStatus.REMOTE_ACCESS.value


@pytest.mark.parametrize(("cack", "msn"), [(0x1235, 3), (0x1237, 2), (0x1239, 9), (0x1239, 0x7000)])
def test_no_acknowledgement_confirms_operations_that_its_psn_does_not_cover(cack: int, msn: int) -> None:
    rig = sending()
    rig.receive(packer.ack(QPN, cack, msn))
    assert not len(rig.sends()) and rig.refusals() == [RefusedPacket.BAD_ACKNOWLEDGEMENT]


@pytest.mark.parametrize("msn", [0xFFFF, 0x8001, 0xFF00])
def test_an_acknowledgement_of_long_ago_moves_no_window(msn: int) -> None:
    """It would settle packets that never arrived."""
    rig = sending()
    rig.receive(packer.ack(QPN, 0x1239, msn))
    assert rig.qp.query()["packets_in_flight"] == 6 and not rig.refusals()


# spec: pdcids
@pytest.mark.parametrize("pdcids", [{"spdcid": 0}, {"dpdcid": 0}, {"spdcid": 0, "dpdcid": 0}])
def test_a_sack_or_a_question_that_names_another_pair_changes_nothing(pdcids: dict[str, int]) -> None:
    """A forged count of received bytes would make every later SACK an old one, a forged mark take away a path."""
    rig = sending()
    before, evs = rig.qp.query(), rig.qp.evs().tolist()
    entropy = int(rig.qp.evs()["value"][0])
    forged = packer.sack(QPN, 0x1235, entropy=entropy, mark=2, rcvd_bytes=1 << 31, bitmap=0xFF, **pdcids)
    assert not rig.receive(forged) and not rig.receive(packer.probe(QPN, 1, **pdcids))
    assert rig.refusals() == [RefusedPacket.WRONG_PAIR] * 2 and rig.stats()["refused_wrong_pair"] == 2
    assert rig.qp.query() == before and rig.qp.evs().tolist() == evs


# Questions without end.


# spec: answers-bounded
def test_answers_to_probes_are_bounded_and_no_peer_loses_its_share() -> None:
    rig = Rig(endpoint={"answers_per_s": 1000})
    other = rig.endpoint.add_peer()
    answered = {rig.peer: 0, other: 0}
    for number in range(20_000):  # a second of it
        rig.now += 50_000_000
        peer = other if number % 200 == 0 else rig.peer
        answered[peer] += len(rig.receive(packer.request(EV_PROBE, number), peer=peer))
    assert answered[other] == 100, "who asks now and then is answered every time"
    assert 900 < answered[rig.peer] < 1000 * 1.1 * 1.1 + 20
    assert rig.stats()["requests_unanswered"] == 20_000 - sum(answered.values())


# spec: answers-bounded
@pytest.mark.parametrize("size", [1600, 16_000])
def test_answers_about_sizes_are_bounded_by_their_bytes_and_no_peer_loses_its_share(size: int) -> None:
    rig = Rig(endpoint={"answers_per_s": 1000})
    other = rig.endpoint.add_peer()
    allowed = {rig.peer: 0, other: 0}
    for number in range(20_000):  # a second of it
        rig.now += 50_000_000
        peer = other if number % 4000 == 0 else rig.peer
        allowed[peer] += rig.endpoint.may_answer_at_length(rig.now, peer, size)
        if number % 200 == 0:
            assert only(rig.receive(packer.request(EV_PROBE, number)), RESPONSE), "short answers are counted apart"
    assert allowed[other] == 5, "who asks now and then is answered every time"
    assert 0.9 < allowed[rig.peer] * size / 1_600_000 < 1.1 * 1.1 + 0.03
    assert rig.stats()["requests_unanswered"] == 20_000 - sum(allowed.values())


def test_a_proven_update_is_heard_in_the_midst_of_a_flood() -> None:
    rig = Rig(ports=4, mtu=512, evs={"count": 16}, rtr=KEYS, endpoint={"answers_per_s": 10})
    for number in range(1000):
        rig.receive(packer.request(EV_PROBE, number))
        rig.receive(packer.request(PORT_STATUS, number, mask=0b00010, key=number))
    assert only(rig.receive(packer.request(PORT_STATUS, 7, mask=0b00110, key=KEY)), RESPONSE)
    assert ports_used(rig) == {0, 1}


def test_the_answer_to_a_probe_has_to_be_of_that_probe() -> None:
    rig = Rig()
    rig.now = 5_000_000_000
    rig.endpoint.probe(rig.now, rig.peer, 0, 0xAB, token=9)
    (probe,) = only(rig.drain(), REQUEST)
    rig.endpoint.poll_events()
    rig.receive(packer.response(EV_PROBE, probe.psn, probe.ticks ^ 1))
    assert rig.refusals() == [RefusedPacket.UNKNOWN_ANSWER]
    rig.receive(packer.response(EV_PROBE, probe.psn, probe.ticks))
    assert [int(e["type"]) for e in rig.endpoint.poll_events()] == [EventType.probe_answer.value]


def test_the_numbers_of_probes_begin_anywhere() -> None:
    first = set()
    for seed in range(4):
        rig = Rig(endpoint={"seed": seed + 1})
        rig.endpoint.probe(rig.now, rig.peer, 0, 0xAB, token=9)
        first.add(only(rig.drain(), REQUEST)[0].psn)
    assert len(first) == 4


def test_a_flood_of_refusals_pushes_no_other_event_out() -> None:
    rig = Rig(endpoint={"max_events": 64})
    rig.qp.error(rig.now)
    for number in range(1000):
        rig.receive(packer.write(0x999, number, b"abcd"))
    events = rig.endpoint.poll_events()
    assert QpState.ERROR.value in [int(e["code"]) for e in events if e["type"] == EventType.qp_state.value]
    assert rig.stats()["refused_unknown_qp"] == 1000 and rig.stats()["events_dropped"] >= 900


def test_honest_traffic_goes_on_after_all_of_it() -> None:
    rig = sending()
    for raw in (
        packer.request(PORT_STATUS, 1, mask=0),
        packer.nack(QPN, 0x1236, packer.UNEXPECTED, spdcid=1),
        packer.ack(QPN, 0x1235 + (1 << 22), 77, packer.SYN_ACCESS),
        packer.sack(QPN, 0x1235, mark=2, rcvd_bytes=1 << 31, spdcid=1),
    ):
        assert not only(rig.receive(raw), NACK)
    assert data(rig.post(1024))
    rig.receive(packer.ack(QPN, 0x123D, 4))
    assert [int(c["status"]) for c in rig.sends()] == [0] * 4
