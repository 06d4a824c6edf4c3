"""Tensors on an accelerator: through pinned memory, beside the stream that made them.

The device's own copies run on a side stream: out, once the current stream has made the tensor; back in, once the bytes
have come. The transport begins when the copy out is complete; a thread waits for that, so the caller goes on at once.
Whoever waits for the result makes its current stream wait for the copy in, not the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from softmrc.torch import limits
from softmrc.torch.crew import Crew
from softmrc.torch.memory import Flight
from softmrc.torch.staging import Slot
from softmrc.torch.work import Operation, Work, renewed


class Streams:
    """The side stream of one device. `api` is `torch.cuda`, or anything with its `Stream`, `Event`, `stream` and
    `current_stream`."""

    def __init__(self, device: torch.device, api: Any = None) -> None:
        self.device = device
        self._api = api or getattr(torch, device.type)
        self._side = self._api.Stream(device=device)

    def follow(self) -> None:
        """What is copied from here on comes after all that is on the current stream now."""
        self._side.wait_stream(self._api.current_stream(self.device))

    def copy_in(self, slots: list[Slot]) -> Any:
        """Start the copies off the device; an event that tells when they are complete."""
        return self._copy(slots, lambda slot: slot.copy_in(non_blocking=True))

    def copy_out(self, slots: list[Slot]) -> Any:
        """Start the copies onto the device; an event that tells when they are complete."""
        return self._copy(slots, lambda slot: slot.copy_out(non_blocking=True))

    def _copy(self, slots: list[Slot], move: Callable[[Slot], None]) -> Any:
        with self._api.stream(self._side):
            for slot in slots:
                move(slot)
                if slot.on_device:  # the allocator keeps its memory until the side stream is past it
                    slot.tensor.record_stream(self._side)
            event = self._api.Event()
            event.record(self._side)
        return event

    def wait_for(self, event: Any) -> None:
        """Nothing that is put on the current stream from here on starts before the event."""
        self._api.current_stream(self.device).wait_event(event)


class Deferred:
    """An operation that begins in a thread of its group, once `ready` returns, and after all deferred before it."""

    def __init__(self, starter: Crew, ready: Callable[[], Any], begin: Callable[[], Operation]) -> None:
        self._ready, self._begin = ready, begin
        self._begun = threading.Event()
        self._lock = threading.Lock()
        self._operation: Operation | None = None
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
        until = limits.moment(timeout_s)
        if not self._begun.wait(limits.left(until)):
            raise TimeoutError(f"the operation has not begun after {timeout_s} s")
        if self._operation is None:
            raise renewed(self._error or RuntimeError("the operation did not begin"))
        self._operation.wait(limits.left(until))


class DeviceWork(Work):
    """A Work whose result lies on the device."""

    def __init__(
        self,
        operation: Operation,
        result: list[torch.Tensor],
        crew: Crew,
        streams: Streams,
        outputs: list[Slot],
        after: Sequence[Flight] = (),
    ) -> None:
        self._streams = streams
        self._copied: Any = None
        super().__init__(operation, result, crew, lambda: self._copy_out(outputs), after)

    def _copy_out(self, outputs: list[Slot]) -> None:
        self._copied = self._streams.copy_out(outputs)

    def _after_wait(self) -> None:
        self._streams.wait_for(self._copied)

    def _future_devices(self) -> list[int | str | torch.device]:
        return [self._streams.device]
