"""Packets from a peer's own address and port, at real sockets. Spoofed ones need the right to open
raw sockets, and are skipped without it."""

from __future__ import annotations

import ipaddress
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.udp.loopback import FOUR, eventually

from softmrc.connection import Connection, connect, listen
from softmrc.connection import connection as connection_module
from softmrc.device import Device, PeerPlane
from softmrc.engine import EventType, QpState
from softmrc.wire import Frame, Packet, Route
from softmrc_bench.spoofed_flood import KINDS, flood_spoofed, raw_socket

TRIMMED = 12


def may_spoof() -> bool:
    try:
        raw_socket("127.0.0.1").close()
    except PermissionError:
        return False
    return True


NEEDS_RAW = pytest.mark.skipif(not may_spoof(), reason="raw sockets are not allowed here")


@contextmanager
def connected(**settings: Any) -> Iterator[tuple[Connection, Connection, bytearray]]:
    """The writing end, the end that is written to, and its memory."""
    memory = bytearray(1 << 20)
    with listen("127.0.0.1", memory=memory, planes=FOUR, **settings) as listener:
        ends: list[Connection] = []
        thread = threading.Thread(target=lambda: ends.append(listener.accept(20)))
        thread.start()
        with connect("127.0.0.1", listener.port, planes=FOUR, **settings) as connection:
            thread.join(20)
            with ends[0]:
                yield connection, ends[0], memory


def spoof(as_if: Device, victim: Device, packet: Packet, plane: int = 0) -> None:
    """One packet to the victim that bears the other's address and port."""
    mine, theirs = as_if.local_planes[plane], victim.local_planes[plane]
    route = Route(mine.address, theirs.address, as_if.ports_of(0)[plane][0], victim.ports_of(0)[plane][0])
    with raw_socket(str(theirs.address)) as sock:
        sock.send(bytes(Frame(packet, route))[14:])


def write_everywhere(connection: Connection, memory: bytearray, seed: int) -> list[int]:
    """A write that arrives whole; packets sent on each plane by it."""
    content = random.Random(seed).randbytes(len(memory))
    before = [row["packets_sent"] for row in connection.device.planes()]
    connection.wait(connection.post(connection.remote[0], 0, content), timeout_s=20)
    assert memory == content
    return [row["packets_sent"] - sent for row, sent in zip(connection.device.planes(), before, strict=True)]


@NEEDS_RAW
@pytest.mark.parametrize("mask", [0, 0b10])
def test_a_forged_word_about_ports_is_not_believed(mask: int) -> None:
    with connected(quantum=1, mtu=1024) as (connection, other, memory):
        there = connection.device
        update = Packet("endpoint_request", psn=77, op="port_status_update", port_status_mask=mask)
        for plane in range(4):
            spoof(other.device, there, update, plane)
        assert eventually(lambda: there.stats()["refused_unproven"] >= 4)
        assert min(write_everywhere(connection, memory, 1)) > 100
        assert connection.qp.state == QpState.RTS


@pytest.mark.parametrize("has_keys", [True, False])
def test_an_honest_word_is(has_keys: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from a peer that has no key."""
    if not has_keys:
        monkeypatch.setattr(connection_module, "new_port_key", lambda: 0)
    with connected() as (connection, other, memory):
        other.device.set_port(2, False)
        heard: list[int] = []

        def is_heard() -> bool:
            events = connection.device.poll_events()
            heard.extend(e.value for e in events if e.type == EventType.peer_ports)
            return 0b1011 in heard

        assert eventually(is_heard)
        write_everywhere(connection, memory, 2)
        assert connection.device.stats()["refused_unproven"] == other.device.stats()["refused_unproven"] == 0


@NEEDS_RAW
@pytest.mark.parametrize("kind", KINDS)
def test_a_flood_in_a_peers_name_changes_nothing(kind: str) -> None:
    with connected() as (connection, other, memory):
        ends = zip(connection.device.local_planes, connection.device.ports_of(0), connection.peer.planes, strict=True)
        ways = [((str(mine.address), ports[0]), (str(to.address), to.port)) for mine, ports, to in ends]

        def refused() -> int:
            stats = other.device.stats()
            return stats["refused_bad_icrc"] + stats["requests_unanswered"]

        with flood_spoofed(kind, other.qp.qpn, ways, per_s=50_000):
            assert eventually(lambda: refused() > 2000)
            for seed in range(3):
                write_everywhere(connection, memory, seed)
        assert other.qp.state == QpState.RTS and other.qp.stats()["packets_trimmed"] == 0
        assert kind == "probe" or other.device.stats()["rests"] > 10, "the driver lets them gather"


@pytest.mark.parametrize("trims", [False, True])
def test_a_trim_mark_counts_where_the_network_trims(trims: bool) -> None:
    """A trimmed packet has no ICRC: where nothing trims, anybody could forge one."""
    address = ipaddress.ip_address("127.0.0.1")
    with Device(["127.0.0.1"], trimming=trims) as device, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        qp = device.create_qp(device.create_cq())
        qp.init()
        qp.rtr(device.add_peer([PeerPlane(address, port, (port,))]), dest_qpn=0x77, first_psn=5)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TRIMMED << 2)
        header = Packet("write_first", dqp=qp.qpn, psn=5, dmalen=1 << 20, trimmed=True)
        sock.sendto(bytes(header), ("127.0.0.1", device.ports_of(0)[0][0]))
        assert eventually(lambda: device.stats()["datagrams_received"] >= 1)
        assert device.stats()["refused_bad_icrc"] == (not trims)
        assert qp.stats()["packets_trimmed"] == trims


def test_first_psns_are_no_guess() -> None:
    with Device(["127.0.0.1"]) as device:
        cq = device.create_cq()
        assert len({device.create_qp(cq).first_psn for _ in range(16)}) > 12
