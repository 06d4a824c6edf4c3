"""Locks and threads in a world of forks, finalizers and Ctrl-C
(docs/design/driver.md)."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from softmrc.census import Census

BEGINS_S = 0.1
LOOK_AGAIN_S = 0.001
T = TypeVar("T")
_locks: Census[Any] = Census()
_deaf: set[CodeType] = set()  # of functions in which a signal's exception would be lost


def a_lock() -> Any:
    """A lock that a forked child finds open, whoever held it. Its holder may take it again: the garbage collector may
    call anything while it is held, in the same thread, and what it guards must bear that. Say `with` to it itself: a
    method that takes it can be interrupted by Ctrl-C before anybody is sure to give it back."""
    made = threading.RLock()
    _locks.add(made)
    return made


def _open_locks() -> None:
    """But for those of the thread that forked: it goes on in the child, and gives them back."""
    for lock in _locks:
        if not lock._is_owned():
            lock._at_fork_reinit()


os.register_at_fork(after_in_child=_open_locks)


def has_begun(thread: threading.Thread) -> bool:
    """Whether it runs although its start was interrupted, by Ctrl-C for one: `start` waits for it, and may be left."""
    until = time.monotonic() + BEGINS_S
    while thread.ident is None and time.monotonic() < until:
        time.sleep(BEGINS_S / 100)
    return thread.ident is not None


def finalizer(fn: Callable[[T], None]) -> Callable[[T], None]:
    """For a `__del__`. What a signal's handler raises there, SystemExit or KeyboardInterrupt, Python would print and
    forget. The signal is sent again, when the finalizer has ended."""

    def run(self: T) -> None:
        try:
            fn(self)
        except Exception:
            raise
        except BaseException as error:
            number = _signal_of(error)
            if number is None:
                raise
            send_again(number)

    _deaf.add(run.__code__)
    return functools.update_wrapper(run, fn)


def send_again(number: int) -> None:
    """Send this signal to the main thread, once that runs none of our finalizers."""
    threading.Thread(target=_send, args=(number,), name="softmrc-signal", daemon=True).start()


def _send(number: int) -> None:
    main = threading.main_thread().ident or 0
    while _is_deaf(sys._current_frames().get(main)):
        time.sleep(LOOK_AGAIN_S)
    signal.pthread_kill(main, number)


def _is_deaf(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _deaf:
            return True
        frame = frame.f_back
    return False


def _signal_of(error: BaseException) -> int | None:
    """Whose handler raised it."""
    if threading.current_thread() is not threading.main_thread():
        return None
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return signal.SIGINT
    codes, trace = set(), error.__traceback__
    while trace is not None:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if getattr(getattr(handler, "__func__", handler), "__code__", None) in codes:
            return number
    return None


_deaf.add(send_again.__code__)
