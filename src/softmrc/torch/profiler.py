"""Operations in torch.profiler: `mrc:all_reduce`, from the call to the end, with the shapes of its tensors.

Such a range begins in the caller's thread and ends in another. The profiler knows only threads that carry the state of
the one that it was started in, and Python has no means to hand that over; a forked task of TorchScript carries it. So a
range ends in one, which sleeps until the operation is done and takes no thread meanwhile. (TorchScript reads the
annotations of its functions, so they are no strings here.)
"""

import functools
import itertools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.futures import Future

from softmrc._support.threads import fork_safe_lock

_numbers = itertools.count()
_open: dict[int, Any] = {}
_lock = fork_safe_lock()  # over `_open`, and whatever is done to what is in it
is_on: Callable[[], bool] = torch.autograd._profiler_enabled


class ProfilerRange:
    """One operation, as the profiler is to show it."""

    def __init__(self, title: str, tensors: Sequence[torch.Tensor]) -> None:
        from torch._C._profiler import _RecordFunctionFast

        _watch_for_stop()
        self._number = next(_numbers)
        self._done: Future[int] = Future()
        self._ending = threading.Lock()
        with _lock:
            range = _RecordFunctionFast(title, list(tensors), {})
            range.__enter__()
            _open[self._number] = range
        with _unrecorded():
            self._closed = _closer()(self._done, self._number)

    def end(self) -> None:
        """It is done; from any thread, and more than once. Returns when the profiler knows."""
        with self._ending:
            if not self._done.done():
                self._done.set_result(0)
        self._closed.wait()


@functools.cache
def _watch_for_stop() -> None:
    """The profiler's memory goes when it stops, and with it that of ranges: those that are open are ended before."""
    stop = torch.autograd.profiler._disable_profiler

    def end_and_stop() -> Any:
        with _lock:
            for range in list(_open.values()):
                range.__exit__(None, None, None)
            _open.clear()
            return stop()

    torch.autograd.profiler._disable_profiler = end_and_stop


class _unrecorded:
    """What happens in here is not shown in the profile."""

    def __enter__(self) -> None:
        torch.autograd._enable_record_function(False)

    def __exit__(self, *_: object) -> None:
        torch.autograd._enable_record_function(True)


@torch.jit.ignore  # type: ignore[untyped-decorator]
def _close(number: int) -> int:
    with _lock:
        range = _open.pop(number, None)
        if range is not None:
            range.__exit__(None, None, None)
    return number


def _close_later(done: torch.jit.Future[int], number: int) -> int:
    torch.jit.wait(done)
    return _close(number)


def _begin_to_close(done: torch.jit.Future[int], number: int) -> torch.jit.Future[int]:
    return torch.jit.fork(_close_later, done, number)


@functools.cache
def _closer() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch has nothing else that does this yet
        return torch.jit.script(_begin_to_close)
