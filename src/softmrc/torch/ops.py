"""Every operation that torch asks a backend for, as an operation of `softmrc.collectives`.

Names changed in torch 2.13 (`_allgather_base` became `all_gather_single`); both are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist

from softmrc.collectives import Block, ReduceOp
from softmrc.collectives.group import ANY_SOURCE
from softmrc.torch import limits
from softmrc.torch.accelerator import Streams
from softmrc.torch.crew import Crew
from softmrc.torch.deferred import Deferred
from softmrc.torch.handle import handle_of
from softmrc.torch.memory import Flight, Step, order, uses_of
from softmrc.torch.passage import DeviceWork, Passage, Rivals
from softmrc.torch.staging import Slot, block, check_numbers, numbers
from softmrc.torch.untraced import untraced
from softmrc.torch.work import Several, Work

Tensor = torch.Tensor
Memory = list[Any]  # tensors, or lists of tensors
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


def reduction(opts: Any, tensor: Tensor) -> dict[str, Any]:
    """How to reduce, for the transport: `op`, and `factor` where the user gave one."""
    check_numbers(tensor)
    wanted = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    # The object that torch passes compares equal to a kind only from its own side.
    kind = next((ours for theirs, ours in _KINDS if wanted == theirs), None)
    if kind is None and wanted == dist.ReduceOp.PREMUL_SUM:
        factor = cast(Any, wanted).__getstate__()[1]
        return {"op": ReduceOp.PREMUL_SUM, "factor": float(factor)}
    if kind is None:
        raise RuntimeError(f"backend mrc does not know the reduction {wanted}")
    if tensor.is_complex() and kind not in (ReduceOp.SUM, ReduceOp.AVG):
        raise RuntimeError(f"backend mrc cannot take the {kind.name.lower()} of complex numbers")
    return {"op": kind}


def limit_of(opts: Any) -> float | None:
    """The operation's own timeout in seconds; None: the group's."""
    return limits.of_operation(getattr(opts, "timeout", None))


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


def begun(steps: list[Step]) -> Any:
    """What was begun, as one operation."""
    operations = [step.start_whole() for step in steps]
    return operations[0] if len(operations) == 1 else Several(operations)


def rows_of(memory: Tensor, shape: torch.Size, splits: list[int]) -> list[Block]:
    """The memory of a tensor of this shape, for each rank so many rows of it."""
    return block(list(memory.view(shape).split(splits)))


def copy_out(outputs: list[Slot]) -> None:
    for slot in outputs:
        slot.copy_out()


class Ops:
    """Needs a group, a crew that tells of ends, a starter of collectives and a courier, which are crews of one."""

    _group: Any  # softmrc.collectives.Group, or what is left of it
    _crew: Crew
    _starter: Crew
    _courier: Crew  # for messages from a device: they must not wait for collectives, nor overtake each other
    _streams: dict[torch.device, Streams]

    # How an operation begins.

    def _go(self, steps: list[Step], result: list[Tensor], is_collective: bool = True) -> dist.Work:
        """Begin it, and say what is left to do at its end."""
        uses, is_entangled = uses_of(steps)
        device = next((use.slot.tensor.device for use in uses if use.slot.on_device), None)
        if device is not None:
            for use in uses:
                use.slot.is_staged = True
        with order:
            before, after, over = order.place(self._group, uses, is_collective)
            if device is None:
                operation = self._start(before, steps, is_collective)
                outputs = [slot for step in steps for slot in step.writes if slot.is_staged]
                work = Work(operation, result, self._crew, partial(copy_out, outputs) if outputs else None, after)
            else:
                rivals = Rivals(before, after, over, is_entangled)
                operation = Passage(self._streams_of(device), steps, rivals, is_collective)
                operation.set_off(self._starter if is_collective else self._courier, self._crew, self._group.abort)
                work = DeviceWork(operation, result, self._crew, after)
            order.add(Flight(self._group, uses, is_collective, operation, work.settled))
        return handle_of(work)

    def _start(self, before: list[Flight], steps: list[Step], is_collective: bool) -> Any:
        def ready() -> None:
            for one in before:
                one.wait()
            for step in steps:
                for slot in step.reads:
                    if slot.is_staged:
                        slot.copy_in()

        start = partial(begun, steps)
        if before:
            return Deferred(self._starter, ready, start)
        ready()
        # What is still held back goes first: every rank must begin its collectives in the same order.
        return Deferred(self._starter, int, start) if is_collective and self._starter.is_busy else start()

    def _streams_of(self, device: torch.device) -> Streams:
        if device not in self._streams:
            self._streams[device] = Streams(device)
        return self._streams[device]

    # Reductions.

    def _all_reduce(self, tensor: Tensor, opts: Any) -> Step:
        slot, how, limit = Slot(tensor), reduction(opts, tensor), limit_of(opts)

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.all_reduce(numbers(ins[0]), **how, timeout_s=limit)

        return Step([slot], [slot], begin, is_divisible=True)

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        tensor = the_one(tensors)
        return self._go([self._all_reduce(tensor, opts)], [tensor])

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        return self._go([self._all_reduce(one, opts) for one in tensors], tensors)

    def reduce(self, tensors: Any, opts: Any) -> dist.Work:
        tensor = the_one(tensors)
        slot, how, root, limit = Slot(tensor), reduction(opts, tensor), opts.rootRank, limit_of(opts)
        writes = [slot] if root == self._group.rank else []

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.reduce(numbers(ins[0]), None, root, **how, timeout_s=limit)

        return self._go([Step([slot], writes, begin, is_divisible=True)], [tensor])

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        output, parts = the_one(outputs), the_list(inputs)
        target, sources = Slot(output), [Slot(one) for one in parts]
        how, limit = reduction(opts, output), limit_of(opts)

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.reduce_scatter(numbers(ins), numbers(outs[0]), **how, timeout_s=limit)

        step = Step(sources, [target], begin, self._own(target, sources), self._fits(target, sources))
        return self._go([step], [output])

    def _reduce_scatter(self, output: Tensor, input: Tensor, opts: Any) -> Step:
        target, source, how, limit = (
            Slot(output),
            Slot(input, self._group.size),
            reduction(opts, output),
            limit_of(opts),
        )

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.reduce_scatter(numbers(ins[0]), numbers(outs[0]), **how, timeout_s=limit)

        return Step([source], [target], begin, self._own_part(target, source), self._fits_in(target, source))

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        return self._go([self._reduce_scatter(output, input, opts)], [output])

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        steps = [self._reduce_scatter(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return self._go(steps, outputs)

    # Movements.

    def broadcast(self, tensors: Any, opts: Any) -> dist.Work:
        tensor = the_one(tensors)
        slot, root, limit = Slot(tensor), opts.rootRank, limit_of(opts)
        is_root = root == self._group.rank

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.broadcast(block((ins or outs)[0]), root, timeout_s=limit)

        step = Step([slot] if is_root else [], [] if is_root else [slot], begin, is_divisible=True)
        return self._go([step], [tensor])

    def _all_gather(self, parts: list[Tensor], input: Tensor, opts: Any) -> Step:
        source, targets, limit = Slot(input), [Slot(one) for one in parts], limit_of(opts)

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.all_gather(block(ins[0]), block(outs), timeout_s=limit)

        return Step([source], targets, begin, self._own(source, targets), self._fits(source, targets))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        parts = the_list(outputs)
        return self._go([self._all_gather(parts, the_one(inputs), opts)], parts)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        # One list for each rank, with one tensor for each input.
        steps = [self._all_gather([row[i] for row in outputs], one, opts) for i, one in enumerate(inputs)]
        return self._go(steps, [one for row in outputs for one in row])

    def _all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Step:
        target, source, limit = Slot(output, self._group.size), Slot(input), limit_of(opts)

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.all_gather(block(ins[0]), block(outs[0]), timeout_s=limit)

        return Step([source], [target], begin, self._own_part(source, target), self._fits_in(source, target))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        return self._go([self._all_gather_single(output, input, opts)], [output])

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        steps = [self._all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return self._go(steps, outputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        root, limit = opts.rootRank, limit_of(opts)
        parts = the_list(outputs) if root == self._group.rank else []
        source, targets = Slot(the_one(inputs)), [Slot(one) for one in parts]

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.gather(block(ins[0]), block(outs) or None, root, timeout_s=limit)

        return self._go([Step([source], targets, begin, self._own(source, targets))], parts)

    def gather_single(self, output: Tensor, input: Tensor, opts: Any) -> dist.Work:
        parts = list(output.chunk(self._group.size)) if opts.rootRank == self._group.rank else []
        return self.gather([parts], [input], opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        output, root, limit = the_one(outputs), opts.rootRank, limit_of(opts)
        target = Slot(output)
        sources = [Slot(one) for one in the_list(inputs)] if root == self._group.rank else []

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.scatter(block(outs[0]), block(ins) or None, root, timeout_s=limit)

        return self._go([Step(sources, [target], begin, self._own(target, sources))], [output])

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        targets, sources, limit = [Slot(one) for one in outputs], [Slot(one) for one in inputs], limit_of(opts)

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.all_to_all(block(ins), block(outs), timeout_s=limit)

        return self._go([Step(sources, targets, begin)], outputs)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> dist.Work:
        target, source, limit = Slot(output), Slot(input), limit_of(opts)
        sent, kept = self._splits(input, input_splits), self._splits(output, output_splits)
        shapes = input.shape, output.shape

        def begin(ins: Memory, outs: Memory) -> Any:
            given, taken = rows_of(ins[0], shapes[0], sent), rows_of(outs[0], shapes[1], kept)
            return self._group.all_to_all(given, taken, timeout_s=limit)

        return self._go([Step([source], [target], begin)], [output])

    def _splits(self, tensor: Tensor, splits: Sequence[int]) -> list[int]:
        """How many rows of it are for each rank; without `splits` as many for each."""
        rows = tensor.shape[0] if tensor.dim() else 1
        size = self._group.size
        if not splits and rows % size:
            raise RuntimeError(f"{rows} rows cannot be divided among {size} ranks: give split sizes")
        splits = splits or [rows // size] * size
        if len(splits) != size or sum(splits) != rows:
            raise RuntimeError(f"split sizes {list(splits)} do not cut {rows} rows for {size} ranks")
        return list(splits)

    # What a rank keeps for itself may lie where it is to come from.

    def _own(self, one: Slot, parts: list[Slot]) -> tuple[Slot, Slot] | None:
        own = parts[self._group.rank] if len(parts) == self._group.size else None
        return (one, own) if own and one.tensor.data_ptr() == own.tensor.data_ptr() else None

    def _own_part(self, part: Slot, whole: Slot) -> tuple[Slot, Slot] | None:
        at = whole.tensor.data_ptr() + self._group.rank * part.tensor.nbytes
        return (part, whole) if part.tensor.data_ptr() == at else None

    # Only what makes sense is done piece by piece; the rest the transport refuses as a whole.

    def _fits(self, one: Slot, parts: list[Slot]) -> bool:
        own = parts[self._group.rank] if len(parts) == self._group.size else None
        alike = all(part.tensor.dtype == one.tensor.dtype for part in parts)
        return own is not None and alike and own.tensor.nbytes == one.tensor.nbytes

    def _fits_in(self, part: Slot, whole: Slot) -> bool:
        alike = part.tensor.dtype == whole.tensor.dtype
        return alike and part.tensor.nbytes * whole.parts == whole.tensor.nbytes

    # From rank to rank.

    def send(self, tensors: Any, to: int, tag: int = 0) -> dist.Work:
        tensor = the_one(tensors)
        step = Step([Slot(tensor)], [], lambda ins, outs: self._group.send(block(ins[0]), to, tag))
        return self._go([step], [tensor], is_collective=False)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> dist.Work:
        tensor = the_one(tensors)
        step = Step([], [Slot(tensor)], lambda ins, outs: self._group.recv(block(outs[0]), source, tag))
        return self._go([step], [tensor], is_collective=False)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        return self.recv(tensors, ANY_SOURCE, tag)

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._barrier(limit_of(opts))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier with a timeout of its own. Every rank waits, and says who did not come."""
        self._barrier(limits.of_operation(timeout)).wait()

    def _barrier(self, limit: float | None) -> dist.Work:
        return self._go([Step([], [], lambda ins, outs: self._group.barrier(timeout_s=limit))], [])

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
