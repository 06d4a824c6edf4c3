"""Ports that go down and come up: who is notified, who stops sending where, and what survives."""

from __future__ import annotations

import pytest

import packer
from packer import REQUEST, RESPONSE
from rig import PEER_QPN, QPN, Rig, only
from softmrc.config import EvProfile, InitAttributes, RtrAttributes, RtsAttributes
from softmrc.engine import EventType, TrafficClass
from softmrc.engine.pair import Pair

PORT_STATUS, EV_PROBE = 0, 1


# spec: port-status
def test_a_port_that_goes_down_is_announced_on_every_live_plane_until_answered() -> None:
    rig = Rig(ports=4)
    rig.endpoint.set_port(rig.now, 2, False)
    updates = only(rig.drain(), REQUEST)
    assert [port for port, _ in rig.routes] == [0, 1, 3]
    assert {(u.op, u.mask, u.psn) for u in updates} == {(PORT_STATUS, 0b10110, updates[0].psn)}
    assert len(only(rig.advance(1000), REQUEST)) >= 6, "and again, and again"
    rig.receive(packer.response(PORT_STATUS, updates[0].psn))
    assert not only(rig.advance(10_000), REQUEST)
    assert set(rig.classes) == {TrafficClass.DATA_NO_TRIM}, "a trimmed one could not be answered"


def test_nothing_spins_while_every_port_is_down() -> None:
    rig = Rig(ports=2)
    rig.post(5000)
    for port in (0, 1):
        rig.endpoint.set_port(rig.now, port, False)
        rig.endpoint.handle_timeout(rig.now)
    steps = 0
    while (due := rig.endpoint.poll_timeout()) is not None and due < 100_000 * 1_000_000:
        rig.now = max(rig.now, due)
        rig.endpoint.handle_timeout(rig.now)
        assert not rig.drain()
        steps += 1
    assert steps < 100
    rig.endpoint.set_port(rig.now, 0, True)
    assert rig.drain()


def ports_used(rig: Rig) -> set[int]:
    rig.routes.clear()
    rig.post(512 * 60)
    return {port for port, _ in rig.routes}


@pytest.mark.parametrize("ids", [(7, 8), (40, 0), (0, 0xFFFF), (0x8001, 1)])
def test_the_peers_ports_are_respected_and_older_news_is_ignored(ids: tuple[int, int]) -> None:
    """Ids are unique and say nothing of order: what was heard before is old."""
    rig = Rig(ports=4, mtu=512, evs={"count": 16})
    first, second = ids
    (answer,) = rig.receive(packer.request(PORT_STATUS, first, mask=0b11010))
    assert (answer.opcode, answer.op, answer.psn) == (RESPONSE, PORT_STATUS, first)
    assert ports_used(rig) == {0, 2, 3}
    rig.receive(packer.request(PORT_STATUS, second, mask=0b11110))
    assert ports_used(rig) == {0, 1, 2, 3}
    (answer,) = rig.receive(packer.request(PORT_STATUS, first, mask=0b11010), port=3)
    assert answer.psn == first, "a late copy is answered"
    assert ports_used(rig) == {0, 1, 2, 3}, "and believed no more"


@pytest.mark.parametrize("first_ticks", [100, 0xFFF0])
def test_of_two_that_are_both_news_the_later_one_counts(first_ticks: int) -> None:
    """A copy that waited longer than its successor's, of which none came before: its timestamp tells.

    Where the last port that works is the one it calls dead, no answer of ours would reach the peer to put that right.
    """
    rig = Rig(ports=4, mtu=512, evs={"count": 16})
    rig.receive(packer.request(PORT_STATUS, 8, mask=0b11110, ticks=(first_ticks + 53) & 0xFFFF))
    assert not rig.receive(packer.request(PORT_STATUS, 7, mask=0b11010, ticks=first_ticks), port=3)
    assert ports_used(rig) == {0, 1, 2, 3}
    # Unanswered it is repeated if it is the newest, which a clock that has gone round may hide for a while.
    (answer,) = rig.receive(packer.request(PORT_STATUS, 7, mask=0b11010, ticks=(first_ticks + 60) & 0xFFFF))
    assert answer.psn == 7 and ports_used(rig) == {0, 2, 3}
    rig.advance(10_000)
    rig.receive(packer.request(PORT_STATUS, 9, mask=0b11110, ticks=first_ticks))
    assert ports_used(rig) == {0, 1, 2, 3}


def test_an_answer_to_old_news_makes_us_say_it_again() -> None:
    """The peer may have taken a late copy for the newest; its answer shows it."""
    rig = Rig(ports=4)
    rig.endpoint.set_port(rig.now, 2, False)
    (old, *_) = only(rig.drain(), REQUEST)
    rig.endpoint.set_port(rig.now, 2, True)
    (new, *_) = only(rig.drain(), REQUEST)
    assert not only(rig.receive(packer.response(PORT_STATUS, new.psn)), REQUEST)
    again = only(rig.receive(packer.response(PORT_STATUS, old.psn)), REQUEST)
    assert len(again) == 4 and {u.mask for u in again} == {0b11110}
    assert not {u.psn for u in again} & {old.psn, new.psn}, "under a number that was not heard before"
    rig.receive(packer.response(PORT_STATUS, again[0].psn))
    for late in (old, new, again[0]):  # every copy is answered
        assert not only(rig.receive(packer.response(PORT_STATUS, late.psn)), REQUEST)
    assert not only(rig.advance(10_000), REQUEST) and not rig.refusals()


def connect(rig: Rig, qpn: int) -> None:
    """Another queue pair with the same peer; the rig's own from now on."""
    rig.qp = rig.endpoint.create_qp(qpn)
    rig.qp.init(InitAttributes(send_cq=rig.send_cq, recv_cq=rig.recv_cq))
    rig.qp.rtr(rig.now, RtrAttributes(peer=rig.peer, dest_qpn=PEER_QPN, mtu=rig.mtu))
    rig.qp.rts(rig.now, RtsAttributes())


@pytest.mark.parametrize("kept", [False, True])
def test_a_restarted_peer_inherits_nothing(kept: bool) -> None:
    """The same addresses, another process: what the old one said is void, and the new one gets the present state."""
    rig = Rig(ports=4, mtu=512, evs={"count": 16})
    rig.endpoint.set_port(rig.now, 3, False)
    (update, *_) = only(rig.drain(), REQUEST)
    rig.receive(packer.response(PORT_STATUS, update.psn))
    rig.receive(packer.request(PORT_STATUS, 5, mask=0b00110))
    assert ports_used(rig) == {0, 1}
    rig.qp.error(rig.now)
    if not kept:
        rig.qp.destroy(rig.now)
    connect(rig, QPN + kept)
    told = only(rig.drain(), REQUEST)
    assert {(u.op, u.mask) for u in told} == {(PORT_STATUS, 0b01110)}, "it learns what is down here"
    assert ports_used(rig) == {0, 1, 2}
    rig.receive(packer.request(PORT_STATUS, 5, mask=0b01010))
    assert ports_used(rig) == {0, 2}, "its numbers restart"


def test_a_new_process_says_that_its_ports_are_up() -> None:
    """A peer may still have a queue pair with the old one, and believe what that said."""
    rig = Rig(ports=4, endpoint={"announces_ports": True})
    updates = only(rig.drain(), REQUEST)
    assert len(updates) == 4 and {(u.op, u.mask) for u in updates} == {(PORT_STATUS, 0b11110)}
    rig.receive(packer.response(PORT_STATUS, updates[0].psn))
    connect(rig, QPN + 1)
    assert not only(rig.advance(10_000), REQUEST), "once is enough"


@pytest.mark.parametrize("failed", [False, True])
def test_a_peer_that_is_in_touch_keeps_what_it_said(failed: bool) -> None:
    """As long as one queue pair with it works, be it the first or not."""
    rig = Rig(ports=4, mtu=512, evs={"count": 16})
    first = rig.qp
    connect(rig, QPN + 1)
    rig.receive(packer.request(PORT_STATUS, 5, mask=0b00110))
    if failed:
        first.error(rig.now)
    connect(rig, QPN + 2)
    assert not only(rig.drain(), REQUEST)
    assert ports_used(rig) == {0, 1}


def test_news_from_a_peer_that_we_are_not_connected_to_wait_until_we_are() -> None:
    """Taken and answered now, they would be forgotten at the connection, and not be said again."""
    rig = Rig(ports=4, mtu=512, evs={"count": 16})
    rig.qp.destroy(rig.now)
    assert not only(rig.receive(packer.request(PORT_STATUS, 5, mask=0b00110)), RESPONSE)
    connect(rig, QPN)
    assert only(rig.receive(packer.request(PORT_STATUS, 5, mask=0b00110)), RESPONSE)
    assert ports_used(rig) == {0, 1}


@pytest.mark.parametrize("gap_us", [0, 1, 50, 1000])
def test_whoever_reconnects_second_learns_what_is_down(gap_us: int) -> None:
    pair = Pair(4, ev_profile=EvProfile(count=16))
    a, b = pair.connect()
    pair.run_us(10)
    a.destroy(pair.now_ps)
    b.destroy(pair.now_ps)
    pair.a.set_port(pair.now_ps, 1, False)
    ends = [side.create_qp(7) for side in pair.sides]
    for qp in ends:
        qp.init(InitAttributes(send_cq=pair.SEND_CQ, recv_cq=pair.RECV_CQ))
    for qp in ends:
        qp.rtr(pair.now_ps, RtrAttributes(peer=0, dest_qpn=7))
        qp.rts(pair.now_ps, RtsAttributes())
        pair.run_us(gap_us)
    pair.run_us(3000)
    pair.pump(ends[1], pair.a.register(length=1 << 20, rkey=1), side=1, length=1 << 16, count=4)
    assert pair.data_packets_sent(1)[1] == 0


def test_a_connection_replaced_at_one_end_only_is_told_again() -> None:
    pair = Pair(4, ev_profile=EvProfile(count=16))
    a, _ = pair.connect()
    pair.b.set_port(pair.now_ps, 1, False)
    pair.run_us(1000)
    a.error(pair.now_ps)  # the other end receives only, and does not notice
    a, _ = pair.connect()
    pair.run_us(1000)
    pair.pump(a, pair.b.register(length=1 << 20, rkey=1), length=1 << 16, count=4)
    assert pair.data_packets_sent(0)[1] == 0


def test_an_answer_that_finds_nobody_connected_starts_nothing() -> None:
    rig = Rig(ports=4)
    rig.endpoint.set_port(rig.now, 2, False)
    (update, *_) = only(rig.drain(), REQUEST)
    rig.qp.destroy(rig.now)
    rig.receive(packer.response(PORT_STATUS, update.psn))
    assert not rig.advance(10_000_000) and rig.endpoint.poll_timeout() is None


@pytest.mark.parametrize("changes", [1, 8, 10, 31])
def test_a_copy_that_is_late_by_many_changes_is_put_right(changes: int) -> None:
    """However many changes overtook it: the answer that it gets tells its sender to speak again."""
    pair = Pair(4, seed=changes, ev_profile=EvProfile(count=16))
    _, b = pair.connect()
    pair.faults(0, 3).delay_us = 3000
    for change in range(changes):
        pair.a.set_port(pair.now_ps, 1, change % 2 == 1)
        pair.run_us(20)
    pair.a.set_port(pair.now_ps, 1, True)
    pair.run_us(3_000_000)
    pair.pump(b, pair.a.register(length=1 << 20, rkey=1), side=1, length=1 << 16, count=4)
    assert pair.data_packets_sent(1)[1] > 0
    before = pair.a.stats()["port_updates_sent"]
    pair.run_us(10_000_000)
    assert pair.a.stats()["port_updates_sent"] == before, "and it ends"


# spec: probe-answers
def test_an_ev_probe_is_answered_where_it_came_from() -> None:
    rig = Rig(ports=4)
    for probe_id in range(400):
        (answer,) = rig.receive(packer.request(EV_PROBE, probe_id), port=2)
        assert (answer.opcode, answer.op, answer.psn) == (RESPONSE, EV_PROBE, probe_id)
    assert {port for port, _ in rig.routes} == {2}


# spec: probe-answers
@pytest.mark.parametrize("how", ["we hear nothing", "the peer says so"])
def test_where_nothing_seems_to_arrive_a_copy_of_the_answer_tries_another_way(how: str) -> None:
    """The answer itself still goes where it came from, so that a healthy path can prove itself."""
    rig = Rig(ports=4)
    if how == "we hear nothing":
        rig.post(1024)
        rig.advance(100.0)
    else:
        rig.receive(packer.probe(QPN, 1), port=2)
    rig.routes.clear()
    for probe_id in range(200):
        answers = rig.receive(packer.request(EV_PROBE, probe_id), port=2)
        assert [p.psn for p in only(answers, RESPONSE)] == [probe_id] * 2
    ports = [port for port, _ in rig.routes]
    assert set(ports[::2]) == {2} and set(ports[1::2]) == {0, 1, 3}


def test_a_flood_of_requests_is_not_hoarded() -> None:
    rig = Rig()
    for i in range(5000):
        rig.endpoint.handle_datagram(rig.now, packer.request(EV_PROBE, i), peer=rig.peer)
    assert len(rig.drain()) <= 1024


def test_a_callers_probe_comes_back_as_an_event() -> None:
    rig = Rig(ports=2)
    rig.endpoint.probe(rig.now, rig.peer, 1, 0xAB, token=99)
    (probe,) = only(rig.drain(), REQUEST)
    assert rig.routes[-1] == (1, 0xAB)
    rig.now += 5_000_000
    rig.receive(packer.response(EV_PROBE, probe.psn, probe.ticks), port=1)
    (event,) = [e for e in rig.endpoint.poll_events() if e["type"] == EventType.probe_answer.value]
    assert (event["psn"], event["ev"], event["port"], event["value"]) == (99, 0xAB, 1, 5_000_000)


# spec: probe-service-time
@pytest.mark.parametrize("waited_ps", [0, 999, 1_000_000, 7_654_321, 5_000_000_000])
def test_an_answer_tells_how_long_it_was_in_the_making(waited_ps: int) -> None:
    asker, answerer = Rig(ports=2), Rig(ports=2)
    asker.endpoint.probe(asker.now, asker.peer, 1, 0xAB, token=99)
    (probe,) = only(asker.drain(), REQUEST)
    answerer.endpoint.handle_datagram(answerer.now, packer.request(EV_PROBE, probe.psn, 0, probe.ticks), peer=0)
    answerer.now += waited_ps
    (answer,) = only(answerer.drain(), RESPONSE)
    assert answer.service_ns == max(1, waited_ps // 1000), "never 0, which says nothing"
    asker.now += waited_ps + 1_000_000
    asker.receive(packer.response(EV_PROBE, answer.psn, answer.ticks, service_ns=answer.service_ns), port=1)
    (event,) = [e for e in asker.endpoint.poll_events() if e["type"] == EventType.probe_answer.value]
    assert (event["psn"], event["took"]) == (99, answer.service_ns)


def test_a_port_down_before_the_first_queue_pair_is_told_when_there_is_one() -> None:
    pair = Pair(4, ev_profile=EvProfile(count=16))
    pair.a.set_port(0, 1, False)
    _, b = pair.connect()
    pair.run_us(1000)
    remote = pair.a.register(length=1 << 20, rkey=1)
    pair.pump(b, remote, side=1, length=1 << 16, count=4)
    assert pair.data_packets_sent(1)[1] == 0
    assert min(pair.data_packets_sent(1)[p] for p in (0, 2, 3)) > 0


def test_a_port_that_came_back_while_nobody_was_connected_is_told_too() -> None:
    pair = Pair(2, ev_profile=EvProfile(count=8))
    a, b = pair.connect()
    pair.a.set_port(pair.now_ps, 0, False)
    pair.run_us(1000)
    a.destroy(pair.now_ps)
    b.destroy(pair.now_ps)
    pair.a.set_port(pair.now_ps, 0, True)
    pair.run_us(1000)
    _, b = pair.connect()
    pair.run_us(1000)
    pair.pump(b, pair.a.register(length=1 << 20, rkey=1), side=1, length=1 << 16, count=4)
    assert min(pair.data_packets_sent(1)) > 0


def test_traffic_moves_off_a_plane_at_once_and_returns() -> None:
    pair = Pair(4, ev_profile=EvProfile(count=16))
    a, _ = pair.connect()
    remote = pair.b.register(length=1 << 20, rkey=1)
    pair.pump(a, remote, count=8)
    before = pair.data_packets_sent(0)
    pair.set_plane(3, False)
    assert pair.pump(a, remote, count=8)[0] == 8
    assert pair.data_packets_sent(0)[3] == before[3]
    assert a.stats()["timeouts"] == 0
    pair.set_plane(3, True)
    pair.run_us(1000)
    middle = pair.data_packets_sent(0)
    pair.pump(a, remote, count=8)
    gained = [after - mid for after, mid in zip(pair.data_packets_sent(0), middle, strict=True)]
    assert max(gained) - min(gained) <= 8, gained


def test_what_is_posted_during_a_stall_leaves_when_it_ends() -> None:
    pair = Pair(2)
    a, _ = pair.connect()
    pair.b.register(length=1 << 20, rkey=1)
    pair.stall_us(0, 50)
    a.post_write(pair.now_ps, 100, remote_va=0, rkey=1)
    pair.run_us(100)
    assert len(pair.a.poll_completions()) == 1


def test_a_stuck_port_holds_up_only_its_own_probes() -> None:
    rig = Rig(ports=3)
    for token in range(30):
        assert rig.endpoint.probe(rig.now, rig.peer, token % 3, 7, token)
    assert len(rig.drain(free_ports=0b110)) == 20
    assert {port for port, _ in rig.routes} == {1, 2}
    assert len(rig.drain()) == 10, "and the others when there is room"


def test_probes_that_wait_are_bounded_and_those_of_a_dead_port_do_not_wait() -> None:
    rig = Rig(ports=2)
    taken = sum(rig.endpoint.probe(rig.now, rig.peer, 0, 7, token) for token in range(5000))
    assert taken == 1024 and rig.endpoint.stats()["probes_unsent"] == 5000 - 1024
    rig.endpoint.set_port(rig.now, 0, False)
    assert rig.endpoint.stats()["probes_unsent"] == 5000
    assert not rig.endpoint.probe(rig.now, rig.peer, 0, 7, 1) and rig.endpoint.probe(rig.now, rig.peer, 1, 7, 2)
    rig.endpoint.set_port(rig.now, 0, True)
    assert [p.op for p in only(rig.drain(), REQUEST)].count(EV_PROBE) == 1, "what could not leave does not leave late"


@pytest.mark.parametrize("denied", [0, 1])
def test_a_node_speaks_by_whichever_queue_pair_has_paths(denied: int) -> None:
    """Denying all paths of one queue pair silences that one."""
    rig = Rig(ports=2)
    both = rig.qp, rig.another_qp(QPN + 1)
    for ev in range(8):
        both[denied].deny_ev(rig.now, ev)
    (answer,) = rig.receive(packer.request(EV_PROBE, 5))
    assert answer.opcode == RESPONSE
    rig.endpoint.set_port(rig.now, 0, False)
    assert only(rig.drain(), REQUEST)


# spec: port-beliefs
def test_word_of_ports_that_are_down_is_answered_again_and_again() -> None:
    """A copy that was late by more than the wire's clock can tell is believed, and then one answer is too few: if it is
    lost, its sender never learns. The ports that it calls dead may be the only ones that are not."""
    rig = Rig(ports=4, mtu=512, evs={"count": 16})
    rig.receive(packer.request(PORT_STATUS, 7, mask=0b11110))
    assert not only(rig.advance(10_000), RESPONSE), "nothing is unconfirmed"
    rig.receive(packer.request(PORT_STATUS, 6, mask=0b10110, ticks=99))
    assert ports_used(rig) == {0, 1, 3}
    rig.routes.clear()
    sent = rig.advance(10_000)
    again = [(p, port) for p, (port, _) in zip(sent, rig.routes, strict=True) if p.opcode == RESPONSE]
    assert {(p.op, p.psn, p.ticks) for p, _ in again} == {(PORT_STATUS, 6, 99)}
    assert {port for _, port in again} == {0, 1, 2, 3}, "there, too"
    rig.advance(10_000_000)
    later = only(rig.advance(10_000_000), RESPONSE)
    assert 9 * 4 <= len(later) <= 11 * 4, "once a second in the long run"
    rig.receive(packer.request(PORT_STATUS, 8, mask=0b11110))
    assert ports_used(rig) == {0, 1, 2, 3} and not only(rig.advance(10_000_000), RESPONSE)
    rig.receive(packer.request(PORT_STATUS, 9, mask=0b11010))
    rig.qp.destroy(rig.now)
    rig.advance(5_000_000)
    assert not only(rig.advance(10_000_000), RESPONSE), "no queue pair is left that it concerns"


# spec: port-beliefs
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("has_keys", [False, True])
def test_old_news_that_was_believed_is_put_right(has_keys: bool, seed: int) -> None:
    """All planes but one are dead, and that one is said to be. The first answer, which would tell, is lost."""
    net = Pair(planes=4, seed=seed)
    keys = {"port_key": 5, "peer_port_key": 5} if has_keys else {}
    _, b = net.connect(rtr=RtrAttributes(**keys))
    net.a.register(length=1 << 20, rkey=1)
    net.set_plane(1, False)
    net.run_us(10_000)
    net.set_plane(1, True)
    net.run_us(10_000)
    for plane in (0, 1, 3):
        net.set_plane(plane, False, silently=True)
    net.faults(1, 2).black_hole = True
    late = packer.request(PORT_STATUS, 1, mask=0b10110, key=keys.get("port_key", 0))
    net.b.handle_datagram(net.now_ps, late, peer=0, port=2)
    net.run_us(500)
    net.faults(1, 2).black_hole = False
    assert b.query()["data_ports"] == 0b1011
    b.post_write(net.now_ps, 1 << 16, remote_va=0, rkey=1)
    net.run_until_completions(1, 1, limit_us=5_000_000)
    assert [int(c["status"]) for c in net.b.poll_completions(Pair.SEND_CQ)] == [0]
    assert b.query()["data_ports"] == 0b1111
