"""Operations under way: several at a time, their order, who is notified of their end, and how long memory lives."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from collectives.ranks import Ranks, ranks, values_of
from softmrc.collectives import Block, DirectoryStore, DType, Group, Work
from softmrc.device import Device

MIXED = [3, 100_000, 0, 7, 50_000, 250_000, 1]


@pytest.mark.parametrize("rounds", [6])
def test_several_in_flight(group: Ranks, rounds: int) -> None:
    def run(rank: Group) -> list[np.ndarray]:
        arrays = [np.full(count, i + rank.rank, np.int64) for i, count in enumerate(MIXED * rounds)]
        works = [rank.all_reduce(array) for array in arrays]
        for work in reversed(works):
            work.wait()
        return arrays

    shift = sum(range(group.size))
    for arrays in values_of(group(run)):
        for i, array in enumerate(arrays):
            assert (array == i * group.size + shift).all()


def test_callbacks_come_from_one_thread(group: Ranks) -> None:
    told: list[tuple[str, Work]] = []
    all_told = threading.Semaphore(0)

    def tell(work: Work) -> None:
        told.append((threading.current_thread().name, work))
        all_told.release()

    def run(rank: Group) -> list[Work]:
        works = [rank.all_reduce(np.ones(count, np.float32)) for count in MIXED]
        for work in works:
            work.add_done_callback(tell)
        works[-1].wait()
        works[-1].add_done_callback(tell)  # also when it is over
        return works

    works = [work for row in values_of(group(run)) for work in row]
    for _ in range(len(works) + group.size):
        assert all_told.acquire(timeout=20)
    assert {name for name, _ in told} == {"softmrc-callbacks"}
    assert {id(work) for _, work in told} == {id(work) for work in works}
    assert all(work.done and work.error is None for work in works)


class Odd(BaseException):
    """Of no kind that anybody expects."""


@pytest.mark.parametrize("raised", [ZeroDivisionError, asyncio.CancelledError, SystemExit, KeyboardInterrupt, Odd])
def test_a_callback_that_raises_stops_nothing(
    group: Ranks, capsys: pytest.CaptureFixture[str], raised: type[BaseException]
) -> None:
    last = threading.Event()

    def fails(work: Work) -> None:
        raise raised

    def run(rank: Group) -> None:
        first, second = rank.barrier(), rank.barrier()
        second.wait()
        if rank.rank == 0:
            first.add_done_callback(fails)
            first.add_done_callback(lambda work: last.set())

    values_of(group(run))
    assert last.wait(20)
    assert raised.__name__ in capsys.readouterr().err


class Owner:
    """Something that owns memory."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def test_memory_lives_as_long_as_its_operation() -> None:
    with ranks(2) as two:
        owners: list[weakref.ref[Owner]] = []

        def forget(rank: Group) -> None:
            owner = Owner(np.ones(100_000, np.float32))
            owners.append(weakref.ref(owner))
            rank.all_reduce(Block(owner.array.ctypes.data, 100_000, DType.FLOAT32, owner))

        forget(two.groups[0])
        assert owners[0]() is not None  # nothing holds the Work, the other rank has not come
        forget(two.groups[1])
        for _ in range(1000):
            values_of(two(lambda rank: rank.barrier().wait()))
            if [owner() for owner in owners] == [None, None]:
                return
        pytest.fail("memory is kept for ever")


def test_waiting_has_its_own_limit() -> None:
    with ranks(2) as two:
        array = np.ones(10, np.float32)
        work = two.groups[0].all_reduce(array)
        with pytest.raises(TimeoutError):
            work.wait(0.05)
        assert not work.done and work.error is None
        two.groups[1].all_reduce(np.ones(10, np.float32)).wait()
        work.wait()
        assert (array == 2).all()


def test_groups_share_a_device() -> None:
    """Two groups of the same ranks in opposite order, and a group of fewer, on the devices of the first."""
    with ranks(3) as three:
        stores: Any = three

        def run(rank: Group) -> tuple[float, float]:
            store = DirectoryStore(stores._folder.name)
            second = Group.join(store, 2 - rank.rank, 3, device=rank.device, name="second")
            one, two = np.full(20_000, rank.rank, np.float32), np.full(20_000, second.rank, np.float32)
            works = [second.broadcast(two, 0), rank.all_reduce(one)]
            for work in works:
                work.wait()
            second.close()
            rank.barrier().wait()
            return float(one[-1]), float(two[-1])

        assert values_of(three(run)) == [(3.0, 0.0)] * 3
        assert not three.groups[0].device._native.is_closed


def test_a_device_is_not_made_twice() -> None:
    with Device() as device, pytest.raises(ValueError):
        Group.join(None, 0, 1, device=device, planes=["127.0.0.1"])


def test_memory_is_released_when_an_operation_ends() -> None:
    """Also behind a receive that still waits, and where no thread waits for the operation."""

    def use(group: Group) -> None:
        waiting = group.recv(np.zeros(3), 1, tag=9) if group.rank == 0 else None
        for wait in (True, False):
            arrays = [np.ones(5000) for _ in range(20)]
            seen = [weakref.ref(one) for one in arrays]
            for array in arrays:
                work = group.all_reduce(array)
                if wait:
                    work.wait()
            del arrays, array, work
            if not wait:  # an operation may end a little later than the next; each issue lets go of what has ended
                for _ in range(100):
                    group.barrier().wait()
            assert not any(one() is not None for one in seen)
        if group.rank == 1:
            group.send(np.ones(3), 0, tag=9).wait()
        if waiting is not None:
            waiting.wait()

    with ranks(3) as three:
        values_of(three(use))
