"""Bytes through real sockets arrive, whole and in place, whatever the settings and the faults."""

from __future__ import annotations

import mmap
import random
from typing import Any

import numpy as np
import pytest
from loopback import FOUR, drain, pair

import needs
from softmrc.engine import CompletionStatus


def transfer(a: Any, b: Any, size: int, pieces: int, seed: int = 1) -> None:
    """`pieces` writes of random lengths, every third with an immediate; all bytes compared."""
    rng = random.Random(seed)
    source, target = bytearray(rng.randbytes(size)), bytearray(size)
    cuts = sorted(rng.sample(range(1, size), pieces - 1))
    spans = list(zip([0, *cuts], [*cuts, size], strict=True))
    mine, theirs = a.device.register(source), b.device.register(target, remote_write=True)
    immediates = [i for i in range(len(spans)) if i % 3 == 0]
    b.post_recv(wr_id=9, count=len(immediates))
    for i, (start, end) in enumerate(spans):
        imm = i if i % 3 == 0 else None
        a.post_write(mine, start, end - start, remote_va=start, rkey=theirs.rkey, wr_id=i, imm=imm)
    done = drain(a.send_cq, len(spans))
    assert [c.wr_id for c in done] == list(range(len(spans)))
    assert all(c.status == CompletionStatus.SUCCESS for c in done)
    assert [c.imm for c in drain(b.recv_cq, len(immediates))] == immediates
    assert target == source


SETTINGS = {
    "defaults": {},
    "per-packet spraying": {"quantum": 1},
    "without icrc": {"icrc": False},
    "without segmentation offload": {"gso": False},
    "small packets": {"mtu": 1024},
    "largest packets": {"mtu": 16384},
    "one socket a plane": {"sockets_per_plane": 1},
    "many sockets a plane": {"sockets_per_plane": 16},
    "never spinning": {"spin_us": 0.0},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_every_byte_arrives(settings: dict[str, Any]) -> None:
    with pair(**settings) as (a, b):
        transfer(a, b, 3 << 20, 40)


@pytest.mark.parametrize(
    "planes",
    [
        ("127.0.0.1",),
        pytest.param(("::1",), marks=needs.IPV6),
        pytest.param(("127.0.0.1", "::1"), marks=needs.IPV6),
        FOUR + FOUR,
    ],
    ids=str,
)
def test_any_planes_do(planes: tuple[str, ...]) -> None:
    with pair(planes) as (a, b):
        transfer(a, b, 1 << 20, 7)


WEATHER = {
    "loss": {"drop": 0.02},
    "duplicates": {"duplicate": 0.1},
    "reordering": {"reorder": 0.2, "reorder_delay_us": 300.0},
    "corruption": {"corrupt": 0.02},
    "marks": {"mark": 0.2},
    "trimming": {"trim": 0.05},
    "delay": {"delay_us": 300.0},
    "all of it": {"drop": 0.01, "duplicate": 0.02, "reorder": 0.05, "corrupt": 0.01, "mark": 0.05, "trim": 0.02},
}


@pytest.mark.parametrize("weather", WEATHER.values(), ids=WEATHER.keys())
def test_weather_costs_no_byte(weather: dict[str, float]) -> None:
    with pair(trimming="trim" in weather) as (a, b):
        for device in (a.device, b.device):
            device.set_faults(**weather)
        transfer(a, b, 2 << 20, 12)
        for device in (a.device, b.device):
            device.set_faults()
        transfer(a, b, 1 << 20, 3, seed=2)


def test_both_directions_at_once() -> None:
    with pair() as (a, b):
        size = 4 << 20
        sources = [bytearray(random.Random(i).randbytes(size)) for i in (0, 1)]
        targets = [bytearray(size), bytearray(size)]
        for qp, other, source, target in ((a, b, sources[0], targets[1]), (b, a, sources[1], targets[0])):
            region = other.device.register(target, remote_write=True)
            qp.post_write(qp.device.register(source), 0, size, remote_va=0, rkey=region.rkey)
        assert [c.ok for c in drain(a.send_cq, 1)] == [True]
        assert [c.ok for c in drain(b.send_cq, 1)] == [True]
        assert targets == [sources[1], sources[0]]


def test_any_writable_memory_is_used_in_place() -> None:
    arrays = [bytearray(8192), mmap.mmap(-1, 8192), np.zeros(2048, dtype=np.float32)]
    with pair(("127.0.0.1",)) as (a, b):
        source = a.device.register(bytearray(b"\x01\x02\x03\x04" * 2048))
        for number, memory in enumerate(arrays):
            region = b.device.register(memory, remote_write=True)
            a.post_write(source, 0, 8192, remote_va=0, rkey=region.rkey, wr_id=number)
            assert [c.ok for c in drain(a.send_cq, 1)] == [True]
            assert bytes(memoryview(memory).cast("B")) == b"\x01\x02\x03\x04" * 2048
            region.deregister()


def test_a_dead_plane_is_survived_and_comes_back() -> None:
    with pair() as (a, b):
        for device in (a.device, b.device):
            device.set_faults(2, black_hole=True)
        transfer(a, b, 8 << 20, 8)
        assert a.device.fault_stats(2)["swallowed"] > 0
        for device in (a.device, b.device):
            device.set_faults(2)
        before = a.device.planes()[2]["packets_sent"]
        transfer(a, b, 64 << 20, 8, seed=3)
        assert a.device.planes()[2]["packets_sent"] > before
