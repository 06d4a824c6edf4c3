"""How a device leaves: closed to its callers at once, it goes on answering its peers for a little while.

A peer that missed the last acknowledgement asks again, and must not be left to believe that what arrived did not. The
device's own thread answers, until nobody has asked for a fifth of a second and for three seconds at most. Here it is
kept alive meanwhile, the interpreter from ending, and what was never closed is closed in the end.

Daemon threads may wait for what is closed then. What they are told is no news to anybody, so their last words are not
printed; and those that are still there hold what they hold for ever, which is no leak of anybody's.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from softmrc import _core
from softmrc._support.weak_registry import WeakRegistry
from softmrc.errors import MrcError

FLUSH_S = 3.0  # how long a side that leaves waits for what it has posted to be acknowledged
LONGEST_S = 4.0  # of a device's goodbye; it ends by itself before that

_open: WeakRegistry[Any] = WeakRegistry()
_connected: WeakRegistry[Any] = WeakRegistry()
_leaving: set[Any] = set()
_is_forked = False
_is_ending = False


def track_device(device: Any) -> None:
    """This device is open: close it when the interpreter ends."""
    processes = sys.modules.get("multiprocessing.util")
    if _is_forked and not _open and processes is not None:  # such a worker ends without the interpreter's exit
        processes.Finalize(None, _at_exit, exitpriority=0)
    _open.add(device)


def track_connection(connection: Any) -> None:
    """This connection, or listener, may have something under way when the interpreter ends: it goes before devices."""
    _connected.add(connection)


def linger(native: Any) -> None:
    """Close a native device, and keep it until it has said what it owes."""
    native.close()
    for other in [one for one in list(_leaving) if one.is_over]:
        _leaving.discard(other)
    if not native.is_over:
        _leaving.add(native)


def release_port(port: int) -> None:
    """Somebody wants this port: whoever leaves and still has it ends its goodbye."""
    for native in list(_leaving):
        if any(port in row["source_ports"] for row in native.planes()):
            native.cut_short()
            native.wait_until_over(LONGEST_S)


def wait() -> None:
    """Until every goodbye has been said."""
    for native in list(_leaving):
        native.wait_until_over(LONGEST_S)
        _leaving.discard(native)


def at_exit(fn: Callable[..., Any], *arguments: Any) -> None:
    """Call it when the interpreter ends. What daemon threads say of it is not heard."""
    atexit.register(_end, fn, *arguments)


def _end(fn: Callable[..., Any], *arguments: Any) -> None:
    global _is_ending
    if not _is_ending:
        _is_ending = True
        before = threading.excepthook
        threading.excepthook = lambda said: None if issubclass(said.exc_type, MrcError) else before(said)
    try:
        fn(*arguments)
    except (KeyboardInterrupt, SystemExit):  # who is asked twice to stop does not finish what it was saying
        _core.expect_leaks()


def _at_exit() -> None:
    for one in [*_connected, *_open]:
        one.close()
    wait()
    if threading.active_count() > 1:
        _core.expect_leaks()


def _in_child() -> None:
    """The parent's devices, and their threads, are the parent's."""
    global _is_forked
    _is_forked = True
    if _leaving:
        _core.expect_leaks()
    for native in _leaving:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))  # never freed: it would wait for a thread that is not here
        native.abandon()
    _leaving.clear()
    _open.clear()
    _connected.clear()


at_exit(_at_exit)
os.register_at_fork(after_in_child=_in_child)
