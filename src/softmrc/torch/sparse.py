"""Sparse tensors, summed: everybody's indices and values are gathered, and added in the order of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from softmrc.torch.arguments import CallError, OpOptions
from softmrc.torch.staging import block

USUAL_DIMS = 8  # up to here an error names a difference in dimensions between ranks


def sum_of(group: Any, tensor: torch.Tensor, how: OpOptions) -> Callable[[], None]:
    """What does it, with three collectives one after the other."""
    if tensor.layout != torch.sparse_coo:
        raise RuntimeError(f"backend mrc takes dense tensors, and sums sparse_coo ones; not {tensor.layout}")
    if how.op != dist.ReduceOp.SUM:
        raise CallError(f"unsupported reduction operation: sparse tensors can be summed, not reduced by {how.op}")
    held = None if tensor.device.type == "cpu" else tensor.detach().cpu()

    def sum_up() -> None:
        with torch.no_grad():
            mine = tensor.detach() if held is None else held  # as it is when those before have ended
            parts = _everybodys(group, mine.coalesce(), how.limit)
            tensor.copy_(sum(parts[1:], start=parts[0]).coalesce())

    return sum_up


def _everybodys(group: Any, mine: torch.Tensor, limit: float | None) -> list[torch.Tensor]:
    indices, values = mine.indices().contiguous(), mine.values().contiguous()
    sizes = [*mine.shape, *[0] * (USUAL_DIMS - mine.dim())]
    header = torch.tensor([mine.dim(), mine.sparse_dim(), *sizes, indices.shape[1]])
    headers = torch.empty(group.size, header.numel(), dtype=torch.int64)
    group.all_gather(block(header), block(headers), timeout_s=limit).wait()
    *shapes, counts = headers.T.tolist()
    said = [f"{sizes[:dim]} with {sparse} sparse ones" for dim, sparse, *sizes in zip(*shapes, strict=True)]
    for rank, text in enumerate(said):
        if text != said[0]:
            raise RuntimeError(f"Sparse dimensions do not match: rank 0 has {said[0]}, rank {rank} {text}")
    # A row of the gathered indices is all places of one rank, so that each comes as it lies.
    all_indices = [torch.empty(indices.shape[0], count, dtype=torch.int64) for count in counts]
    all_values = [torch.empty(count, *values.shape[1:], dtype=values.dtype) for count in counts]
    for one, everybody in ((indices, all_indices), (values, all_values)):
        group.all_gather(block(one), block(everybody), timeout_s=limit).wait()
    return [
        torch.sparse_coo_tensor(where, what, mine.shape, is_coalesced=True, check_invariants=False)
        for where, what in zip(all_indices, all_values, strict=True)
    ]
