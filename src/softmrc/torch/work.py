"""What torch holds while an operation is under way: an AsyncWork, and the future that goes with it.

An exception that was raised holds every frame that it went through, with the tensors and handles in them. A handle
keeps its AsyncWork from C++, where no collector sees it; so an AsyncWork that kept such an exception would keep itself,
its group and its device beyond the end of the process. What is kept here was never raised: callers get a copy.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.futures import Future

from softmrc.collectives.inflight import MemoryClaim
from softmrc.torch import timeouts
from softmrc.torch.flight_recorder import OpRecord
from softmrc.torch.profiler import profiler_range
from softmrc.torch.skip_dynamo import skip_dynamo
from softmrc.torch.thread_pool import ThreadPool

NO_TIMEOUT = timedelta(0)


class PendingOp(Protocol):
    """What `softmrc.collectives` hands out for something it has begun."""

    @property
    def done(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> None: ...
    def add_done_callback(self, fn: Callable[[Any], Any]) -> None: ...


def renewed(error: Exception) -> Exception:
    """The same error without the frames that it went through."""
    try:
        return copy.copy(error)
    except Exception:  # one whose class wants other arguments than it keeps
        return RuntimeError(str(error))


class AsyncWork(dist.Work):  # type: ignore[misc]
    """One operation of a group. It settles once: the first thread does what is left to do, others find it done."""

    def __init__(
        self,
        operation: PendingOp,
        result: list[torch.Tensor],
        pool: ThreadPool,
        finish: Callable[[], None] | None = None,
        record: OpRecord | None = None,
        claim: MemoryClaim | None = None,
    ) -> None:
        super().__init__()
        self._operation = operation
        self._result = result
        self._pool = pool
        self._finish = finish  # what is left to do here when the bytes are there
        self._claim = claim  # on the memory that this writes to
        self._record = record or OpRecord("", 0, True, [], [])
        self._record.begin(operation)
        self._lock = threading.Lock()
        self._is_settled = False
        self._error: Exception | None = None
        self._future: Future[Any] | None = None
        self._told: threading.Event | None = None  # set when the future knows how it ended
        if finish is not None:  # also if no caller waits
            operation.add_done_callback(lambda _: pool.submit(self._end))

    # What torch calls.

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Until the result is there; what went wrong is raised here."""
        limit_s = timeouts.of_waiting(timeout)
        until = timeouts.moment(limit_s)
        try:
            with profiler_range("wait"):
                self._end(until)
                self._wait_for_future(until)
        except TimeoutError:  # the caller's patience ended, not the operation
            raise dist.DistBackendError(f"timed out: the operation is not done after {limit_s} s") from None
        except Exception as error:
            raise dist.DistBackendError(str(error)) from None
        self._raise_error()
        self._after_wait()
        return True

    def get_future(self) -> Future[Any]:
        """A future whose value is the list of result tensors."""
        with self._lock:
            if self._future is not None:
                return self._future
            source: Future[None] = Future(devices=self._future_devices())
            # An error must be raised inside `then`: `set_exception` would hand the exception to C++ as a value.
            self._told = threading.Event()
            self._future = future = source.then(self._outcome)
        if self._has_ended:
            source.set_result(None)
        else:
            self._operation.add_done_callback(lambda _: self._pool.submit(lambda: source.set_result(None)))
        return future

    def is_completed(self) -> bool:
        """Whether `wait` would return at once, and the future, if anybody has it, is done."""
        return self._has_ended and (self._future is None or self._future.done())

    @property
    def _has_ended(self) -> bool:
        return self._is_settled or (self._finish is None and self._operation.done)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        if self._has_ended:
            self._settle()
        return self._error and renewed(self._error)

    def result(self) -> list[torch.Tensor]:
        return self._result

    def synchronize(self) -> None:
        self.wait()

    block_current_stream = synchronize

    def source_rank(self) -> int:
        return int(getattr(self._operation, "source", -1))

    _source_rank = source_rank

    def _get_duration(self) -> float:
        """From the call until the end was noticed, in milliseconds."""
        return self._record.duration_ms

    def _get_op_type(self) -> Any:
        return self._record.kind

    def _get_sequence_number(self) -> int:
        """The how many-th collective, or message, of its group it is."""
        return self._record.sequence

    # How it ends.

    def _end(self, until: float | None = None) -> None:
        """Wait for the end, and settle. `TimeoutError`: not in time."""
        if self._is_settled:
            return
        try:
            self._operation.wait(timeouts.left(until))
        except Exception:
            if not self._operation.done:
                raise
        self._settle()  # asks again how it ended, and keeps the answer

    def _settle(self) -> None:
        """Keep how it ended, and do what is left to do. Does not block: `get_future` needs the lock."""
        with self._lock:
            if self._is_settled:
                return
            try:
                self._operation.wait()
                if self._finish is not None:
                    self._finish()
            except Exception as error:
                self._error = renewed(error)
            self._finish = None
            self._is_settled = True
            self._record.end(self._error)
            if self._claim:
                self._claim.set()

    def _wait_for_future(self, until: float | None) -> None:
        """A future that a caller has must be done when `wait` returns: C++ asks it for its value next."""
        if self._future is None or self._told is None:
            return
        if not self._told.wait(timeouts.left(until)):
            raise TimeoutError
        with contextlib.suppress(Exception):
            self._future.wait()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise renewed(self._error)

    def _outcome(self, _: Future[None]) -> list[torch.Tensor]:
        try:
            self._end()
            self._raise_error()
            self._after_wait()
            return self._result
        finally:
            if self._told:
                self._told.set()

    # What differs for results on an accelerator.

    def _after_wait(self) -> None:
        """Make the result usable on the caller's stream."""

    def _future_devices(self) -> list[int | str | torch.device]:
        return []


skip_dynamo(AsyncWork, ["wait", "get_future"])


class CombinedWork:
    """Operations as one."""

    source = -1

    def __init__(self, operations: Sequence[PendingOp]) -> None:
        self._operations = operations

    @property
    def done(self) -> bool:
        return all(one.done for one in self._operations)

    def wait(self, timeout_s: float | None = None) -> None:
        until = timeouts.moment(timeout_s)
        for one in self._operations:
            one.wait(timeouts.left(until))

    def add_done_callback(self, fn: Callable[[Any], Any]) -> None:
        """Called when all have ended; each is queried when those before it have."""
        if not self._operations:
            fn(self)
            return
        first, *rest = self._operations
        first.add_done_callback(lambda _: CombinedWork(rest).add_done_callback(fn))
