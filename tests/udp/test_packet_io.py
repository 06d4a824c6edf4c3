"""Faults on a device's planes, and captures of them: what faults do is counted and arrives, on any number of lanes;
what a capture holds is what was on the network."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import connect, drain, eventually

import programs
from softmrc.device import Device, QueuePair
from softmrc.wire import read_pcapng

SIZE = 400_000
HOUR_US = 3.6e9


class Pairs:
    """A queue pair in every lane of `a`, each to a device of one lane, and a write of each."""

    def __init__(self, a: Device, b: Device) -> None:
        self.a, self.b = a, b
        self.qps = [connect(a, b) for _ in range(a.lanes)]
        assert sorted(near.lane for near, _ in self.qps) == list(range(a.lanes))
        self.data = np.random.default_rng(a.lanes).integers(0, 256, SIZE * a.lanes, dtype=np.uint8)
        self.landed = np.zeros_like(self.data)
        self.source, self.target = a.register(self.data), b.register(self.landed, remote_write=True)
        self.back = a.register(bytearray(64), remote_write=True)
        assert all(eventually(lambda qp=near: qp.query()["data_ports"] == 1) for near, _ in self.qps)  # type: ignore[misc]

    @property
    def near(self) -> list[QueuePair]:
        return [near for near, _ in self.qps]

    def post(self) -> None:
        for number, qp in enumerate(self.near):
            at = number * SIZE
            qp.post_write(self.source, at, SIZE, remote_va=at, rkey=self.target.rkey)

    def arrive(self, limit_s: float = 20.0) -> bool:
        return all([c.ok for c in drain(qp.send_cq, 1, limit_s)] == [True] for qp in self.near)

    def quieten(self) -> int:
        """Until nothing of `a` is on its way any more; how many packets that were so far."""
        self.a.set_faults()
        self.a.set_faults(black_hole=True)
        sent = plane(self.a, "packets_sent")
        assert eventually(lambda: plane(self.b, "packets_received") == sent)
        return sent

    def seen(self, counter: str) -> int:
        return sum(far.stats()[counter] for _, far in self.qps)


@contextmanager
def pairs(lanes: int, **config: Any) -> Iterator[Pairs]:
    config |= {"mtu": 1024}
    with Device(["127.0.0.1"], lanes=lanes, **config) as a, Device(["127.0.0.1"], lanes=1, **config) as b:
        yield Pairs(a, b)


def plane(device: Device, counter: str) -> int:
    return int(device.planes()[0][counter])


# What is set, what counts it, and what of it the receiver, or the sender by its word, sees.
KINDS: dict[str, tuple[dict[str, float], str, Callable[[Pairs], int]]] = {
    "drop": ({"drop": 0.1}, "dropped", lambda p: sum(qp.stats()["packets_retransmitted"] for qp in p.near)),
    "duplicate": ({"duplicate": 0.2}, "duplicated", lambda p: p.seen("packets_duplicate")),
    "reorder": ({"reorder": 0.2, "reorder_delay_us": 2000.0}, "reordered", lambda p: p.seen("sacks_sent")),
    "corrupt": ({"corrupt": 0.1}, "corrupted", lambda p: plane(p.b, "bad_icrc")),
    "mark": ({"mark": 0.5}, "marked", lambda p: sum(qp.stats()["marks_received"] for qp in p.near)),
    "trim": ({"trim": 0.1}, "trimmed", lambda p: p.seen("packets_trimmed")),
}


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_is_counted_and_seen(kind: str, lanes: int) -> None:
    faults, counter, sight = KINDS[kind]
    with pairs(lanes, trimming=kind == "trim") as p:
        p.a.set_faults(**faults)
        before = sight(p)
        p.post()
        assert p.arrive() and np.array_equal(p.landed, p.data)
        p.a.set_faults()
        counted = p.a.fault_stats(0)
        assert counted[counter] > 0
        assert not any(count for name, count in counted.items() if name != counter), counted
        assert sight(p) > before
        p.post()
        assert p.arrive() and p.a.fault_stats(0) == counted, "fair again"


@pytest.mark.parametrize("lanes", [1, 3])
def test_what_is_held_back_leaves_when_the_fault_ends(lanes: int) -> None:
    with pairs(lanes) as p:
        sent = p.quieten()
        p.a.set_faults(delay_us=HOUR_US)
        p.post()
        assert eventually(lambda: all(qp.stats()["bytes_sent"] == SIZE for qp in p.near))
        held = sum(qp.stats()["packets_sent"] for qp in p.near)
        assert plane(p.a, "packets_sent") == sent and not p.landed.any()
        p.a.set_faults()
        assert plane(p.a, "packets_sent") - sent >= held > lanes * SIZE // 1024, "at once"
        assert p.arrive() and np.array_equal(p.landed, p.data)


def test_what_was_posted_before_a_fault_leaves_before_it() -> None:
    """Also where the thread that drives was awake, and was left to send it."""
    with pairs(1) as p:
        (near, far), size = p.qps[0], 1 << 20
        source, target = p.b.register(bytearray(size)), p.a.register(bytearray(size), remote_write=True)
        for number in range(100):
            far.post_write(source, 0, size, remote_va=0, rkey=target.rkey)  # keeps it awake
            near.post_write(p.source, 0, 64, remote_va=0, rkey=p.target.rkey)
            p.a.set_faults(delay_us=HOUR_US)
            assert [c.ok for c in drain(near.send_cq, 1)] == [True], number
            p.a.set_faults()
            assert [c.ok for c in drain(far.send_cq, 1)] == [True]


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_black_hole_swallows_both_ways(lanes: int) -> None:
    with pairs(lanes) as p:
        p.a.set_faults(black_hole=True)
        sent, engine = plane(p.a, "packets_sent"), p.a.stats()["datagrams_received"]
        p.post()
        for _, far in p.qps:
            far.post_write(p.target, 0, 64, remote_va=0, rkey=p.back.rkey)
        swallowed, came = p.a.fault_stats(0)["swallowed"], plane(p.a, "packets_received")
        assert eventually(lambda: plane(p.a, "packets_received") > came)
        assert eventually(lambda: p.a.fault_stats(0)["swallowed"] > swallowed)
        assert plane(p.a, "packets_sent") == sent and p.a.stats()["datagrams_received"] == engine
        assert not p.landed.any()
        p.a.set_faults()
        assert p.arrive() and np.array_equal(p.landed, p.data)


def packets(file: Path, port: int, to: bool) -> Counter[bytes]:
    """What a capture says was sent to this port, or came in by it: type of service, ports and payload."""
    found = [record.frame for record in read_pcapng(file)]
    place = 22 if to else 20
    return Counter(f[1:2] + f[20:24] + f[28:] for f in found if int.from_bytes(f[place : place + 2], "big") == port)


STORM = {"drop": 0.05, "duplicate": 0.1, "reorder": 0.1, "corrupt": 0.05, "mark": 0.1, "trim": 0.05, "delay_us": 50.0}


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("faults", [{}, {"drop": 0.1}, STORM], ids=["fair", "loss", "storm"])
def test_a_capture_holds_what_left_and_what_came(tmp_path: Path, lanes: int, faults: dict[str, float]) -> None:
    """On loopback one device's capture of what it sent is the other's of what it received, byte by byte."""
    here, there = tmp_path / "here.pcapng", tmp_path / "there.pcapng"
    with pairs(lanes, trimming=True) as p:
        port = p.b.ports_of(0)[0][0]
        before = p.quieten()
        with p.b.capture(str(there)), p.a.capture(str(here)):
            for weather in (faults, {}):
                p.a.set_faults(**weather)
                p.post()
                assert p.arrive()
            after = p.quieten()
        left, arrived = packets(here, port, to=True), packets(there, port, to=True)
        assert left == arrived and left.total() == after - before
        counted = p.a.fault_stats(0)
        assert faults is not STORM or all(counted[name] for name in ("duplicated", "corrupted", "marked", "trimmed"))


def test_a_capture_is_at_the_sockets_inside_of_the_weather(tmp_path: Path) -> None:
    """A packet that a fault drops while sending never left; one that it drops while receiving did arrive."""
    file = tmp_path / "it.pcapng"
    with pairs(1) as p:
        port = p.b.ports_of(0)[0][0]
        p.a.set_faults(delay_us=HOUR_US)
        p.post()
        assert eventually(lambda: p.near[0].stats()["packets_sent"] > 10)
        p.a.set_faults(black_hole=True)
        with p.a.capture(str(file)) as capture:
            came = plane(p.a, "packets_received")
            p.qps[0][1].post_write(p.target, 0, 64, remote_va=0, rkey=p.back.rkey)
            assert eventually(lambda: plane(p.a, "packets_received") > came)
        assert packets(file, port, to=True).total() == 0
        came = sum(packets(file, other, to=False).total() for other in p.b.ports_of(0)[0])
        assert came == capture.packets > 0
        with p.a.capture(str(file)):
            p.a.set_faults()  # a tap that was put on later sees what was held before
            assert p.arrive()
        assert packets(file, port, to=True).total() > 10


def test_lines_by_themselves_do_what_the_seed_says() -> None:
    ran = subprocess.run([programs.path("packet_io")], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0 and "all holds" in ran.stdout, ran.stdout + ran.stderr
