"""A device that is not there: streams whose copies happen as late as they may, and in whatever order across streams.

Tensors stay on the CPU and are said to lie on the device. A copy that is put on a stream happens when a thread waits
for an event behind it, or at random, and then only with what it must wait for. So code that forgets to make
one stream wait for another, or the host for an event, reads what is not there yet or overwrites what is still needed;
the numbers come out wrong. The dice are seeded.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from softmrc.torch import accelerator, backend, chunks, collective_ops, dispatch
from softmrc.torch.accelerator import Streams
from softmrc.torch.staging import StagedTensor

COPY = torch.Tensor.copy_


class Stream:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.tasks: deque[Callable[[bool], bool]] = deque()  # told whether it must; whether it is done

    def put(self, task: Callable[[bool], bool]) -> None:
        with self.device.lock:
            self.tasks.append(task)
            self.device.roll()

    def wait_event(self, event: Event) -> None:
        def task(must: bool) -> bool:
            if must and not event.is_complete:
                event.force()
            return event.is_complete

        assert event.stream is not None, "it was not recorded"
        self.put(task)

    def step(self, must: bool = False) -> bool:
        """Do the next thing, if it can be done, or must."""
        if not self.tasks or not self.tasks[0](must):
            return False
        self.tasks.popleft()
        return True


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream: Stream | None = None
        self.is_complete = False

    def record(self, stream: Stream) -> None:
        assert self.stream is None, "an event is recorded once here"
        self.stream = stream

        def task(_: bool) -> bool:
            self.is_complete = True
            return True

        stream.put(task)

    def force(self) -> None:
        """All that is before it on its stream, and what that waits for, and nothing else."""
        assert self.stream is not None
        while not self.is_complete:
            assert self.stream.step(must=True)

    def query(self) -> bool:
        with self.device.lock:
            self.device.roll()
            return self.is_complete

    def synchronize(self) -> None:
        with self.device.lock:
            self.device.roll()
            self.force()


class Device:
    """Stands for `torch.cuda`. `eager`: how likely something happens on a stream at each look."""

    def __init__(self, seed: int, eager: float = 0.2) -> None:
        self.lock = threading.RLock()
        self._rng, self._eager = random.Random(seed), eager
        self._streams: list[Stream] = []
        self.main = self.Stream()
        self._here = threading.local()
        self.kept: set[tuple[int, int]] = set()  # memory and a stream that the allocator knows of
        self.touched: set[tuple[int, int]] = set()  # memory of the device and a stream that a copy of it was on
        self.pinned: dict[int, int] = {}  # bytes of host memory, by address
        self.breaks_after: int | None = None  # so many copies go well

    def Stream(self, device: Any = None) -> Stream:
        self._streams.append(Stream(self))
        return self._streams[-1]

    def Event(self) -> Event:
        return Event(self)

    def current_stream(self, device: Any = None) -> Stream:
        return getattr(self._here, "stream", self.main)

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self._here.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._here.stream = before

    def kernel(self, fn: Callable[[], Any]) -> None:
        """Something that the caller computes on its own stream."""

        def task(_: bool) -> bool:
            with self.stream(self.main):  # whichever thread happens to run it
                fn()
            return True

        self.main.put(task)

    def roll(self) -> None:
        while self._rng.random() < self._eager:
            self._rng.choice(self._streams).step()

    def synchronize(self) -> None:
        with self.lock:
            while left := [one for one in self._streams if one.tasks]:
                self._rng.choice(left).step()

    # What torch does for tensors.

    def copy(self, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        stream = self.current_stream()
        if stream is self.main:
            return COPY(to, source)
        if self.breaks_after is not None:
            self.breaks_after -= 1
            if self.breaks_after < 0:
                raise RuntimeError("the device is broken")
        if to.dim() and 0 in to.stride():
            COPY(to, source)  # raises what torch raises
        for one in (to, source):
            memory = one.untyped_storage().data_ptr()
            if memory not in self.pinned:
                self.touched.add((memory, id(stream)))

        def task(_: bool) -> bool:
            COPY(to, source)
            return True

        stream.put(task)
        return to

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        self.kept.add((tensor.untyped_storage().data_ptr(), id(stream)))


class OnDevice(StagedTensor):
    """A tensor that is said to lie on the device."""

    def __init__(self, tensor: torch.Tensor, parts: int = 1) -> None:
        super().__init__(tensor, parts)
        self.on_device = self.is_staged = True


class PretendedStreams(Streams):
    def memory(self, nbytes: int) -> torch.Tensor:
        memory = torch.full((max(nbytes, 1),), 0x55, dtype=torch.uint8)
        self._api.pinned[memory.data_ptr()] = nbytes
        return memory[:nbytes]


@contextlib.contextmanager
def pretended(seed: int, cell: int = 4096, cells: int = 3, **more: Any) -> Iterator[Device]:
    """While it lasts, all tensors lie on such a device, and cells are small."""
    device = Device(seed, **more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collective_ops, "StagedTensor", OnDevice)
        patch.setattr(dispatch, "Streams", lambda where: PretendedStreams(where, device))
        patch.setattr(accelerator, "CELL_BYTES", cell)
        patch.setattr(accelerator, "CELLS", cells)
        patch.setattr(chunks, "LEAST_BYTES", 64)
        patch.setattr(torch.Tensor, "copy_", lambda to, source, **how: device.copy(to, source, **how))
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: device.keep(tensor, stream))
        try:
            yield device
            assert device.touched <= device.kept, "memory that the allocator may hand out again before it was copied"
        finally:
            for member in backend._open:
                member._streams.clear()
