"""Tensors that lie on the same memory: within one operation, and in several that are under way.

Whatever they share, an operation reads its inputs when all that were issued before it have written theirs, and before
it writes any output of its own; it writes its outputs in their order, when all that were issued before it are past that
memory. The transport keeps this order among the collectives of a group on memory as it lies. For the rest an output
gets a buffer of its own, and the operation is told whom to wait for before it begins, and before it writes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from softmrc._support.threads import fork_safe_lock
from softmrc.errors import ConfigError
from softmrc.torch.staging import StagedTensor

SWEEP_ALWAYS = 32  # with so few under way, looking at each costs less than an operation


class MemorySpan(NamedTuple):
    """Where a tensor lies: from `begin` to `end`, and if not all of that is its own, which bytes are."""

    device: torch.device
    begin: int
    end: int
    bytes: tuple[tuple[int, ...], tuple[int, ...]] | None  # sizes and strides of a view of single bytes

    @classmethod
    def of(cls, tensor: torch.Tensor) -> MemorySpan:
        begin, width = tensor.data_ptr(), tensor.element_size()
        if tensor.is_contiguous() or not tensor.numel():
            return cls(tensor.device, begin, begin + tensor.nbytes, None)
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        pairs = _merged([(n, step * width) for n, step in steps if step and n > 1] + [(width, 1)])  # expanded: once
        sizes, strides = zip(*pairs, strict=True)
        end = begin + sum((n - 1) * step for n, step in pairs) + 1
        return cls(tensor.device, begin, end, (sizes, strides))

    def shares(self, other: MemorySpan) -> bool:
        """Whether any byte belongs to both."""
        if max(self.begin, other.begin) >= min(self.end, other.end) or self.device != other.device:
            return False
        if self.bytes is None and other.bytes is None:
            return True
        if (met := self._meets_rows(other)) is not None:
            return met
        first = min(self.begin, other.begin)
        taken = torch.zeros(max(self.end, other.end) - first, dtype=torch.bool, device="cpu")
        self._among(taken, first).fill_(True)
        return bool(other._among(taken, first).any())

    def _meets_rows(self, other: MemorySpan) -> bool | None:
        """The same for two sets of equally spaced rows, columns of a large matrix for one; None: they are none."""
        if self.bytes is None or other.bytes is None or len(self.bytes[0]) != 2 or len(other.bytes[0]) != 2:
            return None
        ((n, width), (pitch, _)), ((m, other_width), (other_pitch, _)) = self.bytes, other.bytes
        if pitch != other_pitch or max(width, other_width) > pitch:
            return None
        # Row i of one lies on row j of the other only for some difference i - j.
        apart = other.begin - self.begin
        least, most = (apart - width) // pitch + 1, -((-apart - other_width) // pitch) - 1
        return max(least, 1 - m) <= min(most, n - 1)

    def _among(self, taken: torch.Tensor, first: int) -> torch.Tensor:
        sizes, strides = self.bytes or ((self.end - self.begin,), (1,))
        return taken.as_strided(sizes, strides, self.begin - first)


def _merged(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sizes and strides, outermost first, with dimensions that follow on each other as one."""
    merged: list[tuple[int, int]] = []
    for n, step in sorted(pairs, key=lambda pair: -pair[1]):
        if merged and merged[-1][1] == n * step:
            merged[-1] = (merged[-1][0] * n, step)
        else:
            merged.append((n, step))
    return merged


class TransportOp(NamedTuple):
    """An operation of the transport: what it reads and writes, and how to begin it with memory for each of those."""

    reads: Sequence[StagedTensor]
    writes: Sequence[StagedTensor]
    begin: Callable[[list[Any], list[Any]], Any]  # a tensor for each slot, or a list with one for each of its parts
    in_place: tuple[StagedTensor, StagedTensor] | None = (
        None  # an output and the input that it may replace: the transport can do that
    )
    is_divisible: bool = False  # every rank knows how long all parts are: it may be done a piece of each at a time

    def start(self, ins: list[Any], outs: list[Any]) -> Any:
        """Begin it; a refusal is what torch expects of backends."""
        try:
            return self.begin(ins, outs)
        except ConfigError as error:
            raise RuntimeError(str(error)) from None

    def start_whole(self) -> Any:
        """With CPU memory as it lies, or the buffers that stand for it."""
        return self.start([slot.buffer for slot in self.reads], [slot.buffer for slot in self.writes])


class TensorUse(NamedTuple):
    """What an operation does to a tensor of its own."""

    slot: StagedTensor
    span: MemorySpan
    is_written: bool


class CompletionEvent(threading.Event):
    """Set when an operation's outputs are written."""

    copied: Any = None  # on a device the copies may still be under way: the event that ends them


class InflightOp:
    """An operation under way, as later ones see it. It holds no tensors."""

    def __init__(self, group: Any, uses: list[TensorUse], is_collective: bool, operation: Any, settled: Any) -> None:
        """`settled`: the event that tells that its outputs are written, where it is not the transport that writes."""
        self.group, self.is_collective = group, is_collective
        self.touches = [(use.span, use.is_written, is_collective and not use.slot.is_staged) for use in uses]
        self.is_plain = all(is_plain for _, _, is_plain in self.touches)
        self._operation, self._settled = operation, settled

    @property
    def copied(self) -> Any:
        """On a device: the event before which nobody may touch what it wrote. Once it is over."""
        return self._settled.copied if self._settled else None

    @property
    def is_over(self) -> bool:
        return bool(self._settled.is_set() if self._settled else self._operation.done)

    @property
    def is_past(self) -> bool:
        """Whether it is over for streams as well."""
        return self.is_over and (self.copied is None or self.copied.query())

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it is over, well or not. `TimeoutError`: not in time."""
        if self._settled:
            self._settled.wait(timeout_s)
        else:
            with contextlib.suppress(Exception):  # whoever waits for it finds the group failed, too
                self._operation.wait(timeout_s)
        if timeout_s is not None and not self.is_over:
            raise TimeoutError


class OpTracker:
    """All operations of the process that are under way. Hold its lock while issuing one."""

    def __init__(self) -> None:
        self.lock = fork_safe_lock()
        self._flights: dict[
            int, InflightOp
        ] = {}  # by identity; a finalizer may issue one, or leave a group, at any moment
        self._sweep_at = SWEEP_ALWAYS

    def place(
        self, group: Any, uses: list[TensorUse], is_collective: bool
    ) -> tuple[list[InflightOp], list[InflightOp], list[InflightOp]]:
        """Whom to wait for before it begins, and before it writes; and those that only streams have to wait for.
        Outputs that others still use get buffers."""
        if not SWEEP_ALWAYS <= len(self._flights) < self._sweep_at:
            self.sweep()
        while True:
            is_plain = is_collective and not any(use.slot.is_staged for use in uses)
            rivals = [
                one for one in list(self._flights.values()) if not (is_plain and one.is_plain and one.group is group)
            ]
            met = [(use, *hit) for use in uses for hit in _hits(group, use, is_collective, rivals)]
            over = list(dict.fromkeys(one for _, one, _ in met if one.is_over))
            met = [hit for hit in met if hit[1] not in over]
            before = list(dict.fromkeys(one for use, one, is_written in met if is_written and not use.is_written))
            late = [(use.slot, one) for use, one, _ in met if use.is_written and one not in before]
            fresh = {id(slot): slot for slot, _ in late if not slot.is_staged}
            if not is_collective and not all(one.is_collective for one in before):
                # Two ranks that forward what they receive to each other would wait for ever; Gloo sends what is there.
                raise RuntimeError("a receive under way writes to the memory that is to be sent: wait for it first")
            if not fresh:
                return before, list(dict.fromkeys(one for _, one in late)), over
            for slot in fresh.values():
                slot.stage()

    def sweep(self) -> None:
        """Forget those that are past, and with them their groups."""
        for key, one in list(self._flights.items()):
            if one.is_past:
                self._flights.pop(key, None)
        self._sweep_at = SWEEP_ALWAYS + 2 * len(self._flights)

    def add(self, flight: InflightOp) -> None:
        self._flights[id(flight)] = flight

    def forget(self) -> None:
        """In a forked child nothing of this is under way, or ever over."""
        self._flights.clear()


def _hits(
    group: Any, use: TensorUse, is_collective: bool, rivals: list[InflightOp]
) -> Iterator[tuple[InflightOp, bool]]:
    """Who is under way on the same memory, and whether to write to it; as far as it is not the transport's business."""
    is_plain = is_collective and not use.slot.is_staged
    for one in rivals:
        for span, is_written, other_is_plain in one.touches:
            if not (use.is_written or is_written) or not use.span.shares(span) or one.is_past:
                continue
            if not (is_plain and other_is_plain and one.group is group):
                yield one, is_written


order = OpTracker()
os.register_at_fork(after_in_child=order.forget)


def uses_of(steps: Sequence[TransportOp]) -> tuple[list[TensorUse], bool]:
    """What an operation does to its tensors; outputs that share memory with anything else in it get buffers. And
    whether there are such."""
    uses = [TensorUse(slot, MemorySpan.of(slot.tensor), False) for step in steps for slot in step.reads]
    uses += [TensorUse(slot, MemorySpan.of(slot.tensor), True) for step in steps for slot in step.writes]
    uses.sort(key=lambda use: use.span.begin)
    in_place = [step.in_place for step in steps if step.in_place]
    is_entangled = False
    for at, one in enumerate(uses):
        for other in uses[at + 1 :]:
            if other.span.begin >= one.span.end:
                break
            pair = one.slot, other.slot
            if one.slot is other.slot or pair in in_place or pair[::-1] in in_place or not one.span.shares(other.span):
                continue
            for use in (one, other):
                is_entangled |= use.is_written
                if use.is_written and not use.slot.is_staged:
                    use.slot.stage()
    return uses, is_entangled
