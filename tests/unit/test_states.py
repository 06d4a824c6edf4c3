"""Every state of a queue pair and every kind of packet: answered, or refused, counted and told; never a crash."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import packer
from rig import PEER_QPN, QPN, RKEY
from softmrc.config import CcProfile, EndpointConfig, EvProfile, InitAttributes, RtrAttributes, RtsAttributes
from softmrc.engine import ALL_PORTS, Endpoint, EventType, QpState, RefusedPacket, Trim

VA = 0x1000
PACKETS = {
    "write": packer.write(QPN, 0, b"abcd", va=VA, rkey=RKEY),
    "first": packer.write(QPN, 0, bytes(1024), opcode=packer.FIRST, va=VA, rkey=RKEY, dmalen=2048),
    "middle": packer.write(QPN, 0, bytes(1024), opcode=packer.MIDDLE, va=VA, rkey=RKEY, dmalen=4096),
    "last": packer.write(QPN, 0, bytes(1024), opcode=packer.LAST, va=VA, rkey=RKEY, dmalen=2048),
    "immediate": packer.write(QPN, 0, b"abcd", opcode=packer.ONLY_IMM, va=VA, rkey=RKEY, imm=1),
    "sack": packer.sack(QPN, 0),
    "probe answer": packer.sack(QPN, 0, probe_id=1),
    "nack": packer.nack(QPN, 0, packer.NO_RESOURCE),
    "trim nack": packer.nack(QPN, 0, packer.TRIMMED),
    "fatal nack": packer.nack(QPN, 0, packer.UNEXPECTED),
    "ack": packer.ack(QPN, 0, 0),
    "nak": packer.ack(QPN, 0, 0, packer.SYN_ACCESS),
    "probe": packer.probe(QPN, 1),
}
NODE_REFUSES = {  # for a queue pair's number, though only the node's own takes them
    "request": packer.request(1, 5)[:5] + QPN.to_bytes(3, "big") + packer.request(1, 5)[8:],
    "response": packer.response(1, 5)[:5] + QPN.to_bytes(3, "big") + packer.response(1, 5)[8:],
}


class Node:
    """An endpoint whose one queue pair is taken through states by name."""

    def __init__(self, peers: int = 1, ports: int = 2) -> None:
        self.now = 0
        self.endpoint = Endpoint(EndpointConfig(ports=ports))
        self.endpoint.add_ev_profile(EvProfile(count=4))
        self.endpoint.add_cc_profile(CcProfile())
        self.endpoint.create_cq()
        for _ in range(peers):
            self.endpoint.add_peer()
        self.endpoint.register(np.zeros(4096, dtype=np.uint8), va=VA, rkey=RKEY)
        self.qp = self.endpoint.create_qp(QPN)

    def init(self) -> None:
        self.qp.init(InitAttributes())

    def rtr(self) -> None:
        self.qp.rtr(self.now, RtrAttributes(peer=0, dest_qpn=PEER_QPN, mtu=1024))

    def rts(self) -> None:
        self.qp.rts(self.now, RtsAttributes())

    def error(self) -> None:
        self.qp.error(self.now)

    def live_on(self, us: int = 2_000_000) -> int:
        """Time passes and everything due is sent; how many packets that was."""
        sent, until = 0, self.now + us * 1_000_000
        for _ in range(10_000):
            while self.endpoint.poll_transmit(self.now, ALL_PORTS) is not None:
                sent += 1
                assert sent < 10_000, "packets without end"
            due = self.endpoint.poll_timeout()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.endpoint.handle_timeout(self.now)
        self.now = until
        return sent


WAYS: dict[str, tuple[Callable[[Node], None], ...]] = {
    "RESET": (),
    "INIT": (Node.init,),
    "RTR": (Node.init, Node.rtr),
    "RTS": (Node.init, Node.rtr, Node.rts),
    "ERROR from INIT": (Node.init, Node.error),
    "ERROR from RTR": (Node.init, Node.rtr, Node.error),
    "ERROR from RTS": (Node.init, Node.rtr, Node.rts, Node.error),
}
TAKES = {"RTR": ("write", "first", "probe"), "RTS": tuple(PACKETS)}  # the immediate finds no receive posted


def at(way: str, **more: int) -> Node:
    node = Node(**more)
    for step in WAYS[way]:
        step(node)
    return node


@pytest.mark.parametrize("kind", PACKETS)
@pytest.mark.parametrize("way", WAYS)
# spec: qp-states bad-input
def test_every_packet_in_every_state(way: str, kind: str) -> None:
    node = at(way)
    node.endpoint.poll_events()
    for port in (0, 1):
        node.endpoint.handle_datagram(node.now, PACKETS[kind], peer=0, port=port, entropy=7)
        node.live_on(1000)
    if way not in TAKES:
        assert node.endpoint.stats()["refused_wrong_state"] == 2
    if kind not in TAKES.get(way, ()):
        refused = node.endpoint.poll_events()
        assert EventType.packet_refused.value in refused["type"], "a refusal without an event"
    node.endpoint.set_port(node.now, 1, False)
    node.live_on()
    node.endpoint.set_port(node.now, 1, True)
    node.live_on()
    node.qp.destroy(node.now)
    node.endpoint.handle_datagram(node.now, PACKETS[kind], peer=0, port=0)
    stats = node.endpoint.stats()
    assert stats["refused_unknown_qp"] or stats["departed_answers"] or stats["late_answers"]
    node.live_on()


@pytest.mark.parametrize("kind", PACKETS)
@pytest.mark.parametrize("way", WAYS)
def test_every_packet_in_every_state_of_a_batch(way: str, kind: str) -> None:
    """As drivers do it: several at once, sending before the batch ends, held up; the same refusals as one by one."""
    node = at(way)
    node.endpoint.poll_events()
    node.endpoint.begin_batch()
    for port in (0, 1):
        node.endpoint.handle_datagram(node.now, PACKETS[kind], peer=0, port=port, entropy=7)
    node.live_on(1)
    node.endpoint.handle_held_up(node.now)
    if way not in TAKES:
        assert node.endpoint.stats()["refused_wrong_state"] == 2
        assert len(node.endpoint.poll_events()) == 2
    if way.startswith("ERROR"):
        node.qp.destroy(node.now)  # with the batch still open
    node.endpoint.end_batch(node.now)
    node.live_on()


@pytest.mark.parametrize("way", WAYS)
def test_a_trimmed_packet_in_every_state(way: str) -> None:
    node = at(way)
    node.endpoint.poll_events()
    raw = packer.write(QPN, 0, b"", va=VA, rkey=RKEY, dmalen=4, trimmed=True)
    node.endpoint.handle_datagram(node.now, raw, peer=0, port=0, trim=Trim.TRIMMED)
    assert node.endpoint.stats()["refused_wrong_state"] == (way not in TAKES)
    assert len(node.endpoint.poll_events()) == (way not in TAKES)
    assert node.live_on(1) == (way in TAKES or way in ("ERROR from RTR", "ERROR from RTS"))


@pytest.mark.parametrize("kind", NODE_REFUSES)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_for_nodes_is_refused_by_every_queue_pair(way: str, kind: str) -> None:
    node = at(way)
    node.endpoint.poll_events()
    node.endpoint.handle_datagram(node.now, NODE_REFUSES[kind], peer=0, port=0)
    assert node.endpoint.stats()["refused_unknown_qp"] == 1 and len(node.endpoint.poll_events()) == 1


@pytest.mark.parametrize("kind", PACKETS)
@pytest.mark.parametrize("way", WAYS)
def test_nobody_else_is_listened_to_in_any_state(way: str, kind: str) -> None:
    """A peer that is not this queue pair's, and one without queue pairs: counted, reported, and never answered."""
    node = at(way, peers=2)
    node.endpoint.poll_events()
    for stranger in (1, 77):
        node.endpoint.handle_datagram(node.now, PACKETS[kind], peer=stranger, port=0, entropy=7)
    stats = node.endpoint.stats()
    assert stats["refused_wrong_state"] + stats["refused_wrong_peer"] == 2
    assert len(node.endpoint.poll_events()) == 2
    assert node.live_on(1) == 0


@pytest.mark.parametrize("way", [way for way in WAYS if way != "RESET"])
def test_a_controller_may_speak_of_paths_in_any_state(way: str) -> None:
    node = at(way)
    node.qp.deny_ev(node.now, 0)
    node.qp.replace_ev(node.now, 1, 0xABCD)
    node.qp.allow_ev(node.now, 0)
    for step in WAYS["RTS"][len(WAYS[way]) :] if way in ("INIT", "RTR") else ():
        step(node)
    if way in ("INIT", "RTR", "RTS"):
        node.qp.post_write(node.now, 4096, remote_va=0, rkey=1)
        assert node.live_on(1) >= 4
    node.qp.destroy(node.now)


@pytest.mark.parametrize("peers", [0, 1])
@pytest.mark.parametrize("way", ["RESET", "INIT", "ERROR from INIT"])
def test_a_queue_pair_without_a_peer_can_be_destroyed(way: str, peers: int) -> None:
    node = at(way, peers=peers)
    node.qp.destroy(node.now)
    again = node.endpoint.create_qp(QPN)
    again.init(InitAttributes())
    assert again.state == QpState.INIT


def test_a_queue_pair_that_never_had_a_peer_answers_nobody() -> None:
    node = at("ERROR from INIT")
    node.endpoint.handle_datagram(node.now, PACKETS["write"], peer=0, port=0)
    assert node.live_on(1000) == 0
    events = node.endpoint.poll_events()
    codes = [RefusedPacket(int(e["code"])) for e in events if e["type"] == EventType.packet_refused.value]
    assert codes == [RefusedPacket.WRONG_STATE]


def test_a_queue_pair_in_error_tells_its_peer() -> None:
    """What had arrived has arrived; no more will be taken."""
    node = at("RTS")
    node.endpoint.handle_datagram(node.now, PACKETS["write"], peer=0, port=0)
    node.live_on(1000)
    node.error()
    late = packer.write(QPN, 1, b"abcd", va=VA, rkey=RKEY)
    node.endpoint.handle_datagram(node.now, late, peer=0, port=0)
    answers = [packer.parse(node.endpoint.poll_transmit(node.now, ALL_PORTS)[0]) for _ in range(2)]
    assert (answers[0].opcode, answers[0].syndrome, answers[0].psn) == (packer.ACK, packer.SYN_ACK, 0)
    assert (answers[1].opcode, answers[1].reason, answers[1].nack_psn) == (packer.NACK, packer.UNEXPECTED, 1)
