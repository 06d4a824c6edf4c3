"""A waiting caller learns at once that what it waits for was closed: by another thread, by another task."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from loopback import LIMIT_S, drain, eventually, outcome_of, pair

from softmrc.connection import connect, listen
from softmrc.device import Device, iterate
from softmrc.errors import UsageError


def async_outcomes(waits: list[Callable[[], Awaitable[Any]]], close: Callable[[], None]) -> list[Any]:
    """The same for tasks of one loop, which has to end after them."""

    async def all_of_them() -> list[Any]:
        tasks = [asyncio.ensure_future(wait()) for wait in waits]
        await asyncio.sleep(0.05)
        thread = threading.Thread(target=close)
        thread.start()
        done, late = await asyncio.wait(tasks, timeout=LIMIT_S)
        for task in late:
            task.cancel()
        thread.join()
        return ["still waiting" if task not in done else task.exception() or task.result() for task in tasks]

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(all_of_them())), daemon=True)
    thread.start()
    thread.join(3 * LIMIT_S)
    return found[0] if found else ["the loop does not end"]


@pytest.mark.parametrize("timeout_s", [None, LIMIT_S, 0.15])
def test_a_thread_that_waits_for_a_completion(timeout_s: float | None) -> None:
    """With a short time too: that nothing came is not the whole truth."""
    device = Device(["127.0.0.1"])
    queue = device.create_cq()
    outcome = outcome_of(lambda: queue.wait(timeout_s), device.close)
    assert isinstance(outcome, UsageError) and "closed" in str(outcome), outcome


def test_who_waits_for_a_queue_that_is_destroyed() -> None:
    """Threads with and without a limit, and tasks; none gets what ends on the queue that is made next."""
    with pair(("127.0.0.1",)) as (a, b):
        region, source = b.device.register(bytearray(64), remote_write=True), a.device.register(bytearray(64))
        for wait in (lambda cq: cq.wait(), lambda cq: cq.wait(LIMIT_S), lambda cq: list(iterate(cq))):
            queue = a.device.create_cq()
            outcome = outcome_of(lambda queue=queue, wait=wait: wait(queue), queue.destroy)
            assert isinstance(outcome, UsageError) and "was destroyed" in str(outcome), outcome
        queue = a.device.create_cq()
        for outcome in async_outcomes([queue.wait_async, queue.wait_async], queue.destroy):
            assert isinstance(outcome, UsageError) and "was destroyed" in str(outcome), outcome
        with a.device.create_qp(a.device.create_cq()) as qp:
            qp.init()
            qp.rtr(a.peer, dest_qpn=b.qpn, first_psn=0)
            qp.rts()
            qp.error()
            for call in (queue.poll, lambda: queue.wait(0), queue.fileno, queue.destroy):
                with pytest.raises(UsageError, match="was destroyed"):
                    call()
        a.post_write(source, 0, 64, remote_va=0, rkey=region.rkey, wr_id=1)
        assert drain(a.send_cq, 1)


def test_a_queue_that_is_not_destroyed_after_all_is_waited_for_as_before() -> None:
    with pair(("127.0.0.1",)) as (a, b):
        region, source = b.device.register(bytearray(64), remote_write=True), a.device.register(bytearray(64))

        def refused() -> None:
            with pytest.raises(UsageError, match="queue pair"):
                a.send_cq.destroy()
            a.post_write(source, 0, 64, remote_va=0, rkey=region.rkey, wr_id=5)

        assert [one.wr_id for one in outcome_of(a.send_cq.wait, refused)] == [5]


def test_tasks_that_wait_for_completions_and_events() -> None:
    device = Device(["127.0.0.1"])
    one, two = device.create_cq(), device.create_cq()

    async def next_event() -> Any:
        return [event async for event in device.events()]

    outcomes = async_outcomes([one.wait_async, one.wait_async, two.wait_async, next_event, next_event], device.close)
    for outcome in outcomes:
        assert isinstance(outcome, UsageError) and "closed" in str(outcome), outcomes


def test_waiting_for_a_closed_device_does_not_begin() -> None:
    with Device(["127.0.0.1"]) as device:
        queue = device.create_cq()

    async def next_event() -> Any:
        return [event async for event in device.events()]

    for outcome in async_outcomes([queue.wait_async, next_event], lambda: None):
        assert isinstance(outcome, UsageError) and "closed" in str(outcome), outcome


def test_threads_and_tasks_that_wait_for_a_connector() -> None:
    listener = listen()
    outcome = outcome_of(listener.accept, listener.close)
    assert isinstance(outcome, UsageError) and "the listener is closed" in str(outcome), outcome
    listener = listen()
    for outcome in async_outcomes([listener.accept_async, listener.accept_async], listener.close):
        assert isinstance(outcome, UsageError) and "the listener is closed" in str(outcome), outcome


def test_a_listener_whose_device_is_closed() -> None:
    with Device(["127.0.0.1"]) as device, listen(device=device) as listener:
        outcome = outcome_of(listener.accept, device.close)
        assert isinstance(outcome, UsageError) and "closed" in str(outcome), outcome


def test_waiting_for_no_time_takes_what_is_there() -> None:
    with pair(("127.0.0.1",)) as (a, b):
        region, source = b.device.register(bytearray(64), remote_write=True), a.device.register(bytearray(64))
        a.post_write(source, 0, 64, remote_va=0, rkey=region.rkey, wr_id=1)
        assert drain(a.send_cq, 1)
        a.post_write(source, 0, 64, remote_va=0, rkey=region.rkey, wr_id=2)
        until = time.monotonic() + LIMIT_S
        while not (found := a.send_cq.wait(0)) and time.monotonic() < until:
            time.sleep(0.001)
        assert [c.wr_id for c in found] == [2]


def test_a_capture_knows_its_packets_after_the_device_closed(tmp_path: Path) -> None:
    with pair(("127.0.0.1",)) as (a, b):
        region, source = b.device.register(bytearray(64), remote_write=True), a.device.register(bytearray(64))
        with a.device.capture(str(tmp_path / "it.pcapng")) as capture:
            a.post_write(source, 0, 64, remote_va=0, rkey=region.rkey)
            assert drain(a.send_cq, 1)
            a.device.close()
        assert capture.packets >= 2 and capture.stop() == capture.packets


FORKING = """
import os
from softmrc.connection import connect, listen
from softmrc.errors import UsageError

with listen(memory=bytearray(64)) as listener:
    child = os.fork()
    if child == 0:
        try:
            listener.accept(0)
        except UsageError as error:
            print("forked" in str(error), flush=True)
        listener.close()
        os._exit(0)
    os.waitpid(child, 0)
    with connect("127.0.0.1", listener.port) as peer, listener.accept(20) as other:
        peer.write(peer.remote[0], 0, b"hello", imm=1)
        print(other.recv(20).imm, flush=True)
"""


def test_a_forked_child_closes_its_copy_of_a_listener_alone() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "True\n1\n", done.stderr


FORKED_CONNECTION = """
import asyncio, os
from softmrc.connection import connect, listen
from softmrc.errors import UsageError

with (
    listen(memory=bytearray(64)) as listener,
    connect("127.0.0.1", listener.port) as peer,
    listener.accept(20) as other,
):
    number = peer.post(peer.remote[0], 0, b"hello", imm=1)
    child = os.fork()
    if child == 0:
        calls = (
            lambda: peer.write(peer.remote[0], 0, b"x"),
            lambda: peer.post(peer.remote[0], 0, b"x"),
            lambda: peer.wait(number),
            lambda: peer.recv(1),
            lambda: asyncio.run(peer.recv_async()),
            lambda: asyncio.run(peer.write_async(peer.remote[0], 0, b"x")),
            lambda: peer.device.register(bytearray(64)),
            lambda: peer.qp.query(),
        )
        for call in calls:
            try:
                call()
            except UsageError as error:
                print("does not survive a fork" in str(error), flush=True)
        for one in (peer, other, listener):
            one.close()
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
    peer.wait(number, 20)
    print(other.recv(20).imm, flush=True)
"""


def test_a_connection_does_not_survive_a_fork_and_says_so() -> None:
    command = [sys.executable, "-c", FORKED_CONNECTION]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == 8 * "True\n" + "0\n1\n", done.stdout + done.stderr


def test_what_is_over_holds_no_descriptor_though_somebody_holds_it() -> None:
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    with listen(memory=bytearray(64), lanes=1) as listener:
        before = held()
        kept: list[Any] = []
        for _ in range(5):
            peer = connect("127.0.0.1", listener.port, lanes=1)
            other = listener.accept(10)
            peer.write(peer.remote[0], 0, b"x", imm=1)
            other.recv(10)
            for one in (other, peer):
                one.close()
                kept.append(one)
        devices = [Device(["127.0.0.1"], lanes=2) for _ in range(5)]
        for device in devices:
            for lane in range(2):
                device.create_qp(device.create_cq(), lane=lane)
            device.close()
        assert eventually(lambda: held() <= before)
        assert all(one.device.is_closed for one in kept[1::2]) and all(device.is_closed for device in devices)


def test_a_listener_that_nobody_holds_waits_for_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may come to it in a thread that holds what the reception's waits for."""
    is_held, is_given = threading.Event(), threading.Event()
    listener = listen(memory=bytearray(16))

    def wait() -> None:
        is_held.set()
        is_given.wait(3 * LIMIT_S)

    monkeypatch.setattr(listener._acceptor, "_poll", wait)
    with socket.create_connection(("127.0.0.1", listener.port)):
        assert is_held.wait(LIMIT_S)
        reception, holder = listener._acceptor, [listener]
        del listener
        collector = threading.Thread(target=holder.clear, daemon=True)
        collector.start()
        collector.join(LIMIT_S)
        is_waiting = collector.is_alive()
        is_given.set()
        reception._thread.join(LIMIT_S)
        assert not is_waiting and not reception._thread.is_alive()
    assert reception._wake == -1 and reception._native.pending == 0
