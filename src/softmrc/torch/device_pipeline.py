"""Tensors on an accelerator: off it, through the transport and back, chunk by chunk.

Copies run on the streams of the group: off the device, once the caller's stream has made the tensor; back, once the
bytes have come. The transport begins a chunk when its copy off is complete; a thread waits for that, so the caller goes
on at once, and other chunks are copied while there are free cells. What has come is copied back while later
chunks still travel. A caller that waits for the result waits for the bytes, and makes its current stream, not the host,
wait for the last copy.

What takes no longer than waking a thread goes the short way: the caller looks for a moment whether its copy is
complete, and begins the transport itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from softmrc.collectives.inflight import MemoryClaim
from softmrc.torch import accelerator, timeouts
from softmrc.torch.accelerator import PinnedSlot, Streams
from softmrc.torch.chunks import aligned, cuts
from softmrc.torch.staging import StagedTensor
from softmrc.torch.thread_pool import ThreadPool
from softmrc.torch.transport_op import TransportOp
from softmrc.torch.work import AsyncWork, PendingOp, renewed

SHORT_BYTES = 1 << 20
SHORT_S = 100e-6  # about what it takes to wake a thread that then needs the interpreter


class Chunk:
    """A piece of every part of a step, and the host's memory for it. `span` in bytes; None: all there is."""

    def __init__(self, pipeline: DevicePipeline, step: TransportOp, span: tuple[int, int] | None) -> None:
        self._pipeline: DevicePipeline | None = pipeline  # until it is over, as the step
        self.step: Any = step
        self._span = span
        self.of = id(step)
        self.nbytes = sum(aligned(last - first) for slot in step.slots for first, last in self._ranges(slot))
        self.cell: PinnedSlot | None = None
        self.loaded: Any = None  # the event that ends its copies off the device, where there are any
        self.has_begun = threading.Event()
        self.operation: PendingOp | None = None  # None although it has begun: it never will
        self.is_over = False  # copied back, or there is nothing to copy
        self._memory: dict[int, list[torch.Tensor]] = {}

    def _ranges(self, slot: StagedTensor) -> list[tuple[int, int]]:
        """Which bytes of the tensor are in it, part by part."""
        if self._span is None:
            return [(0, slot.tensor.nbytes)]
        part = slot.tensor.nbytes // slot.parts
        first, last = (min(at, part) for at in self._span)
        return [(i * part + first, i * part + last) for i in range(slot.parts)]

    def take(self, memory: torch.Tensor) -> None:
        """Divide the host's memory among the slots."""
        at = 0
        for slot in self.step.slots:
            pieces = self._memory[id(slot)] = []
            for first, last in self._ranges(slot):
                pieces.append(memory[at : at + last - first].view(slot.tensor.dtype))
                at += aligned(last - first)

    def pairs(self, slot: StagedTensor, flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The pieces of a tensor on the device, each with the host's."""
        width = flat.element_size()
        for (first, last), there in zip(self._ranges(slot), self._memory[id(slot)], strict=True):
            yield flat[first // width : last // width], there

    def begin(self) -> PendingOp:
        ins, outs = ([self._argument(slot) for slot in slots] for slots in (self.step.reads, self.step.writes))
        return self.step.start(ins, outs)

    def _argument(self, slot: StagedTensor) -> Any:
        memory = self._memory[id(slot)]
        return memory[0] if self._span is None or slot.parts == 1 else memory

    def settle(self) -> None:
        """Wait for its end, and copy back what came. What went wrong is raised by `wait`."""
        pipeline = self._pipeline
        try:
            if pipeline is not None and self.operation is not None:
                self.operation.wait()
                pipeline.land(self)
        except Exception:
            self.end()

    def end(self, copied: Any = None) -> None:
        """Leave the cell, which is free when the last copy is complete."""
        self.is_over = True
        if self.cell:
            self.cell.vacate(copied)
        self._pipeline, self.step, self.cell, self._memory = None, None, None, {}


class DevicePipeline:
    """An operation on tensors of a device, as `AsyncWork` sees it."""

    def __init__(
        self,
        streams: Streams,
        steps: list[TransportOp],
        before: Sequence[MemoryClaim],
        is_shared: bool,
        is_collective: bool,
    ) -> None:
        """`before`: those that must have written their results; `is_shared`: some outputs share memory with something
        else in the operation, so that all is read before one is written."""
        self.streams, self._steps, self._before = streams, steps, before
        # What is copied back only at the end, or waits until a peer likes, must not keep others from cells.
        self._is_held = is_shared
        self._has_cells = is_collective and not self._is_held
        self._is_collective = is_collective
        self._ready = streams.now()
        self._chunks = [chunk for step in steps for chunk in self._cut(step)]
        self._waiting, self._loaded = deque(self._chunks), deque[Chunk]()
        self._flats: dict[int, torch.Tensor] = {}
        self._lock = threading.Lock()
        self._landing = threading.Lock()
        self._landed: Any = None  # the event that ends the last copy onto the device so far
        self._left = len(self._chunks)
        self._awaiting = 0  # threads that copy back what has come
        self._callbacks: list[Callable[[Any], Any]] = []
        self._error: Exception | None = None

    def _cut(self, step: TransportOp) -> list[Chunk]:
        spans = cuts(step.slots, accelerator.CELL_BYTES) if step.is_divisible else []
        return [Chunk(self, step, span) for span in spans] if len(spans) > 1 else [Chunk(self, step, None)]

    # There.

    def begin(self, starter: ThreadPool, pool: ThreadPool, abort: Callable[[str], None]) -> None:
        """Begin here and now what can be; the rest in the starter, after all that it was given before. `abort` ends
        the group: peers wait for every chunk of what has once begun."""
        self._pool, self._abort = pool, abort
        if not self._is_collective and not self._steps[0].reads:
            self._run()  # a receive has nothing to wait for
        elif starter.is_busy or not self._is_short() or not self._is_loaded_soon():
            starter.submit(self._run)
        else:
            self._run()

    def _is_short(self) -> bool:
        is_small = len(self._chunks) == 1 and self._chunks[0].nbytes <= SHORT_BYTES
        return is_small and all(one.is_set() for one in self._before)

    def _is_loaded_soon(self) -> bool:
        try:
            if not self._load_some(waits=False):
                return False
            until, event = time.perf_counter() + SHORT_S, self._loaded[0].loaded
            while event is not None and not event.query():
                if time.perf_counter() > until:
                    return False
        except Exception as error:
            self._give_up(error)
        return True

    def _run(self) -> None:
        try:
            for one in self._before:
                one.wait()
            while self._waiting or self._loaded:
                self._load_some(waits=not self._loaded)
                if self._loaded[0].loaded is not None:
                    self._loaded[0].loaded.synchronize()
                self._begin(self._loaded[0])
        except Exception as error:
            self._give_up(error)

    def _load_some(self, waits: bool) -> bool:
        """Start to copy whatever there is memory for; if `waits`, at least one chunk. False: nothing is loaded."""
        while self._waiting:
            chunk = self._waiting[0]
            if self._has_cells and chunk.nbytes <= accelerator.CELL_BYTES:
                chunk.cell = self.streams.cell(chunk, waits)
                if chunk.cell is None:
                    break
                chunk.take(chunk.cell.memory)
            else:
                chunk.take(self.streams.memory(chunk.nbytes))
            self._load(chunk)
            self._loaded.append(self._waiting.popleft())
            waits = False
        return bool(self._loaded)

    def _load(self, chunk: Chunk) -> None:
        streams = self.streams
        with streams.on(streams.off, self._events()):
            for slot in chunk.step.slots:
                if id(slot) not in self._flats:
                    self._flats[id(slot)] = self._flat(slot, slot in chunk.step.reads)
            for slot in chunk.step.reads:
                for here, there in chunk.pairs(slot, self._flats[id(slot)]):
                    there.copy_(here, non_blocking=True)
            if chunk.step.reads:
                chunk.loaded = streams.event(streams.off, sleeps=True)

    def _flat(self, slot: StagedTensor, is_read: bool) -> torch.Tensor:
        """Its elements in a row; of what lies otherwise, a copy on the device."""
        tensors = [slot.tensor]
        if not slot.is_flat:
            copy = torch.empty(slot.tensor.shape, dtype=slot.tensor.dtype, device=slot.tensor.device)
            if is_read:
                copy.copy_(slot.tensor, non_blocking=True)
            tensors.append(copy)
        if slot.on_device:  # the allocator keeps the memory until these streams are past it
            for tensor in tensors:
                tensor.record_stream(self.streams.off)
                tensor.record_stream(self.streams.onto)
        return tensors[-1].view(-1)

    def _begin(self, chunk: Chunk) -> None:
        operation = chunk.operation = chunk.begin()
        self._loaded.popleft()
        chunk.has_begun.set()
        operation.add_done_callback(lambda _: self._end(chunk))
        if operation.done:
            operation.wait()  # a group that has failed takes nothing more

    def _give_up(self, error: Exception) -> None:
        """What has not begun never will."""
        self._error = self._error or renewed(error)
        left = [*self._loaded, *self._waiting]
        if left and any(one.operation and one.of == left[0].of for one in self._chunks):
            self._abort(str(error))  # the peers wait for the rest of it
        self._loaded.clear()
        self._waiting.clear()
        for chunk in left:
            chunk.end(chunk.loaded)
            chunk.has_begun.set()
            self._end(chunk)

    def _end(self, chunk: Chunk) -> None:
        with self._lock:
            self._left -= 1
            callbacks = [] if self._left else self._callbacks
        if self._left and not self._awaiting and not self._is_held:  # the last one is copied back with the whole
            self._pool.submit(chunk.settle)
        for fn in callbacks:
            fn(self)

    # And back.

    def land(self, chunk: Chunk) -> None:
        """Start to copy back what has come, unless that was done."""
        with self._landing:
            if self._is_held or chunk.is_over:
                return
            try:
                with self._onto():
                    for slot in chunk.step.writes:
                        self._copy_back(chunk, slot)
            except Exception as error:
                self._error = self._error or renewed(error)
            self._landed = self.streams.event(self.streams.onto)
            chunk.end(self._landed)

    def land_all(self) -> Any:
        """The same for all of it, now that it may be; an event that tells when everything has been copied."""
        for chunk in self._chunks:
            self.land(chunk)
        try:
            with self._landing:
                if self._error:
                    raise renewed(self._error)
                if self._is_held or not all(slot.is_flat for step in self._steps for slot in step.writes):
                    self._finish()
                return self._landed
        finally:
            self._let_go()

    def _finish(self) -> None:
        """What is copied back only at the end, in the order of outputs."""
        with self._onto():
            for step in self._steps:
                for slot in step.writes:
                    for chunk in self._chunks if self._is_held else ():
                        if chunk.step is step:
                            self._copy_back(chunk, slot)
                    if not slot.is_flat:
                        slot.tensor.copy_(self._flats[id(slot)].view(slot.tensor.shape), non_blocking=True)
        self._landed = self.streams.event(self.streams.onto)

    def _onto(self) -> Any:
        return self.streams.on(self.streams.onto, self._events())

    def _events(self) -> list[Any]:
        """That have to be before anything is copied."""
        return [self._ready, *(one.copied for one in self._before if one.copied is not None)]

    def _copy_back(self, chunk: Chunk, slot: StagedTensor) -> None:
        for here, there in chunk.pairs(slot, self._flats[id(slot)]):
            here.copy_(there, non_blocking=True)

    def _let_go(self) -> None:
        """Of the caller's tensors."""
        with self._landing:
            for chunk in self._chunks:
                if not chunk.is_over:
                    chunk.end()
            self._steps, self._flats, self._before = [], {}, ()

    # As every operation.

    @property
    def source(self) -> int:
        return int(getattr(self._chunks[-1].operation, "source", -1))

    @property
    def done(self) -> bool:
        return all(one.has_begun.is_set() and (one.operation is None or one.operation.done) for one in self._chunks)

    def wait(self, timeout_s: float | None = None) -> None:
        """Until every chunk has come; copies chunks back as they come. Raises what went wrong first."""
        until = timeouts.moment(timeout_s)
        with self._lock:
            self._awaiting += 1
        try:
            errors = [error for chunk in self._chunks if (error := self._await(chunk, until)) is not None]
        finally:
            with self._lock:
                self._awaiting -= 1
        if self._error or errors:
            self._let_go()
            raise renewed(self._error or errors[0])

    def _await(self, chunk: Chunk, until: float | None) -> Exception | None:
        """What went wrong with it. `TimeoutError`: not in time."""
        if not chunk.has_begun.wait(timeouts.left(until)):
            raise TimeoutError("the operation has not begun in time")
        try:
            if chunk.operation is not None:
                chunk.operation.wait(timeouts.left(until))
                self.land(chunk)
        except TimeoutError:
            raise
        except Exception as error:
            return renewed(error)
        return None

    def add_done_callback(self, fn: Callable[[Any], Any]) -> None:
        with self._lock:
            if self._left:
                self._callbacks.append(fn)
                return
        fn(self)


class DeviceWork(AsyncWork):
    """An AsyncWork whose result lies on the device."""

    def __init__(self, pipeline: DevicePipeline, result: list[torch.Tensor], pool: ThreadPool, **more: Any) -> None:
        self._streams = pipeline.streams
        self._copied: Any = None
        super().__init__(pipeline, result, pool, lambda: self._land(pipeline), **more)

    def _land(self, pipeline: DevicePipeline) -> None:
        self._copied = pipeline.land_all()
        if self._claim is not None:
            self._claim.copied = self._copied

    def _after_wait(self) -> None:
        self._streams.wait_for(self._copied)

    def _future_devices(self) -> list[int | str | torch.device]:
        return [self._streams.device]
