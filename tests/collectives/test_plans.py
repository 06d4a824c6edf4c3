"""Every algorithm on every number of ranks, carried out in memory: right results whatever arrives first, in the order
that is promised, with no more peers, steps and bytes than it is chosen for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import programs
from collectives.plans import ALGORITHMS, Asked, Outcome, Plans
from softmrc import _core
from softmrc.collectives.block import CollectiveKind, ReduceOp

SMALL_GROUPS = range(1, 34)
LARGE_GROUPS = [48, 64, 100, 128, pytest.param(1000, marks=pytest.mark.slow)]
PAIRWISE = (CollectiveKind.ALL_TO_ALL, CollectiveKind.GATHER, CollectiveKind.SCATTER)  # each pair has different data
ROOTED = (CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.SCATTER)
EAGER = 2048  # int32 that travel in one message
TRIP_S = 35e-6  # latency and message of the model


@pytest.fixture(scope="module")
def plans() -> Iterator[Plans]:
    made = Plans(programs.path("plans"))
    yield made
    made.close()


def random_counts(rng: np.random.Generator, n: int, count: int) -> list[int]:
    """Uneven, some of them nothing."""
    return [int(rng.integers(0, 2 * count + 1)) * int(rng.integers(0, 4) > 0) for _ in range(n)]


def ask(kind: CollectiveKind, n: int, count: int, seed: int, even: bool = True) -> Asked:
    """Random numbers: `count` of them for the whole of what is reduced or broadcast, else for each part."""
    rng = np.random.default_rng([kind, n, count, seed])
    root = int(rng.integers(n)) if kind in ROOTED else -1

    def some(length: int) -> np.ndarray:
        return rng.integers(-(2**31), 2**31, length, np.int32)

    counts = [count] * n if even else random_counts(rng, n, count)
    table = (
        rng.permutation(np.resize([count, 0, 1, count], n * n)).reshape(n, n)
        if kind == CollectiveKind.ALL_TO_ALL
        else None
    )
    inputs, outputs = [], []
    for rank in range(n):
        ins, outs = [count], [count]
        if kind == CollectiveKind.REDUCE_SCATTER:
            ins, outs = counts, [counts[rank]]
        elif kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER):
            ins, outs = [counts[rank]], counts
        elif kind == CollectiveKind.SCATTER:
            ins, outs = counts, [counts[rank]]
        elif kind == CollectiveKind.BROADCAST:
            ins = []
        elif kind == CollectiveKind.BARRIER:
            ins, outs = [], []
        elif table is not None:
            ins, outs = list(table[rank]), list(table[:, rank])
        if rank != root and kind in (CollectiveKind.GATHER, CollectiveKind.REDUCE):
            outs = []
        if rank != root and kind == CollectiveKind.SCATTER:
            ins = []
        inputs.append([some(int(length)) for length in ins])
        outputs.append([some(int(length)) for length in outs])
    return Asked(kind, inputs, outputs, root)


def expected(asked: Asked) -> list[list[np.ndarray]]:
    """What every rank should have, of numbers whose sum does not depend on order."""
    n, root = asked.ranks, asked.root
    ins, outs = asked.inputs, asked.outputs
    if asked.kind == CollectiveKind.BARRIER:
        return outs
    if asked.kind == CollectiveKind.BROADCAST:
        return [outs[root]] * n
    if asked.kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE):
        total = np.sum([parts[0] for parts in ins], axis=0, dtype=np.int32)
        return [[total] if outs[rank] else [] for rank in range(n)]
    if asked.kind == CollectiveKind.REDUCE_SCATTER:
        return [[np.sum([parts[rank] for parts in ins], axis=0, dtype=np.int32)] for rank in range(n)]
    if asked.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER):
        return [[parts[0] for parts in ins] if outs[rank] else [] for rank in range(n)]
    if asked.kind == CollectiveKind.SCATTER:
        return [[ins[root][rank]] for rank in range(n)]
    return [[ins[peer][rank] for peer in range(n)] for rank in range(n)]


def log2_up(n: int) -> int:
    return (n - 1).bit_length()


def promised_steps(kind: CollectiveKind, algorithm: str, n: int, columns: int) -> int:
    """Messages that wait for one another, from the first to the last."""
    both = 2 if kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE) else 1
    folded = 0 if n & (n - 1) == 0 else 2
    gather = 1 if n - 1 <= most_peers(n) else log2_up(n)
    return {
        "direct": 1,
        "gathered": log2_up(n),
        "doubling": n.bit_length() - 1 + folded,
        "rounds": both * log2_up(n),
        "ring": n - 1 + (gather if kind == CollectiveKind.ALL_REDUCE else 0),
        "binomial": log2_up(n),
        "binary": n.bit_length() - 1,
        "chain": n - 1,
        "grid": 2 * (columns - 1) + 2 * log2_up(n // columns),
    }[algorithm]


def most_peers(n: int) -> int:
    return 2 * (n.bit_length() - 1) + 2


def promised_bytes(asked: Asked, algorithm: str) -> float:
    """That all ranks send together."""
    n, size = asked.ranks, asked.bytes
    folded = n - (1 << (n.bit_length() - 1))
    if asked.kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE) and algorithm != "rounds":
        return (n - 1) * size
    if asked.kind in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER):
        return (n - 1) * size
    return {
        "direct": n * (n - 1) * size,
        "gathered": n * (n - 1) * size,
        "doubling": ((n - folded) * (n.bit_length() - 1) + 2 * folded) * size,
        "rounds": 2 * (n - 1) * size,
        "ring": 2 * (n - 1) * size,
        "grid": 2 * (n - 1) * size,
    }[algorithm]


def check(asked: Asked, found: Outcome, forced: str | None) -> None:
    what = f"{asked.kind.name} of {asked.bytes} bytes on {asked.ranks} ranks by {found.algorithm}"
    assert not found.problem, f"{what}: {found.problem}"
    assert forced in (None, found.algorithm), what
    for rank, (got, wanted) in enumerate(zip(found.outputs, expected(asked), strict=True)):
        assert all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True)), f"{what}: rank {rank}"
    n = asked.ranks
    if n == 1:
        assert found.steps == sum(found.sent) == 0
        return
    if asked.kind in PAIRWISE:
        return
    assert max(found.peers) <= most_peers(n), what
    assert found.early <= 3, what  # what the group keeps room for
    columns = _core.grid_columns(n, asked.bytes)
    assert found.steps <= promised_steps(asked.kind, found.algorithm, n, columns), what
    if asked.kind != CollectiveKind.BARRIER and found.steps:
        assert sum(found.sent) == promised_bytes(asked, found.algorithm), what


def try_all(plans: Plans, asked: Asked, seed: int) -> None:
    others = asked.algorithms() if asked.kind not in PAIRWISE else []
    if asked.ranks > 128 and "ring" in others:
        others.remove("ring")  # a million transfers, of which none is new
    for forced in (None, *others):
        check(asked, plans(asked, forced, seed), forced)


@pytest.mark.parametrize("kind", CollectiveKind, ids=lambda kind: kind.name)
def test_every_algorithm_on_every_number_of_ranks(plans: Plans, kind: CollectiveKind) -> None:
    for n in SMALL_GROUPS:
        counts = [0, 1, 37, 16 * n + 5] if kind != CollectiveKind.BARRIER else [0]
        if n in (2, 3, 5, 8, 11):
            counts += [EAGER - 1, EAGER, EAGER + 1]
        for count in counts:
            try_all(plans, ask(kind, n, count, n), seed=count + n)


@pytest.mark.parametrize(
    "kind",
    [CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER, CollectiveKind.GATHER, CollectiveKind.SCATTER],
    ids=lambda k: k.name,
)
def test_uneven_parts(plans: Plans, kind: CollectiveKind) -> None:
    for n in SMALL_GROUPS:
        for count in (3, 1500):
            asked = ask(kind, n, count, n, even=False)
            for forced in (None, *(["rounds", "ring"] if kind not in PAIRWISE else [])):
                found = plans(asked, forced, n)
                assert not found.problem
                for got, wanted in zip(found.outputs, expected(asked), strict=True):
                    assert all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True)), (n, count, forced)


@pytest.mark.parametrize("n", LARGE_GROUPS)
def test_many_ranks(plans: Plans, n: int) -> None:
    for kind in CollectiveKind:
        is_whole = kind in (
            CollectiveKind.ALL_REDUCE,
            CollectiveKind.REDUCE,
            CollectiveKind.BROADCAST,
        )  # no part for each rank
        if kind in PAIRWISE and n > 128:
            continue  # a million transfers again
        counts = [1, 700] if is_whole else [1]
        if n <= (128 if is_whole else 48):
            counts += [3 * EAGER]
        for count in counts:
            try_all(plans, ask(kind, n, count, n), seed=n)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, *(pytest.param(n, marks=pytest.mark.slow) for n in (13, 16))])
def test_several_slices(plans: Plans, n: int) -> None:
    """Large enough that every part is cut."""
    for kind in (
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.BROADCAST,
        CollectiveKind.REDUCE,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_GATHER,
    ):
        parts = n if kind == CollectiveKind.ALL_REDUCE else 1
        for forced in ask(kind, n, 1, 0).algorithms():
            asked = ask(kind, n, parts * 70_001, n)
            if forced in asked.algorithms():
                check(asked, plans(asked, forced, n), forced)


def float_cases(n: int, count: int, special: bool) -> list[np.ndarray]:
    rng = np.random.default_rng([n, count])
    made = [rng.standard_normal(count).astype(np.float32) for _ in range(n)]
    if special:
        for array in made:
            array[rng.random(count) < 0.3] = np.nan
            array[rng.random(count) < 0.3] = 0.0
            array[rng.random(count) < 0.3] = -0.0
    return made


Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]
COMBINE: dict[ReduceOp, Combine] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PREMUL_SUM: np.add,
    ReduceOp.MIN: lambda a, b: np.where(b < a, b, a),
    ReduceOp.MAX: lambda a, b: np.where(a < b, b, a),
}


def fold(values: list[np.ndarray], combine: Combine) -> np.ndarray:
    total = values[0]
    for value in values[1:]:
        total = combine(total, value)
    return total


def doubled(values: list[np.ndarray], combine: Combine) -> np.ndarray:
    """The first ones in pairs until there are a power of two, then neighbours, and neighbours of those."""
    pairs = len(values) - (1 << (len(values).bit_length() - 1))
    values = [combine(values[2 * i], values[2 * i + 1]) for i in range(pairs)] + values[2 * pairs :]
    while len(values) > 1:
        values = [combine(values[i], values[i + 1]) for i in range(0, len(values), 2)]
    return values[0]


def in_rounds(values: list[np.ndarray], owner: int, combine: Combine) -> np.ndarray:
    """One block of one owner: ranks that are within `width` before it still have a sum."""
    n = len(values)
    sums = [values[(owner - distance) % n] for distance in range(n)]
    width = n
    while width > 1:
        half = (width + 1) // 2
        for distance in range(width - half):
            sums[distance] = combine(sums[distance + half], sums[distance])
        width = half
    return sums[0]


def in_tree(values: list[np.ndarray], combine: Combine, at: int = 0, below: int | None = None) -> np.ndarray:
    total, bit = values[at], 1
    while bit < (below or len(values)) and at + bit < len(values):
        total = combine(total, in_tree(values, combine, at + bit, bit))
        bit *= 2
    return total


def in_grid(values: list[np.ndarray], columns: int, combine: Combine) -> np.ndarray:
    """Each row as a ring would do it, then the rows' sums as rounds would: of every part of a row."""
    rows = [values[at : at + columns] for at in range(0, len(values), columns)]
    pieces = []
    for part, where in enumerate(cut(values[0].size, columns)):
        sums = [fold([value[where] for value in row[part:] + row[:part]], combine) for row in rows]
        for owner, piece in enumerate(cut(sums[0].size, len(rows))):
            pieces.append(in_rounds([one[piece] for one in sums], owner, combine))
    return np.concatenate(pieces)


def cut(count: int, n: int) -> list[slice]:
    lines = -(-count * 4 // 64)
    return [slice(lines * i // n * 16, min(lines * (i + 1) // n * 16, count)) for i in range(n)]


def ordered(kind: CollectiveKind, algorithm: str, values: list[np.ndarray], root: int, combine: Combine) -> np.ndarray:
    """The reduction of all in the order of this algorithm."""
    n = len(values)
    if algorithm in ("direct", "gathered"):
        return fold(values, combine)
    if algorithm == "doubling":
        return doubled(values, combine)
    if algorithm == "binomial":
        return in_tree(values[root:] + values[:root], combine)
    if algorithm == "chain":
        return fold(values[root + 1 :] + values[: root + 1], combine)
    if algorithm == "grid":
        return in_grid(values, _core.grid_columns(n, values[0].nbytes), combine)
    pieces = []
    for part, where in enumerate(cut(values[0].size, n)):
        mine = [value[where] for value in values]
        if algorithm == "ring":
            pieces.append(fold(mine[part:] + mine[:part], combine))
        else:
            pieces.append(in_rounds(mine, part, combine))
    return np.concatenate(pieces)


@pytest.mark.parametrize("op", COMBINE, ids=lambda op: op.name)
@pytest.mark.parametrize("in_place", [False, True])
def test_the_order_is_the_algorithms_alone(plans: Plans, op: ReduceOp, in_place: bool) -> None:
    """Numbers that round, signs of zero, and numbers that are none: bit for bit on all ranks, whatever came first."""
    for n in [*range(2, 18), 33]:
        for count in (5, 2100):
            values = float_cases(n, count, op in (ReduceOp.MIN, ReduceOp.MAX))
            scaled = [value * np.float32(0.3) for value in values] if op == ReduceOp.PREMUL_SUM else values
            asked = Asked(
                CollectiveKind.ALL_REDUCE, [[v] for v in values], [[v * 0] for v in values], -1, op, 0.3, in_place
            )
            for algorithm in asked.algorithms():
                with np.errstate(invalid="ignore"):
                    wanted = ordered(asked.kind, algorithm, scaled, -1, COMBINE[op])
                if op == ReduceOp.AVG:
                    wanted = wanted / np.float32(n)
                for seed in (1, 2):
                    found = plans(asked, algorithm, seed)
                    assert not found.problem, (n, algorithm, found.problem)
                    for (got,) in found.outputs:
                        assert got.tobytes() == wanted.tobytes(), (n, count, algorithm, op.name)


@pytest.mark.parametrize("op", COMBINE, ids=lambda op: op.name)
def test_the_order_of_a_reduce(plans: Plans, op: ReduceOp) -> None:
    for n in [*range(2, 14), 33]:
        values = float_cases(n, 300, op in (ReduceOp.MIN, ReduceOp.MAX))
        scaled = [value * np.float32(0.3) for value in values] if op == ReduceOp.PREMUL_SUM else values
        root = n // 3
        outputs = [[values[0] * 0] if rank == root else [] for rank in range(n)]
        asked = Asked(CollectiveKind.REDUCE, [[v] for v in values], outputs, root, op, 0.3)
        for algorithm in asked.algorithms():
            with np.errstate(invalid="ignore"):
                wanted = ordered(asked.kind, algorithm, scaled, root, COMBINE[op])
            if op == ReduceOp.AVG:
                wanted = wanted / np.float32(n)
            found = plans(asked, algorithm, n)
            assert not found.problem, (n, algorithm, found.problem)
            assert found.outputs[root][0].tobytes() == wanted.tobytes(), (n, algorithm, op.name)


def test_the_order_of_a_reduce_scatter(plans: Plans) -> None:
    for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PREMUL_SUM):
        for n in [*range(2, 14), 33]:
            wholes = float_cases(n, 40 * n, False)
            factor = np.float32(0.3 if op == ReduceOp.PREMUL_SUM else 1)
            inputs = [np.split(whole, n) for whole in wholes]
            asked = Asked(CollectiveKind.REDUCE_SCATTER, inputs, [[ins[0] * 0] for ins in inputs], -1, op, 0.3)
            for algorithm in asked.algorithms():
                found = plans(asked, algorithm, n)
                assert not found.problem, (n, algorithm, found.problem)
                for owner in range(n):
                    mine = [ins[owner] * factor for ins in inputs]
                    if algorithm == "ring":
                        wanted = fold(mine[owner + 1 :] + mine[: owner + 1], np.add)
                    elif algorithm == "rounds":
                        wanted = in_rounds(mine, owner, np.add)
                    else:
                        wanted = fold(mine, np.add)
                    wanted = wanted / np.float32(n) if op == ReduceOp.AVG else wanted
                    assert found.outputs[owner][0].tobytes() == wanted.tobytes(), (n, algorithm, op.name)


def test_the_model_counts_the_steps_that_are_taken(plans: Plans) -> None:
    """For next to nothing, time is steps: those of the plan."""
    for n in (2, 3, 7, 8, 16, 33, 100):
        asked = ask(CollectiveKind.ALL_REDUCE, n, 2, n)
        times = _core.collective_times(asked.kind, n, asked.bytes)
        for algorithm in ("gathered", "doubling", "rounds", *(["grid"] if "grid" in times else [])):
            found = plans(asked, algorithm, 1)
            assert found.steps <= round(times[algorithm] / TRIP_S) <= found.steps + 1, (n, algorithm)
        assert plans(asked).algorithm == min(times, key=times.__getitem__)


def is_prime(n: int) -> bool:
    return all(n % few for few in range(2, n))


def test_what_is_chosen_by_size_and_ranks() -> None:
    def chosen(n: int, size: int, kind: CollectiveKind = CollectiveKind.ALL_REDUCE) -> str:
        times = _core.collective_times(kind, n, size)
        return min(times, key=times.__getitem__)

    for n in (16, 128, 1024):
        assert chosen(n, 8) in ("gathered", "doubling") and chosen(n, 8192) == "doubling"
        assert chosen(n, 1 << 20) == "grid"
        assert chosen(n + 1, 1 << 20) == "rounds" or not is_prime(n + 1)
    assert chosen(16, 64 << 20) == chosen(128, 1 << 30) == "ring" and chosen(1024, 64 << 20) == "grid"
    for kind in CollectiveKind:
        if kind not in PAIRWISE:
            assert all(chosen(n, size, kind) != "direct" for n in (10, 1024) for size in (0, 8, 1 << 20, 1 << 30))
    assert set(ALGORITHMS) == {
        name for kind in CollectiveKind for size in (8, 1 << 20) for name in _core.collective_times(kind, 4, size)
    }
