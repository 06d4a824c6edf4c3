"""A device of several lanes is one device to its callers: its queues, its memory, its ports and its peers."""

import asyncio
import contextlib
import gc
import os
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import FOUR, connect, drain, eventually, pair

from ports import free_ports
from softmrc import wire
from softmrc.config import DeviceConfig
from softmrc.device import CompletionQueue, Device, PeerPlane, QueuePair, shutdown, width
from softmrc.engine import EventType
from softmrc.errors import ConfigError, DeviceError, UsageError

SIZE = 300_000
TWO = FOUR[:2]


def joined(a: Device, b: Device, count: int, queue: CompletionQueue | None = None) -> list[tuple[QueuePair, QueuePair]]:
    """So many queue pairs between two devices; all of `a`'s end in one queue, if it is given."""
    found = []
    for _ in range(count):
        near = a.create_qp(queue or a.create_cq(), a.create_cq())
        far = b.create_qp(b.create_cq(), b.create_cq())
        for qp, other in ((near, far), (far, near)):
            qp.init()
            qp.rtr(qp.device.add_peer(other.reached_at), dest_qpn=other.qpn, first_psn=other.first_psn)
            qp.rts()
        found.append((near, far))
    return found


def write(qp: QueuePair, source: Any, target: Any, number: int) -> None:
    at = number * SIZE
    qp.post_write(source, at, SIZE, remote_va=at, rkey=target.rkey, wr_id=number)


@pytest.mark.parametrize(("here", "there"), [(1, 1), (4, 4), (4, 1), (3, 2), (2, 7)])
def test_every_queue_pair_moves_its_bytes_whatever_the_lanes(here: int, there: int) -> None:
    data = np.random.default_rng(here * 10 + there).integers(0, 256, 8 * SIZE, dtype=np.uint8)
    landed = np.zeros_like(data)
    with Device(TWO, lanes=here) as a, Device(TWO, lanes=there) as b:
        queue = a.create_cq()
        source, target = a.register(data), b.register(landed, remote_write=True)
        pairs = joined(a, b, 8, queue)
        assert [sum(near.lane == lane for near, _ in pairs) for lane in range(here)] == [
            8 // here + (lane < 8 % here) for lane in range(here)
        ], "spread evenly"
        assert {far.lane for _, far in pairs} == set(range(there))
        for number, (near, _) in enumerate(pairs):
            write(near, source, target, number)
        done = drain(queue, 8)
        assert sorted(c.wr_id for c in done) == list(range(8)) and all(c.ok for c in done)
        assert np.array_equal(landed, data)
        rows = b.lane_stats()
        assert len(rows) == there == b.lanes and all(row["datagrams_received"] for row in rows)
        assert b.stats()["datagrams_received"] >= sum(row["datagrams_received"] for row in rows) > 0


def test_lanes_open_when_they_are_needed() -> None:
    with Device(TWO, lanes=6) as device:
        assert len(device.lane_stats()) == 1
        sockets = device.config.sockets_per_plane
        assert [len(row["source_ports"]) for row in device.planes()] == [sockets, sockets]
        first = device.create_qp(device.create_cq())
        assert (first.lane, len(device.lane_stats())) == (0, 1)
        assert device.create_qp(device.create_cq()).lane == 1
        assert [len(row["source_ports"]) for row in device.planes()] == [2 * sockets, 2 * sockets]
        first.destroy()
        assert device.create_qp(device.create_cq()).lane == 0, "where there is none"
        assert device.create_qp(device.create_cq(), lane=5).lane == 5
        with pytest.raises(ConfigError, match="below 6"):
            device.create_qp(device.create_cq(), lane=6)
        assert "6 of 6 lanes open" in repr(device)


def test_memory_is_every_lanes_whenever_it_was_registered() -> None:
    early, late = (np.zeros(4 * SIZE, dtype=np.uint8) for _ in range(2))
    data = np.arange(4 * SIZE, dtype=np.uint32).view(np.uint8)[: 4 * SIZE]
    with Device(TWO, lanes=1) as a, Device(TWO, lanes=4) as b:
        source, first = a.register(data), b.register(early, remote_write=True)
        pairs = joined(a, b, 4)
        second = b.register(late, remote_write=True)
        for target in (first, second):
            for number, (near, _) in enumerate(pairs):
                write(near, source, target, number)
                assert drain(near.send_cq, 1)[0].ok
        assert np.array_equal(early, data) and np.array_equal(late, data)
        early[:] = 0
        first.deregister()
        for number, (near, _) in enumerate(pairs):
            write(near, source, first, number)
            assert not drain(near.send_cq, 1)[0].ok
        assert not early.any(), "what was taken back, no lane writes to"
        assert b._native.region_count == 1


def test_a_domain_is_closed_in_every_lane() -> None:
    secret, data = np.zeros(SIZE, dtype=np.uint8), np.ones(SIZE, dtype=np.uint8)
    with Device(lanes=2) as a, Device(lanes=3) as b:
        other = b.create_domain()
        pairs = joined(a, b, 6)
        target, source = b.register(secret, remote_write=True, domain=other), a.register(data)
        for near, _ in pairs:
            write(near, source, target, 0)
            assert not drain(near.send_cq, 1)[0].ok
        assert not secret.any()


def test_a_queue_over_lanes_wakes_who_waits_in_every_way() -> None:
    data, landed = np.ones(4 * SIZE, dtype=np.uint8), np.zeros(4 * SIZE, dtype=np.uint8)
    with Device(lanes=4) as a, Device(lanes=2) as b:
        queue = a.create_cq()
        pairs = joined(a, b, 4, queue)
        source, target = a.register(data), b.register(landed, remote_write=True)

        async def wait_async(count: int) -> list[int]:
            numbers: list[int] = []
            while len(numbers) < count:
                numbers += [c.wr_id for c in await asyncio.wait_for(queue.wait_async(), 30)]
            return numbers

        for _ in range(20):
            for number, (near, _) in enumerate(pairs):
                write(near, source, target, number)
            assert sorted(asyncio.run(wait_async(4))) == [0, 1, 2, 3]
            late = threading.Timer(0.01, lambda: [write(near, source, target, n) for n, (near, _) in enumerate(pairs)])
            late.start()
            assert sorted(c.wr_id for c in drain(queue, 4)) == [0, 1, 2, 3]
            late.join()
        assert queue.poll() == [] and queue.wait(0.0) == []


@pytest.mark.parametrize("lanes", [1, 4])
def test_who_waits_for_a_queue_that_goes_is_not_given_anothers(lanes: int) -> None:
    with Device(lanes=lanes) as device:
        queue = device.create_cq()
        for qp in [device.create_qp(queue) for _ in range(lanes)]:
            qp.init()
            qp.destroy()
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                queue.wait(60)
            except Exception as error:
                errors.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        queue.destroy()
        waiting.join(30)
        assert not waiting.is_alive() and isinstance(errors[0], UsageError)
        assert device.create_cq().number != queue.number
        with pytest.raises(UsageError):
            queue.destroy()


def test_ports_faults_and_events_are_the_devices() -> None:
    data, landed = np.ones(SIZE, dtype=np.uint8), np.zeros(SIZE, dtype=np.uint8)
    with Device(TWO, lanes=3) as a, Device(TWO, lanes=3) as b:
        joined(a, b, 2)
        a.set_port(1, False)
        a.set_faults(0, delay_us=1.0)
        near, far = joined(a, b, 1)[0]  # opens the third
        assert near.lane == 2
        write(near, a.register(data), b.register(landed, remote_write=True), 0)
        assert drain(near.send_cq, 1)[0].ok and landed.all()
        assert [row["is_up"] for row in a.planes()] == [True, False]
        told = [event for event in a.poll_events() if event.type == EventType.port_state]
        assert [event.plane for event in told] == [1], "once, not once a lane"
        assert a._native.faults(0).delay_us == 1.0
        assert eventually(lambda: all(q.query()["data_ports"] == 1 for q in (near, far)))
        a.set_port(1, True)
        assert eventually(lambda: far.query()["data_ports"] == 3)


def test_one_capture_holds_what_all_lanes_send(tmp_path: Path) -> None:
    data, landed = np.ones(3 * SIZE, dtype=np.uint8), np.zeros(3 * SIZE, dtype=np.uint8)
    file = tmp_path / "lanes.pcapng"
    with Device(lanes=3) as a, Device(lanes=1) as b:
        queue = a.create_cq()
        pairs = joined(a, b, 2, queue)
        with a.capture(str(file)) as capture:
            pairs += joined(a, b, 1, queue)
            source, target = a.register(data), b.register(landed, remote_write=True)
            for number, (near, _) in enumerate(pairs):
                write(near, source, target, number)
            drain(queue, 3)
        assert landed.all()
        port = b.ports_of(0)[0][0]
    frames = [record.frame for record in wire.read_pcapng(file)]
    there = [frame for frame in frames if int.from_bytes(frame[22:24], "big") == port]
    sent = {wire.Frame.parse(one, link_header=False, udp_port=port).packet.bth.dqp for one in there}
    assert {far.qpn for _, far in pairs} <= sent
    assert capture.packets == len(frames)


def test_closing_ends_all_lanes_and_gives_everything_back() -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def wait(queue: CompletionQueue) -> None:
        with pytest.raises(UsageError):
            queue.wait(60)

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    with Device(TWO):  # the first makes what stays
        pass
    assert eventually(lambda: not shutdown._leaving or not shutdown.wait())
    before = descriptors(), threads()
    for _ in range(3):
        with Device(TWO, lanes=5) as a, Device(TWO, lanes=5) as b:
            pairs = joined(a, b, 5)
            natives = a._native, b._native
            waiting = threading.Thread(target=wait, args=(pairs[3][0].send_cq,))
            waiting.start()
        waiting.join(30)
        assert not waiting.is_alive()
        assert all(native.wait_until_over(10.0) and native.is_over for native in natives)
        del a, b, pairs, natives, waiting
    assert eventually(lambda: (descriptors(), threads()) == before)


def test_a_fixed_port_is_the_first_of_as_many_as_lanes() -> None:
    with Device() as other:
        free = other.ports_of(0)[0][0]
    with Device(port=free) as one:
        assert one.lanes == 1
    with Device(port=free, lanes=3) as three:
        assert [three.ports_of(lane)[0][0] for lane in range(3)] == [free, free + 1, free + 2]
    with pytest.raises(ConfigError, match="65534"):
        Device(port=65535, lanes=2)
    for wrong in (65, 1 << 20, -1, 1.5):
        with pytest.raises(ConfigError, match="lanes"):
            Device(lanes=wrong)  # type: ignore[arg-type]


def test_how_wide_it_is_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(width, "QUOTA", quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert width.lanes_here(0) == 8 and width.lanes_here(4791) == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert width.lanes_here(0) == 2
    for said, lanes in (("16", 1), ("", 8), ("many", 8), ("0", 8)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
        assert width.lanes_here(0) == lanes
    quota.write_text("400000 100000\n")
    assert width.lanes_here(0) == 2
    quota.write_text("max 100000\n")
    assert width.lanes_here(0) == 8
    assert DeviceConfig().lanes == 0


# spec: peer-addresses
def test_a_peer_that_comes_back_is_heard_though_another_had_its_ports_meanwhile() -> None:
    with Device() as a, Device() as b:
        (near, _), again = joined(a, b, 1)[0], b.reached_at(0)
        near.destroy()
        thief = a.add_peer([PeerPlane(again[0].address, again[0].port, again[0].source_ports[:1])])
        a.remove_peer(thief)
        near, far = joined(a, b, 1)[0]
        target = a.register(bytearray(SIZE), remote_write=True)
        write(far, b.register(bytes(SIZE)), target, 0)
        assert drain(far.send_cq, 1)[0].ok


def test_who_told_no_ports_cannot_be_robbed_of_one() -> None:
    with pair(("127.0.0.1",)) as (a, b):
        whole = b.device.reached_at(0)[0]
        unnamed = PeerPlane(whole.address, whole.port)
        near = a.device.create_qp(a.device.create_cq())
        a.destroy()
        near.init()
        near.rtr(a.device.add_peer([unnamed]), dest_qpn=b.qpn, first_psn=b.first_psn)
        near.rts()
        with pytest.raises(ConfigError, match="no other peer's"):
            a.device.add_peer([PeerPlane(whole.address, 9, whole.source_ports[-1:])])


def test_the_same_remote_lane_may_be_known_to_several_here() -> None:
    data, landed = np.ones(4 * SIZE, dtype=np.uint8), np.zeros(4 * SIZE, dtype=np.uint8)
    with Device(lanes=4) as a, Device(lanes=1) as b:
        queue = a.create_cq()
        peer = a.add_peer(b.reached_at(0))
        source, target = a.register(data), b.register(landed, remote_write=True)
        for number in range(4):
            near, far = a.create_qp(queue), b.create_qp(b.create_cq())
            for qp, other, where in ((near, far, peer), (far, near, b.add_peer(near.reached_at))):
                qp.init()
                qp.rtr(where, dest_qpn=other.qpn, first_psn=other.first_psn)
                qp.rts()
            write(near, source, target, number)
        assert all(c.ok for c in drain(queue, 4)) and landed.all()
        assert a.probe(peer, 0, b.ports_of(0)[0][0], 7)
        a.remove_peer(peer)
        with pytest.raises(UsageError, match="was removed"):
            connect_again = a.create_qp(queue)
            connect_again.init()
            connect_again.rtr(peer, dest_qpn=1, first_psn=1)


def test_connections_use_all_lanes_of_a_device() -> None:
    with Device(lanes=3) as a, Device(lanes=2) as b:
        ends = [connect(a, b) for _ in range(6)]
        assert sorted(near.lane for near, _ in ends) == [0, 0, 1, 1, 2, 2]
        assert sorted(far.lane for _, far in ends) == [0, 0, 0, 1, 1, 1]


def test_where_a_lane_cannot_open_the_others_serve() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        first = free_ports(3)
        taken.bind(("127.0.0.1", first + 1))
        with Device(port=first, lanes=3) as device:
            queues = [device.create_qp(device.create_cq()) for _ in range(5)]
            assert [qp.lane for qp in queues] == [0] * 5
            with pytest.raises(DeviceError):
                device.create_qp(device.create_cq(), lane=1)


def test_a_lane_that_always_has_something_does_not_hide_another() -> None:
    data, landed = np.ones(SIZE, dtype=np.uint8), np.zeros(SIZE, dtype=np.uint8)
    with Device(lanes=2) as a, Device(lanes=2) as b:
        queue = a.create_cq()
        pairs = joined(a, b, 2, queue)
        source, target = a.register(data), b.register(landed, remote_write=True)
        busy, quiet = pairs[0][0], pairs[1][0]
        assert (busy.lane, quiet.lane) == (0, 1)
        for number in range(64):
            busy.post_write(source, 0, 8, remote_va=0, rkey=target.rkey, wr_id=number)
        quiet.post_write(source, 0, 8, remote_va=0, rkey=target.rkey, wr_id=1000)
        assert eventually(lambda: busy.query()["messages"] == 0 and quiet.query()["messages"] == 0)
        assert 1000 in [c.wr_id for _ in range(4) for c in queue.poll(1)]


def test_a_queue_that_is_destroyed_while_somebody_begins_to_wait() -> None:
    with Device(lanes=2) as device:
        for _ in range(200):
            queue = device.create_cq()
            waiting = threading.Thread(target=lambda one=queue: suppressed(one))
            waiting.start()
            queue.destroy()
            waiting.join(30)
            assert not waiting.is_alive()
        assert device._native.cq_count == 0


def suppressed(queue: CompletionQueue) -> None:
    with contextlib.suppress(UsageError, ConfigError):
        queue.wait(0.01)


def test_who_waits_for_one_lane_hears_of_the_next() -> None:
    data, landed = np.ones(SIZE, dtype=np.uint8), np.zeros(SIZE, dtype=np.uint8)
    with Device(lanes=2) as a, Device(lanes=1) as b:
        source, target = a.register(data), b.register(landed, remote_write=True)
        for _ in range(5):
            queue = a.create_cq()
            first = joined(a, b, 1, queue)[0][0]
            found: list[int] = []
            waiting = threading.Thread(target=lambda one=queue, to=found: to.extend(c.wr_id for c in one.wait(60)))
            waiting.start()
            second = next(near for near, _ in joined(a, b, 2, queue) if near.lane != first.lane)
            second.post_write(source, 0, 8, remote_va=0, rkey=target.rkey, wr_id=7)
            waiting.join(30)
            assert found == [7]
