"""What a sequence of collectives leaves behind in every rank's arena, by NumPy, one step after the other."""

from __future__ import annotations

import numpy as np

from softmrc.collectives import DType, ReduceOp
from softmrc.collectives.block import CollectiveKind

from .group_plan import GAP, RECEIVE, SEND, GroupPlan, Span, Step

Arena = np.ndarray
_FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
_REDUCE = {
    ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PREMUL_SUM: np.add, ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum, ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}  # fmt: skip
_TRUTHS = {
    ReduceOp.SUM: np.logical_or, ReduceOp.MAX: np.logical_or, ReduceOp.BOR: np.logical_or,
    ReduceOp.PRODUCT: np.logical_and, ReduceOp.MIN: np.logical_and, ReduceOp.BAND: np.logical_and,
    ReduceOp.BXOR: np.logical_xor,
}  # fmt: skip


def numbers_of(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """Bytes as something to calculate with; bfloat16 is the upper half of a float32."""
    if dtype == DType.BFLOAT16:
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.view(dtype.name.lower())


def bytes_of(numbers: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype == DType.BFLOAT16:
        bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).view(np.uint8)
    return np.ascontiguousarray(numbers.astype(dtype.name.lower())).view(np.uint8)


def reduced(given: list[np.ndarray], dtype: DType, op: ReduceOp, factor: float) -> np.ndarray:
    """What the ranks' bytes become. The numbers are such that no order of adding rounds."""
    stack = np.stack([numbers_of(raw, dtype) for raw in given])
    if dtype == DType.BOOL:
        return bytes_of(_TRUTHS[op].reduce(stack, axis=0), dtype)
    if op == ReduceOp.PREMUL_SUM:
        stack = stack * stack.dtype.type(factor)
    if op == ReduceOp.AVG and len(given) > 1:
        total = stack.sum(axis=0, dtype=np.float64 if dtype in _FLOATS else np.int64)
        mean = total / len(given) if dtype in _FLOATS else np.trunc(total / len(given))
        return bytes_of(mean.astype(np.float64 if dtype == DType.FLOAT64 else np.float32), dtype)
    return bytes_of(_REDUCE[op].reduce(stack, axis=0), dtype)


def first_arenas(plan: GroupPlan) -> list[Arena]:
    """What every rank starts with: small whole numbers, and gaps."""
    random = np.random.default_rng(plan.seed)
    arenas = [np.full(plan.arena_bytes + 64, GAP, np.uint8) for _ in range(plan.ranks)]
    for zone in plan.zones:
        count = zone.span.nbytes // zone.dtype.size
        for rank, arena in enumerate(arenas):
            if zone.dtype == DType.BOOL:
                drawn = random.integers(0, 2, count)
            elif zone.is_product:
                drawn = random.integers(1, 3 if rank < 6 else 2, count)
            else:
                drawn = random.integers(0 if zone.dtype.name.startswith("U") else -3, 4, count)
            arena[zone.span.offset : zone.span.offset + zone.span.nbytes] = bytes_of(drawn, zone.dtype)
    return arenas


def apply(step: Step, arenas: list[Arena]) -> None:
    """One step, as if nothing could go wrong."""

    def read(rank: int, span: Span) -> np.ndarray:
        return arenas[rank][span.offset : span.offset + span.nbytes].copy()

    def write(rank: int, span: Span, raw: np.ndarray) -> None:
        arenas[rank][span.offset : span.offset + span.nbytes] = raw

    shares, one = step.shares, step.any
    if step.kind == SEND:
        sender = next(rank for rank, share in shares.items() if share.kind == SEND)
        receiver = next(rank for rank, share in shares.items() if share.kind == RECEIVE)
        write(receiver, shares[receiver].outputs[0], read(sender, shares[sender].inputs[0]))
        return
    given = [[read(rank, span) for span in shares[rank].inputs] for rank in sorted(shares)]

    def together(part: int) -> np.ndarray:
        return reduced([parts[part] for parts in given], one.dtype, one.op, one.factor)

    sources = {
        CollectiveKind.ALL_REDUCE: lambda rank: [together(0)],
        CollectiveKind.REDUCE: lambda rank: [together(0)] if rank == one.root else [],
        CollectiveKind.REDUCE_SCATTER: lambda rank: [together(rank)],
        CollectiveKind.ALL_GATHER: lambda rank: [parts[0] for parts in given],
        CollectiveKind.BROADCAST: lambda rank: [read(one.root, shares[one.root].outputs[0])],
        CollectiveKind.GATHER: lambda rank: [parts[0] for parts in given] if rank == one.root else [],
        CollectiveKind.SCATTER: lambda rank: [given[one.root][rank]],
        CollectiveKind.ALL_TO_ALL: lambda rank: [parts[rank] for parts in given],
        CollectiveKind.BARRIER: lambda rank: [],
    }
    landing = {rank: sources[CollectiveKind(step.kind)](rank) for rank in shares}
    for rank, parts in landing.items():
        for span, raw in zip(shares[rank].outputs, parts, strict=True):
            write(rank, span, raw)
