"""Sparse tensors, summed: everybody's indices and values are gathered, and added in the order of ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from softmrc.torch.arguments import CallError
from softmrc.torch.staging import block

MAX_DIMS = 8


def check(tensor: torch.Tensor, op: Any) -> None:
    if tensor.layout != torch.sparse_coo:
        raise RuntimeError(f"backend mrc takes dense tensors, and sums sparse_coo ones; not {tensor.layout}")
    if op != dist.ReduceOp.SUM:
        raise CallError(f"unsupported reduction operation: sparse tensors can be summed, not reduced by {op}")
    if tensor.dim() > MAX_DIMS:
        raise CallError(f"a sparse tensor of up to {MAX_DIMS} dimensions can be summed, not of {tensor.dim()}")


def total(group: Any, tensor: torch.Tensor, limit: float | None) -> torch.Tensor:
    """The sum of everybody's tensor, coalesced. Waits for three operations of the group, one after the other."""
    mine = tensor.coalesce()
    indices, values = mine.indices().contiguous(), mine.values().contiguous()
    header = torch.zeros(3 + MAX_DIMS, dtype=torch.int64)
    header[: 3 + tensor.dim()] = torch.tensor([indices.shape[1], mine.sparse_dim(), tensor.dim(), *tensor.shape])
    headers = torch.zeros(group.size, header.numel(), dtype=torch.int64)
    group.all_gather(block(header), block(headers), timeout_s=limit).wait()
    for rank in range(group.size):
        if not torch.equal(headers[rank, 1:], headers[0, 1:]):
            raise RuntimeError(
                f"Sparse dimensions do not match: rank 0 has {_told(headers[0])}, rank {rank} {_told(headers[rank])}"
            )
    counts = headers[:, 0].tolist()
    # A row of the gathered indices is all places of one rank, so that each comes as it lies.
    all_indices = [torch.empty(indices.shape[0], count, dtype=torch.int64) for count in counts]
    all_values = [torch.empty(count, *values.shape[1:], dtype=values.dtype) for count in counts]
    for one, everybody in ((indices, all_indices), (values, all_values)):
        group.all_gather(block(one), block(everybody), timeout_s=limit).wait()
    parts = [
        torch.sparse_coo_tensor(where, what, tensor.shape, is_coalesced=True, check_invariants=False)
        for where, what in zip(all_indices, all_values, strict=True)
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    return whole.coalesce()


def _told(header: torch.Tensor) -> str:
    _, sparse_dim, dim, *sizes = header.tolist()
    return f"{sizes[:dim]} with {sparse_dim} sparse ones"
