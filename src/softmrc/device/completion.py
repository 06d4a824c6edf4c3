"""Where work requests end, and how to wait for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softmrc.device.checks import FOR_EVER, instance, seconds, whole
from softmrc.engine import COMPLETION, CompletionKind, CompletionStatus
from softmrc.errors import MrcError, UsageError

if TYPE_CHECKING:
    from softmrc.device.device import Device

FOREVER_S = 1e9


class Completion(NamedTuple):
    """The end of one work request."""

    wr_id: int
    qpn: int
    length: int
    imm: int
    status: CompletionStatus
    kind: CompletionKind

    @property
    def ok(self) -> bool:
        return self.status == CompletionStatus.SUCCESS


class CompletionQueue:
    """Where work requests end. Iterate over `poll` or `wait`, or `async for` over the queue itself."""

    def __init__(self, device: Device, number: int) -> None:
        self.device = device
        self.number = number
        self._readiness = Readiness()
        self._is_retired = False
        self._is_destroyed = False
        self._used_by: set[int] = set()  # queue pairs; the native queue knows those only that have left RESET

    def _use(self, call: Callable[..., Any], *more: Any) -> Any:
        """Call it with the queue's number, which is never reused; raise an error if the queue is destroyed."""
        try:
            return call(self.number, *more)
        except MrcError:
            if self._is_destroyed:
                raise UsageError(f"completion queue {self.number} was destroyed") from None
            raise

    def check_alive(self) -> None:
        if self._is_destroyed:
            raise UsageError(f"completion queue {self.number} was destroyed")

    def poll_array(self, most: int = 256) -> np.ndarray:
        """What is there now, as records."""
        return np.frombuffer(self._use(self.device.native.poll, whole("most", most, 32)), dtype=COMPLETION)

    def wait_array(self, timeout_s: float | None = None, most: int = 256) -> np.ndarray:
        """The same, after at least one has come or the time is up."""
        timeout = FOREVER_S if timeout_s is None else seconds("timeout_s", timeout_s, or_else=FOR_EVER)
        found = self._use(self.device.native.wait, whole("most", most, 32), timeout)
        return np.frombuffer(found, dtype=COMPLETION)

    def poll(self, most: int = 256) -> list[Completion]:
        return _completions(self.poll_array(most))

    def wait(self, timeout_s: float | None = None, most: int = 256) -> list[Completion]:
        """Completions, as soon as there is one; an empty list when the time is up."""
        return _completions(self.wait_array(timeout_s, most))

    def take(self, taken: list[bytes], timeout_s: float | None = None, most: int = 256) -> None:
        """Add what is there to the list, for `completions`: what is there now, or after at least one has come or the
        time is up. Functions in C do both, so that Ctrl-C cannot come between."""
        native = self.device.native
        call, more = (native.poll, ()) if timeout_s is None else (native.wait, (timeout_s,))
        self._use(lambda *given: taken.extend(filter(None, map(call, *([one] for one in given)))), most, *more)

    @staticmethod
    def completions(taken: bytes) -> list[Completion]:
        """One of those that `take` has added."""
        return _completions(np.frombuffer(taken, dtype=COMPLETION))

    def fileno(self) -> int:
        """A descriptor for event loops: readable when `poll` has something. Poll until empty, then wait again."""
        return self._use(self.device.native.completion_fd)

    async def wait_async(self, most: int = 256) -> list[Completion]:
        """`wait` for asyncio: other tasks run while it waits."""
        while not (found := self.poll(most)):
            self.device.check_open()
            await self.readable()
        return found

    def attach(self, qpn: int) -> None:  # a queue pair uses it
        self._used_by.add(qpn)

    def detach(self, qpn: int) -> None:
        self._used_by.discard(qpn)

    def destroy(self) -> None:
        """Release it, and what it holds, and wake all who wait for it. Refused while a queue pair uses it."""
        self.device.check_ours()
        self.check_alive()
        if any(self.device.native.has_qp(qpn) for qpn in list(self._used_by)):
            raise UsageError(f"completion queue {self.number} is used by a queue pair; destroy that first")
        self._is_destroyed = True  # set first, for the waiters that the next step wakes
        try:
            self.device.native.destroy_cq(self.number)
        except MrcError:
            self._is_destroyed = False
            raise
        self.wake()

    async def readable(self, unless: Callable[[], bool] | None = None) -> None:
        """Until the queue may hold something, or another task has just emptied it. Returns at once if `unless` is
        true, and as soon as it becomes true if the code that makes it so calls `wake`."""
        await self._readiness.wait(self.fileno(), unless)

    def wake(self) -> None:
        """Have tasks look again that wait until the queue is readable; from whatever thread."""
        self._readiness.wake()

    async def __aiter__(self) -> AsyncIterator[Completion]:
        while True:
            for completion in await self.wait_async():
                yield completion

    def retire(self) -> None:
        """Destroy it once its last user releases it: a caller that still waits must not get another's completions."""
        self._is_retired = True

    def __del__(self) -> None:
        if self._is_retired:
            with suppress(UsageError):
                self.destroy()

    def __repr__(self) -> str:
        return f"<CompletionQueue {self.number} of {self.device!r}>"


class Readiness:
    """A descriptor that several tasks may wait for, though an event loop has room for one reader of each."""

    def __init__(self) -> None:
        self._waited_for: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}  # shared by all tasks of a loop

    async def wait(self, fd: int, unless: Callable[[], bool] | None = None) -> None:
        """Until there is something to read, or another task has just looked."""
        loop = asyncio.get_running_loop()
        ready = self._waited_for.get(loop)
        if ready is not None:
            if ready.is_set():
                await asyncio.sleep(0)  # lets the task run that it was set for
            elif not (unless and unless()):
                await ready.wait()
            return
        own = os.dup(fd)  # the loop's number for it stays ours, even if the original is closed
        ready = self._waited_for[loop] = asyncio.Event()
        loop.add_reader(own, ready.set)
        try:
            if not (unless and unless()):
                await ready.wait()
        finally:
            loop.remove_reader(own)
            os.close(own)
            del self._waited_for[loop]
            ready.set()

    def wake(self) -> None:
        """Have those who wait look again, from whatever thread."""
        for loop, ready in list(self._waited_for.items()):
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ready.set)


def _completions(records: np.ndarray) -> list[Completion]:
    return [
        Completion(wr_id, qpn, length, imm, CompletionStatus(status), CompletionKind(kind))
        for wr_id, qpn, length, imm, status, kind, _ in records.tolist()
    ]


def iterate(queue: CompletionQueue, timeout_s: float | None = None) -> Iterator[Completion]:
    """Completions one by one, for ever or until none comes for `timeout_s`."""
    instance("queue", queue, CompletionQueue, "must be a completion queue")
    while found := queue.wait(timeout_s):
        yield from found
