"""Operations that begin later, in a thread of their group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from softmrc.torch import timeouts
from softmrc.torch.thread_pool import ThreadPool
from softmrc.torch.work import PendingOp, renewed


class Deferred:
    """An operation that begins in a thread of its group, once `ready` returns, and after all deferred before it."""

    def __init__(self, starter: ThreadPool, ready: Callable[[], Any], begin: Callable[[], PendingOp]) -> None:
        self._ready, self._begin = ready, begin
        self._begun = threading.Event()
        self._lock = threading.Lock()
        self._operation: PendingOp | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Any], Any]] = []
        starter.submit(self._start)

    def _start(self) -> None:
        try:
            self._ready()
            self._operation = self._begin()
        except Exception as error:
            self._error = renewed(error)
        del self._ready, self._begin  # they hold tensors
        with self._lock:
            self._begun.set()
            callbacks, self._callbacks = self._callbacks, []
        for fn in callbacks:
            self._pass_on(fn)

    def _pass_on(self, fn: Callable[[Any], Any]) -> None:
        if self._operation is None:
            fn(self)
        else:
            self._operation.add_done_callback(fn)

    def add_done_callback(self, fn: Callable[[Any], Any]) -> None:
        with self._lock:
            if not self._begun.is_set():
                self._callbacks.append(fn)
                return
        self._pass_on(fn)

    @property
    def source(self) -> int:
        return int(getattr(self._operation, "source", -1))

    @property
    def done(self) -> bool:
        return self._begun.is_set() and (self._operation is None or self._operation.done)

    def wait(self, timeout_s: float | None = None) -> None:
        until = timeouts.moment(timeout_s)
        if not self._begun.wait(timeouts.left(until)):
            raise TimeoutError(f"the operation has not begun after {timeout_s} s")
        if self._operation is None:
            raise renewed(self._error or RuntimeError("the operation did not begin"))
        self._operation.wait(timeouts.left(until))
