"""The operations of a group that are under way, in one registry.

It keeps their memory alive until they have ended, even if the caller has forgotten its `Work`, and finds those that use
given memory. The native group orders collectives that share memory as it lies. An operation that goes through a buffer
of its caller's besides has a `MemoryClaim` here on what it will copy the result to.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

SWEEP_ALWAYS = 32  # with so few under way, looking at each costs less than an operation


class Span(NamedTuple):
    """Bytes of memory, from the first to before the last; an operation may leave out some of them."""

    begin: int
    end: int

    def overlaps(self, other: Span) -> bool:
        return max(self.begin, other.begin) < min(self.end, other.end)


class NativeOp:
    """An operation of the native group, and what is kept for it until it has ended."""

    __slots__ = ("blocks", "is_collective", "native", "record")

    def __init__(self, native: Any, blocks: Sequence[Any], record: int | None, is_collective: bool) -> None:
        self.native = native
        self.blocks = blocks
        self.record = record  # its number in the flight recorder, if there is one
        self.is_collective = is_collective

    @property
    def is_over(self) -> bool:
        return self.native.has_ended

    @property
    def spans(self) -> list[Span]:
        return [Span(block.address, block.address + block.nbytes) for block in self.blocks]


class MemoryClaim(threading.Event):
    """Memory that an operation writes to after its end on the network; set when it has."""

    def __init__(self, spans: Sequence[Span]) -> None:
        super().__init__()
        self.spans = spans
        self.copied: Any = None  # on an accelerator: the event that ends the copies there

    @property
    def is_over(self) -> bool:
        return self.is_set() and (self.copied is None or self.copied.query())


class InflightOps:
    """Of one group. From any thread: each change is a single step of a dict."""

    def __init__(self, recorder: Any = None) -> None:
        self._recorder = recorder
        self._ops: dict[int, NativeOp | MemoryClaim] = {}  # by identity
        self._sweep_at = SWEEP_ALWAYS

    def add(self, op: NativeOp | MemoryClaim) -> None:
        if not SWEEP_ALWAYS <= len(self._ops) < self._sweep_at:
            self._sweep()
        self._ops[id(op)] = op
        if op.is_over:
            self.end(op)

    def _sweep(self) -> None:
        """Let go of what ended without anybody waiting. A receive may wait for hours; it must not hold up the rest."""
        for op in list(self._ops.values()):
            if op.is_over:
                self.end(op)
        self._sweep_at = SWEEP_ALWAYS + 2 * len(self._ops)

    def end(self, op: NativeOp | MemoryClaim) -> None:
        """It is over, and its memory is the caller's again. From any thread, and more than once."""
        if self._ops.pop(id(op), None) is None or self._recorder is None:
            return
        if isinstance(op, NativeOp) and op.record is not None:
            self._recorder.end(op.record)

    def conflicts(self, as_it_lies: Sequence[Span], staged: Sequence[Span]) -> list[NativeOp | MemoryClaim]:
        """Operations that one must wait for before it begins which uses some memory as it lies, and copies to or from
        other memory. Sends and receives are not among them."""
        every = (*as_it_lies, *staged)
        return [
            op
            for op in list(self._ops.values())
            if (isinstance(op, MemoryClaim) or (staged and op.is_collective)) and not op.is_over
            if any(a.overlaps(b) for a in op.spans for b in (every if isinstance(op, MemoryClaim) else staged))
        ]

    def clear(self) -> None:
        self._ops.clear()
