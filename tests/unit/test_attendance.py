"""Ctrl-C between any two steps of somebody who waits for a completion queue: those who wait later are served."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from interrupting import is_interrupted
from softmrc.connection import connect, connection, listen
from softmrc.connection import shared_poller as module
from softmrc.connection.shared_poller import SharedPoller

LIMIT_S = 20.0


class Queue:
    """What an attendance asks of a completion queue. It holds what it is made with."""

    def __init__(self, *held: Any) -> None:
        self.asked = 0
        self._held = list(held)

    def take(self, taken: list[Any], timeout_s: float | None = None) -> None:
        self.asked += 1
        taken.extend(map(self._held.pop, [0] * len(self._held)))

    def completions(self, taken: Any) -> list[Any]:
        return [taken]

    def wake(self) -> None:
        pass


def interrupted(step: int, fn: Callable[[], Any], *more: str | None) -> bool:
    return is_interrupted(step, fn, module.__file__, threading.__file__, *more)


@pytest.mark.parametrize("is_wait", [True, False], ids=["wait", "look"])
def test_ctrl_c_leaves_nobody_waiting(is_wait: bool) -> None:
    step, is_over = 0, False
    while not is_over:
        step += 1
        queue = Queue()
        attendance = SharedPoller(queue)  # type: ignore[arg-type]

        def call(attendance: SharedPoller = attendance) -> None:
            if is_wait:
                attendance.wait(lambda: False, lambda found: None, 0.0)
            else:
                attendance.look(lambda found: None)

        is_over = not interrupted(step, call)
        before = queue.asked
        later = threading.Thread(target=attendance.wait, args=(lambda: False, lambda found: None, 0.0), daemon=True)
        later.start()
        later.join(LIMIT_S)
        assert not later.is_alive() and queue.asked == before + 1, f"interrupted at step {step}"
    assert step > 3


@pytest.mark.parametrize("is_wait", [True, False], ids=["wait", "look"])
def test_ctrl_c_loses_no_completion(is_wait: bool) -> None:
    """Who is interrupted may have taken what others wait for. It is noted by the next call at the latest."""
    step, is_over = 0, False
    while not is_over:
        step += 1
        attendance = SharedPoller(Queue("first", "second"))  # type: ignore[arg-type]
        noted: dict[Any, None] = {}

        def note(found: list[Any], noted: dict[Any, None] = noted) -> None:
            noted.update(dict.fromkeys(found))

        def call(attendance: SharedPoller = attendance, note: Callable[[list[Any]], None] = note) -> None:
            if is_wait:
                attendance.wait(lambda: False, note, 0.0)
            else:
                attendance.look(note)

        is_over = not interrupted(step, call)
        attendance.look(note)
        assert list(noted) == ["first", "second"], f"interrupted at step {step}"
    assert step > 6


def test_ctrl_c_loses_and_doubles_no_message() -> None:
    """Nor a receive: there are fewer than interruptions."""
    with (
        listen(memory=bytearray(16), max_wimm=8) as listener,
        connect("127.0.0.1", listener.port, max_wimm=8) as a,
        listener.accept(LIMIT_S) as b,
    ):
        step, is_over = 0, False
        while not is_over:
            step += 1
            a.write(a.remote[0], 0, b"x", imm=step)
            is_over = not interrupted(step, lambda: b._arrivals.look(b._receive), connection.__file__)
            assert b.recv(LIMIT_S).imm == step
            with pytest.raises(TimeoutError):
                b.recv(0)
        assert step > 12


def test_ctrl_c_in_recv_loses_no_message() -> None:
    """Not even one that it had taken and not returned yet."""
    with (
        listen(memory=bytearray(16)) as listener,
        connect("127.0.0.1", listener.port) as a,
        listener.accept(LIMIT_S) as b,
    ):
        step, is_over = 0, False
        while not is_over:
            step += 1
            a.write(a.remote[0], 0, b"x", imm=step)
            is_over = not interrupted(step, lambda: b.recv(LIMIT_S), connection.__file__)
            if not is_over:
                assert b.recv(LIMIT_S).imm == step, f"interrupted at step {step}"
        assert step > 12


def test_those_who_wait_are_told_of_what_another_took() -> None:
    queue, has_begun, ends = Queue(), threading.Event(), threading.Event()
    attendance, noted = SharedPoller(queue), []  # type: ignore[arg-type]

    def slow(taken: list[Any], timeout_s: float | None = None) -> None:
        has_begun.set()
        ends.wait(LIMIT_S)
        taken.append(1)

    queue.take = slow  # type: ignore[method-assign]
    first = threading.Thread(target=attendance.wait, args=(lambda: False, noted.extend, LIMIT_S))
    first.start()
    assert has_begun.wait(LIMIT_S)
    assert attendance.look(noted.extend), "another is about to say"
    threading.Timer(0.05, ends.set).start()
    assert attendance.wait(lambda: bool(noted), noted.extend, LIMIT_S)
    assert noted == [1]
    first.join(LIMIT_S)
