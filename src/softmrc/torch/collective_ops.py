"""Every operation that torch asks a backend for, as an operation of `softmrc.collectives`.

Names changed in torch 2.13 (`_allgather_base` became `all_gather_single`); both are here. Settings come as torch's
options or one by one: see `arguments`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from softmrc.collectives import Block
from softmrc.collectives.group import ANY_SOURCE
from softmrc.torch import arguments, sparse
from softmrc.torch.arguments import CallError, OpOptions, parse_options, reduction, single
from softmrc.torch.dispatch import Dispatcher, OpInfo
from softmrc.torch.skip_dynamo import skip_dynamo
from softmrc.torch.staging import StagedTensor, block, numbers
from softmrc.torch.transport_op import TransportOp

Tensor = torch.Tensor
Memory = list[Any]  # tensors, or lists of tensors


def rows_of(memory: Tensor, shape: torch.Size, splits: list[int]) -> list[Block]:
    """The memory of a tensor of this shape, for each rank so many rows of it."""
    return block(list(memory.view(shape).split(splits)))


def joined(memory: Memory) -> Any:
    """Parts one by one, or the one that has them all."""
    return memory[0] if len(memory) == 1 else memory


class CollectiveOps(Dispatcher):
    """What torch calls."""

    def _root(self, how: OpOptions) -> int:
        if not 0 <= how.root < self._group.size:
            raise CallError(f"invalid root rank: {how.root}, not one of the {self._group.size} ranks of the group")
        return how.root

    # Reductions.

    def _all_reduce(self, tensor: Tensor, how: OpOptions) -> TransportOp:
        slot, kind = StagedTensor(tensor), reduction(how.op, tensor)

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.all_reduce(numbers(ins[0]), **kind, timeout_s=how.limit)

        return TransportOp([slot], [slot], begin, is_divisible=True)

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None) -> dist.Work:
        tensor, how = single(tensors), parse_options(opts, timeout, op)
        if tensor.layout != torch.strided:
            whole = sparse.sum_of(self._group, tensor, how)
            return self._dispatch_serial(OpInfo("sparse_all_reduce", [tensor]), tensor, whole)
        call = OpInfo("all_reduce", [tensor], (how.op,))
        return self._dispatch(call, [self._all_reduce(tensor, how)], [tensor])

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        how = parse_options(opts)
        steps = [self._all_reduce(one, how) for one in arguments.some(tensors)]
        return self._dispatch(OpInfo("allreduce_coalesced", tensors, (how.op,), title="all_reduce"), steps, tensors)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> dist.Work:
        tensor, how = single(tensors), parse_options(opts, timeout, op, root)
        slot, kind, to = StagedTensor(tensor), reduction(how.op, tensor), self._root(how)
        writes = [slot] if to == self._group.rank else []

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.reduce(numbers(ins[0]), None, to, **kind, timeout_s=how.limit)

        call = OpInfo("reduce", [tensor], (how.op, to))
        return self._dispatch(call, [TransportOp([slot], writes, begin, is_divisible=True)], [tensor])

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> dist.Work:
        output, how = single(outputs), parse_options(opts, timeout, op)
        parts = arguments.parts_for(self._group.size, inputs, output, "input")
        return self._dispatch(
            OpInfo("reduce_scatter", parts, (how.op,)), [self._reduce_scatter(output, parts, how)], [output]
        )

    def _reduce_scatter(self, output: Tensor, inputs: Tensor | list[Tensor], how: OpOptions) -> TransportOp:
        target, sources, kind = StagedTensor(output), self._parts(inputs), reduction(how.op, output)

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.reduce_scatter(numbers(joined(ins)), numbers(outs[0]), **kind, timeout_s=how.limit)

        return TransportOp(sources, [target], begin, self._in_place(target, sources), self._is_even(target, sources))

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        how = parse_options(opts)
        step = self._reduce_scatter(output, input, how)
        return self._dispatch(OpInfo("_reduce_scatter_base", [input], (how.op,)), [step], [output])

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        how = parse_options(opts)
        steps = [self._reduce_scatter(o, i, how) for o, i in zip(outputs, arguments.some(inputs), strict=True)]
        return self._dispatch(OpInfo("reduce_scatter_tensor_coalesced", inputs, (how.op,)), steps, outputs)

    # Movements.

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None) -> dist.Work:
        tensor, how = single(tensors), parse_options(opts, timeout, root=root)
        slot, source = StagedTensor(tensor), self._root(how)
        is_root = source == self._group.rank

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.broadcast(block((ins or outs)[0]), source, timeout_s=how.limit)

        step = TransportOp([slot] if is_root else [], [] if is_root else [slot], begin, is_divisible=True)
        return self._dispatch(OpInfo("broadcast", [tensor], (source,)), [step], [tensor])

    def _all_gather(self, outputs: Tensor | list[Tensor], input: Tensor, how: OpOptions) -> TransportOp:
        source, targets = StagedTensor(input), self._parts(outputs)

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.all_gather(block(ins[0]), block(joined(outs)), timeout_s=how.limit)

        return TransportOp([source], targets, begin, self._in_place(source, targets), self._is_even(source, targets))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *, timeout: Any = None) -> dist.Work:
        input, how = single(inputs), parse_options(opts, timeout)
        parts = arguments.parts_for(self._group.size, outputs, input, "output tensor")
        return self._dispatch(OpInfo("all_gather", parts), [self._all_gather(parts, input, how)], parts)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        # One list for each rank, with one tensor for each input.
        arguments.some(inputs)
        if len(outputs) != self._group.size or any(len(row) != len(inputs) for row in outputs):
            raise CallError(
                f"invalid output lists: expected {self._group.size}, one for each rank, of {len(inputs)} tensors each"
            )
        how = parse_options(opts)
        steps = [self._all_gather([row[i] for row in outputs], one, how) for i, one in enumerate(inputs)]
        everything = [one for row in outputs for one in row]
        return self._dispatch(OpInfo("ALLGATHER_coalesced", everything, title="all_gather"), steps, everything)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        step = self._all_gather(output, input, parse_options(opts))
        return self._dispatch(OpInfo("_all_gather_base", [output]), [step], [output])

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        how = parse_options(opts)
        steps = [self._all_gather(o, i, how) for o, i in zip(outputs, arguments.some(inputs), strict=True)]
        return self._dispatch(OpInfo("all_gather_into_tensor_coalesced", outputs), steps, outputs)

    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> dist.Work:
        input, how = single(inputs), parse_options(opts, timeout, root=root)
        to = self._root(how)
        parts = (
            arguments.parts_for(self._group.size, outputs, input, "output")
            if to == self._group.rank
            else arguments.nothing(outputs, "output")
        )
        source, targets = StagedTensor(input), [StagedTensor(one) for one in parts]

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.gather(block(ins[0]), block(outs) or None, to, timeout_s=how.limit)

        step = TransportOp([source], targets, begin, self._in_place(source, targets))
        return self._dispatch(OpInfo("gather", (), (input.dtype, to)), [step], parts)

    def gather_single(self, output: Tensor, input: Tensor, opts: Any) -> dist.Work:
        parts = list(output.chunk(self._group.size)) if opts.rootRank == self._group.rank else []
        return self.gather([parts], [input], opts)

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> dist.Work:
        output, how = single(outputs), parse_options(opts, timeout, root=root)
        source, target = self._root(how), StagedTensor(output)
        parts = (
            arguments.parts_for(self._group.size, inputs, output, "input")
            if source == self._group.rank
            else arguments.nothing(inputs, "input")
        )
        sources = [StagedTensor(one) for one in parts]

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.scatter(block(outs[0]), block(ins) or None, source, timeout_s=how.limit)

        step = TransportOp(sources, [target], begin, self._in_place(target, sources))
        return self._dispatch(OpInfo("scatter", (), (output.dtype, source)), [step], [output])

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        size, how = self._group.size, parse_options(opts)
        given = arguments.parts_for(size, inputs, None, "input")
        taken = arguments.parts_for(size, outputs, given[0], "output")
        own = self._group.rank
        if given[own].nbytes != taken[own].nbytes:
            raise CallError(
                f"invalid tensor size at index {own}: this rank gives itself {list(given[own].shape)} "
                f"and takes {list(taken[own].shape)}"
            )

        def begin(ins: Memory, outs: Memory) -> Any:
            return self._group.all_to_all(block(ins), block(outs), timeout_s=how.limit)

        step = TransportOp([StagedTensor(one) for one in given], [StagedTensor(one) for one in taken], begin)
        return self._dispatch(OpInfo("all_to_all", (), (given[0].dtype,)), [step], outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
        *,
        timeout: Any = None,
    ) -> dist.Work:
        target, source = StagedTensor(output), StagedTensor(input)
        how, size = parse_options(opts, timeout), self._group.size
        sent = arguments.splits(input, input_split_sizes, size)
        kept = arguments.splits(output, output_split_sizes, size)
        shapes = input.shape, output.shape

        def begin(ins: Memory, outs: Memory) -> Any:
            given, taken = rows_of(ins[0], shapes[0], sent), rows_of(outs[0], shapes[1], kept)
            return self._group.all_to_all(given, taken, timeout_s=how.limit)

        return self._dispatch(
            OpInfo("all_to_all", (), (input.dtype,)), [TransportOp([source], [target], begin)], [output]
        )

    # One tensor for each rank, or one that has a part for each.

    def _parts(self, memory: Tensor | list[Tensor]) -> list[StagedTensor]:
        if isinstance(memory, Tensor):
            return [StagedTensor(memory, self._group.size)]
        return [StagedTensor(one) for one in memory]

    def _own(self, parts: list[StagedTensor]) -> StagedTensor | None:
        """Where this rank's part is."""
        return parts[0] if len(parts) == 1 else parts[self._group.rank] if parts else None

    def _in_place(self, one: StagedTensor, parts: list[StagedTensor]) -> tuple[StagedTensor, StagedTensor] | None:
        """What a rank keeps for itself may lie where it is to come from."""
        own = self._own(parts)
        offset = self._group.rank * one.tensor.nbytes if own and own.parts > 1 else 0
        return (one, own) if own and one.tensor.data_ptr() == own.tensor.data_ptr() + offset else None

    def _is_even(self, one: StagedTensor, parts: list[StagedTensor]) -> bool:
        """Only what makes sense is done piece by piece; the rest the transport refuses as a whole."""
        own = self._own(parts)
        alike = all(part.tensor.dtype == one.tensor.dtype for part in parts)
        return own is not None and alike and own.tensor.nbytes == one.tensor.nbytes * own.parts

    # From rank to rank.

    def send(self, tensors: Any, to: int, tag: int = 0) -> dist.Work:
        tensor = single(tensors)
        step = TransportOp([StagedTensor(tensor)], [], lambda ins, outs: self._group.send(block(ins[0]), to, tag))
        call = OpInfo("send", peers=f"{self._group.rank}->{to}")
        return self._dispatch(call, [step], [tensor], is_collective=False)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> dist.Work:
        tensor = single(tensors)
        step = TransportOp([], [StagedTensor(tensor)], lambda ins, outs: self._group.recv(block(outs[0]), source, tag))
        name = "recvAnySource" if source == ANY_SOURCE else "recv"
        return self._dispatch(
            OpInfo(name, peers=f"{self._group.rank}<-{source}"), [step], [tensor], is_collective=False
        )

    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        return self.recv(tensors, ANY_SOURCE, tag)

    def barrier(self, opts: Any = None, *, timeout: timedelta | None = None) -> dist.Work:
        how = parse_options(opts, timeout)
        step = TransportOp([], [], lambda ins, outs: self._group.barrier(timeout_s=how.limit))
        return self._dispatch(OpInfo("barrier"), [step], [])

    # What the same were called before torch 2.13.

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


OPERATIONS = [name for name in vars(CollectiveOps) if hasattr(dist.ProcessGroup, name) and not name.startswith("__")]
skip_dynamo(CollectiveOps, OPERATIONS)
