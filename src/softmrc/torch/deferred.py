"""Operations that begin later, in a thread of their group."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from softmrc.torch import timeouts
from softmrc.torch.thread_pool import ThreadPool
from softmrc.torch.work import PendingOp, renewed


class Deferred:
    """An operation that begins in a thread of its group, after all that were deferred before it."""

    def __init__(self, starter: ThreadPool, begin: Callable[[], PendingOp]) -> None:
        self._begin: Callable[[], PendingOp] | None = begin
        self._begun: Future[PendingOp | Exception] = Future()  # or why it did not begin
        starter.submit(self._start)

    def _start(self) -> None:
        begin, self._begin = self._begin, None  # it holds tensors
        assert begin is not None
        try:
            self._begun.set_result(begin())
        except Exception as error:
            self._begun.set_result(renewed(error))

    @property
    def _operation(self) -> PendingOp | Exception | None:
        return self._begun.result() if self._begun.done() else None

    def add_done_callback(self, fn: Callable[[Any], Any]) -> None:
        def pass_on(begun: Future[PendingOp | Exception]) -> None:
            operation = begun.result()
            if isinstance(operation, Exception):
                fn(self)
            else:
                operation.add_done_callback(fn)

        self._begun.add_done_callback(pass_on)

    @property
    def source(self) -> int:
        return int(getattr(self._operation, "source", -1))

    @property
    def done(self) -> bool:
        operation = self._operation
        return operation is not None and (isinstance(operation, Exception) or operation.done)

    def wait(self, timeout_s: float | None = None) -> None:
        until = timeouts.moment(timeout_s)
        operation = self._begun.result(timeouts.left(until))  # `TimeoutError`: it has not begun in time
        if isinstance(operation, Exception):
            raise renewed(operation)
        operation.wait(timeouts.left(until))
