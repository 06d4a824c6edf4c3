"""The arithmetic by itself: both builds of it against NumPy, on numbers of every kind."""

from __future__ import annotations

import numpy as np
import pytest

from collectives.ranks import BFLOAT16, DTYPES, FLOATS, from_bfloat16, to_bfloat16
from collectives.test_reduce import BITS, ops_of
from softmrc import _core
from softmrc.collectives import DType, ReduceOp

NUMPY = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: lambda a, b: np.where(b < a, b, a),
    ReduceOp.MAX: lambda a, b: np.where(a < b, b, a),
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def combine(plain: bool, dtype: str, op: ReduceOp, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = np.empty_like(a)
    addresses = (array.ctypes.data for array in (out, a, b))
    _core.combine(plain, DType[dtype.upper()], op, *addresses, a.size)
    return out


def random_bits(dtype: str, count: int, seed: int) -> np.ndarray:
    words = np.random.default_rng(seed).integers(0, 256, count * 8, dtype=np.uint8)
    if dtype == "bool":
        return (words[:count] & 1).astype(bool)
    return words.view(np.uint16 if dtype == BFLOAT16 else dtype)[:count].copy()


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "best"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels(dtype: str, plain: bool) -> None:
    for op in ops_of(dtype):
        if op == ReduceOp.AVG or (dtype == "bool" and op not in BITS):
            continue
        a, b = (random_bits(dtype, 4099, seed) for seed in (1, 2))
        got = combine(plain, dtype, op, a, b)
        with np.errstate(all="ignore"):
            if dtype == BFLOAT16:
                exact = NUMPY[op](from_bfloat16(a), from_bfloat16(b))
                expected, got = from_bfloat16(to_bfloat16(exact)), from_bfloat16(got)
            elif dtype == "float16":
                expected = NUMPY[op](a.astype(np.float32), b.astype(np.float32)).astype(np.float16)
            else:
                expected = NUMPY[op](a, b)
        if dtype in FLOATS:
            nan = np.isnan(expected)
            assert np.array_equal(np.isnan(got), nan), op.name
            got, expected = got[~nan], expected[~nan]
        assert np.array_equal(got, expected), op.name


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "best"])
def test_every_float16_survives_the_way_through_float32(plain: bool) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    zeros = np.full_like(every, 0x8000)  # minus zero changes nothing, not even the sign of zero
    got = combine(plain, "float16", ReduceOp.SUM, every, zeros)
    is_nan = np.isnan(every.view(np.float16))
    assert np.array_equal(got[~is_nan], every[~is_nan])
    assert np.isnan(got.view(np.float16)[is_nan]).all()


def test_memory_may_lie_anywhere() -> None:
    room = np.zeros(8 * 100 + 3, np.uint8)
    a, b = (np.random.default_rng(seed).standard_normal(100) for seed in (1, 2))
    room[3:] = a.view(np.uint8)
    address = room.ctypes.data + 3
    _core.combine(False, DType.FLOAT64, ReduceOp.SUM, address, address, b.ctypes.data, 100)
    assert room[3:].tobytes() == (a + b).tobytes()
