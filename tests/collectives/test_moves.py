"""Operations that move data without changing it, in sizes that travel by message and by WRITE."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collectives.ranks import Ranks, values_of
from softmrc.collectives import Block, DType, Group
from softmrc.collectives.group import ANY_SOURCE
from softmrc.errors import ConfigError

COUNTS = [0, 1, 2047, 100_003]


def mine(rank: int, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([rank, count, seed]).integers(-1000, 1000, count).astype(np.int32)


@pytest.mark.parametrize("count", COUNTS)
def test_all_gather(group: Ranks, count: int) -> None:
    def run(rank: Group) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
        whole = np.empty(count * group.size, np.int32)
        rank.all_gather(mine(rank.rank, count), whole).wait()
        parts = [np.empty(count + peer, np.int32) for peer in range(group.size)]
        rank.all_gather(mine(rank.rank, count + rank.rank), parts).wait()
        placed = np.zeros(count * group.size, np.int32)
        own = placed[rank.rank * count : (rank.rank + 1) * count]
        own[:] = mine(rank.rank, count)
        rank.all_gather(own, placed).wait()
        return whole, parts, placed

    expected = np.concatenate([mine(peer, count) for peer in range(group.size)])
    for whole, parts, placed in values_of(group(run)):
        assert np.array_equal(whole, expected) and np.array_equal(placed, expected)
        for peer, part in enumerate(parts):
            assert np.array_equal(part, mine(peer, count + peer))


def test_large_results(group: Ranks) -> None:
    """Parts that go past the caches, of odd length and at odd addresses."""
    count = 5_000_011

    def run(rank: Group) -> tuple[np.ndarray, np.ndarray]:
        whole = np.empty(count * group.size + 3, np.uint8)[3:]
        rank.all_gather(np.arange(rank.rank, count + rank.rank).astype(np.uint8), whole).wait()
        total = np.arange(count, dtype=np.uint8)
        rank.all_reduce(total).wait()
        return whole, total

    expected = np.concatenate([np.arange(peer, count + peer).astype(np.uint8) for peer in range(group.size)])
    for whole, total in values_of(group(run)):
        assert np.array_equal(whole, expected)
        assert np.array_equal(total, np.arange(count).astype(np.uint8) * np.uint8(group.size))


@pytest.mark.parametrize("count", COUNTS)
def test_broadcast(group: Ranks, count: int) -> None:
    def run(rank: Group) -> list[np.ndarray]:
        found = []
        for root in range(group.size):
            array = mine(rank.rank, count)
            rank.broadcast(array, root).wait()
            found.append(array)
        return found

    for results in values_of(group(run)):
        for root, result in enumerate(results):
            assert np.array_equal(result, mine(root, count))


@pytest.mark.parametrize("count", COUNTS)
def test_gather_and_scatter(group: Ranks, count: int) -> None:
    def run(rank: Group) -> list[tuple[Any, np.ndarray]]:
        found = []
        for root in range(group.size):
            is_root = rank.rank == root
            parts = [np.empty(count + peer, np.int32) for peer in range(group.size)] if is_root else None
            rank.gather(mine(rank.rank, count + rank.rank), parts, root).wait()
            back = np.empty(count + rank.rank, np.int32)
            rank.scatter(back, parts, root).wait()
            found.append((parts, back))
        return found

    for rank, results in enumerate(values_of(group(run))):
        for root, (parts, back) in enumerate(results):
            assert np.array_equal(back, mine(rank, count + rank))
            for peer, part in enumerate(parts or []):
                assert rank == root and np.array_equal(part, mine(peer, count + peer))


@pytest.mark.parametrize("count", COUNTS)
def test_all_to_all(group: Ranks, count: int) -> None:
    def run(rank: Group) -> np.ndarray:
        result = np.empty(count * group.size, np.int32)
        source = np.concatenate([mine(rank.rank, count, peer) for peer in range(group.size)])
        rank.all_to_all(source, result).wait()
        return result

    for rank, result in enumerate(values_of(group(run))):
        assert np.array_equal(result, np.concatenate([mine(peer, count, rank) for peer in range(group.size)]))


def test_uneven_all_to_all(group: Ranks) -> None:
    """Nothing, little and much between pairs, so that both ways of travelling meet in one operation."""
    table = np.array([0, 1, 50_001, 17, 3000]).repeat(5).reshape(5, 5)[: group.size, : group.size]
    counts = np.array([np.roll(row, number) for number, row in enumerate(table.T)])

    def run(rank: Group) -> np.ndarray:
        to, come = counts[rank.rank], counts[:, rank.rank]
        source = np.concatenate([mine(rank.rank, n, peer) for peer, n in enumerate(to)])
        result = np.empty(come.sum(), np.int32)
        rank.all_to_all(source, result, to.tolist(), come.tolist()).wait()
        return result

    for rank, result in enumerate(values_of(group(run))):
        expected = [mine(peer, counts[peer, rank], rank) for peer in range(group.size)]
        assert np.array_equal(result, np.concatenate(expected))


def test_barrier(group: Ranks) -> None:
    """No rank is through before the last one came."""
    came: list[int] = []
    seen: list[int] = []

    def run(rank: Group) -> None:
        for turn in range(1, 20):
            came.append(rank.rank)
            rank.barrier().wait()
            if len(came) < turn * group.size:
                seen.append(turn)
            rank.barrier().wait()

    values_of(group(run))
    assert not seen


@pytest.mark.parametrize("count", [0, 1, 1024, 1025, 200_003])
def test_send_and_receive_round_a_ring(group: Ranks, count: int) -> None:
    if group.size == 1:
        with pytest.raises(ConfigError):
            group.groups[0].send(np.zeros(1), 0)
        return

    def run(rank: Group) -> np.ndarray:
        result = np.empty(count, np.int32)
        receiving = rank.recv(result, (rank.rank - 1) % group.size, tag=3)
        rank.send(mine(rank.rank, count), (rank.rank + 1) % group.size, tag=3).wait()
        receiving.wait()
        assert receiving.source == (rank.rank - 1) % group.size
        return result

    for rank, result in enumerate(values_of(group(run))):
        assert np.array_equal(result, mine((rank - 1) % group.size, count))


def test_tags_keep_messages_apart_and_collectives_pass_between(group: Ranks) -> None:
    """Many sends without a receive yet, small and large, do not hold up an all-reduce."""
    if group.size < 2:
        return
    counts = [10, 20_000, 0, 900]

    def run(rank: Group) -> list[np.ndarray]:
        sendings = []
        if rank.rank == 0:
            sendings = [rank.send(mine(0, n, i), 1, tag=i % 7) for i, n in enumerate(counts * 30)]
        total = np.ones(50_000, np.float32)
        rank.all_reduce(total).wait()
        assert (total == group.size).all()
        found = []
        if rank.rank == 1:
            arrays = [np.empty(n, np.int32) for n in counts * 30]
            # Tags from last to first, but one tag's messages in their order.
            for tag in reversed(range(7)):
                for i in range(tag, len(arrays), 7):
                    rank.recv(arrays[i], 0, tag=tag).wait()
            found = arrays
        for sending in sendings:
            sending.wait()
        return found

    for i, array in enumerate(values_of(group(run))[1]):
        assert np.array_equal(array, mine(0, array.size, i))


def test_receive_from_anybody(group: Ranks) -> None:
    def run(rank: Group) -> list[tuple[int, np.ndarray]]:
        if rank.rank:
            rank.send(mine(rank.rank, 30_000), 0).wait()
            return []
        found = []
        for _ in range(group.size - 1):
            array = np.empty(30_000, np.int32)
            work = rank.recv(array, ANY_SOURCE)
            work.wait()
            found.append((work.source, array))
        return found

    found = values_of(group(run))[0]
    assert sorted(source for source, _ in found) == list(range(1, group.size))
    for source, array in found:
        assert np.array_equal(array, mine(source, 30_000))


def test_memory_that_does_not_fit_is_refused(group: Ranks) -> None:
    rank = group.groups[0]
    with pytest.raises(ConfigError, match="parts"):
        rank.all_gather(np.zeros(4), [np.zeros(4)] * (group.size + 1))
    with pytest.raises(ConfigError, match="bytes"):
        rank.all_reduce(np.zeros(4), np.zeros(5))
    with pytest.raises(ConfigError, match="one type"):
        rank.all_reduce(np.zeros(4), np.zeros(4, np.int64))
    with pytest.raises(ConfigError, match="root 9"):
        rank.broadcast(np.zeros(4), 9)
    with pytest.raises(ConfigError, match="strides"):
        rank.all_reduce(np.zeros((4, 4))[:, :2])
    with pytest.raises(ConfigError, match="read-only"):
        rank.all_reduce(np.frombuffer(b"12345678", np.float32))
    with pytest.raises(ConfigError, match="complex"):
        rank.all_reduce(np.zeros(3, np.complex64))
    with pytest.raises(ConfigError, match="add up"):
        rank.all_to_all(np.zeros(5), np.zeros(5), [1] * group.size, [5] * group.size)
    assert Block(0, 3, DType.INT16).nbytes == 6
