"""One connection, or one queue, and several who use it: threads, tasks that may be cancelled, event loops."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from loopback import LIMIT_S, drain, eventually, pair

from softmrc.connection import Connection, connect, listen
from softmrc.device import Device
from softmrc.device.completion import Readiness
from softmrc.errors import ConfigError, RemoteError, UsageError


@contextmanager
def connected(**settings: Any) -> Iterator[tuple[Connection, Connection]]:
    with (
        listen(memory=bytearray(1 << 16), **settings) as listener,
        connect("127.0.0.1", listener.port, **settings) as a,
        listener.accept(LIMIT_S) as b,
    ):
        yield a, b


def all_end(jobs: list[Callable[[], Any]]) -> bool:
    """Whether each comes to its end, in a separate thread; a failure is none."""
    ended: list[bool] = []

    def run(job: Callable[[], Any]) -> None:
        job()
        ended.append(True)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 3 * LIMIT_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return len(ended) == len(jobs)


@pytest.mark.parametrize("what", ["recv", "write"])
def test_cancelling_takes_effect_though_what_was_waited_for_has_come(what: str) -> None:
    """A task that is cancelled as the thing arrives ends, whichever of the two is seen first."""

    async def again_and_again(a: Connection, b: Connection) -> None:
        if what == "recv":
            while True:
                await b.recv_async()
        while True:
            await a.write_async(a.remote[0], 0, b"y")

    async def swallowed(a: Connection, b: Connection) -> int:
        for turn in range(300):
            task = asyncio.create_task(again_and_again(a, b))
            await asyncio.sleep(0.0005)
            await a.write_async(a.remote[0], 0, b"x", imm=turn)
            task.cancel()
            _, late = await asyncio.wait([task], timeout=1)
            if late:
                task.cancel()
                return turn + 1
            assert task.cancelled() or task.exception() is None, task
        return 0

    with connected(lanes=1) as (a, b):
        assert asyncio.run(swallowed(a, b)) == 0


def test_a_timeout_around_recv_fires_under_a_steady_stream() -> None:
    async def late(a: Connection, b: Connection) -> int:
        async def reader() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.003):
                    while True:
                        await b.recv_async()

        for turn in range(100):
            task = asyncio.create_task(reader())
            for _ in range(12):
                await a.write_async(a.remote[0], 0, b"x", imm=turn)
                await asyncio.sleep(0.0003)
            if (await asyncio.wait([task], timeout=1))[1]:
                task.cancel()
                return turn + 1
            task.result()
        return 0

    with connected(lanes=1) as (a, b):
        assert asyncio.run(late(a, b)) == 0


def test_a_message_is_not_lost_with_the_task_that_was_to_have_it() -> None:
    async def heard(a: Connection, b: Connection) -> list[int]:
        got: list[int] = []

        async def reader() -> None:
            while True:
                got.append((await b.recv_async()).imm)

        for turn in range(200):
            task = asyncio.create_task(reader())
            await asyncio.sleep(0)
            await a.write_async(a.remote[0], 0, b"x", imm=turn)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None, task
        while len(got) < 200:
            got.append((await asyncio.wait_for(b.recv_async(), LIMIT_S)).imm)
        return got

    with connected(lanes=1) as (a, b):
        assert asyncio.run(heard(a, b)) == list(range(200))


def test_threads_that_share_a_connection_do_not_wait_for_what_another_has_taken() -> None:
    """A thread that misses the end of its own write sleeps until something else happens."""

    def write(a: Connection) -> None:
        for _ in range(300):
            a.write(a.remote[0], 0, b"x" * 64)

    with connected(lanes=1) as (a, _):
        assert all_end([lambda: write(a) for _ in range(4)])


def test_threads_that_receive_from_one_connection_do_not_either() -> None:
    heard: list[int] = []

    def receive(b: Connection) -> None:
        for _ in range(200):
            heard.append(b.recv().imm)

    def write(a: Connection) -> None:
        for turn in range(80):
            for number in [a.post(a.remote[0], 0, b"x", imm=10 * turn + one) for one in range(10)]:
                a.wait(number)

    with connected(lanes=1) as (a, b):
        assert all_end([lambda: write(a), *(lambda: receive(b) for _ in range(4))])
        assert sorted(heard) == list(range(800))


def test_threads_and_tasks_may_share_one_too() -> None:
    async def write_async(a: Connection) -> None:
        for _ in range(100):
            await asyncio.gather(*(a.write_async(a.remote[0], 0, b"y") for _ in range(3)))

    def write(a: Connection) -> None:
        for _ in range(300):
            a.write(a.remote[0], 0, b"x")

    with connected(lanes=1) as (a, _):
        jobs: list[Callable[[], Any]] = [lambda: write(a), lambda: asyncio.run(write_async(a))]
        assert all_end(2 * jobs)


def test_writes_that_nobody_waits_for_take_no_memory() -> None:
    """Posts of which every hundredth is waited for, and posts of which none is: what they leave is bounded."""
    buffer = bytearray(64)

    def post(a: Connection, count: int, waits: bool) -> None:
        for turn in range(count):
            number = 0
            for _ in range(100):
                number = a.post(a.remote[0], 0, buffer)
            if waits:
                a.wait(number, LIMIT_S)
            elif turn % 4 == 3:
                a.device._native.flush(a.qp.qpn, LIMIT_S)

    with connected(lanes=1) as (a, _):
        for waits in (True, False):
            post(a, 40, waits)
            tracemalloc.start()
            post(a, 100, waits)
            grown, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert grown < 300_000, (waits, grown)  # of 10 000 writes; a send queue of them may be under way


def test_a_write_that_ended_well_long_ago_may_be_waited_for_again() -> None:
    with connected() as (a, _):
        numbers = [a.post(a.remote[0], 0, b"x") for _ in range(200)]
        a.wait(numbers[-1], LIMIT_S)
        for number in numbers * 2:
            a.wait(number, 0)
        for wrong in (0, numbers[-1] + 1):
            with pytest.raises(ConfigError, match="what `post` returned"):
                a.wait(wrong, 0)


def test_a_write_that_failed_is_told_whenever_it_is_asked_for() -> None:
    with connected() as (a, b):
        good = a.post(a.remote[0], 0, b"x")
        a.wait(good, LIMIT_S)
        b.close()
        with suppress(RemoteError, UsageError):
            a.write(a.remote[0], 0, b"x")
        bad = good + 1
        for _ in range(2):
            with pytest.raises(RemoteError, match="failed"):
                a.wait(bad, LIMIT_S)
        a.wait(good, 0)


def test_what_was_under_way_when_the_connection_closed_did_not_end_well() -> None:
    with connected() as (a, _):
        a.device.set_faults(black_hole=True)
        number = a.post(a.remote[0], 0, b"x")
        a.close(0.0)
        with pytest.raises(UsageError, match="closed"):
            a.wait(number, 0)


def test_one_queue_is_awaited_from_two_event_loops() -> None:
    with pair(("127.0.0.1",), lanes=1) as (a, b):
        region, source = b.device.register(bytearray(64), remote_write=True), a.device.register(bytearray(64))
        seen: list[int] = []
        failures: list[BaseException] = []

        async def eat() -> None:
            async for completion in a.send_cq:
                seen.append(completion.wr_id)

        def run() -> None:
            try:
                asyncio.run(asyncio.wait_for(eat(), 2))
            except TimeoutError:
                pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(50):
            a.post_write(source, 0, 64, remote_va=0, rkey=region.rkey, wr_id=number)
            assert eventually(lambda number=number: len(seen) > number or bool(failures))
        for thread in threads:
            thread.join()
        assert not failures and sorted(seen) == list(range(50))
        a.post_write(source, 0, 64, remote_va=0, rkey=region.rkey, wr_id=99)
        assert [one.wr_id for one in drain(a.send_cq, 1)] == [99]


def test_one_connection_is_written_to_from_two_event_loops() -> None:
    async def write(a: Connection) -> None:
        for _ in range(200):
            await a.write_async(a.remote[0], 0, b"y")

    with connected(lanes=1) as (a, _):
        assert all_end([lambda: asyncio.run(write(a)) for _ in range(2)])


@pytest.mark.parametrize("how", ["recv", "recv_async"])
def test_the_peer_is_not_blamed_for_what_this_side_closed(how: str) -> None:
    """Closed the moment before it is looked whether the peer is still there."""
    for what in ("connection", "device"):
        with (
            Device(["127.0.0.1"]) as mine,
            listen(device=mine) as listener,
            connect("127.0.0.1", listener.port) as a,
            listener.accept(LIMIT_S) as b,
        ):
            look, close = b.has_lost_peer, mine.close if what == "device" else b.close

            def closed_meanwhile(look: Any = look, close: Any = close) -> bool:
                close()
                return look()

            a.close()
            b.has_lost_peer = closed_meanwhile  # type: ignore[method-assign]
            with pytest.raises(UsageError, match="closed"):
                if how == "recv":
                    b.recv(LIMIT_S)
                else:
                    asyncio.run(asyncio.wait_for(b.recv_async(), LIMIT_S))


def test_who_depends_on_a_device_is_listed_while_others_come_and_go() -> None:
    class Dependent:
        def on_device_closed(self) -> None:
            pass

    with Device(["127.0.0.1"], lanes=1) as device:
        lasting = [Dependent() for _ in range(300)]
        for one in lasting:
            device.tell_when_closed(one)
        is_over = threading.Event()

        def come_and_go() -> None:
            kept: list[Dependent] = []
            while not is_over.is_set():
                kept.append(Dependent())
                device.tell_when_closed(kept[-1])
                if len(kept) > 300:
                    kept.clear()

        thread = threading.Thread(target=come_and_go)
        thread.start()
        try:
            until = time.monotonic() + 4
            while time.monotonic() < until:
                assert set(lasting) <= set(device._dependents())
        finally:
            is_over.set()
            thread.join()


def test_a_task_that_finds_another_one_woken_lets_it_run() -> None:
    """It would spin for ever where it polls again at once: the loop then runs nothing else."""

    async def both() -> int:
        ready, (ours, theirs) = Readiness(), os.pipe()
        first = asyncio.create_task(ready.wait(ours))
        await asyncio.sleep(0)
        next(iter(ready._waited_for.values())).set()  # as the loop does when there is something to read
        turns = 0
        while not first.done() and turns < 1000:
            await ready.wait(ours)
            turns += 1
        os.close(ours), os.close(theirs)
        return turns

    assert asyncio.run(both()) < 10
