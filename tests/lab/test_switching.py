"""ECN and trimming by the kernel: what a queue that is too long does to real MRC packets."""

from __future__ import annotations

import socket
from collections import Counter

import pytest
from tests.lab.labs import bound, drain

import needs
from softmrc import wire
from softmrc.lab import Lab
from softmrc.wire.frame import DscpMap

pytestmark = [*needs.LAB, needs.BPF]
DSCP = DscpMap()
UDP_NO_CHECK6_RX, SO_SNDBUFFORCE, SO_RCVBUFFORCE = 102, 32, 33
PAYLOAD = bytes(range(256)) * 4


def flood(lab: Lab, dscp: int, ecn: int, count: int, inner: bool) -> list[tuple[bytes, int]]:
    """Two hosts send to a third at once, over one path each; what arrives, with its traffic class."""
    plan = lab.plan
    with bound(lab, 0) as first, bound(lab, 1) as second, bound(lab, 2) as receiver:
        receiver.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
        receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        for host, sender in enumerate((first, second)):
            sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2 | ecn)
            sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 2 << 20)
            sender.connect((str(plan.path_address(2, 0, 0) if inner else plan.carrier(host, 2, 0, 0)), 4791))
        packets = [
            bytes(wire.Packet("write_only", dqp=0x10, psn=psn, va=0x1000, rkey=7, payload=PAYLOAD)) + bytes(4)
            for psn in range(2 * count)
        ]
        for i, packet in enumerate(packets):
            (first, second)[i % 2].send(packet)
        return receive_all(receiver, 2 * count)


def receive_all(receiver: socket.socket, least: int) -> list[tuple[bytes, int]]:
    found: list[tuple[bytes, int]] = []
    receiver.settimeout(0.5)
    try:
        while len(found) < least:
            data, ancillary, _, _ = receiver.recvmsg(65536, 256)
            tclass = next(value for _, kind, value in ancillary if kind == socket.IPV6_TCLASS)
            found.append((data, int.from_bytes(tclass[:4], "little")))
    except TimeoutError:
        pass
    return found


@pytest.mark.parametrize("inner", [False, True], ids=["carrier", "outer header"])
def test_a_full_queue_trims_and_loses_nothing(acting: Lab, inner: bool) -> None:
    before = {p.link: p.counts.trimmed for p in acting.ports()}
    found = flood(acting, DSCP.trimmable, 2, 150, inner)
    trimmed = [(data, tclass) for data, tclass in found if tclass >> 2 in (DSCP.trimmed, DSCP.trimmed_last_hop)]
    whole = [data for data, tclass in found if tclass >> 2 == DSCP.trimmable]
    assert len(found) == 300 and len(trimmed) > 20 and len(whole) > 20
    counted = sum(p.counts.trimmed - before[p.link] for p in acting.ports())
    assert counted == len(trimmed)
    psns = Counter()
    for data, _ in trimmed:
        packet = wire.Packet.parse(data, trimmed=True)
        assert packet.opcode is wire.Opcode.WRITE_ONLY and len(data) == 32 and packet.trimmed
        psns[packet.bth.psn] += 1
    for data in whole:
        packet = wire.Packet.parse(data[:-4])
        assert packet.body.payload == PAYLOAD
        psns[packet.bth.psn] += 1
    assert set(psns.values()) == {1} and len(psns) == 300


@pytest.mark.parametrize("inner", [False, True], ids=["carrier", "outer header"])
def test_what_may_not_be_trimmed_is_marked_and_dropped_only_when_full(acting: Lab, inner: bool) -> None:
    found = flood(acting, DSCP.no_trim, 2, 60, inner)
    marked = [tclass for _, tclass in found if tclass & 3 == 3]
    assert marked and all(tclass >> 2 == DSCP.no_trim for _, tclass in found)
    assert all(len(data) > len(PAYLOAD) for data, _ in found)


def test_without_ecn_in_the_packet_nothing_is_marked(acting: Lab) -> None:
    found = flood(acting, DSCP.no_trim, 0, 60, False)
    assert found and all(tclass & 3 == 0 for _, tclass in found)


def test_marks_are_inside_the_fabric_only(acting: Lab) -> None:
    flood(acting, DSCP.no_trim, 2, 60, False)
    for port in acting.ports():
        _, to = acting.shape.ends(port.link)
        is_last_hop = acting.shape.name_of(to).startswith("host")
        assert not (is_last_hop and port.counts.marked)


def test_control_overtakes_data(acting: Lab) -> None:
    """A control packet sent last into a full queue does not arrive last."""
    plan = acting.plan
    with bound(acting, 0) as data, bound(acting, 1) as control, bound(acting, 2) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        data.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 8 << 20)
        data.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, DSCP.no_trim << 2)
        control.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, DSCP.control << 2)
        for i in range(120):
            data.sendto(f"data {i}".encode().ljust(1200), (str(plan.carrier(0, 2, 0, 0)), 4791))
        control.sendto(b"control", (str(plan.carrier(1, 2, 0, 0)), 4791))
        got = drain(receiver, settle_s=0.2)
        assert b"control" in got and got.index(b"control") < len(got) - 1
