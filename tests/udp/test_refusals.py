"""What a device refuses: things that are gone, another's, or more than there is room for."""

from __future__ import annotations

from pathlib import Path

import pytest
from loopback import connect, drain, pair

from softmrc.device import Device, QueuePair
from softmrc.errors import ConfigError, UsageError
from softmrc.wire import read_pcapng

ONE = ("127.0.0.1",)
ROOM = 1 << 16  # receives that may wait


def write_from(qp: QueuePair, source: object, rkey: int) -> None:
    qp.post_write(source, 0, 8, remote_va=0, rkey=rkey)  # type: ignore[arg-type]


def test_memory_that_was_taken_back_is_not_sent_from() -> None:
    with pair(ONE) as (a, b):
        target = b.device.register(bytearray(8), remote_write=True)
        source = a.device.register(bytearray(8))
        source.deregister()
        with pytest.raises(UsageError, match="deregistered"):
            write_from(a, source, target.rkey)


@pytest.mark.parametrize("is_open", [True, False])
def test_memory_of_another_device_is_not_sent_from(is_open: bool) -> None:
    with pair(ONE) as (a, b), Device(ONE) as other:
        target = b.device.register(bytearray(8), remote_write=True)
        source = other.register(bytearray(8))
        if not is_open:
            other.close()
        with pytest.raises(ConfigError, match="source"):
            write_from(a, source, target.rkey)


@pytest.mark.parametrize("remote_write", [True, False])
@pytest.mark.parametrize("closes", [True, False])
def test_memory_that_was_taken_back_is_its_owners(remote_write: bool, closes: bool) -> None:
    memory = bytearray(8)
    with Device(ONE) as device:
        region = device.register(memory, remote_write=remote_write)
        with pytest.raises(BufferError):
            memory.append(1)
        if closes:
            device.close()
        else:
            region.deregister()
        memory.append(1)
        assert "deregistered" in repr(region)
        with pytest.raises(UsageError, match="closed" if closes else "deregistered"):
            _ = region.buffer


def test_a_closed_device_says_so_and_not_that_memory_is_gone() -> None:
    with pair(ONE) as (a, b):
        target = b.device.register(bytearray(8), remote_write=True)
        source = a.device.register(bytearray(8))
        a.device.close()
        with pytest.raises(UsageError, match="closed"):
            write_from(a, source, target.rkey)


def test_a_queue_stays_while_a_queue_pair_uses_it() -> None:
    with Device(ONE) as device:
        sends, receives = device.create_cq(), device.create_cq()
        qp = device.create_qp(sends, receives)  # in RESET
        for queue in (sends, receives):
            with pytest.raises(UsageError, match="used by a queue pair"):
                queue.destroy()
        qp.init()
        qp.destroy()
        for queue in (sends, receives):
            queue.destroy()
        for queues in ((sends, None), (device.create_cq(), receives)):
            with pytest.raises(UsageError, match="destroyed"):
                device.create_qp(*queues)


def test_so_many_receives_may_wait() -> None:
    with pair(ONE) as (a, b):
        for many in (ROOM + 1, 1 << 26, (1 << 32) - 1):
            with pytest.raises(UsageError, match=r"65,536"):
                b.post_recv(count=many)
        b.post_recv(count=ROOM - 1)
        with pytest.raises(UsageError, match=r"65,536"):
            b.post_recv(count=2)  # none of them, rather than one
        b.post_recv()
        with pytest.raises(UsageError, match=r"65,536"):
            b.post_recv()
        target, source = b.device.register(bytearray(8), remote_write=True), a.device.register(bytearray(8))
        a.post_write(source, 0, 8, remote_va=0, rkey=target.rkey, imm=1)
        assert [c.ok for c in drain(b.recv_cq, 1)] == [True]
        b.post_recv()  # there is room again


def test_one_capture_at_a_time(tmp_path: Path) -> None:
    first, second = str(tmp_path / "first.pcapng"), str(tmp_path / "second.pcapng")
    with Device(ONE, lanes=1) as a, Device(ONE, lanes=1) as b:
        with a.capture(first) as capture:
            with pytest.raises(UsageError, match=r"first\.pcapng"):
                a.capture(second)
            qp, _ = connect(a, b)
            target, source = b.register(bytearray(8), remote_write=True), a.register(bytearray(8))
            write_from(qp, source, target.rkey)
            assert [c.ok for c in drain(qp.send_cq, 1)] == [True]
        assert len(list(read_pcapng(first))) == capture.packets > 0
        assert not Path(second).exists()
        with a.capture(second):
            capture.stop()  # of one that has ended, ends no other
            with pytest.raises(UsageError, match=r"second\.pcapng"):
                a.capture(first)


def test_a_failed_capture_is_none(tmp_path: Path) -> None:
    with Device(ONE) as device:
        with pytest.raises(OSError):
            device.capture(tmp_path / "no" / "folder")
        device.capture(tmp_path / "file.pcapng").stop()


def test_a_closed_device_takes_no_orders(tmp_path: Path) -> None:
    device = Device(ONE)
    device.close()
    file = tmp_path / "it.pcapng"
    for order in (lambda: device.capture(file), lambda: device.set_faults(drop=0.5), lambda: device.set_port(0, False)):
        with pytest.raises(UsageError, match="closed"):
            order()
    assert not file.exists()
