"""Groups large enough that ranks do not speak with all others: the same results over sockets, and errors that name the
right rank although it is a neighbour of few."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from collectives.plans import ALGORITHMS
from collectives.ranks import Ranks, ranks, values_of
from softmrc.collectives import CollectiveError, Group, ReduceOp

SIZE = 11  # folded, and uneven in every round
COUNTS = [1, 300, 9_001]


@pytest.fixture(scope="module")
def eleven() -> Iterator[Ranks]:
    made = Ranks(SIZE)
    yield made
    made.close()


def numbers(rank: int, count: int) -> np.ndarray:
    return np.random.default_rng([rank, count]).integers(-99, 99, count).astype(np.float32)


@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_every_algorithm_over_sockets(eleven: Ranks, algorithm: str | None) -> None:
    """Several under way at a time; what an algorithm cannot do goes its usual way."""

    def run(rank: Group) -> list[np.ndarray]:
        rank._native.force(algorithm)
        found, works = [], []
        for count in COUNTS:
            total, part = numbers(rank.rank, count), np.empty(count, np.float32)
            whole, given = np.empty(count * SIZE, np.float32), numbers(rank.rank, count * SIZE)
            mean, told = np.empty(count, np.float32), numbers(rank.rank, count)
            works += [
                rank.all_reduce(total),
                rank.reduce_scatter(given, part, ReduceOp.PREMUL_SUM, factor=0.5),
                rank.all_gather(numbers(rank.rank, count), whole),
                rank.reduce(numbers(rank.rank, count), mean, 3, ReduceOp.AVG),
                rank.broadcast(told, 7),
                rank.barrier(),
            ]
            found += [total, part, whole, mean, told]
        for work in works:
            work.wait()
        return found

    results = values_of(eleven(run))
    for at, count in enumerate(COUNTS):
        each = [numbers(peer, count) for peer in range(SIZE)]
        given = np.sum([numbers(peer, count * SIZE) for peer in range(SIZE)], axis=0) * np.float32(0.5)
        for rank, found in enumerate(results):
            total, part, whole, mean, told = found[5 * at : 5 * at + 5]
            assert np.array_equal(total, np.sum(each, axis=0))
            assert np.array_equal(part, given[rank * count : (rank + 1) * count])
            assert np.array_equal(whole, np.concatenate(each))
            assert rank != 3 or np.array_equal(mean, np.sum(each, axis=0) / np.float32(SIZE))
            assert np.array_equal(told, each[7])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "operations"),
    [("doubling", 1), ("rounds", 1), ("ring", 1), ("grid", 1), ("doubling", 3), ("rounds", 3)],
)
def test_who_stays_away_is_named_by_all(algorithm: str, operations: int) -> None:
    """Most ranks wait for others who wait for it, and must not blame those; a rank that waits in one operation is
    known to wait in the others, too."""
    timeout_s = 0.4 * operations
    with ranks(8) as eight:

        def run(rank: Group) -> None:
            rank._native.force(algorithm)
            if rank.rank == 5:
                return
            works = [rank.all_reduce(np.ones(100 + i, np.float32), timeout_s=timeout_s) for i in range(operations)]
            for work in works:
                work.wait()

        results = eight(run)
        assert results.pop(5) is None
        for error in results:
            assert isinstance(error, CollectiveError)
            assert f"within {timeout_s:.1f} s: rank 5 did not take part" in str(error)


def test_who_calls_something_else_is_named_by_all() -> None:
    with ranks(8) as eight:
        results = eight(lambda rank: rank.all_reduce(np.ones(100 + (rank.rank == 5), np.float32)).wait())
        for error in results:
            assert isinstance(error, CollectiveError)
            assert "101 float32" in str(error) and "rank 5 called" in str(error)


def test_what_is_passed_on_keeps_to_its_strand() -> None:
    """Parts large enough to be cut into stripes, gathered through others."""
    count, size = 700_001, 10

    def run(rank: Group) -> tuple[np.ndarray, np.ndarray]:
        rank._native.force("ring")
        total, whole = np.arange(count, dtype=np.int32) * (rank.rank + 1), np.empty(90_000 * size, np.int32)
        works = [rank.all_reduce(total), rank.all_gather(np.full(whole.size // size, rank.rank, np.int32), whole)]
        for work in works:
            work.wait()
        return total, whole

    with ranks(size, lanes=2) as ten:
        for total, whole in values_of(ten(run)):
            assert np.array_equal(total, np.arange(count, dtype=np.int32) * 55)
            assert np.array_equal(whole, np.repeat(np.arange(size), whole.size // size))
        assert all(rank.stats()["operations_striped"] == 2 for rank in ten.groups)
