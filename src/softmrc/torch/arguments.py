"""What a caller may say, and what makes no sense.

Torch's own classes take an operation's settings as options, as `dist` passes them, or one by one:
`group.broadcast(tensor, root=1)`, `group.allreduce(tensor, op=MAX, timeout=…)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist

from softmrc.collectives import ReduceOp
from softmrc.errors import MrcError
from softmrc.torch import timeouts
from softmrc.torch.staging import check_numbers

Tensor = torch.Tensor
_KINDS = [(getattr(dist.ReduceOp, op.name), op) for op in ReduceOp if op is not ReduceOp.PREMUL_SUM]


class CallError(MrcError, ValueError, RuntimeError):
    """A call that makes no sense, noticed on the rank that makes it. `ValueError` is what torch's own backends raise
    for most of these, `RuntimeError` what they raise for the rest."""


class OpOptions(NamedTuple):
    """The settings of one operation."""

    op: Any = dist.ReduceOp.SUM
    root: int = 0
    limit: float | None = None  # its own timeout in seconds; None: the group's


def parse_options(opts: Any = None, timeout: Any = None, op: Any = None, root: Any = None) -> OpOptions:
    """`opts`: torch's options, or the first of the settings that are given one by one."""
    if isinstance(opts, int) and not isinstance(opts, bool):
        root = opts
    elif isinstance(opts, timedelta):
        timeout = opts
    elif isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType):
        op = opts
    elif opts is not None:
        op, root = getattr(opts, "reduceOp", op), getattr(opts, "rootRank", root)
        timeout = getattr(opts, "timeout", timeout)
    limit = timeouts.of_operation(timeout)
    return OpOptions(dist.ReduceOp.SUM if op is None else op, 0 if root is None else int(root), limit)


def reduction(op: Any, tensor: Tensor) -> dict[str, Any]:
    """How to reduce, for the transport: `op`, and `factor` where the user gave one."""
    check_numbers(tensor)
    kind = _kind(op)
    if kind is None and op == dist.ReduceOp.PREMUL_SUM:
        factor = cast(Any, op).__getstate__()[1]
        return {"op": ReduceOp.PREMUL_SUM, "factor": float(factor)}
    if kind is None:
        raise RuntimeError(f"backend mrc does not know the reduction {op}")
    if tensor.is_complex() and kind not in (ReduceOp.SUM, ReduceOp.AVG):
        raise RuntimeError(f"backend mrc cannot take the {kind.name.lower()} of complex numbers")
    return {"op": kind}


def _kind(op: Any) -> ReduceOp | None:
    # The object that torch passes compares equal to a kind only from its own side.
    return next((ours for theirs, ours in _KINDS if op == theirs), None)


def word(setting: Any) -> str:
    """A reduction, a root or a dtype, as all ranks would say it."""
    if isinstance(setting, int):
        return f"root {setting}"
    if isinstance(setting, torch.dtype):
        return str(setting)
    kind = _kind(setting)
    return str(setting.__getstate__()) if kind is None else kind.name


def single(tensors: Any) -> Tensor:
    """The tensor that stands alone or in a list of one; torch passes both for old and new names of one thing."""
    if isinstance(tensors, Tensor):
        return tensors
    if not tensors:
        raise CallError("requires a non-empty tensor list: backend mrc takes one tensor of each rank here, not 0")
    if len(tensors) != 1:
        raise CallError(f"requires a single-element tensor list: backend mrc takes one here, not {len(tensors)}")
    return tensors[0]


def tensor_list(parts: Sequence[Any]) -> list[Tensor]:
    """One tensor for each rank, in a list or in a list of one list."""
    return list(parts) if not parts or isinstance(parts[0], Tensor) else list(cast(Any, single(parts)))


def parts_for(size: int, parts: Sequence[Any], like: Tensor | None, what: str) -> list[Tensor]:
    """One tensor for each rank, all of one type. Lengths may differ, as torch's documentation says."""
    tensors = tensor_list(parts)
    if len(tensors) != size:
        raise CallError(f"invalid {what} list: expected length {size}, one tensor for each rank, got {len(tensors)}")
    same_type(tensors if like is None else [like, *tensors])
    return tensors


def nothing(parts: Any, what: str) -> list[Tensor]:
    """What ranks that are not the root have to pass."""
    if parts and tensor_list(parts):
        raise CallError(f"requires empty {what} on non-root")
    return []


def some(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The tensors of a coalesced operation."""
    if not tensors:
        raise CallError("requires a non-empty tensor list")
    same_type(tensors)
    return tensors


def same_type(tensors: Sequence[Tensor]) -> None:
    for at, one in enumerate(tensors):
        if one.dtype != tensors[0].dtype:
            raise CallError(f"invalid tensor type at index {at}: expected {tensors[0].dtype}, got {one.dtype}")


def splits(tensor: Tensor, sizes: Sequence[int], ranks: int) -> list[int]:
    """How many rows of it are for each rank; without `sizes` as many for each."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not sizes and rows % ranks:
        raise CallError(f"{rows} rows cannot be divided among {ranks} ranks: give split sizes")
    sizes = sizes or [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows:
        raise CallError(f"split sizes {list(sizes)} do not cut {rows} rows for {ranks} ranks")
    return list(sizes)
