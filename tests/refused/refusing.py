"""What the programs of these tests share: they run with refusals.so before the C library, and say what it refuses."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_system: Any = ctypes.CDLL(None)
LIMIT_S = 20.0
ONCE, UNTIL_ALLOWED = 1, -1


def named() -> list[str]:
    """All calls that can be refused."""
    _system.refusable.restype = ctypes.c_char_p
    found: list[str] = []
    while (name := _system.refusable(len(found))) is not None:
        found.append(name.decode())
    return found


def refuse(call: str, error: int, thread: str = "", skip: int = 0, times: int = ONCE) -> None:
    thread = this_thread() if thread == "caller" else thread
    assert _system.refuse(call.encode(), error, thread.encode(), skip, times) == 0, call


def allow(call: str) -> int:
    """How often it was refused."""
    return int(_system.allow(call.encode()))


def times_refused(call: str) -> int:
    return int(_system.times_refused(call.encode()))


def trains_sent() -> int:
    return int(_system.trains_sent())


def this_thread() -> str:
    with open(f"/proc/self/task/{threading.get_native_id()}/comm") as file:
        return file.read().strip()


def name_thread(thread: threading.Thread, name: str) -> None:
    with open(f"/proc/self/task/{thread.native_id}/comm", "w") as file:
        file.write(name)


@contextlib.contextmanager
def refused(call: str, error: int, thread: str = "", skip: int = 0, times: int = ONCE) -> Iterator[None]:
    refuse(call, error, thread, skip, times)
    try:
        yield
    finally:
        allow(call)


def until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """It becomes true, sooner or later."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.001)


def said(call: str, error: int, thread: str = "") -> str:
    return f"{thread or 'any thread'}: {call} {errno.errorcode[error]}"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> list[str]:
    """The names of all threads of this process."""
    found = []
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{number}/comm") as file:
            found.append(file.read().strip())
    return found
