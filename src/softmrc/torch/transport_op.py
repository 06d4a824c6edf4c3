"""An operation of the transport with the tensors that it reads and writes, and the memory that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from softmrc.collectives.inflight import Span
from softmrc.errors import ConfigError
from softmrc.torch.staging import StagedTensor


class TransportOp(NamedTuple):
    """What it reads and writes, and how to begin it with memory for each of those."""

    reads: Sequence[StagedTensor]
    writes: Sequence[StagedTensor]
    begin: Callable[[list[Any], list[Any]], Any]  # a tensor for each slot, or a list with one for each of its parts
    in_place: tuple[StagedTensor, StagedTensor] | None = None  # an output, and the input that it may replace
    is_divisible: bool = False  # every rank knows how long all parts are: it may be done a piece of each at a time

    @property
    def slots(self) -> list[StagedTensor]:
        """What it reads and writes, each once."""
        return list({id(slot): slot for slot in (*self.reads, *self.writes)}.values())

    def start(self, ins: list[Any], outs: list[Any]) -> Any:
        """Begin it; a refusal is what torch expects of backends."""
        try:
            return self.begin(ins, outs)
        except ConfigError as error:
            raise RuntimeError(str(error)) from None

    def start_whole(self) -> Any:
        """With CPU memory as it lies, or the buffers that stand for it."""
        return self.start([slot.buffer for slot in self.reads], [slot.buffer for slot in self.writes])


def span_of(tensor: torch.Tensor) -> Span:
    """From its first byte to its last; of a strided tensor, with the gaps."""
    begin = tensor.data_ptr()
    if not tensor.numel():
        return Span(begin, begin)
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return Span(begin, begin + (last + 1) * tensor.element_size())


def stage_shared_outputs(steps: Sequence[TransportOp]) -> bool:
    """Give outputs that may share memory with anything else in these steps buffers, so that all inputs are read before
    any is written. Whether there are such."""
    uses = [(span_of(slot.tensor), slot, False) for step in steps for slot in step.reads]
    uses += [(span_of(slot.tensor), slot, True) for step in steps for slot in step.writes]
    uses.sort(key=lambda use: use[0].begin)
    in_place = {frozenset(map(id, step.in_place)) for step in steps if step.in_place}
    is_shared = False
    for at, (span, slot, is_written) in enumerate(uses):
        for other_span, other, is_other_written in uses[at + 1 :]:
            if other_span.begin >= span.end:
                break
            if slot is other or not span.overlaps(other_span) or frozenset((id(slot), id(other))) in in_place:
                continue
            for one, writes in ((slot, is_written), (other, is_other_written)):
                is_shared |= writes
                if writes and not one.is_staged:
                    one.stage()
    return is_shared
