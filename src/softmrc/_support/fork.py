"""Devices and groups in a forked child, such as the worker of a data loader.

The child has copies of everything but the threads, and shares its sockets with the parent. Closing a group would send
the parent's goodbye; freeing a device would wait for a thread that does not exist. So the child drops the native parts
without freeing them and reports why they cannot be used. It closes only its copies of sockets: otherwise a killed
parent would seem alive while the child lives.
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
    """State of one fork; several threads may fork at the same time."""

    def __init__(self) -> None:
        self.owners: list[tuple[Any, str]] = []


_held = _Held()


def no_survivor(what: str) -> str:
    return f"{what} belongs to the process that this one was forked from and does not survive a fork; make one here"


class ForkedStub:
    """Replaces a native part in the child."""

    is_closed = True
    is_over = True

    def __init__(self, what: str) -> None:
        self.error = no_survivor(what)

    def close(self, linger_s: float = 0.0) -> None:
        """The parent does."""

    def abort(self, reason: str) -> None:
        """The parent may."""

    def shut(self) -> None:
        """No thread waits in the child."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError(self.error)


def disown_in_child(owner: Any, what: str) -> None:
    """Drop `owner._native` in forked children."""
    _owners[owner] = what


def _hold() -> None:
    """Keep unreferenced owners alive: the child might collect and free them before it drops the native parts."""
    _held.owners = _living()


def _living() -> list[tuple[Any, str]]:
    owners = [owner for known in _owners.keyrefs() if (owner := known()) is not None]
    return [(owner, _owners[owner]) for owner in owners]


def _let_go() -> None:
    _held.owners = []


def _in_child() -> None:
    _held.owners += [one for one in _living() if one not in _held.owners]  # made by other threads since
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
