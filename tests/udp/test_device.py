"""The device itself: unknown senders, garbage, descriptors, captures, lifetimes."""

from __future__ import annotations

import ipaddress
import random
import re
import select
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loopback import connect, drain, eventually, pair

from softmrc.config.planes import LocalPlane, choose_mtu
from softmrc.device import Device, PeerPlane
from softmrc.engine import CompletionStatus, EventType, QpState
from softmrc.errors import ConfigError, UsageError
from softmrc.wire.capture import read_pcapng
from softmrc_bench.udp import flood


def test_strangers_and_garbage_are_counted_and_change_nothing() -> None:
    rng = random.Random(7)
    with pair() as (a, b):
        target = bytearray(1 << 20)
        region = b.device.register(target, remote_write=True)
        content = bytearray(rng.randbytes(1 << 20))
        source = a.device.register(content)
        ports = [(str(plane.address), plane.port) for plane in b.device.reached_at(0)]
        with flood(ports, per_s=20_000):
            assert eventually(lambda: sum(row["strangers"] for row in b.device.planes()) > 1000)
            assert not any(target)
            a.post_write(source, 0, 1 << 20, remote_va=0, rkey=region.rkey)
            assert [c.ok for c in drain(a.send_cq, 1)] == [True]
        assert target == content
        assert b.state == QpState.RTS


def test_a_peer_that_sends_garbage_is_refused_and_counted() -> None:
    rng = random.Random(3)
    with Device(["127.0.0.1"], lanes=1) as device, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        address = ipaddress.ip_address("127.0.0.1")
        device.add_peer([PeerPlane(address, sock.getsockname()[1], (sock.getsockname()[1],))])
        to = ("127.0.0.1", device.ports_of(0)[0][0])
        for size in (0, 1, 11, 12, 15, 16, 17, 60, 1500):
            for _ in range(8):
                sock.sendto(rng.randbytes(size), to)
        assert eventually(lambda: device.stats()["refused_bad_icrc"] >= 40)
        assert device.planes()[0]["strangers"] == 0


def test_a_completion_queue_is_a_descriptor() -> None:
    with pair(("127.0.0.1",)) as (a, b):
        region = b.device.register(bytearray(4096), remote_write=True)
        source = a.device.register(bytearray(4096))
        poller = select.poll()
        poller.register(a.send_cq.fileno(), select.POLLIN)
        assert a.send_cq.poll() == []
        for number in range(3):
            a.post_write(source, 0, 4096, remote_va=0, rkey=region.rkey, wr_id=number)
            assert poller.poll(10_000)
            assert [c.wr_id for c in a.send_cq.poll()] == [number]
            assert poller.poll(0) == []


def test_several_threads_wait_and_post() -> None:
    with Device(["127.0.0.1"]) as left, Device(["127.0.0.1"]) as right:
        pairs = [connect(left, right) for _ in range(4)]
        region = right.register(bytearray(1 << 16), remote_write=True)
        source = left.register(bytearray(1 << 16))
        done: list[int] = []

        def work(number: int) -> None:
            qp = pairs[number][0]
            for i in range(50):
                qp.post_write(source, 0, 5000, remote_va=number * 8192, rkey=region.rkey, wr_id=i)
                done.extend(c.wr_id for c in drain(qp.send_cq, 1))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(done) == sorted(list(range(50)) * 4)


def test_closing_wakes_whoever_waits() -> None:
    device = Device(["127.0.0.1"])
    cq = device.create_cq()
    result: list[BaseException] = []

    def wait() -> None:
        try:
            cq.wait(20)
        except UsageError as error:
            result.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    device.close()
    thread.join(10)
    assert not thread.is_alive() and "closed" in str(result[0])
    assert repr(device) == "<Device, closed>"


def test_memory_in_use_is_not_given_back() -> None:
    with pair(("127.0.0.1",)) as (a, b):
        region = b.device.register(bytearray(1 << 20), remote_write=True)
        source = a.device.register(bytearray(1 << 20))
        for device in (a.device, b.device):
            device.set_faults(black_hole=True)
        a.post_write(source, 0, 1 << 20, remote_va=0, rkey=region.rkey)
        with pytest.raises(UsageError, match="still being sent from"):
            source.deregister()
        for device in (a.device, b.device):
            device.set_faults()
        assert [c.ok for c in drain(a.send_cq, 1)] == [True]
        source.deregister()
        with pytest.raises(UsageError, match="not registered"):
            source.deregister()


def test_only_writable_contiguous_memory_is_registered() -> None:
    with Device(["127.0.0.1"]) as device:
        for bad in (b"read only", np.zeros((4, 4))[:, 1], object(), bytearray(0), memoryview(b"x")):
            with pytest.raises(ConfigError):
                device.register(bad, remote_write=True)


def test_a_tensor_without_the_buffer_protocol_is_used_in_place() -> None:
    class Tensor:
        """What matters of a torch CPU tensor."""

        def __init__(self) -> None:
            self.memory = np.zeros(64, dtype=np.float32)

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return self.memory

        def data_ptr(self) -> int:
            return self.memory.__array_interface__["data"][0]

    with pair(("127.0.0.1",)) as (a, b):
        tensor = Tensor()
        region = b.device.register(tensor, remote_write=True)
        source = a.device.register(np.arange(64, dtype=np.float32))
        a.post_write(source, 0, 256, remote_va=0, rkey=region.rkey)
        assert [c.ok for c in drain(a.send_cq, 1)] == [True]
        assert tensor.memory.tolist() == list(range(64))


def test_errors_are_events_too() -> None:
    with pair(("127.0.0.1",)) as (a, b):
        source = a.device.register(bytearray(64))
        a.post_write(source, 0, 64, remote_va=0, rkey=12345, wr_id=5)
        completion = drain(a.send_cq, 1)[0]
        assert (completion.wr_id, completion.status) == (5, CompletionStatus.REMOTE_ACCESS)
        assert a.state == QpState.ERROR
        kinds = {event.type for event in b.device.poll_events()}
        assert EventType.packet_refused in kinds and EventType.qp_state in kinds
        with pytest.raises(UsageError, match="ERROR"):
            a.post_write(source, 0, 64, remote_va=0, rkey=1)


def test_a_port_taken_out_of_service_is_left_by_both_sides() -> None:
    with pair() as (a, b):
        region = b.device.register(bytearray(4 << 20), remote_write=True)
        source = a.device.register(bytearray(4 << 20))
        b.device.set_port(1, False)
        left = (EventType.peer_ports, 0b1101)
        assert eventually(lambda: left in [(e.type, e.value) for e in a.device.poll_events()])

        def sent_there() -> int:
            return a.device.planes()[1]["bytes_sent"]

        before = sent_there()
        a.post_write(source, 0, 4 << 20, remote_va=0, rkey=region.rkey)
        assert [c.ok for c in drain(a.send_cq, 1)] == [True]
        # Words now and then that this is what is believed, answers and probes; a quarter of the message would be data.
        assert sent_there() - before < a.device.mtu
        assert "(down)" in repr(b.device)
        b.device.set_port(1, True)

        def sends_there_again() -> bool:
            before = sent_there()
            a.post_write(source, 0, 1 << 20, remote_va=0, rkey=region.rkey)
            return len(drain(a.send_cq, 1)) == 1 and sent_there() - before > a.device.mtu

        assert eventually(sends_there_again)


def test_a_capture_holds_what_was_sent(tmp_path: object) -> None:
    path = f"{tmp_path}/device.pcapng"
    with pair(mtu=1024) as (a, b):
        region = b.device.register(bytearray(1 << 16), remote_write=True)
        source = a.device.register(bytearray(range(256)) * 256)
        with a.device.capture(path) as capture:
            a.post_write(source, 0, 1 << 16, remote_va=0, rkey=region.rkey)
            assert [c.ok for c in drain(a.send_cq, 1)] == [True]
        frames = list(read_pcapng(path))
        assert len(frames) == capture.packets >= 65
        assert {record.interface.name for record in frames} <= {f"plane{i}" for i in range(4)}


def test_the_ecn_mark_reaches_the_sender() -> None:
    with pair() as (a, b):
        region = b.device.register(bytearray(1 << 20), remote_write=True)
        source = a.device.register(bytearray(1 << 20))
        a.device.set_faults(mark=1.0)
        a.post_write(source, 0, 1 << 20, remote_va=0, rkey=region.rkey)
        assert [c.ok for c in drain(a.send_cq, 1)] == [True]
        assert a.stats()["marks_received"] > 0


def test_settings_are_checked_by_name() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        Device(["127.0.0.1"], nonsense=1)
    for mtu in (1, 100, 384, 513, 1428, 16_385, 1 << 20):
        with pytest.raises(ConfigError, match="a multiple of 128, such as") as refused:
            Device(["127.0.0.1"], mtu=mtu)
        proposed = re.search(r"such as (\d+);", str(refused.value))
        assert proposed
        with Device(["127.0.0.1"], mtu=int(proposed[1])) as device:
            assert device.mtu == int(proposed[1])
    with pytest.raises(ConfigError, match="at most 16384, the most that a packet holds"):
        Device(["127.0.0.1"], mtu=1 << 15)
    with pytest.raises(ConfigError, match="at most 1408, which is what the links carry"):
        choose_mtu([LocalPlane(ipaddress.ip_address("10.0.0.1"), "", "eth0", 1_500)], 1 << 15, 1 << 15)
    with pytest.raises(ConfigError, match=r"`mtu_limit`: must be 512 to 16384 .got 100"):
        Device(["127.0.0.1"], mtu_limit=100)
    with pytest.raises(ConfigError, match="planes"):
        Device([])
    with Device(["127.0.0.1"]) as device, pytest.raises(ConfigError, match="faults"):
        device.set_faults(rain=0.5)


@pytest.mark.parametrize(
    ("link_mtu", "address", "payload"),
    [(1500, "10.0.0.1", 1408), (1500, "fd00::1", 1408), (9000, "10.0.0.1", 8832), (65536, "127.0.0.1", 16384)],
)
def test_no_word_of_a_message_is_split_between_packets(link_mtu: int, address: str, payload: int) -> None:
    assert LocalPlane(ipaddress.ip_address(address), "", "eth0", link_mtu).payload_mtu == payload


def test_a_carrier_must_leave_the_checksum_alone() -> None:
    final = ipaddress.ip_address("fcbb:bb00:1001::")
    neutral = ipaddress.ip_address(f"fcbb:bb00:{0xFFFF - 0x200 - 0x101:x}:200:101:1001::")
    with Device(["::1"], srv6=True) as device:
        device.add_peer([PeerPlane(final, 4791, (), 0, (neutral,))])
        with pytest.raises(ConfigError, match="checksum"):
            device.add_peer([PeerPlane(final, 4791, (), 0, (ipaddress.ip_address("fcbb:bb00:100:200:101:1001::"),))])


def test_wrong_numbers_are_refused_by_name() -> None:
    for settings in (
        {"port": 70000},
        {"port": -1},
        {"port": 1.5},
        {"sockets_per_plane": 0},
        {"sockets_per_plane": 257},
    ):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            Device(["127.0.0.1"], **settings)
    with pair(("127.0.0.1",)) as (a, b):
        source = a.device.register(bytearray(64))
        region = b.device.register(bytearray(64), remote_write=True)
        good: dict[str, Any] = {"offset": 0, "length": 64, "remote_va": 0, "rkey": region.rkey, "wr_id": 1, "imm": 1}
        for field in good:
            for wrong in (-1, 1 << 64, 0.5, "x"):
                with pytest.raises(ConfigError, match=field):
                    a.post_write(source, **good | {field: wrong})
        with pytest.raises(ConfigError, match="source"):
            a.post_write(bytearray(64), **good)  # type: ignore[arg-type]
        for call in (
            a.device.fault_stats,
            lambda n: a.device.set_port(n, True),
            lambda n: a.device.set_faults(n, drop=0.1),
        ):
            for wrong in (-1, 1, 0.5, "x", 1 << 32):
                with pytest.raises(ConfigError, match="plane"):
                    call(wrong)
        for wrong in (-1, 0.5, 1 << 32):
            with pytest.raises(ConfigError):
                a.post_recv(count=wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigError):
                a.send_cq.wait(0, most=wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigError):
                a.device.probe(a.peer, 0, wrong, 1)  # type: ignore[arg-type]
            with pytest.raises(ConfigError):
                a.device.add_peer([replace(b.device.reached_at(0)[0], port=wrong)])
        with pytest.raises(ConfigError, match="timeout_s"):
            a.send_cq.wait(float("nan"))
        with pytest.raises(ConfigError, match="drop"):
            a.device.set_faults(drop="often")  # type: ignore[arg-type]
        b.post_recv()
        a.post_write(source, **good)
        assert [c.ok for c in drain(a.send_cq, 1)] == [True]
