"""A peer claims another host's address as its own. That host receives a few small probes, and no data.

The engine is fed by hand first, with a manual clock; then a third socket is offered to a device.
"""

from __future__ import annotations

import ipaddress
import itertools
import socket
import time
from typing import Any

import pytest

import needs
import packer
from packer import Parsed
from rig import RKEY, US, Rig, data, only
from softmrc.config import EndpointConfig, InitAttributes, RtrAttributes, RtsAttributes
from softmrc.device import Device, PeerPlane
from softmrc.engine import CompletionStatus, Endpoint, QpState
from softmrc.engine.pair import Pair
from softmrc.errors import ConfigError
from udp.loopback import drain, eventually, pair

STRAYS_AT_ONCE, STRAYS_PER_S = 3, 20
QUESTIONS = 24  # that a plane which answers nothing gets, however much there is to say to it
QUESTION_BYTES = 64
S = 1_000_000  # in microseconds


def rig_that_asks(ports: int = 1, **more: Any) -> Rig:
    more["endpoint"] = {"proves_addresses": True, **more.get("endpoint", {})}
    return Rig(ports=ports, **more)


def questions(sent: list[Parsed]) -> list[Parsed]:
    return [p for p in only(sent, packer.REQUEST) if p.op == 1]


def answer(rig: Rig, question: Parsed, port: int = 0) -> list[Parsed]:
    return rig.receive(packer.response(1, question.psn, question.ticks, question.key), port=port)


# spec: proof-of-address
def test_a_plane_that_never_answers_gets_a_few_questions_and_nothing_else() -> None:
    rig = rig_that_asks(rts={"timeout": 14, "retry_linear": 7, "retry_exponential": 4})
    sent = rig.drain() + rig.post(1 << 16, wr_id=5) + rig.advance(60 * S)
    assert questions(sent) == sent and 5 < len(sent) <= QUESTIONS
    (completion,) = rig.sends()
    assert (completion["wr_id"], completion["status"]) == (5, CompletionStatus.RETRY_EXCEEDED.value)
    assert rig.qp.state == QpState.ERROR and not rig.advance(3600 * S), "an hour later still"


def test_questions_end_where_nothing_waits_for_an_answer_and_begin_anew_with_a_write() -> None:
    rig = rig_that_asks()
    sent = rig.drain() + rig.advance(600 * S)
    assert questions(sent) == sent and 5 < len(sent) <= QUESTIONS // 2
    (again,) = rig.post(512)
    assert again.opcode == packer.REQUEST
    assert len(data(answer(rig, again))) == 1


def test_what_was_asked_last_and_what_came_before_do_not_count_as_an_answer() -> None:
    rig = rig_that_asks()
    (question,) = rig.drain()
    other = rig.endpoint.add_peer()
    rig.post(512)
    lies = [packer.response(1, question.psn ^ bit, question.ticks) for bit in (1, 0x80, 0x8000)]
    lies += [packer.response(0, question.psn, question.ticks), packer.request(1, question.psn), packer.probe(0x40, 1)]
    assert not [p for lie in lies for p in data(rig.receive(lie))]
    assert not rig.receive(packer.response(1, question.psn, question.ticks), peer=other)
    assert len(data(answer(rig, question))) == 1


def test_an_answer_cannot_be_guessed_from_the_questions_before() -> None:
    rig = rig_that_asks()
    numbers = [q.psn for q in questions(rig.drain() + rig.advance(600 * S))]
    steps = {(b - a) % 65536 for a, b in itertools.pairwise(numbers)}
    assert len(steps) > len(numbers) // 2 and len(set(numbers)) > len(numbers) // 2


# spec: proof-of-address
def test_each_plane_carries_data_from_its_own_answer_on() -> None:
    rig = rig_that_asks(ports=2, cc={"window_bytes": 1 << 20})
    asked = {port: q for q, (port, _) in zip(questions(rig.drain()), rig.routes, strict=True)}
    assert set(asked) == {0, 1}
    rig.post(1 << 18)
    rig.routes.clear()
    sent = answer(rig, asked[1], port=0)  # by which way an answer comes says nothing
    ports = {port for p, (port, _) in zip(sent, rig.routes, strict=True) if data([p])}
    assert data(sent) and ports == {1}
    rig.routes.clear()
    answer(rig, asked[0], port=1)
    rig.post(1 << 18)
    assert {port for port, _ in rig.routes} == {0, 1}


def test_a_plane_of_a_peer_that_is_there_is_asked_once_a_second_at_most_and_found_when_it_is_back() -> None:
    rig = rig_that_asks(ports=2)
    asked = questions(rig.drain())
    answer(rig, asked[0])
    rig.advance(10 * S)
    rig.routes.clear()
    sent = questions(rig.advance(100 * S))
    assert 90 <= len(sent) <= 101 and {port for port, _ in rig.routes} == {1}
    answer(rig, sent[-1], port=1)
    assert not questions(rig.advance(100 * S))


def test_whoever_speaks_from_an_address_is_asked_there_once_a_second_at_most() -> None:
    """And no less, for as long as it speaks: who only receives has nothing else that would make it ask."""
    rig = rig_that_asks()
    rig.drain()
    rig.advance(600 * S)
    asked = 0
    for number in range(10_000):
        asked += len(questions(rig.receive(packer.request(1, number)) + rig.advance(10_000)))
    assert 90 <= asked <= QUESTIONS + 100
    assert not questions(rig.advance(100 * S)), "and not when it has fallen silent"


def test_questions_that_were_brought_forward_take_none_of_the_others_place() -> None:
    """Where a round trip is longer than their interval, all of them may be in vain."""
    rig = rig_that_asks()
    asked = [rig.now for _ in questions(rig.drain())]
    while rig.now < 30_000 * US:
        for _ in questions(rig.receive(packer.request(1, len(asked))) + rig.advance(250)):
            asked.append(rig.now)
    rig.advance(100)
    regular = questions(rig.advance(60 * S))
    assert len(asked) > 8 and len(regular) >= 6


# spec: proof-of-address
def test_before_a_plane_has_answered_replies_go_only_where_the_question_came_from() -> None:
    rig = rig_that_asks(ports=4, endpoint={"announces_ports": True})
    rig.drain()
    rig.routes.clear()
    rig.classes.clear()
    strays = 0
    for psn in range(64):
        sent = rig.receive(packer.write(0x40, psn, b"x" * 64, va=rig.va, rkey=RKEY, ack_request=True), port=2)
        sent += rig.receive(packer.request(1, psn), port=2)
        replies = [(p, port) for p, (port, _) in zip(sent, rig.routes, strict=True) if p.opcode != packer.REQUEST]
        assert {port for p, port in replies if p.opcode != packer.RESPONSE} == {2}
        assert 2 in [port for p, port in replies if p.opcode == packer.RESPONSE]
        strays += sum(port != 2 for _, port in replies)
        assert not [p for p in only(sent, packer.REQUEST) if p.op == 0], "news of ports waits, too"
        rig.routes.clear()
    assert strays <= STRAYS_AT_ONCE, "copies of answers, for peers whose planes work one way only"


def test_a_peer_that_comes_back_has_to_answer_again() -> None:
    rig = rig_that_asks()
    (question,) = rig.drain()
    assert not data(answer(rig, question))
    rig.qp.destroy(rig.now)
    qp = rig.endpoint.create_qp(0x41)
    qp.init(InitAttributes(send_cq=rig.send_cq, recv_cq=rig.recv_cq))
    qp.rtr(rig.now, RtrAttributes(peer=rig.peer, dest_qpn=0x99, mtu=rig.mtu))
    qp.rts(rig.now, RtsAttributes())
    qp.post_write(rig.now, 512, remote_va=0, rkey=1, source=rig.source)
    sent = rig.drain()
    assert questions(sent) and not data(sent)
    assert len(data(answer(rig, questions(sent)[0]))) == 1


# spec: rtr-refused
def test_an_rtr_that_is_refused_changes_nothing() -> None:
    """Neither what the peer has said, nor what it has proven."""
    rig = rig_that_asks(ports=2, endpoint={"announces_ports": True})
    for question in questions(rig.drain()):
        answer(rig, question)
    rig.receive(packer.request(0, 7, mask=0b100))  # only its second port is up
    rig.qp.error(rig.now)
    before = rig.drain() + rig.advance(S)
    qp = rig.endpoint.create_qp(0x41)
    qp.init(InitAttributes(send_cq=rig.send_cq, recv_cq=rig.recv_cq))
    for bad in ({"dest_qpn": 1}, {"mtu": 5}, {"mpr_dest": 0}):
        with pytest.raises(ConfigError):
            qp.rtr(rig.now, RtrAttributes(**{"peer": rig.peer, "dest_qpn": 9, **bad}))
        sent = rig.drain()
        assert not questions(sent) and len(sent) <= len(before)
    qp.rtr(rig.now, RtrAttributes(peer=rig.peer, dest_qpn=9))
    assert len(questions(rig.drain())) == 2, "this one is a new beginning"


@pytest.mark.parametrize("seed", range(8))
def test_two_nodes_that_ask_find_each_other_whatever_the_network_loses(seed: int) -> None:
    net = Pair(planes=2, seed=seed, endpoint=EndpointConfig(proves_addresses=True))
    net.set_faults(loss=0.3)
    a, _ = net.connect()
    remote = net.b.register(length=1 << 20, rkey=1)
    a.post_write(net.now_ps, 1 << 16, remote_va=0, rkey=remote.rkey)
    net.run_until_completions(0, 1, limit_us=5 * S)
    assert [c["status"] for c in net.a.poll_completions(Pair.SEND_CQ)] == [CompletionStatus.SUCCESS.value]


# Over sockets.


class Bystander:
    """A socket at the offered address. It counts, and says nothing."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(0.2)
        self.heard: list[bytes] = []

    @property
    def plane(self) -> PeerPlane:
        port = self.socket.getsockname()[1]
        return PeerPlane(ipaddress.ip_address("127.0.0.1"), port, (port,))

    def listen(self) -> None:
        """Until nothing has come for a moment."""
        while True:
            try:
                self.heard.append(self.socket.recv(65536))
            except TimeoutError:
                return


@pytest.fixture
def bystander() -> Any:
    one = Bystander()
    yield one
    one.socket.close()


@pytest.mark.slow
def test_over_sockets_a_bystander_gets_questions_and_no_data(bystander: Bystander) -> None:
    with Device(retry_exponential=5) as device:
        qp = device.create_qp(device.create_cq())
        qp.init()
        qp.rtr(device.add_peer([bystander.plane]), dest_qpn=77, first_psn=0)
        qp.rts()
        qp.post_write(device.register(bytes(1 << 20)), 0, 1 << 20, remote_va=0, rkey=1)
        assert [c.status for c in drain(qp.send_cq, 1, 30)] == [CompletionStatus.RETRY_EXCEEDED]
        bystander.listen()
    kinds = {packer.parse(raw[:-4]).opcode for raw in bystander.heard}
    assert kinds == {packer.REQUEST} and len(bystander.heard) <= QUESTIONS
    assert max(map(len, bystander.heard)) <= QUESTION_BYTES


def test_over_sockets_one_false_plane_of_two_carries_nothing_and_the_other_all(bystander: Bystander) -> None:
    began = time.monotonic()
    planes = ("127.0.0.1", "127.0.0.2")
    with Device(planes) as device, Device(planes) as liar:
        near, far = device.create_qp(device.create_cq()), liar.create_qp(liar.create_cq())
        region = liar.register(landing := bytearray(1 << 20), remote_write=True)
        said = [liar.reached_at(0)[0], bystander.plane]
        for qp, other, where in ((near, far, said), (far, near, device.reached_at(0))):
            qp.init()
            qp.rtr(qp.device.add_peer(where), dest_qpn=other.qpn, first_psn=other.first_psn)
            qp.rts()
        for _ in range(4):
            near.post_write(device.register(b"x" * (1 << 20)), 0, 1 << 20, remote_va=0, rkey=region.rkey)
        assert all(c.ok for c in drain(near.send_cq, 4)) and landing == b"x" * (1 << 20)
        started = time.monotonic()
        bystander.listen()
        held_s = time.monotonic() - started
    opcodes = [packer.parse(raw[:-4]).opcode for raw in bystander.heard]
    assert set(opcodes) <= {packer.REQUEST, packer.RESPONSE}
    assert opcodes.count(packer.REQUEST) <= QUESTIONS + held_s
    assert opcodes.count(packer.RESPONSE) <= STRAYS_AT_ONCE + STRAYS_PER_S * (time.monotonic() - began)


def test_over_sockets_a_plane_that_is_dead_from_the_start_keeps_nobody_waiting() -> None:
    with pair(("127.0.0.1", "127.0.0.2")) as (a, b):
        for qp in (a, b):
            qp.device.set_faults(1, black_hole=True)
        region = b.device.register(bytearray(1 << 20), remote_write=True)
        source = a.device.register(bytes(1 << 20))
        a.post_write(source, 0, 1 << 20, remote_va=0, rkey=region.rkey)
        assert [c.ok for c in drain(a.send_cq, 1)] == [True]
        for qp in (a, b):
            qp.device.set_faults()

        def uses_both() -> bool:
            a.post_write(source, 0, 1 << 20, remote_va=0, rkey=region.rkey)
            assert all(c.ok for c in drain(a.send_cq, 1))
            return all(row["packets_sent"] > 20 for row in a.device.planes())

        assert eventually(uses_both)


LIES = {
    "many": "224.0.0.1", "nobody": "0.0.0.0", "everybody": "255.255.255.255", "reserved": "240.0.0.1",
}  # fmt: skip


# spec: peer-addresses
@pytest.mark.parametrize("address", LIES.values(), ids=LIES)
def test_only_the_address_of_one_node_is_taken(address: str) -> None:
    with Device() as device, pytest.raises(ConfigError, match="address"):
        device.add_peer([PeerPlane(ipaddress.ip_address(address), 4791, (4791,))])


@needs.IPV6
@pytest.mark.parametrize("address", ["ff02::1", "::", "::ffff:10.0.0.1", "::7f00:1"])
def test_only_the_address_of_one_node_is_taken_of_version_6(address: str) -> None:
    with Device(["::1"]) as device:
        with pytest.raises(ConfigError, match="address"):
            device.add_peer([PeerPlane(ipaddress.ip_address(address), 4791, (4791,))])
        assert device.add_peer([PeerPlane(ipaddress.ip_address("::1"), 4791, (4791,))]).id == 0


@pytest.mark.parametrize("lie", [{"port": 0}, {"source_ports": (0,)}, {"source_ports": tuple(range(1, 300))}])
def test_ports_that_make_no_sense_are_refused(lie: dict[str, Any]) -> None:
    where = {"address": ipaddress.ip_address("127.0.0.1"), "port": 4791, "source_ports": (4791,)}
    with Device() as device, pytest.raises(ConfigError, match="port"):
        device.add_peer([PeerPlane(**(where | lie))])


# spec: peer-addresses
def test_what_a_peer_has_nobody_else_can_claim_while_it_is_in_touch() -> None:
    with pair(("127.0.0.1",)) as (a, b), Device() as third:
        theirs, own = b.device.reached_at(0)[0], third.reached_at(0)[0]
        for stolen in ((theirs.source_ports[0],), (*own.source_ports, theirs.source_ports[-1])):
            with pytest.raises(ConfigError, match="no other peer's"):
                a.device.add_peer([PeerPlane(own.address, own.port, stolen)])
        peers = a.device._native.peer_count
        again = a.device.add_peer(b.device.reached_at(0))
        assert a.device._native.peer_count == peers, "the same planes are the same peer"
        a.device.remove_peer(again)
        a.destroy()
        a.device.add_peer([PeerPlane(own.address, own.port, theirs.source_ports)])


def test_endpoints_of_the_simulator_need_no_proof() -> None:
    rig = Rig()
    assert len(data(rig.post(512))) == 1 and rig.now < US
    assert isinstance(rig.endpoint, Endpoint) and not EndpointConfig().proves_addresses


def test_an_answer_that_waits_for_its_plane_holds_up_no_other() -> None:
    rig = rig_that_asks(ports=2)
    rig.drain()
    for number in range(5):
        rig.endpoint.handle_datagram(rig.now, packer.request(1, 100 + number), peer=rig.peer, port=0)
    rig.endpoint.handle_datagram(rig.now, packer.request(1, 200), peer=rig.peer, port=1)
    answers = only(rig.drain(free_ports=0b10), packer.RESPONSE)
    assert 200 in {one.psn for one in answers}


def test_a_question_that_waits_for_its_plane_takes_no_others_timer() -> None:
    rig = rig_that_asks(ports=2)
    rig.drain()
    other = rig.endpoint.add_peer()
    qp = rig.endpoint.create_qp(0x41)
    qp.init(InitAttributes(send_cq=rig.send_cq, recv_cq=rig.recv_cq))
    rig.now += 500 * US
    qp.rtr(rig.now, RtrAttributes(peer=other, dest_qpn=9, mtu=rig.mtu))
    rig.drain()
    rig.now += 501 * US
    rig.endpoint.handle_timeout(rig.now)
    rig.drain(free_ports=0b10)
    at = rig.endpoint.poll_timeout()
    assert at is not None and at <= 1_500 * US


@pytest.mark.parametrize("proves", [False, True])
def test_a_doubt_about_the_process_before_is_none_about_the_next(proves: bool) -> None:
    rig = Rig(ports=1, endpoint={"proves_addresses": proves})
    for question in only(rig.drain(), packer.REQUEST):
        rig.receive(packer.response(1, question.psn, question.ticks))
    rig.post(1000)
    rig.now += 1_000 * US
    rig.endpoint.on_unreachable(rig.now, rig.peer)
    rig.drain()
    rig.advance(390_000)
    rig.qp.error(rig.now)
    new = rig.another_qp(0x41)
    new.post_write(rig.now, 1000, remote_va=0, rkey=RKEY, source=rig.source)
    rig.drain()
    rig.advance(12_000)
    assert new.query()["state"] == QpState.RTS
