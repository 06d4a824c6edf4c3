"""Locks and threads that are safe with forks, finalizers and Ctrl-C (docs/design/driver.md)."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from softmrc._support.weak_registry import WeakRegistry

BEGINS_S = 0.1
_locks: WeakRegistry[Any] = WeakRegistry()


def fork_safe_lock() -> Any:
    """A reentrant lock that is released in a forked child, whichever thread held it. Reentrant because the garbage
    collector may run any finalizer in the holding thread; guarded data must tolerate that. Use `with` on the lock
    itself: a method that acquires it can be interrupted by Ctrl-C before it is certain to be released."""
    made = threading.RLock()
    _locks.add(made)
    return made


def _open_locks() -> None:
    """Reinitialise all locks except those of the forking thread, which continues in the child and releases them."""
    for lock in _locks:
        if not lock._is_owned():
            lock._at_fork_reinit()


os.register_at_fork(after_in_child=_open_locks)


def has_started(thread: threading.Thread) -> bool:
    """Whether the thread runs although `start` was interrupted, for example by Ctrl-C."""
    until = time.monotonic() + BEGINS_S
    while thread.ident is None and time.monotonic() < until:
        time.sleep(BEGINS_S / 100)
    return thread.ident is not None
