"""Ctrl-C, or SIGTERM, in the middle of waiting for an operation: what is left to do when it ends is done, though
no thread waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch.distributed as dist

from interrupting import is_interrupted
from softmrc.torch import work as module
from softmrc.torch.work import AsyncWork


class Operation:
    """One that ends on request: at the latest while a thread gives up waiting for it, or has just seen that it
    has not ended."""

    def __init__(self, ends: str) -> None:
        self._has_ended = False
        self._ends = ends
        self._asked: list[Callable[[Any], Any]] = []

    @property
    def done(self) -> bool:
        before = self._has_ended
        if self._ends == "once it was looked at":
            self.end()
        return before

    def wait(self, timeout_s: float | None = None) -> None:
        if not self._has_ended:
            if self._ends == "meanwhile":
                self.end()
            raise TimeoutError

    def add_done_callback(self, fn: Callable[[Any], Any]) -> None:
        self._asked.append(fn)

    def end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            teller = threading.Thread(target=self._tell)  # where no signal arrives, as in the completion thread
            teller.start()
            teller.join()

    def _tell(self) -> None:
        for fn in self._asked:
            fn(self)


class Jobs(list[Callable[[], Any]]):
    """A thread pool that does its jobs later."""

    submit = list.append


@pytest.mark.parametrize("ends", ["after", "meanwhile", "once it was looked at"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_left_to_do_is_done(ends: str, error: type[BaseException]) -> None:
    step, is_over = 0, False
    while not is_over:
        step += 1
        operation, jobs, finished = Operation(ends), Jobs(), threading.Event()
        work = AsyncWork(operation, [], jobs, finished.set)  # type: ignore[arg-type]

        def call(work: AsyncWork = work) -> None:
            with suppress(dist.DistBackendError):
                work.wait()

        is_over = not is_interrupted(step, call, module.__file__, error=error)
        operation.end()
        for job in jobs:
            job()
        assert finished.is_set(), f"interrupted at step {step}"
    assert step > 2
