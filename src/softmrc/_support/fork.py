"""What becomes of devices and groups in a forked child: a loader's worker, for one.

The child has copies of everything but the threads, and its sockets are the parent's. If it closed a group, it would say
goodbye in the parent's name; if it freed a device, it would wait for a thread that it does not have. So it lets go of
the native parts without freeing them, and says why they cannot be used. Only its copies of sockets it closes: else a
parent that is killed would seem to be there for as long as a child of its is.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any

from softmrc import _core
from softmrc.errors import UsageError

_owners: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


class _Held(threading.local):
    """By a thread that forks, while it does: another may do so at the same time."""

    def __init__(self) -> None:
        self.owners: list[tuple[Any, str]] = []


_held = _Held()


def no_survivor(what: str) -> str:
    return f"{what} belongs to the process that this one was forked from and does not survive a fork; make one here"


class ForkedStub:
    """Stands where a native part was."""

    is_closed = True
    is_over = True

    def __init__(self, what: str) -> None:
        self.error = no_survivor(what)

    def close(self, linger_s: float = 0.0) -> None:
        """The parent does."""

    def abort(self, reason: str) -> None:
        """The parent may."""

    def shut(self) -> None:
        """Nobody waits here."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError(self.error)


def disown_in_child(owner: Any, what: str) -> None:
    """In children, let go of `owner._native`."""
    _owners[owner] = what


def _hold() -> None:
    """What nobody uses may be garbage that the child would collect, and free, before it lets go of anything."""
    _held.owners = _living()


def _living() -> list[tuple[Any, str]]:
    owners = [owner for known in _owners.keyrefs() if (owner := known()) is not None]
    return [(owner, _owners[owner]) for owner in owners]


def _let_go() -> None:
    _held.owners = []


def _in_child() -> None:
    _held.owners += [one for one in _living() if one not in _held.owners]  # made by others meanwhile
    if _held.owners:
        _core.expect_leaks()
    for owner, what in _held.owners:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner._native))  # never freed: the process's end does it
        if isinstance(owner._native, _core.Device) and not owner._native.is_closed:  # which closes its sockets just now
            owner._native.abandon()
        owner._native = ForkedStub(what)
    _owners.clear()
    _let_go()


os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_in_child)
