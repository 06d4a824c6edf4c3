"""How an operation begins: in which order, and what the profiler and the flight recorder show of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from softmrc._support.threads import fork_safe_lock
from softmrc.collectives.inflight import MemoryClaim, Span
from softmrc.collectives.work import callback_thread
from softmrc.torch import arguments, detail
from softmrc.torch.accelerator import Streams
from softmrc.torch.deferred import Deferred
from softmrc.torch.device_pipeline import DevicePipeline, DeviceWork
from softmrc.torch.flight_recorder import GroupInfo, OpRecord, recorder
from softmrc.torch.handle import handle_of
from softmrc.torch.profiler import profiler_range
from softmrc.torch.staging import StagedTensor
from softmrc.torch.thread_pool import ThreadPool
from softmrc.torch.transport_op import TransportOp, span_of, stage_shared_outputs
from softmrc.torch.work import AsyncWork, CombinedWork

Tensor = torch.Tensor


class OpInfo(NamedTuple):
    """An operation as the profiler, the flight recorder and DETAIL show it."""

    name: str  # in the flight recorder
    alike: Sequence[Tensor] = ()  # whose shapes must be the same on every rank
    more: tuple[Any, ...] = ()  # what else must be: the reduction, the root, a dtype
    peers: str = ""  # of a message: "0->1"
    title: str = ""  # in the profiler, where it is another


def begun(steps: list[TransportOp]) -> Any:
    """Begin all of them, as one operation."""
    for step in steps:
        for slot in step.reads:
            if slot.is_staged:
                slot.copy_in()
    operations = [step.start_whole() for step in steps]
    return operations[0] if len(operations) == 1 else CombinedWork(operations)


def copy_out(outputs: list[StagedTensor]) -> None:
    for slot in outputs:
        slot.copy_out()


class Dispatcher:
    """Needs a group, a pool that tells of ends, and two of one thread each that begin operations."""

    _group: Any  # softmrc.collectives.Group, or what is left of it
    _pool: ThreadPool
    _collective_queue: ThreadPool
    _send_queue: ThreadPool  # for messages from a device: they must not wait for collectives, nor overtake each other
    _streams: dict[torch.device, Streams]
    _is_detailed: bool  # whether ranks tell each other what they are about to do

    def __init__(self) -> None:
        self._issue_lock = fork_safe_lock()  # held while an operation is issued
        self._issued = [0, 0]  # so far: messages, collectives

    @abstractmethod
    def _origin(self) -> GroupInfo:
        """The group, as the flight recorder shows it."""

    def _dispatch(
        self, call: OpInfo, steps: list[TransportOp], result: list[Tensor], is_collective: bool = True
    ) -> dist.Work:
        """Begin it, and say what is left to do at its end."""
        is_shared = stage_shared_outputs(steps)
        slots = [slot for step in steps for slot in step.slots]
        device = next((slot.tensor.device for slot in slots if slot.on_device), None)
        if device is not None:
            for slot in slots:
                slot.is_staged = True
        if is_collective and self._is_detailed:
            self._compare(call)
        outputs = [slot for step in steps for slot in step.writes if slot.is_staged]
        claim = MemoryClaim([span_of(slot.tensor) for slot in outputs]) if outputs and is_collective else None

        def begin(record: OpRecord) -> AsyncWork:
            operation: Any
            if device is None:
                operation = self._start(steps, slots, claim) if is_collective else begun(steps)
                finish = partial(copy_out, outputs) if outputs else None
                work = AsyncWork(operation, result, self._pool, finish, record, claim)
            else:
                before = (
                    [one for one in self._conflicts(slots) if isinstance(one, MemoryClaim)] if is_collective else []
                )
                operation = DevicePipeline(self._streams_of(device), steps, before, is_shared, is_collective)
                queue = self._collective_queue if is_collective else self._send_queue
                operation.begin(queue, self._pool, self._group.abort)
                work = DeviceWork(operation, result, self._pool, record=record, claim=claim)
            if claim is not None and not isinstance(operation, Deferred):
                self._group.inflight.add(claim)
            return work

        inputs = [slot.tensor for step in steps for slot in step.reads]
        written = [slot.tensor for step in steps for slot in step.writes]
        return self._record_and_run(call, inputs, written, is_collective, begin)

    def _record_and_run(
        self,
        call: OpInfo,
        inputs: list[Tensor],
        outputs: list[Tensor],
        is_collective: bool,
        begin: Callable[[OpRecord], AsyncWork],
    ) -> dist.Work:
        """Begin an operation, the next of its group, and record it."""
        callback_thread().begin()  # first: if it fails, the caller sees an error and no operation has started
        shown = inputs or outputs
        with profiler_range(call.title or call.name, shown), self._issue_lock:
            number = self._issued[is_collective] = self._issued[is_collective] + 1
            name = f"{call.name} {call.peers}" if call.peers else call.name
            record = OpRecord(name, number, is_collective, shown, outputs or inputs)
            try:
                work = begin(record)
            except BaseException:  # what was refused has no number, unless a finalizer has issued the next one already
                self._issued[is_collective] -= self._issued[is_collective] == number
                raise
        recorder.add(record, self._origin())
        return handle_of(work)

    def _conflicts(self, slots: list[StagedTensor]) -> list[Any]:
        """Collectives of the group under way that must be over before one on these tensors begins. The transport takes
        care of the memory that both use as it lies."""
        spans: tuple[list[Span], list[Span]] = [], []
        for slot in slots:
            spans[slot.is_staged].append(span_of(slot.tensor))
        return self._group.inflight.conflicts(*spans)

    def _start(self, steps: list[TransportOp], slots: list[StagedTensor], claim: MemoryClaim | None = None) -> Any:
        """Begin a collective; in another thread, if it must wait for others, or others wait there already: every rank
        must begin its collectives in the same order."""

        def begin_late() -> Any:
            self._group.wait_until_over(self._conflicts(slots))
            operation = begun(steps)
            if claim is not None:
                self._group.inflight.add(claim)
            return operation

        is_late = self._collective_queue.is_busy or self._conflicts(slots)
        return Deferred(self._collective_queue, begin_late) if is_late else begun(steps)

    def _dispatch_serial(self, call: OpInfo, tensor: Tensor, whole: Callable[[], None]) -> dist.Work:
        """The same for a collective that is made of several, each of which needs the one before: `whole` does it all,
        while the collectives that come after it wait."""
        if self._is_detailed:
            self._compare(call)
        # It reads and writes these itself, as operations with staged tensors do. On a device they were copied already.
        parts = (tensor._indices(), tensor._values()) if tensor.device.type == "cpu" else ()
        slots = [StagedTensor(part) for part in parts]
        for slot in slots:
            slot.is_staged = True

        def start() -> Any:
            self._group.wait_until_over(self._conflicts(slots))
            whole()
            return CombinedWork([])

        def begin(record: OpRecord) -> AsyncWork:
            return AsyncWork(Deferred(self._collective_queue, start), [tensor], self._pool, record=record)

        return self._record_and_run(call, [tensor], [tensor], True, begin)

    def _compare(self, call: OpInfo) -> None:
        """Raise if another rank is about to do something else."""
        callback_thread().begin()  # before this rank publishes: then the others may begin
        more = ", ".join(arguments.word(one) for one in call.more)
        said = detail.saying(call.name, self._issued[True] + 1, call.alike, more)

        def exchange(mine: np.ndarray, whole: np.ndarray) -> Any:
            step = TransportOp([], [], lambda ins, outs: self._group.all_gather(mine, whole))
            with self._issue_lock:
                return self._start([step], [])

        detail.compare(said, self._group.size, exchange)

    def _streams_of(self, device: torch.device) -> Streams:
        if device not in self._streams:
            self._streams[device] = Streams(device)
        return self._streams[device]
