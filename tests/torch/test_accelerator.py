"""The way of tensors on an accelerator, with streams that only write down what is asked of them.

Tensors stay on the CPU here and are said to lie on the device; what is checked is the order of copies, events and the
transport, and that callers wait for the right thing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from softmrc.collectives import CollectiveError
from softmrc.torch import backend, ops
from softmrc.torch.accelerator import Deferred, DeviceWork, Streams
from softmrc.torch.crew import Crew
from softmrc.torch.staging import Slot


class Diary:
    """Stands for `torch.cuda`: a stream is a name, and everything is written down."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.current = FakeStream(self, "main")
        self._made = 0

    def Stream(self, device: Any) -> FakeStream:
        return FakeStream(self, "side")

    def Event(self) -> FakeEvent:
        self._made += 1
        return FakeEvent(self, self._made)

    def current_stream(self, device: Any) -> FakeStream:
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


class FakeStream:
    def __init__(self, diary: Diary, name: str) -> None:
        self.diary, self.name = diary, name

    def wait_stream(self, other: FakeStream) -> None:
        self.diary.lines.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: FakeEvent) -> None:
        self.diary.lines.append(f"{self.name} waits for event {event.number}")


class FakeEvent:
    def __init__(self, diary: Diary, number: int) -> None:
        self.diary, self.number = diary, number
        self.complete = threading.Event()

    def record(self, stream: FakeStream) -> None:
        self.diary.lines.append(f"event {self.number} on {stream.name}")

    def synchronize(self) -> None:
        assert self.complete.wait(10)
        self.diary.lines.append(f"host saw event {self.number}")


class FakeOperation:
    """Ends when it is told to."""

    source = -1

    def __init__(self, error: Exception | None = None) -> None:
        self._ended = threading.Event()
        self._error = error
        self._callbacks: list[Any] = []

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> None:
        if not self._ended.wait(timeout_s):
            raise TimeoutError("not yet")
        if self._error:
            raise self._error

    def add_done_callback(self, fn: Any) -> None:
        if self.done:
            fn(self)
        else:
            self._callbacks.append(fn)

    def end(self) -> None:
        self._ended.set()
        for fn in self._callbacks:
            fn(self)


@pytest.fixture
def crews() -> Iterator[tuple[Crew, Crew]]:
    crew, starter = Crew("done"), Crew("start", most=1)
    yield crew, starter
    starter.close()
    crew.close()


def device_slot(tensor: torch.Tensor) -> Slot:
    """As if it lay on the device: staged, in a buffer of its own."""
    slot = Slot(tensor)
    slot.is_staged, slot.buffer = True, torch.zeros_like(tensor)
    return slot


def test_the_order_of_things(crews: tuple[Crew, Crew]) -> None:
    crew, starter = crews
    diary = Diary()
    streams = Streams(torch.device("cpu"), diary)
    tensor = torch.arange(4.0)
    slot = device_slot(tensor)
    streams.follow()
    copied = streams.copy_in([slot])
    operation, begun = FakeOperation(), threading.Event()

    def begin() -> FakeOperation:
        diary.lines.append("transport begins")
        begun.set()
        return operation

    work = DeviceWork(Deferred(starter, copied.synchronize, begin), [tensor], crew, streams, [slot])
    assert not begun.wait(0.05), "the transport began before the tensor was there"
    copied.complete.set()
    assert begun.wait(10) and not work.is_completed()
    slot.buffer += 10  # what the network brought
    operation.end()
    assert work.wait()
    assert torch.equal(tensor, torch.arange(4.0) + 10)
    assert diary.lines == [
        "side waits for main",
        "event 1 on side",
        "host saw event 1",
        "transport begins",
        "event 2 on side",
        "main waits for event 2",
    ]


class SlotOnDevice(Slot):
    """A tensor that is said to lie on the device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self.on_device = self.is_staged = True
        self.buffer = torch.full_like(tensor, -1)


def test_what_shares_memory_on_a_device_goes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second reads what the first writes: it is copied in when that has been copied out, and not before."""
    diary = Diary()
    monkeypatch.setattr(ops, "Slot", SlotOnDevice)
    monkeypatch.setattr(ops, "Streams", lambda device: Streams(device, diary))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(FakeEvent, "synchronize", lambda self: diary.lines.append(f"host saw event {self.number}"))
    options = SimpleNamespace(store=dist.HashStore(), group_rank=0, group_size=1, timeout=timedelta(seconds=20))
    member = backend.Member(options)
    try:
        how = dist.AllreduceOptions()
        how.reduceOp = dist._make_nccl_premul_sum(2.0)
        tensor = torch.ones(5)
        works = [member.allreduce([tensor], how) for _ in range(3)]
        for work in works:
            work.wait()
        assert torch.equal(tensor, torch.full((5,), 8.0))
        seen = [line for line in diary.lines if line.startswith("event")]
        assert len(seen) == 6, diary.lines  # in and out, three times
    finally:
        member.shutdown()


def test_operations_begin_in_the_order_of_issue(crews: tuple[Crew, Crew]) -> None:
    _, starter = crews
    gate, order = threading.Event(), []
    first = Deferred(starter, gate.wait, lambda: order.append(1) or FakeOperation())
    second = Deferred(starter, int, lambda: order.append(2) or FakeOperation())
    assert starter.is_busy
    gate.set()
    for one in (first, second):
        with pytest.raises(TimeoutError):
            one.wait(0.05)
    assert order == [1, 2]


def test_what_goes_wrong_on_the_way_is_raised_in_wait(crews: tuple[Crew, Crew]) -> None:
    crew, starter = crews
    streams = Streams(torch.device("cpu"), Diary())

    def refuse() -> FakeOperation:
        raise RuntimeError("rank 3 is gone")

    work = DeviceWork(Deferred(starter, int, refuse), [], crew, streams, [])
    with pytest.raises(RuntimeError, match="rank 3"):
        work.wait()
    assert work.is_completed() and not work.is_success()
    failed = FakeOperation(CollectiveError("rank 2 died"))
    work = DeviceWork(Deferred(starter, int, lambda: failed), [], crew, streams, [])
    failed.end()
    with pytest.raises(RuntimeError, match="rank 2"):
        work.wait()


def test_a_crew_gives_a_waiting_job_a_thread(crews: tuple[Crew, Crew]) -> None:
    crew, _ = crews
    inner, outer = threading.Event(), threading.Event()
    crew.submit(lambda: inner.wait(10) and outer.set())
    crew.submit(inner.set)
    assert outer.wait(10)


def test_a_closed_crew_still_runs_what_it_is_given() -> None:
    crew, ran = Crew("closed"), []
    crew.close()
    crew.submit(lambda: ran.append(1))
    assert ran == [1]
