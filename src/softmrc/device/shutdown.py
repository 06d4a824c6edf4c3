"""How a device leaves: closed to its callers at once, it goes on answering its peers for a little while.

A peer that missed the last acknowledgement asks again, and must learn that its data arrived. The device's own thread
answers, until 0.2 s pass without a request and for three seconds at most. This module keeps the device alive until
then, delays the end of the interpreter, and finally closes what was never closed.

Daemon threads may wait for what is closed then. Their errors tell the user nothing, so they are not printed. Those that
still run keep their references for ever, which is not reported as a leak.
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
    """A new device wants this port: a lingering device that still has it stops lingering."""
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
    except (KeyboardInterrupt, SystemExit):  # a second interrupt ends the lingering
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
