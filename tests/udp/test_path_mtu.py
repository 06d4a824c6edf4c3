"""Paths that carry less than the links at their ends: found out when two sides meet, and said."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from loopback import drain, pair

from softmrc.connection import Connection, connect, listen
from softmrc.verbs import Device

TWO = ("127.0.0.1", "127.0.0.2")
SIZE = 1 << 18


@contextmanager
def met(planes: tuple[str, ...], *broken: tuple[int, int]) -> Iterator[tuple[Connection, Connection]]:
    """Connector and listener, where planes of the former lose packets above a size."""
    with Device(planes) as here, Device(planes) as there:
        for plane, mtu in broken:
            here.set_faults(plane, mtu=mtu)
        with listen("127.0.0.1", 0, memory=bytearray(SIZE), device=there) as listener:
            with connect("127.0.0.1", listener.port, memory=bytearray(SIZE), device=here) as near:
                with listener.accept() as far:
                    yield near, far


@pytest.mark.parametrize("mtu, payload", [(9000, 8192), (1500, 1408), (1420, 1280), (1280, 1152)])
def test_packets_are_as_large_as_the_path_carries(mtu: int, payload: int, caplog: pytest.LogCaptureFixture) -> None:
    with met(TWO, (0, mtu), (1, mtu)) as (near, far):
        assert (near._payload, far._payload) == (payload, payload)
        near.write(near.remote[0], 0, bytearray(SIZE), imm=7)
        far.write(far.remote[0], 0, bytearray(SIZE), imm=8)
        assert (far.recv(timeout_s=10).imm, near.recv(timeout_s=10).imm) == (7, 8)
        assert all(0 < row["path_mtu"] <= mtu for row in near.device.planes())
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 2 and "plane 1 (lo, MTU 65,536): packets of 16," in said[1] and "do not reach 127.0.0.2" in said[1]
    assert "using " in said[0]


def test_one_narrow_plane_is_named_and_the_others_carry_full_packets(caplog: pytest.LogCaptureFixture) -> None:
    with met(("127.0.0.1", "127.0.0.2", "127.0.0.3"), (1, 1500)) as (near, far):
        assert near._payload == far._payload == near.device.mtu
        near.write(near.remote[0], 0, bytearray(SIZE), imm=7)
        assert far.recv(timeout_s=10).imm == 7
        mtus = [row["path_mtu"] for row in near.device.planes()]
        assert mtus[0] == mtus[2] > 16_000 and 0 < mtus[1] <= 1500
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1 and "plane 1" in said[0] and "the other planes carry on" in said[0]


def test_nobody_asks_where_nothing_is_broken(caplog: pytest.LogCaptureFixture) -> None:
    with met(TWO) as (near, far):
        assert near._payload == far._payload == near.device.mtu
        assert not caplog.records


def test_sizes_are_lost_and_smaller_ones_pass() -> None:
    with pair(TWO) as (a, b):
        a.device.set_faults(0, mtu=1500)
        target = b.device.register(bytearray(SIZE), remote_write=True)
        a.post_write(a.device.register(bytearray(1024)), 0, 1024, remote_va=target.va, rkey=target.rkey)
        assert [one.ok for one in drain(a.send_cq, 1)] == [True]
        assert a.device._native.faults(0).mtu == 1500
