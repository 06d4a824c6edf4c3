"""An operation under way, and the one thread of the process that tells callers when theirs have ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from softmrc import _core
from softmrc._support.fork import disown_in_child
from softmrc._support.threads import fork_safe_lock, has_started
from softmrc.device import shutdown
from softmrc.errors import RemoteError

if TYPE_CHECKING:
    from softmrc.collectives.group import Group
    from softmrc.collectives.inflight import NativeOp

FOREVER_S = 1e9


class CollectiveError(RemoteError, RuntimeError):
    """An operation failed; the text says which rank and what. The group is of no use afterwards."""


class Work:
    """One operation, from its issue to its end. The memory that it uses must be left alone until then."""

    __slots__ = ("_group", "_op")

    def __init__(self, group: Group, op: NativeOp) -> None:
        self._group = group
        self._op = op

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it is done. The calling thread drives the device while it waits, without the GIL.

        Raises `CollectiveError` if it failed, and `TimeoutError` if it is not done in time; it goes on then."""
        native = self._op.native
        if not native.has_ended and not self._group.wait_native(native, FOREVER_S if timeout_s is None else timeout_s):
            raise TimeoutError(f"the operation is not done after {timeout_s} s")
        self.release()
        if native.error:
            raise CollectiveError(self._group.explained(native.error))

    def release(self) -> None:
        """It has ended, and its memory is the caller's again. From any thread, and more than once."""
        self._group.inflight.end(self._op)

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._op.is_over

    @property
    def error(self) -> CollectiveError | None:
        """Why it failed; None while it runs, and when it went well."""
        text = self._op.native.error
        return CollectiveError(self._group.explained(text)) if text else None

    @property
    def source(self) -> int:
        """The rank that a finished `recv` was served by."""
        return self._op.native.source

    def add_done_callback(self, fn: Callable[[Work], Any]) -> None:
        """Call `fn(work)` once it has ended: from the process's completion thread, never from the caller's."""
        callback_thread().watch(self, self._op.native, fn)

    def __repr__(self) -> str:
        state = "failed" if self._op.native.error else "done" if self.done else "under way"
        return f"<Work, {state}>"


class CallbackThread:
    """The completion thread. It starts before the first callback and ends with the process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._native = _core.CompletionPort()
        disown_in_child(self, "the completion thread")
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[Work, Callable[[Work], Any]]] = {}
        self._thread: threading.Thread | None = None
        self._lock = fork_safe_lock()

    @property
    def notifier(self) -> Any:
        """What native groups tell of ends."""
        return self._native

    def begin(self) -> None:
        """Start the thread, unless it runs. A caller that will ask for a callback does so before it issues the
        operation, while it can still give up."""
        with self._lock:
            if self._thread is None:
                self._thread = thread = threading.Thread(target=self._run, name="softmrc-callbacks", daemon=True)
                try:
                    thread.start()
                except BaseException:
                    if not has_started(thread):
                        self._thread = None
                    raise

    def watch(self, work: Work, native: Any, fn: Callable[[Work], Any]) -> None:
        """Call `fn(work)` when it has ended."""
        self.begin()
        number = next(self._numbers)
        self._asked[number] = (work, fn)
        self._native.watch(native, number)

    def _run(self) -> None:
        while numbers := self._native.take():
            for number in numbers:
                work, fn = self._asked.pop(number)
                try:
                    work.release()
                    fn(work)
                except BaseException:  # CancelledError and SystemExit, too: others wait for their callbacks
                    suppress_errors(lambda: traceback.print_exc(file=sys.stderr))
                del work, fn

    def stop(self) -> None:
        """End the thread; callbacks that are due have been called."""
        self._native.shut()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


_callback_threads: list[CallbackThread] = []
_making = fork_safe_lock()


def callback_thread() -> CallbackThread:
    """The one of this process; a forked child gets its own."""
    with _making:
        if not _callback_threads or _callback_threads[-1].pid != os.getpid():
            _callback_threads.append(CallbackThread())
            shutdown.at_exit(_callback_threads[-1].stop)
        return _callback_threads[-1]


def suppress_errors(fn: Callable[[], Any]) -> None:
    """Call it where there is no caller to report a failure to."""
    with contextlib.suppress(Exception):
        fn()
