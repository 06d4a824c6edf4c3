"""Ctrl-C between any two steps of somebody who waits for a completion queue: those who wait later are served."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from softmrc.connection import attendance as module
from softmrc.connection.attendance import Attendance

LIMIT_S = 20.0


class Queue:
    """What an attendance asks of a completion queue."""

    def __init__(self) -> None:
        self.taken = 0

    def poll(self) -> list[Any]:
        self.taken += 1
        return []

    def wait(self, timeout_s: float) -> list[Any]:
        return self.poll()

    def wake(self) -> None:
        pass


def interrupted(step: int, fn: Callable[[], Any]) -> bool:
    """Call it, with Ctrl-C at that step: as a function of its module or of `threading` begins, or as a function in C
    that one of them called returns. Those are the moments at which Python looks for signals. False: it has fewer."""
    files, left = (module.__file__, threading.__file__), step

    def look(frame: Any, event: str, _: Any) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename in files:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        fn()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("is_wait", [True, False], ids=["wait", "look"])
def test_ctrl_c_leaves_nobody_waiting(is_wait: bool) -> None:
    step, is_over = 0, False
    while not is_over:
        step += 1
        queue = Queue()
        attendance = Attendance(queue)  # type: ignore[arg-type]

        def call(attendance: Attendance = attendance) -> None:
            if is_wait:
                attendance.wait(lambda: False, lambda found: None, 0.0)
            else:
                attendance.look(lambda found: None)

        is_over = not interrupted(step, call)
        before = queue.taken
        later = threading.Thread(target=attendance.wait, args=(lambda: False, lambda found: None, 0.0), daemon=True)
        later.start()
        later.join(LIMIT_S)
        assert not later.is_alive() and queue.taken == before + 1, f"interrupted at step {step}"
    assert step > 3


def test_those_who_wait_are_told_of_what_another_took() -> None:
    queue, has_begun, ends = Queue(), threading.Event(), threading.Event()
    attendance, noted = Attendance(queue), []  # type: ignore[arg-type]

    def slow(timeout_s: float) -> list[Any]:
        has_begun.set()
        ends.wait(LIMIT_S)
        return [1]

    queue.wait = slow  # type: ignore[method-assign]
    first = threading.Thread(target=attendance.wait, args=(lambda: False, noted.extend, LIMIT_S))
    first.start()
    assert has_begun.wait(LIMIT_S)
    assert attendance.look(noted.extend), "another is about to say"
    threading.Timer(0.05, ends.set).start()
    assert attendance.wait(lambda: bool(noted), noted.extend, LIMIT_S)
    assert noted == [1]
    first.join(LIMIT_S)
