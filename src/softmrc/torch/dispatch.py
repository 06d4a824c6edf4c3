"""How an operation begins: in which order, and what those who watch are told of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from softmrc.collectives.work import callback_thread
from softmrc.torch import arguments, detail, profiler
from softmrc.torch.accelerator import Streams
from softmrc.torch.deferred import Deferred
from softmrc.torch.device_pipeline import Conflicts, DevicePipeline, DeviceWork
from softmrc.torch.flight_recorder import GroupInfo, OpRecord, recorder
from softmrc.torch.handle import handle_of
from softmrc.torch.op_tracker import InflightOp, TransportOp, order, uses_of
from softmrc.torch.staging import StagedTensor
from softmrc.torch.thread_pool import ThreadPool
from softmrc.torch.work import AsyncWork, CombinedWork

Tensor = torch.Tensor


class OpInfo(NamedTuple):
    """An operation for those who watch."""

    name: str  # in the flight recorder
    alike: Sequence[Tensor] = ()  # whose shapes must be the same on every rank
    more: tuple[Any, ...] = ()  # what else must be: the reduction, the root, a dtype
    peers: str = ""  # of a message: "0->1"
    title: str = ""  # in the profiler, where it is another


def begun(steps: list[TransportOp]) -> Any:
    """What was begun, as one operation."""
    operations = [step.start_whole() for step in steps]
    return operations[0] if len(operations) == 1 else CombinedWork(operations)


def copy_out(outputs: list[StagedTensor]) -> None:
    for slot in outputs:
        slot.copy_out()


class Dispatcher:
    """Needs a group, a crew that tells of ends, a starter of collectives and a courier, which are crews of one."""

    _group: Any  # softmrc.collectives.Group, or what is left of it
    _pool: ThreadPool
    _collective_queue: ThreadPool
    _send_queue: ThreadPool  # for messages from a device: they must not wait for collectives, nor overtake each other
    _streams: dict[torch.device, Streams]
    _is_detailed: bool  # whether ranks tell each other what they are about to do
    _collectives = 0  # issued so far
    _messages = 0

    @abstractmethod
    def _origin(self) -> GroupInfo:
        """Who asks, and from where: for those who watch."""

    def _dispatch(
        self, call: OpInfo, steps: list[TransportOp], result: list[Tensor], is_collective: bool = True
    ) -> dist.Work:
        """Begin it, and say what is left to do at its end."""
        uses, is_entangled = uses_of(steps)
        device = next((use.slot.tensor.device for use in uses if use.slot.on_device), None)
        if device is not None:
            for use in uses:
                use.slot.is_staged = True
        if is_collective and self._is_detailed:
            self._compare(call)

        def begin(record: OpRecord) -> AsyncWork:
            before, after, over = order.place(self._group, uses, is_collective)
            if device is None:
                operation = self._start(before, steps, is_collective)
                outputs = [slot for step in steps for slot in step.writes if slot.is_staged]
                finish = partial(copy_out, outputs) if outputs else None
                work = AsyncWork(operation, result, self._pool, finish, after, record)
            else:
                rivals = Conflicts(before, after, over, is_entangled)
                operation = DevicePipeline(self._streams_of(device), steps, rivals, is_collective)
                operation.begin(
                    self._collective_queue if is_collective else self._send_queue, self._pool, self._group.abort
                )
                work = DeviceWork(operation, result, self._pool, after, record)
            order.add(InflightOp(self._group, uses, is_collective, operation, work.settled))
            return work

        inputs, outputs = ([s.tensor for step in steps for s in slots(step)] for slots in (_reads, _writes))
        return self._record_and_run(call, inputs, outputs, is_collective, begin)

    def _record_and_run(
        self,
        call: OpInfo,
        inputs: list[Tensor],
        outputs: list[Tensor],
        is_collective: bool,
        begin: Callable[[OpRecord], AsyncWork],
    ) -> dist.Work:
        """Begin an operation, the next of its group, and tell those who watch."""
        callback_thread().begin()  # first: if it fails, the caller sees an error and no operation has started
        shown = inputs or outputs
        range = profiler.ProfilerRange(f"mrc:{call.title or call.name}", shown) if profiler.is_on() else None
        try:
            with order.lock:
                number = self._next_number(is_collective)
                name = f"{call.name} {call.peers}" if call.peers else call.name
                record = OpRecord(name, number, is_collective, shown, outputs or inputs, range)
                try:
                    work = begin(record)
                except BaseException:
                    self._take_back(number, is_collective)
                    raise
        except BaseException:
            if range:
                range.end()
            raise
        recorder.add(record, self._origin())
        return handle_of(work)

    def _next_number(self, is_collective: bool) -> int:
        if is_collective:
            self._collectives += 1
            return self._collectives
        self._messages += 1
        return self._messages

    def _take_back(self, number: int, is_collective: bool) -> None:
        """What was refused has none, unless a finalizer has issued the next one already."""
        if is_collective:
            self._collectives -= self._collectives == number
        else:
            self._messages -= self._messages == number

    def _start(self, before: list[InflightOp], steps: list[TransportOp], is_collective: bool) -> Any:
        def ready() -> None:
            for one in before:
                one.wait()
            for step in steps:
                for slot in step.reads:
                    if slot.is_staged:
                        slot.copy_in()

        start = partial(begun, steps)
        if before:
            return Deferred(self._collective_queue, ready, start)
        ready()
        # What is still held back goes first: every rank must begin its collectives in the same order.
        return (
            Deferred(self._collective_queue, int, start)
            if is_collective and self._collective_queue.is_busy
            else start()
        )

    def _dispatch_serial(
        self, call: OpInfo, tensor: Tensor, memory: list[Tensor], whole: Callable[[], None]
    ) -> dist.Work:
        """The same for a collective that is made of several, each of which needs the one before: `whole` does it all,
        while the collectives that come after it wait. It reads `memory`, in its time."""
        if self._is_detailed:
            self._compare(call)
        slots = [StagedTensor(one) for one in memory]
        for slot in slots:
            slot.is_staged = True  # the transport does not see when it is read
        uses, _ = uses_of([TransportOp(slots, [], lambda ins, outs: None)])

        def begin(record: OpRecord) -> AsyncWork:
            before: list[InflightOp] = order.place(self._group, uses, True)[0]

            def ready() -> None:
                for one in before:
                    one.wait()
                whole()

            operation = Deferred(self._collective_queue, ready, partial(begun, []))
            order.add(InflightOp(self._group, uses, True, operation, None))
            return AsyncWork(operation, [tensor], self._pool, record=record)

        return self._record_and_run(call, [tensor], [tensor], True, begin)

    def _compare(self, call: OpInfo) -> None:
        """Raise if another rank is about to do something else."""
        callback_thread().begin()  # before the others are told, who begin what all agree on
        more = ", ".join(arguments.word(one) for one in call.more)
        said = detail.saying(call.name, self._collectives + 1, call.alike, more)

        def exchange(mine: np.ndarray, whole: np.ndarray) -> Any:
            step = TransportOp([], [], lambda ins, outs: self._group.all_gather(mine, whole))
            with order.lock:
                return self._start([], [step], True)

        detail.compare(said, self._group.size, exchange)

    def _streams_of(self, device: torch.device) -> Streams:
        if device not in self._streams:
            self._streams[device] = Streams(device)
        return self._streams[device]


def _reads(step: TransportOp) -> Sequence[StagedTensor]:
    return step.reads


def _writes(step: TransportOp) -> Sequence[StagedTensor]:
    return step.writes
