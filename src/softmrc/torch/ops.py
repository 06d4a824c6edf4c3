"""Every operation that torch asks a backend for, as an operation of `softmrc.collectives`.

Names changed in torch 2.13 (`_allgather_base` became `all_gather_single`); both are here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist

from softmrc.collectives import Block, ReduceOp
from softmrc.collectives.group import ANY_SOURCE
from softmrc.errors import ConfigError
from softmrc.torch.accelerator import Deferred, DeviceWork, Streams
from softmrc.torch.crew import Crew
from softmrc.torch.staging import Slot, blocks
from softmrc.torch.untraced import untraced
from softmrc.torch.work import CoalescedWork, Work

Tensor = torch.Tensor
Begin = Callable[[], Any]  # hands out an `Operation`
_KINDS = (
    (dist.ReduceOp.SUM, ReduceOp.SUM),
    (dist.ReduceOp.AVG, ReduceOp.AVG),
    (dist.ReduceOp.PRODUCT, ReduceOp.PRODUCT),
    (dist.ReduceOp.MIN, ReduceOp.MIN),
    (dist.ReduceOp.MAX, ReduceOp.MAX),
    (dist.ReduceOp.BAND, ReduceOp.BAND),
    (dist.ReduceOp.BOR, ReduceOp.BOR),
    (dist.ReduceOp.BXOR, ReduceOp.BXOR),
)


def reduction(opts: Any, numbers: Tensor) -> dict[str, Any]:
    """How to reduce, for the transport: `op`, and `factor` where the user gave one."""
    wanted = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    # The object that torch passes compares equal to a kind only from its own side.
    kind = next((ours for theirs, ours in _KINDS if wanted == theirs), None)
    if kind is None and wanted == dist.ReduceOp.PREMUL_SUM:
        factor = cast(Any, wanted).__getstate__()[1]
        return {"op": ReduceOp.PREMUL_SUM, "factor": float(factor)}
    if kind is None:
        raise RuntimeError(f"backend mrc does not know the reduction {wanted}")
    if numbers.is_complex() and kind not in (ReduceOp.SUM, ReduceOp.AVG):
        raise RuntimeError(f"backend mrc cannot take the {kind.name.lower()} of complex numbers")
    return {"op": kind}


def limit_of(opts: Any) -> float | None:
    """The operation's own timeout in seconds; None: the group's."""
    timeout = getattr(opts, "timeout", None)
    return timeout.total_seconds() if isinstance(timeout, timedelta) and timeout > timedelta(0) else None


def the_one(tensors: Tensor | Sequence[Any]) -> Any:
    """Torch passes lists, from the days of several devices in a process; they hold one thing."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise RuntimeError(f"backend mrc takes one tensor of each rank here, not {len(tensors)}")
    return tensors[0]


def the_list(parts: Sequence[Any]) -> list[Tensor]:
    """One tensor for each rank, in a list or in a list of one list."""
    return list(parts) if not parts or isinstance(parts[0], Tensor) else list(the_one(parts))


def begun(begin: Begin) -> Any:
    """What was begun; a refusal is what torch expects of backends."""
    try:
        return begin()
    except ConfigError as error:
        raise RuntimeError(str(error)) from None


def copy_out(slots: list[Slot]) -> None:
    for slot in slots:
        slot.copy_out()


class Ops:
    """Needs a group, a crew that tells of ends, and a starter, which is a crew of one."""

    _group: Any  # softmrc.collectives.Group, or what is left of it
    _crew: Crew
    _starter: Crew
    _streams: dict[torch.device, Streams]

    # How an operation begins.

    def _go(self, begin: Begin, result: list[Tensor], reads: Sequence[Slot], writes: Sequence[Slot]) -> Work:
        """Begin it, and say what is left to do at its end."""
        device = next((slot.tensor.device for slot in (*reads, *writes) if slot.on_device), None)
        if device is not None:
            return self._go_on_device(device, begin, result, reads, writes)
        for slot in reads:
            if slot.is_staged:
                slot.copy_in()
        # What an accelerator still holds back goes first: every rank must begin in the same order.
        starts = partial(begun, begin)
        operation = Deferred(self._starter, int, starts) if self._starter.is_busy else starts()
        staged = [slot for slot in writes if slot.is_staged]
        return Work(operation, result, self._crew, partial(copy_out, staged) if staged else None)

    def _go_on_device(
        self,
        device: torch.device,
        begin: Begin,
        result: list[Tensor],
        reads: Sequence[Slot],
        writes: Sequence[Slot],
    ) -> Work:
        if device not in self._streams:
            self._streams[device] = Streams(device)
        streams = self._streams[device]
        copied = streams.copy_in([slot for slot in reads if slot.is_staged])
        operation = Deferred(self._starter, copied.synchronize, partial(begun, begin))
        return DeviceWork(operation, result, self._crew, streams, [slot for slot in writes if slot.is_staged])

    def _go_all(self, works: list[Work], result: list[Tensor]) -> Work:
        """Several, already begun, as one."""
        return CoalescedWork(works, result, self._crew)

    # Reductions.

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        tensor = the_one(tensors)
        slot, how = Slot(tensor), reduction(opts, tensor)
        begin = partial(self._group.all_reduce, slot.numbers(), **how, timeout_s=limit_of(opts))
        return self._go(begin, [tensor], [slot], [slot])

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        return self._go_all([self.allreduce(one, opts) for one in tensors], tensors)

    def reduce(self, tensors: Any, opts: Any) -> Work:
        tensor = the_one(tensors)
        slot, how, root = Slot(tensor), reduction(opts, tensor), opts.rootRank
        begin = partial(self._group.reduce, slot.numbers(), None, root, **how, timeout_s=limit_of(opts))
        return self._go(begin, [tensor], [slot], [slot] if root == self._group.rank else [])

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        output, parts = the_one(outputs), the_list(inputs)
        target, sources, how = Slot(output), [Slot(one) for one in parts], reduction(opts, output)
        memory = [one.numbers() for one in sources]
        begin = partial(self._group.reduce_scatter, memory, target.numbers(), **how, timeout_s=limit_of(opts))
        return self._go(begin, [output], sources, [target])

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        target, source, how = Slot(output), Slot(input), reduction(opts, output)
        begin = partial(self._group.reduce_scatter, source.numbers(), target.numbers(), **how, timeout_s=limit_of(opts))
        return self._go(begin, [output], [source], [target])

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        works = [self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return self._go_all(works, outputs)

    # Movements.

    def broadcast(self, tensors: Any, opts: Any) -> Work:
        tensor = the_one(tensors)
        slot, root = Slot(tensor), opts.rootRank
        begin = partial(self._group.broadcast, slot.block(), root, timeout_s=limit_of(opts))
        is_root = root == self._group.rank
        return self._go(begin, [tensor], [slot] if is_root else [], [] if is_root else [slot])

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        input, parts = the_one(inputs), the_list(outputs)
        source, targets = Slot(input), [Slot(one) for one in parts]
        begin = partial(self._group.all_gather, source.block(), blocks(targets), timeout_s=limit_of(opts))
        return self._go(begin, parts, [source], targets)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
        # One list for each rank, with one tensor for each input.
        works = [self.allgather([[row[i] for row in outputs]], [one], opts) for i, one in enumerate(inputs)]
        return self._go_all(works, [one for row in outputs for one in row])

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        target, source = Slot(output), Slot(input)
        begin = partial(self._group.all_gather, source.block(), target.block(), timeout_s=limit_of(opts))
        return self._go(begin, [output], [source], [target])

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        works = [self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return self._go_all(works, outputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        input, root = the_one(inputs), opts.rootRank
        source = Slot(input)
        parts = the_list(outputs) if root == self._group.rank else []
        targets = [Slot(one) for one in parts]
        begin = partial(self._group.gather, source.block(), blocks(targets) or None, root, timeout_s=limit_of(opts))
        return self._go(begin, parts, [source], targets)

    def gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Work:
        parts = list(output.chunk(self._group.size)) if opts.rootRank == self._group.rank else []
        return self.gather([parts], [input], opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        output, root = the_one(outputs), opts.rootRank
        target = Slot(output)
        sources = [Slot(one) for one in the_list(inputs)] if root == self._group.rank else []
        begin = partial(self._group.scatter, target.block(), blocks(sources) or None, root, timeout_s=limit_of(opts))
        return self._go(begin, [output], sources, [target])

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        targets, sources = [Slot(one) for one in outputs], [Slot(one) for one in inputs]
        begin = partial(self._group.all_to_all, blocks(sources), blocks(targets), timeout_s=limit_of(opts))
        return self._go(begin, outputs, sources, targets)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> Work:
        target, source = Slot(output), Slot(input)
        begin = partial(
            self._group.all_to_all,
            self._cut(source, input_splits),
            self._cut(target, output_splits),
            timeout_s=limit_of(opts),
        )
        return self._go(begin, [output], [source], [target])

    def _cut(self, slot: Slot, splits: Sequence[int]) -> list[Block]:
        """The memory of one tensor for each rank, by rows; without `splits` evenly."""
        rows = slot.buffer.shape[0] if slot.buffer.dim() else 1
        size = self._group.size
        if not splits and rows % size:
            raise RuntimeError(f"{rows} rows cannot be divided among {size} ranks: give split sizes")
        splits = splits or [rows // size] * size
        if len(splits) != size or sum(splits) != rows:
            raise RuntimeError(f"split sizes {list(splits)} do not cut {rows} rows for {size} ranks")
        return [Slot(part).block() for part in slot.buffer.split(list(splits))]

    # From rank to rank.

    def send(self, tensors: Any, to: int, tag: int = 0) -> Work:
        tensor = the_one(tensors)
        slot = Slot(tensor)
        return self._go(partial(self._group.send, slot.block(), to, tag), [tensor], [slot], [])

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        tensor = the_one(tensors)
        slot = Slot(tensor)
        return self._go(partial(self._group.recv, slot.block(), source, tag), [tensor], [], [slot])

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self.recv(tensors, ANY_SOURCE, tag)

    def barrier(self, opts: Any = None) -> Work:
        return self._go(partial(self._group.barrier, timeout_s=limit_of(opts)), [], [], [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier with a timeout of its own. Every rank waits, and says who did not come."""
        work = self._go(partial(self._group.barrier, timeout_s=timeout and timeout.total_seconds()), [], [], [])
        work.wait()

    # What the same were called before torch 2.13.

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


OPERATIONS = [
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "broadcast",
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "gather",
    "gather_single",
    "scatter",
    "alltoall",
    "all_to_all_single",
    "send",
    "recv",
    "recv_anysource",
    "barrier",
    "_allgather_base",
    "_reduce_scatter_base",
    "alltoall_base",
    "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
]
untraced(Ops, OPERATIONS)
