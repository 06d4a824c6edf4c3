"""Locks and threads in a world of forks, finalizers and Ctrl-C
(docs/design/driver.md)."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from softmrc._support.weak_registry import WeakRegistry

BEGINS_S = 0.1
_locks: WeakRegistry[Any] = WeakRegistry()


def fork_safe_lock() -> Any:
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


def has_started(thread: threading.Thread) -> bool:
    """Whether it runs although its start was interrupted, by Ctrl-C for one: `start` waits for it, and may be left."""
    until = time.monotonic() + BEGINS_S
    while thread.ident is None and time.monotonic() < until:
        time.sleep(BEGINS_S / 100)
    return thread.ident is not None
