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
from softmrc.torch import limits
from softmrc.torch.accelerator import Deferred, DeviceWork, Streams
from softmrc.torch.crew import Crew
from softmrc.torch.handle import handle_of
from softmrc.torch.memory import Flight, Step, order, uses_of
from softmrc.torch.staging import Slot, blocks
from softmrc.torch.untraced import untraced
from softmrc.torch.work import Several, Work

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


def begun(begins: list[Begin]) -> Any:
    """What was begun, as one operation; a refusal is what torch expects of backends."""
    try:
        operations = [begin() for begin in begins]
    except ConfigError as error:
        raise RuntimeError(str(error)) from None
    return operations[0] if len(operations) == 1 else Several(operations)


def copy_out(outputs: list[Slot]) -> None:
    for slot in outputs:
        slot.copy_out()


class Ops:
    """Needs a group, a crew that tells of ends, and a starter, which is a crew of one."""

    _group: Any  # softmrc.collectives.Group, or what is left of it
    _crew: Crew
    _starter: Crew
    _streams: dict[torch.device, Streams]

    # How an operation begins.

    def _go(self, steps: list[Step], result: list[Tensor], is_collective: bool = True) -> dist.Work:
        """Begin it, and say what is left to do at its end."""
        uses = uses_of(steps)
        with order:
            before, after = order.place(self._group, uses, is_collective)
            begins = [step.prepare() for step in steps]
            staged = [slot for step in steps for slot in step.reads if slot.is_staged]
            outputs = [slot for step in steps for slot in step.writes if slot.is_staged]
            device = next((use.slot.tensor.device for use in uses if use.slot.on_device), None)
            start = partial(begun, begins)
            if device is None:
                operation = self._start(before, staged, start, is_collective)
                work = Work(operation, result, self._crew, partial(copy_out, outputs) if outputs else None, after)
            else:
                streams = self._streams_of(device)
                operation = self._start_on_device(streams, before, staged, start)
                work = DeviceWork(operation, result, self._crew, streams, outputs, after)
            order.add(Flight(self._group, uses, is_collective, operation, work.settled))
        return handle_of(work)

    def _start(self, before: list[Flight], staged: list[Slot], start: Begin, is_collective: bool) -> Any:
        def ready() -> None:
            for one in before:
                one.wait()
            for slot in staged:
                slot.copy_in()

        if before:
            return Deferred(self._starter, ready, start)
        ready()
        # What is still held back goes first: every rank must begin its collectives in the same order.
        return Deferred(self._starter, int, start) if is_collective and self._starter.is_busy else start()

    def _start_on_device(self, streams: Streams, before: list[Flight], staged: list[Slot], start: Begin) -> Any:
        streams.follow()
        if not before:
            return Deferred(self._starter, streams.copy_in(staged).synchronize, start)

        def ready() -> None:
            for one in before:
                one.wait()
            streams.copy_in(staged).synchronize()

        return Deferred(self._starter, ready, start)

    def _streams_of(self, device: torch.device) -> Streams:
        if device not in self._streams:
            self._streams[device] = Streams(device)
        return self._streams[device]

    # Reductions.

    def _all_reduce(self, tensor: Tensor, opts: Any) -> Step:
        slot, how, limit = Slot(tensor), reduction(opts, tensor), limit_of(opts)
        return Step([slot], [slot], lambda: partial(self._group.all_reduce, slot.numbers(), **how, timeout_s=limit))

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        tensor = the_one(tensors)
        return self._go([self._all_reduce(tensor, opts)], [tensor])

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        return self._go([self._all_reduce(one, opts) for one in tensors], tensors)

    def reduce(self, tensors: Any, opts: Any) -> dist.Work:
        tensor = the_one(tensors)
        slot, how, root, limit = Slot(tensor), reduction(opts, tensor), opts.rootRank, limit_of(opts)
        writes = [slot] if root == self._group.rank else []

        def prepare() -> Begin:
            return partial(self._group.reduce, slot.numbers(), None, root, **how, timeout_s=limit)

        return self._go([Step([slot], writes, prepare)], [tensor])

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        output, parts = the_one(outputs), the_list(inputs)
        target, sources = Slot(output), [Slot(one) for one in parts]
        how, limit = reduction(opts, output), limit_of(opts)

        def prepare() -> Begin:
            memory = [one.numbers() for one in sources]
            return partial(self._group.reduce_scatter, memory, target.numbers(), **how, timeout_s=limit)

        in_place = self._own(target, sources)
        return self._go([Step(sources, [target], prepare, in_place)], [output])

    def _reduce_scatter(self, output: Tensor, input: Tensor, opts: Any) -> Step:
        target, source, how, limit = Slot(output), Slot(input), reduction(opts, output), limit_of(opts)

        def prepare() -> Begin:
            return partial(self._group.reduce_scatter, source.numbers(), target.numbers(), **how, timeout_s=limit)

        return Step([source], [target], prepare, self._own_part(target, source))

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

        def prepare() -> Begin:
            return partial(self._group.broadcast, slot.block(), root, timeout_s=limit)

        return self._go([Step([slot] if is_root else [], [] if is_root else [slot], prepare)], [tensor])

    def _all_gather(self, parts: list[Tensor], input: Tensor, opts: Any) -> Step:
        source, targets, limit = Slot(input), [Slot(one) for one in parts], limit_of(opts)

        def prepare() -> Begin:
            return partial(self._group.all_gather, source.block(), blocks(targets), timeout_s=limit)

        return Step([source], targets, prepare, self._own(source, targets))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        parts = the_list(outputs)
        return self._go([self._all_gather(parts, the_one(inputs), opts)], parts)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        # One list for each rank, with one tensor for each input.
        steps = [self._all_gather([row[i] for row in outputs], one, opts) for i, one in enumerate(inputs)]
        return self._go(steps, [one for row in outputs for one in row])

    def _all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Step:
        target, source, limit = Slot(output), Slot(input), limit_of(opts)

        def prepare() -> Begin:
            return partial(self._group.all_gather, source.block(), target.block(), timeout_s=limit)

        return Step([source], [target], prepare, self._own_part(source, target))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        return self._go([self._all_gather_single(output, input, opts)], [output])

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        steps = [self._all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return self._go(steps, outputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        root, limit = opts.rootRank, limit_of(opts)
        parts = the_list(outputs) if root == self._group.rank else []
        source, targets = Slot(the_one(inputs)), [Slot(one) for one in parts]

        def prepare() -> Begin:
            return partial(self._group.gather, source.block(), blocks(targets) or None, root, timeout_s=limit)

        return self._go([Step([source], targets, prepare, self._own(source, targets))], parts)

    def gather_single(self, output: Tensor, input: Tensor, opts: Any) -> dist.Work:
        parts = list(output.chunk(self._group.size)) if opts.rootRank == self._group.rank else []
        return self.gather([parts], [input], opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        output, root, limit = the_one(outputs), opts.rootRank, limit_of(opts)
        target = Slot(output)
        sources = [Slot(one) for one in the_list(inputs)] if root == self._group.rank else []

        def prepare() -> Begin:
            return partial(self._group.scatter, target.block(), blocks(sources) or None, root, timeout_s=limit)

        return self._go([Step(sources, [target], prepare, self._own(target, sources))], [output])

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        targets, sources, limit = [Slot(one) for one in outputs], [Slot(one) for one in inputs], limit_of(opts)

        def prepare() -> Begin:
            return partial(self._group.all_to_all, blocks(sources), blocks(targets), timeout_s=limit)

        return self._go([Step(sources, targets, prepare)], outputs)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> dist.Work:
        target, source, limit = Slot(output), Slot(input), limit_of(opts)

        def prepare() -> Begin:
            sent, kept = self._cut(source, input_splits), self._cut(target, output_splits)
            return partial(self._group.all_to_all, sent, kept, timeout_s=limit)

        return self._go([Step([source], [target], prepare)], [output])

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

    # What a rank keeps for itself may lie where it is to come from.

    def _own(self, one: Slot, parts: list[Slot]) -> tuple[Slot, Slot] | None:
        own = parts[self._group.rank] if len(parts) == self._group.size else None
        return (one, own) if own and one.tensor.data_ptr() == own.tensor.data_ptr() else None

    def _own_part(self, part: Slot, whole: Slot) -> tuple[Slot, Slot] | None:
        at = whole.tensor.data_ptr() + self._group.rank * part.tensor.nbytes
        return (part, whole) if part.tensor.data_ptr() == at else None

    # From rank to rank.

    def send(self, tensors: Any, to: int, tag: int = 0) -> dist.Work:
        tensor = the_one(tensors)
        slot = Slot(tensor)
        step = Step([slot], [], lambda: partial(self._group.send, slot.block(), to, tag))
        return self._go([step], [tensor], is_collective=False)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> dist.Work:
        tensor = the_one(tensors)
        slot = Slot(tensor)
        step = Step([], [slot], lambda: partial(self._group.recv, slot.block(), source, tag))
        return self._go([step], [tensor], is_collective=False)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        return self.recv(tensors, ANY_SOURCE, tag)

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._barrier(limit_of(opts))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier with a timeout of its own. Every rank waits, and says who did not come."""
        self._barrier(limits.of_operation(timeout)).wait()

    def _barrier(self, limit: float | None) -> dist.Work:
        return self._go([Step([], [], lambda: partial(self._group.barrier, timeout_s=limit))], [])

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
