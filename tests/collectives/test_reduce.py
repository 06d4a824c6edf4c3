"""Every reduction, of every type, in every size, against NumPy. The numbers are such that no order of adding rounds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from collectives.ranks import BFLOAT16, DTYPES, FLOATS, Ranks, block, numbers, storage, stored, values_of
from softmrc.collectives import Group, ReduceOp
from softmrc.errors import ConfigError

SMALL = [0, 1, 3, 1003]  # by messages
LARGE = 270_001  # by the ring, over several channels where there are any, in a length that no number of ranks divides
BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def ops_of(dtype: str) -> list[ReduceOp]:
    """What makes sense for the type."""
    ops = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
    if dtype not in FLOATS:
        ops += BITS
    if dtype != "bool":
        ops.append(ReduceOp.AVG)
    return ops


def inputs(dtype: str, op: ReduceOp, count: int, size: int) -> list[np.ndarray]:
    """One for each rank: whole numbers small enough for 8 bits of mantissa, whatever is done to them."""
    random = np.random.default_rng(hash((dtype, int(op), count)) & 0xFFFFFFFF)
    if dtype == "bool":
        return [random.integers(0, 2, count).astype(bool) for _ in range(size)]
    lowest = 0 if dtype.startswith("uint") else -9
    low, high = (1, 3) if op == ReduceOp.PRODUCT else (lowest, 10)
    return [stored(random.integers(low, high, count), dtype) for _ in range(size)]


def model(arrays: list[np.ndarray], dtype: str, op: ReduceOp) -> np.ndarray:
    """What every rank should have."""
    stack = np.stack([numbers(array, dtype) for array in arrays])
    if dtype == "bool":
        fn = {ReduceOp.SUM: np.any, ReduceOp.MAX: np.any, ReduceOp.BOR: np.any, ReduceOp.BXOR: np.logical_xor.reduce}
        return fn.get(op, np.all)(stack, axis=0)
    if op == ReduceOp.AVG:
        total = stack.sum(axis=0, dtype=np.float64 if dtype in FLOATS else np.int64)
        whole = np.trunc(total / len(arrays))
        return (
            stored((total / len(arrays)).astype(np.float32 if dtype != "float64" else np.float64), dtype)
            if (dtype in FLOATS)
            else whole.astype(dtype)
        )
    fns = {
        ReduceOp.SUM: np.add,
        ReduceOp.PRODUCT: np.multiply,
        ReduceOp.MIN: np.minimum,
        ReduceOp.MAX: np.maximum,
        ReduceOp.BAND: np.bitwise_and,
        ReduceOp.BOR: np.bitwise_or,
        ReduceOp.BXOR: np.bitwise_xor,
    }
    result = fns[op].reduce(stack, axis=0)
    return stored(result, dtype) if dtype == BFLOAT16 else result.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce(group: Ranks, dtype: str) -> None:
    cases = list(itertools.product(ops_of(dtype), SMALL)) + [(ReduceOp.SUM, LARGE)]
    if dtype in ("float32", "bfloat16", "uint16"):
        cases += [(op, LARGE) for op in ops_of(dtype)]

    def run(rank: Group) -> list[np.ndarray]:
        results = []
        for op, count in cases:
            array = inputs(dtype, op, count, group.size)[rank.rank]
            rank.all_reduce(block(array, dtype), op=op).wait()
            results.append(array)
        return results

    for results in values_of(group(run)):
        for (op, count), result in zip(cases, results, strict=True):
            expected = model(inputs(dtype, op, count, group.size), dtype, op)
            assert np.array_equal(result, expected), (op.name, count)


@pytest.mark.parametrize("count", [1003, LARGE])
def test_out_of_place_leaves_the_input_alone(group: Ranks, count: int) -> None:
    given = inputs("float64", ReduceOp.SUM, count, group.size)

    def run(rank: Group) -> tuple[np.ndarray, np.ndarray]:
        mine, result = given[rank.rank].copy(), np.empty(count)
        rank.all_reduce(mine, result).wait()
        return mine, result

    for rank, (mine, result) in enumerate(values_of(group(run))):
        assert np.array_equal(mine, given[rank])
        assert np.array_equal(result, sum(given))


@pytest.mark.parametrize("count", [1003, LARGE])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_factor_for_every_input(group: Ranks, dtype: str, count: int) -> None:
    given = inputs(dtype, ReduceOp.SUM, count, group.size)

    def run(rank: Group) -> np.ndarray:
        mine = given[rank.rank].copy()
        rank.all_reduce(block(mine, dtype), op=ReduceOp.PREMUL_SUM, factor=0.25).wait()
        return mine

    expected = stored(sum(numbers(array, dtype) * np.float32(0.25) for array in given), dtype)
    for result in values_of(group(run)):
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.PREMUL_SUM])
@pytest.mark.parametrize("counts", [[0] * 5, [7] * 5, [5, 0, 3000, 1, 40_001]])
def test_reduce_scatter(group: Ranks, counts: list[int], op: ReduceOp) -> None:
    counts = counts[: group.size]
    plain = ReduceOp.SUM if op == ReduceOp.PREMUL_SUM else op
    given = inputs("float32", plain, sum(counts), group.size)
    cuts = np.cumsum(counts)[:-1]

    def run(rank: Group) -> tuple[np.ndarray, np.ndarray]:
        mine = given[rank.rank].copy()
        result = np.empty(counts[rank.rank], np.float32)
        # Parts that lie apart, as lists of tensors do.
        parts = [part.copy() for part in np.split(mine, cuts)]
        rank.reduce_scatter(parts, result, op, factor=0.5).wait()
        return np.concatenate(parts), result

    expected = model(given, "float32", plain) * np.float32(0.5 if op == ReduceOp.PREMUL_SUM else 1)
    for rank, (mine, result) in enumerate(values_of(group(run))):
        assert np.array_equal(mine, given[rank])
        assert np.array_equal(result, np.split(expected, cuts)[rank])


def test_reduce_scatter_cuts_one_block_evenly(group: Ranks) -> None:
    given = inputs("int32", ReduceOp.SUM, 2000 * group.size, group.size)

    def run(rank: Group) -> np.ndarray:
        result = np.empty(2000, np.int32)
        rank.reduce_scatter(given[rank.rank], result).wait()
        return result

    assert np.array_equal(np.concatenate(values_of(group(run))), sum(given))


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PREMUL_SUM])
@pytest.mark.parametrize("count", [0, 5, LARGE])
def test_reduce(group: Ranks, count: int, op: ReduceOp) -> None:
    plain = ReduceOp.SUM if op == ReduceOp.PREMUL_SUM else op
    given = inputs("float32", plain, count, group.size)
    expected = model(given, "float32", plain) * np.float32(0.5 if op == ReduceOp.PREMUL_SUM else 1)

    def run(rank: Group) -> list[np.ndarray]:
        found = []
        for root in range(group.size):
            mine, result = given[rank.rank].copy(), np.zeros(count, np.float32)
            rank.reduce(mine, result, root, op, factor=0.5).wait()
            assert np.array_equal(mine, given[rank.rank])
            found.append(result)
        return found

    for rank, results in enumerate(values_of(group(run))):
        for root, result in enumerate(results):
            assert np.array_equal(result, expected if root == rank else np.zeros_like(expected))


def test_the_order_of_a_reduction_is_always_the_same(group: Ranks) -> None:
    """Numbers that do round: ranks agree on every bit, and so do repetitions."""
    given = [np.random.default_rng(rank).standard_normal(60_001).astype(np.float32) for rank in range(group.size)]

    def run(rank: Group) -> list[bytes]:
        found = []
        for _ in range(3):
            mine = given[rank.rank].copy()
            rank.all_reduce(mine).wait()
            found.append(mine.tobytes())
        return found

    results = values_of(group(run))
    assert len({result for row in results for result in row}) == 1
    if group.size == 2:
        assert results[0][0] == (given[0] + given[1]).tobytes()


@pytest.mark.parametrize(
    "dtype, op",
    [("float32", ReduceOp.BAND), ("bfloat16", ReduceOp.BXOR), ("bool", ReduceOp.AVG), ("int8", ReduceOp.PREMUL_SUM)],
)
def test_what_makes_no_sense_is_refused(group: Ranks, dtype: str, op: ReduceOp) -> None:
    array = np.zeros(4, storage(dtype))
    with pytest.raises(ConfigError, match="makes no sense"):
        group.groups[0].all_reduce(block(array, dtype), op=op)
