"""What operations work on: memory by address, and what its elements are."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from softmrc.errors import ConfigError


class DType(IntEnum):
    """What an element is. The numbers are the native core's."""

    FLOAT32 = 0
    FLOAT64 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    UINT8 = 8
    UINT16 = 9
    UINT32 = 10
    UINT64 = 11
    BOOL = 12

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return SIZES[self]


SIZES = (4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1)
NUMPY_NAMES = {dtype.name.lower(): dtype for dtype in DType if dtype != DType.BFLOAT16}
ACCEPTED = "contiguous memory of " + ", ".join(NUMPY_NAMES) + "; anything else as a Block with its dtype"


class ReduceOp(IntEnum):
    """How elements of different ranks become one. The numbers are the native core's."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    AVG = 4
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8  # the sum of every element times `factor`


class CollectiveKind(IntEnum):
    """Which collective. The numbers are the native core's."""

    ALL_REDUCE = 0
    REDUCE_SCATTER = 1
    ALL_GATHER = 2
    BROADCAST = 3
    REDUCE = 4
    GATHER = 5
    SCATTER = 6
    ALL_TO_ALL = 7
    BARRIER = 8


class Block(NamedTuple):
    """`count` elements of `dtype` at `address`; `owner` is kept alive as long as an operation uses the memory."""

    address: int
    count: int  # type: ignore[assignment]
    dtype: DType
    owner: Any = None

    @property
    def nbytes(self) -> int:
        return self.count * SIZES[self.dtype]


def as_block(memory: Any, writable: bool = True) -> Block:
    """A block as it is; a NumPy array or any other contiguous buffer with a dtype that has a name above."""
    if isinstance(memory, Block):
        return memory
    array = memory if isinstance(memory, np.ndarray) else _array(memory)
    dtype = NUMPY_NAMES.get(array.dtype.name)
    if dtype is None or not array.dtype.isnative or not array.flags.c_contiguous:
        raise ConfigError("memory", f"{array.dtype}, strides {array.strides}", f"must be {ACCEPTED}")
    if writable and not array.flags.writeable:
        raise ConfigError("memory", "read-only", "must be writable")
    return Block(array.ctypes.data, array.size, dtype, array)


def _array(memory: Any) -> np.ndarray:
    try:
        return np.asarray(memoryview(memory))
    except TypeError:
        raise ConfigError("memory", type(memory).__name__, f"must be {ACCEPTED}") from None


def as_parts(memory: Any, size: int, counts: Sequence[int] | None = None, writable: bool = True) -> tuple[Block, ...]:
    """One part for every rank: of a list of memories, or of one block, cut evenly or by `counts`."""
    if isinstance(memory, list | tuple) and not isinstance(memory, Block):
        if counts is not None:
            raise ConfigError("counts", list(counts), "must be None where the parts are given one by one")
        return tuple(as_block(part, writable) for part in memory)
    block = as_block(memory, writable)
    if counts is None:
        if block.count % size:
            raise ConfigError("memory", f"{block.count} elements", f"must be a multiple of the group's size, {size}")
        counts = [block.count // size] * size
    if len(counts) != size or sum(counts) != block.count or min(counts) < 0:
        raise ConfigError("counts", list(counts), f"must be {size} counts that add up to {block.count}")
    parts, at = [], block.address
    for count in counts:
        parts.append(Block(at, count, block.dtype, block.owner))
        at += parts[-1].nbytes
    return tuple(parts)
