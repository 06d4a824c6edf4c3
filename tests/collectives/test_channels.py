"""Groups that are spread over several lanes: the same bits, the same order, the same ends as over one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from collectives.ranks import DTYPES, FLOATS, PLANES, Ranks, block, ranks, storage, stored, values_of
from collectives.test_failures import IMPATIENT
from collectives.test_reduce import ops_of
from softmrc import _core
from softmrc.collectives import CollectiveError, DirectoryStore, Group, ReduceOp, Work
from softmrc.collectives.rank_info import RankInfo, channels_of
from softmrc.config import DeviceConfig
from softmrc.device import width
from softmrc.errors import ConfigError

COUNT = 500_003  # so that each of three ranks' parts is worth three channels, in a length that nothing divides


def uneven(rank: int, peer: int) -> int:
    """Bytes from one rank to another: nothing, a message, a stripe, several."""
    return (0, 1000, 130_000, 700_001)[(rank + 2 * peer) % 4]


def everything(group: Ranks) -> list[list[bytes]]:
    """Numbers that round, through every operation; a sample of types and reductions through those that reduce."""

    def run(rank: Group) -> list[bytes]:
        size, found = group.size, []
        random = np.random.default_rng(rank.rank)
        array = random.standard_normal(COUNT).astype(np.float32)
        summed, part, whole = array.copy(), np.empty(COUNT, np.float32), np.empty(COUNT * size, np.float32)
        reduced, dealt, passed = array.copy(), np.empty(COUNT, np.float32), array.copy()
        mixed = [np.full(uneven(rank.rank, p), rank.rank, np.uint8) for p in range(size)]
        got = [np.zeros(uneven(p, rank.rank), np.uint8) for p in range(size)]
        gathered = np.empty(COUNT * size, np.float32)
        is_root = rank.rank == size - 1
        works = [
            rank.all_reduce(summed),
            rank.reduce_scatter([array] * size, part, op=ReduceOp.AVG),
            rank.all_gather(array, whole),
            rank.reduce(reduced, None, 1),
            rank.broadcast(passed, 1),
            rank.scatter(dealt, [array] * size if is_root else None, size - 1),
            rank.all_to_all(mixed, got),
            rank.gather(array, gathered if is_root else None, size - 1),
        ]
        for work in works:
            work.wait()
        found += [a.tobytes() for a in (summed, part, whole, reduced, passed, dealt, *got)]
        found += [gathered.tobytes()] * is_root
        for number, dtype in enumerate(DTYPES):
            allowed = [*ops_of(dtype), *[ReduceOp.PREMUL_SUM] * (dtype in FLOATS)]
            op = allowed[number % len(allowed)]
            count = 900_001 // storage(dtype).itemsize
            values = stored(random.standard_normal(count) * 50, dtype)
            rank.all_reduce(block(values, dtype), op=op, factor=0.3).wait()
            found.append(values.tobytes())
        return found

    return values_of(group(run))


def receive(group: Group, begun: threading.Barrier) -> CollectiveError | None:
    begun.wait()
    try:
        group.recv(np.empty(100_000, np.uint8), 1).wait(20)
    except CollectiveError as error:
        return error
    return None


def test_a_receive_that_comes_while_its_group_closes_ends() -> None:
    """Whichever comes first: it is refused, or ended, and never waited for for ever."""
    for _ in range(25):
        with ranks(2) as two, ThreadPoolExecutor(1) as threads:
            begun = threading.Barrier(2)
            found = threads.submit(receive, two.groups[0], begun)
            begun.wait()
            two.groups[0].close()
            assert isinstance(found.result(30), CollectiveError)


@pytest.mark.parametrize("size", [2, 3])
def test_results_do_not_depend_on_the_number_of_channels(size: int) -> None:
    with ranks(size, lanes=1) as alone:
        expected = everything(alone)
        assert all(rank.stats()["operations_striped"] == 0 for rank in alone.groups)
    for lanes in (2, 3, 4):
        with ranks(size, lanes=lanes) as wide:
            assert everything(wide) == expected, lanes
            assert all(rank.stats()["operations_striped"] >= 15 for rank in wide.groups)


def by_algorithm(group: Ranks) -> dict[str, list[list[bytes]]]:
    def run(rank: Group) -> list[bytes]:
        array = np.random.default_rng(rank.rank).standard_normal(COUNT).astype(np.float32)
        summed, reduced, passed, part = array.copy(), array.copy(), array.copy(), np.empty(COUNT, np.float32)
        whole = np.empty(COUNT * group.size, np.float32)
        works = [rank.all_reduce(summed), rank.reduce(reduced, None, 1), rank.broadcast(passed, 2)]
        works += [rank.reduce_scatter([array] * group.size, part), rank.all_gather(array, whole)]
        for work in works:
            work.wait()
        return [a.tobytes() for a in (summed, reduced, passed, part, whole)]

    found = {}
    for algorithm in ("direct", "gathered", "doubling", "rounds", "ring", "binomial", "binary", "chain", "grid"):
        values_of(group(lambda rank, name=algorithm: rank._native.force(name)))
        found[algorithm] = values_of(group(run))
    return found


def test_no_algorithm_depends_on_the_number_of_channels() -> None:
    """Those that cannot be cut go by one channel; no rank does otherwise than the others."""
    with ranks(3, lanes=1) as alone, ranks(3, lanes=3) as wide:
        assert by_algorithm(wide) == by_algorithm(alone)
        assert len({rank.stats()["operations_striped"] for rank in wide.groups}) == 1


@pytest.mark.parametrize("size", [4, 6, 12])
def test_a_grid_is_the_same_over_any_number_of_channels(size: int, count: int = 700_001) -> None:
    """Rows and columns cut what they exchange into other pieces, and those that wait for each other share a channel."""

    def run(rank: Group) -> bytes:
        rank._native.force("grid")
        array = np.random.default_rng(rank.rank).standard_normal(count).astype(np.float32)
        rank.all_reduce(array).wait()
        return array.tobytes()

    with ranks(size, lanes=1) as alone:
        expected = values_of(alone(run))
        assert len(set(expected)) == 1
    for lanes in (2, 3):
        with ranks(size, lanes=lanes) as wide:
            assert values_of(wide(run)) == expected
            assert all(rank.stats()["operations_striped"] == 1 for rank in wide.groups)


def test_channels_carry_the_same(lanes: int = 3) -> None:
    def moved(rank: Group) -> np.ndarray:
        return np.array(
            [sum(pairs[k].bulk.stats()["bytes_sent"] for pairs in rank.pairs.values()) for k in range(lanes)]
        )

    def run(rank: Group) -> np.ndarray:
        rank.all_reduce(np.ones(COUNT * 4)).wait()  # from here on there are queue pairs on every channel
        rank.barrier().wait()
        before = moved(rank)
        rank.all_reduce(np.ones(COUNT * 4)).wait()
        return moved(rank) - before

    with ranks(2, lanes=lanes) as two:
        for sent in values_of(two(run)):
            assert sent.min() > 0.9 * sent.max() > 0.2 * COUNT * 4 * 8


@pytest.mark.parametrize("lanes", [(1, 4, 2), (4, 2, 3)])
def test_ranks_with_different_numbers_of_lanes(lanes: tuple[int, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(lanes)) as pool:

        def run(rank: int) -> tuple[int, float]:
            store = DirectoryStore(folder)
            with Group.join(store, rank, len(lanes), planes=PLANES, lanes=lanes[rank], timeout_s=20) as group:
                array = np.full(COUNT, rank + 1.0)
                group.all_reduce(array).wait()
                group.barrier().wait()
                assert (array == array[0]).all()
                return group.lanes, float(array[0])

        assert list(pool.map(run, range(len(lanes)))) == [(min(lanes), 6.0)] * len(lanes)


def test_how_many_lanes_is_a_number_that_makes_sense() -> None:
    for lanes in (0, -1, 65, 1.5, "2"):
        with pytest.raises(ConfigError, match="lanes"):
            Group.join(None, 0, 1, lanes=lanes)  # type: ignore[arg-type]


def test_operations_on_the_same_memory_keep_their_order() -> None:
    """Large and small, so that they are on different channels; one that could overtake another would be seen."""

    def run(rank: Group) -> np.ndarray:
        array = np.ones(300_000, np.int64)
        everybody = np.zeros(300_000 * 3, np.int64)
        works = []
        for _ in range(3):
            works += [rank.all_reduce(array), rank.all_reduce(array[:5]), rank.all_reduce(array[5:]), rank.barrier()]
        works += [rank.all_gather(array, everybody), rank.all_reduce(everybody), rank.broadcast(array, 2)]
        works += [rank.all_reduce(array[-100_000:]), rank.all_reduce(array[:100]), rank.all_reduce(array)]
        for work in works:
            work.wait()
        return np.concatenate([everybody, array])

    with ranks(3, lanes=3) as three:
        for _ in range(3):
            for result in values_of(three(run)):
                assert (result[:900_000] == 3**7).all()
                array = result[900_000:]
                assert (
                    (array[:100] == 3**8).all()
                    and (array[100:-100_000] == 3**7).all()
                    and (array[-100_000:] == 3**8).all()
                )


def is_read(group: Group, memory: np.ndarray) -> bool:
    return group.device._native.reads_from(_core.Buffer(memory, False))


@pytest.mark.parametrize("what", ["bulk", "messages"])
@pytest.mark.parametrize("channel", [0, 2])
def test_one_channel_that_breaks_ends_all(channel: int, what: str) -> None:
    """In the same words on all ranks, which name a rank; and no memory is touched any longer."""
    with ranks(3, lanes=3) as three:
        arrays = [np.zeros(COUNT) for _ in range(3)]

        def run(rank: Group) -> None:
            rank.all_reduce(arrays[rank.rank]).wait()
            if rank.rank == 0:
                getattr(rank.pairs[1][channel], what).error()
            for _ in range(200):
                rank.all_reduce(arrays[rank.rank]).wait()

        errors = three(run)
        assert all(isinstance(error, CollectiveError) for error in errors), errors
        assert len({str(error) for error in errors}) <= 2, errors  # two ranks may notice at the same time
        assert all("rank 0" in str(error) or "rank 1" in str(error) for error in errors), errors
        assert not any(is_read(rank, array) for rank, array in zip(three.groups, arrays, strict=True))


def under_load(three: Ranks, then: Callable[[Group], Any]) -> list[list[Work]]:
    """All ranks have many under way, when `then` is called on rank 1."""

    def run(rank: Group) -> list[Work]:
        works = []
        for turn in range(60):
            works.append(rank.all_reduce(np.ones(COUNT if turn % 3 else 7)))
            if rank.rank == 1 and turn == 50:
                works[20].wait()
                then(rank)
        return works

    return values_of(three(run))


def test_abort_under_load_ends_everything_in_the_same_words() -> None:
    with ranks(3, lanes=3) as three:
        for works in under_load(three, lambda rank: rank.abort("enough")):
            words = set()
            for work in works:
                try:
                    work.wait(20)
                except CollectiveError as error:
                    words.add(str(error))
            assert words == {"rank 1 aborted: enough"}


def test_a_rank_that_leaves_under_load() -> None:
    with ranks(3, lanes=3) as three:
        for works in under_load(three, lambda rank: rank.close()):
            with pytest.raises(CollectiveError, match="rank 1 left the group in the middle of an operation"):
                works[-1].wait(20)
            for work in works:  # one that had not started ends before stripes of others, on other lanes
                with suppress(CollectiveError):
                    work.wait(20)
            assert all(work.done for work in works)


def test_one_that_waits_for_memory_has_its_own_deadline() -> None:
    with ranks(2, lanes=2) as two:
        array = np.zeros(COUNT)
        first = two.groups[0].all_reduce(array, timeout_s=20)
        second = two.groups[0].all_reduce(array, timeout_s=0.3)
        words = "within 0.3 s: an earlier operation on the same memory has not ended"
        for work in (first, second):
            with pytest.raises(CollectiveError, match=words):
                work.wait(20)
        with pytest.raises(CollectiveError, match=words):
            two.groups[1].all_reduce(np.zeros(COUNT)).wait(20)


@pytest.mark.parametrize("mine", [10, 10_000, 140_000, 3_000_000])
def test_ranks_that_do_not_mean_the_same_length(mine: int) -> None:
    """Each length would go by other channels, or in another way."""
    with ranks(2, lanes=3) as two:

        def run(rank: Group) -> None:
            count = mine if rank.rank == 0 else 1_000_000
            rank.all_to_all(np.zeros(2 * count, np.uint8), np.zeros(2 * count, np.uint8)).wait()
            rank.barrier().wait()

        errors = {str(error) for error in two(run)}
        assert all("bytes" in error and str(mine) in error and "1000000" in error for error in errors), errors


VICTIM = """
import sys, numpy as np
from softmrc.collectives import *
with Group.join(DirectoryStore(sys.argv[1]), 1, 2, planes=["127.0.0.1", "127.0.0.2"], lanes=3) as group:
    for turn in range(100000):
        group.all_reduce(np.zeros(1000000)).wait()
        print("here", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_stopped_in_the_middle(how: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([sys.executable, "-c", VICTIM, folder], text=True, stdout=subprocess.PIPE)
        try:
            assert process.stdout
            with (
                Group.join(DirectoryStore(folder), 0, 2, planes=PLANES, lanes=3, device_config=IMPATIENT) as group,
                pytest.raises(CollectiveError, match="rank 1 stopped answering"),
            ):
                for turn in range(200):
                    group.all_reduce(np.zeros(1_000_000)).wait(30)
                    if turn == 3:
                        process.stdout.readline()
                        os.kill(process.pid, how)
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("offers", "channels"),
    [
        ([("a", 16, 8), ("b", 16, 8)], 8),
        ([("a", 16, 8), ("b", 16, 3)], 3),  # one has fewer
        ([("a", 16, 8), ("a", 16, 8), ("a", 16, 8), ("b", 16, 8)], 5),  # three share sixteen processors
        ([("a", 2, 8)] * 4, 1),
        ([("a", 0, 8)] * 4, 8),  # all said how many they want
        ([("a", 0, 8), ("a", 8, 8)], 4),  # one did not
    ],
)
def test_how_many_channels_a_group_has(offers: list[tuple[str, int, int]], channels: int) -> None:
    assert channels_of([RankInfo(host, 0, cores, most) for host, cores, most in offers]) == channels


@pytest.mark.parametrize(
    ("cores", "ranks_here", "speeds", "lanes"),
    [
        (16, 1, [0], 8),
        (16, 4, [0, 0], 4),
        (16, 32, [0], 1),
        (1.5, 1, [0], 1),
        (16, 1, [1_000_000_000] * 2, 1),
        (16, 1, [25_000_000_000] * 2, 5),
        (16, 1, [1_000_000_000, 0], 8),
    ],
)
def test_how_many_lanes_a_rank_has(
    monkeypatch: pytest.MonkeyPatch, cores: float, ranks_here: int, speeds: list[int], lanes: int
) -> None:
    monkeypatch.setattr(width, "cores", lambda: cores)
    assert width.lanes_of_rank(ranks_here, speeds) == lanes


@pytest.mark.parametrize("most", [1, 4, 24])
def test_a_short_send_queue_holds_up_nobody(most: int) -> None:
    """What found it full is said when acknowledgements have made room, whether or not the other rank says anything."""

    def work(group: Group) -> list[float]:
        arrays = [np.full(3, group.rank + number, np.float32) for number in range(64)]
        for one in [group.all_reduce(values) for values in arrays]:
            one.wait()
        blocks = [np.full(1000, number, np.float32) for number in range(100)]
        works = [group.send(block, 1) if group.rank == 0 else group.recv(block, 0) for block in blocks]
        for one in works:
            one.wait()
        return [float(values[0]) for values in arrays]

    with ranks(2, timeout_s=15.0, device_config=DeviceConfig(max_send_wr=most)) as group:
        assert values_of(group(work)) == [[2.0 * number + 1 for number in range(64)]] * 2
        assert all(one._native.stats()["inquiries"] == 0 for one in group.groups), "no rank had to ask"
