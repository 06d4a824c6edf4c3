"""What comes and goes is forgotten: peers, queues, profiles and groups leave nothing behind."""

from __future__ import annotations

import ipaddress

import pytest

import packer
from rig import Rig, only
from softmrc.config import CcProfile, EndpointConfig, EvProfile, InitAttributes, RtrAttributes, RtsAttributes
from softmrc.device import Device, PeerPlane
from softmrc.engine import Endpoint, RefusedPacket
from softmrc.errors import UsageError
from udp.loopback import connect, eventually

S = 1_000_000
CYCLES = 10_000


# spec: peer-life
def test_a_peer_is_known_until_its_last_queue_pair_has_said_its_last_word() -> None:
    rig = Rig()
    native = rig.endpoint._native
    rig.receive(packer.write(0x40, 0, b"abcd", va=rig.va, rkey=0x77))
    assert rig.endpoint.remove_peer(rig.peer) and not rig.endpoint.remove_peer(rig.peer), "added once"
    assert native.peer_count == 1, "the queue pair holds it"
    rig.qp.destroy(rig.now)
    again = packer.write(0x40, 0, b"abcd", va=rig.va, rkey=0x77, rtx=True)
    assert native.peer_count == 1 and only(rig.receive(again), packer.ACK), "what arrived is still acknowledged"
    rig.advance(4 * S)
    rig.refusals()
    assert native.peer_count == 0 and not rig.receive(again) and not rig.receive(packer.request(1, 9))
    assert rig.refusals() == [RefusedPacket.UNKNOWN_QP, RefusedPacket.UNKNOWN_PEER]


def test_a_peers_number_is_given_again_without_anything_that_was_meant_for_the_last_one() -> None:
    rig = Rig(ports=2, endpoint={"announces_ports": True, "proves_addresses": True})
    rig.endpoint.probe(rig.now, rig.peer, 0, 7, 42)
    rig.endpoint.handle_datagram(rig.now, packer.request(1, 5), peer=rig.peer)
    rig.qp.post_write(rig.now, 512, remote_va=0, rkey=1, source=rig.source)
    rig.endpoint.on_unreachable(rig.now, rig.peer)
    rig.qp.destroy(rig.now)
    rig.endpoint.remove_peer(rig.peer)
    rig.now += 4 * S * 1_000_000
    rig.endpoint.handle_timeout(rig.now)
    assert rig.endpoint._native.peer_count == 0
    assert rig.endpoint.add_peer() == rig.peer and not rig.drain() and not rig.advance(10 * S)


def test_ten_thousand_connections_leave_an_endpoint_as_it_was() -> None:
    endpoint = Endpoint(EndpointConfig(proves_addresses=True))
    endpoint.add_ev_profile(EvProfile(count=4))
    endpoint.add_cc_profile(CcProfile())
    cqs = endpoint.create_cq(), endpoint.create_cq()
    seen = set()
    for cycle in range(CYCLES):
        now = cycle * 1_000 * S  # a millisecond each
        peer, qpn = endpoint.add_peer(), 3 + cycle
        seen.add(peer)
        qp = endpoint.create_qp(qpn)
        qp.init(InitAttributes(send_cq=cqs[0], recv_cq=cqs[1]))
        qp.rtr(now, RtrAttributes(peer=peer, dest_qpn=7))
        qp.rts(now, RtsAttributes())
        qp.destroy(now)
        endpoint.remove_peer(peer)
        endpoint.handle_timeout(now)
        while endpoint.poll_transmit(now):
            pass
    assert len(seen) < 3_100, "no more are remembered than have left within three seconds"
    endpoint.handle_timeout((CYCLES + 4_000) * 1_000 * S)
    assert endpoint._native.peer_count == 0 and endpoint.poll_timeout() is None


def test_a_completion_queue_goes_when_no_queue_pair_uses_it() -> None:
    with Device() as device:
        queue = device.create_cq()
        qp = device.create_qp(queue)
        qp.init()
        with pytest.raises(UsageError, match="queue pair"):
            queue.destroy()
        qp.destroy()
        queue.destroy()
        assert device._native.cq_count == 0
        with pytest.raises(UsageError):
            device._native.destroy_cq(77)


# spec: peer-life
def test_over_sockets_a_peer_that_is_gone_is_a_stranger() -> None:
    with Device() as near, Device() as far:
        a, b = connect(near, far)
        assert eventually(lambda: a.query()["data_ports"] == b.query()["data_ports"] == 1)
        peer = a.peer
        a.destroy()
        near.remove_peer(peer)
        before = near.planes()[0]["strangers"]

        def is_a_stranger() -> bool:
            far.probe(b.peer, 0, 0, 1)
            return near.planes()[0]["strangers"] > before

        assert eventually(is_a_stranger) and near._native.peer_count == 0


def planes_at(port: int) -> list[PeerPlane]:
    return [PeerPlane(ipaddress.ip_address("127.0.0.1"), port, (port,))]


def test_a_peer_that_was_removed_is_not_mistaken_for_another() -> None:
    with Device() as device:
        old = device.add_peer(planes_at(9))
        device.remove_peer(old)
        new = device.add_peer(planes_at(10))
        qp = device.create_qp(device.create_cq())
        qp.init()
        for call in (
            lambda: qp.rtr(old, dest_qpn=3, first_psn=0),
            lambda: device.probe(old, 0, 0, 1),
            lambda: device.remove_peer(old),
        ):
            with pytest.raises(UsageError, match="port 9 was removed"):
                call()
        qp.rtr(new, dest_qpn=3, first_psn=0)
        with Device() as other, pytest.raises(UsageError, match="was removed from this device, or belongs to another"):
            other.probe(new, 0, 0, 1)


def test_a_peer_is_to_be_removed_as_often_as_it_was_added() -> None:
    with Device(lanes=1) as device:
        first, second = device.add_peer(planes_at(9)), device.add_peer(planes_at(9))
        assert device._native.peer_count == 1
        device.remove_peer(first)
        assert device._native.peer_count == 1
        device.remove_peer(second)
        assert device._native.peer_count == 0
        with pytest.raises(UsageError, match="was removed"):
            device.remove_peer(second)
