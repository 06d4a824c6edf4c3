"""Many threads at one device: that they end is seen here, what else may go wrong is for ThreadSanitizer to see."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from loopback import connect, drain, pair

from softmrc.device import CompletionQueue, Device
from softmrc.errors import UsageError

pytestmark = pytest.mark.slow


def test_everything_may_be_asked_while_packets_fly() -> None:
    """Each thread asks for something else, or changes it, while two write to each other."""
    with pair() as (a, b):
        regions = [qp.device.register(bytearray(1 << 16), remote_write=True) for qp in (a, b)]
        is_over = threading.Event()
        failures: list[BaseException] = []

        def write(qp: Any, source: Any, target: Any) -> None:
            for number in range(100):
                qp.post_write(source, 0, 1 << 16, remote_va=0, rkey=target.rkey, wr_id=number)
                assert [c.ok for c in drain(qp.send_cq, 1)] == [True]

        def ask(question: Callable[[], Any]) -> None:
            while not is_over.is_set():
                question()

        def guarded(fn: Callable[..., None], *arguments: Any) -> threading.Thread:
            def run() -> None:
                try:
                    fn(*arguments)
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        def ask_for_a_stranger() -> None:
            with suppress(UsageError):
                a.device._native.query_qp(0xFFFFFE)

        device = a.device
        questions: list[Callable[[], Any]] = [
            device.stats,
            device.planes,
            lambda: (a.query(), a.stats(), a.evs()),
            lambda: device.set_faults(drop=0.001),
            lambda: device.poll_events(16),
            ask_for_a_stranger,
            lambda: device._native.has_gso,
            lambda: device._native.set_spin_us(20.0),
        ]
        asking = [guarded(ask, question) for question in questions]
        writing = [guarded(write, a, regions[0], regions[1]), guarded(write, b, regions[1], regions[0])]
        for thread in writing:
            thread.join()
        is_over.set()
        for thread in asking:
            thread.join()
        assert not failures


# Python collects garbage where it makes objects, and what it runs then may be anything: a finalizer that calls the
# device, or another thread that does. If objects were made while the engine is locked, that would be a deadlock.
COLLECTING = """
import gc
from softmrc.errors import UsageError
from softmrc.device import Device

with Device(["127.0.0.1"]) as device:
    native, kept = device._native, []  # kept: Python reuses what is freed, and asks for no memory then
    gc.callbacks.append(lambda phase, info: native.poll_events(1))
    gc.set_threshold(1)
    for _ in range(100):
        kept.append((native.lanes(), native.planes(), native.fault_stats(0)))
        for question in (native.query_qp, native.query_evs, native.qp_stats):
            try:
                question(0xFFFFFE)
            except UsageError as error:
                kept.append(error)
    gc.callbacks.clear()
print("all answered")
"""


def test_nothing_of_pythons_is_made_while_the_engine_is_held() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "all answered\n", done.stderr


def test_threads_that_wait_for_something_else_sleep_on() -> None:
    """On one lane one drives. A thread that waits for what has not come is not woken whenever something else has."""
    idle, messages = 16, 2000
    switches: list[int] = []
    with Device(["127.0.0.1"], lanes=1) as a, Device(["127.0.0.1"], lanes=1) as b:
        busy, *others = [connect(a, b)[0] for _ in range(1 + idle)]
        source, target = a.register(bytearray(64)), b.register(bytearray(64), remote_write=True)
        ready, is_over = threading.Barrier(idle + 1), threading.Event()

        def wait(queue: CompletionQueue) -> None:
            ready.wait()
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            while not is_over.is_set():
                queue.wait(0.5)
            switches.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)

        threads = [threading.Thread(target=wait, args=(qp.recv_cq,)) for qp in others]
        for thread in threads:
            thread.start()
        ready.wait()
        for _ in range(messages):
            busy.post_write(source, 0, 64, remote_va=0, rkey=target.rkey)
            assert [c.ok for c in drain(busy.send_cq, 1, 60)] == [True]
        is_over.set()
        for thread in threads:
            thread.join(60)
    assert len(switches) == idle
    assert sum(switches) < idle * messages / 4, switches
