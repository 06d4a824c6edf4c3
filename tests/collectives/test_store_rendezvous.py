"""The rendezvous through a store, also one in which an earlier run has left its records."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from softmrc.collectives import CollectiveError, DirectoryStore, Group
from softmrc.collectives.store_rendezvous import RendezvousRestarted, StoreRendezvous

SIZE = 3


def each(go: Callable[[int], Any], size: int = SIZE) -> list[Any]:
    """What every rank returns or raises, all at once."""

    def caught(rank: int) -> Any:
        try:
            return go(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(caught, range(size)))


def joined(store: DirectoryStore, text: str, absent: int = -1, timeout_s: float = 20.0) -> list[Any]:
    """What each of these ranks reads in the list, or raises."""

    def join(rank: int) -> list[str] | None:
        time.sleep(0.05 * rank)  # the first ones find what an earlier run left
        found = None if rank == absent else StoreRendezvous(store, "group", rank, SIZE, timeout_s)
        return found and found.join(f"{text} of {rank}")

    return each(join)


def test_records_of_an_earlier_run_are_not_read(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for text in ("first", "second", "third"):
        assert joined(store, text) == [[f"{text} of {rank}" for rank in range(SIZE)]] * SIZE


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_was_there_only_in_an_earlier_run_is_named(tmp_path: Path, absent: int) -> None:
    store = DirectoryStore(tmp_path)
    joined(store, "first")
    for rank, error in enumerate(joined(store, "second", absent, timeout_s=0.5)):
        if rank != absent:
            assert f"rank {absent} did not join the group of 3 within 0.5 s" in str(error), error
            assert ("nothing is under" if absent else "of an earlier run") in str(error), error


def test_a_rank_that_was_never_there_is_named(tmp_path: Path) -> None:
    for absent in (0, 1):
        for rank, error in enumerate(joined(DirectoryStore(tmp_path / str(absent)), "", absent, timeout_s=0.5)):
            assert rank == absent or f"rank {absent} did not join the group of 3" in str(error), error


PHASES = ("record", "places", "ready", "sizes", "narrowed")


@pytest.mark.parametrize("fails", [0, 1])
@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_that_fails_on_the_way_tells_the_others(tmp_path: Path, phase: str, fails: int) -> None:
    """Wherever they wait for it, and once."""

    def go(rank: int) -> None:
        meets = StoreRendezvous(DirectoryStore(tmp_path), "group", rank, SIZE, 20.0)
        meets.start()
        for one in PHASES:
            if rank == fails and one == phase:
                meets.excuse(MemoryError("it has no memory left"))
                return meets.give_up("what followed from it")
            if one == "record":
                meets.join("")
            elif one == "ready":
                meets.be_ready()
            else:
                assert meets.exchange(one, f"{one} of {rank}") == [f"{one} of {other}" for other in range(SIZE)]
        return None

    expected = f"rank {fails} did not get ready: it has no memory left"
    found = each(go)
    assert [str(one) for rank, one in enumerate(found) if rank != fails] == [expected] * 2 and found[fails] is None


@pytest.mark.parametrize(("fails", "late"), [(0, 2), (1, 2), (1, 0)])
def test_who_is_about_to_come_is_told_too(tmp_path: Path, fails: int, late: int) -> None:
    def go(rank: int) -> None:
        time.sleep(0.7 * (rank == late))
        meets = StoreRendezvous(DirectoryStore(tmp_path), "group", rank, SIZE, 20.0)
        meets.excuse(OSError("no such plane")) if rank == fails else meets.join("")

    found = each(go)
    assert sum("did not get ready: no such plane" in str(one) for one in found) == 2, found


def test_why_an_earlier_run_failed_is_not_believed(tmp_path: Path) -> None:
    """It stays in the store."""
    store = DirectoryStore(tmp_path)

    def fail(rank: int) -> None:
        StoreRendezvous(store, "group", rank, SIZE, 20.0).excuse(OSError("no such plane"))

    each(fail)
    assert joined(store, "second") == [[f"second of {rank}" for rank in range(SIZE)]] * SIZE


def test_a_rank_that_does_not_get_ready_is_named(tmp_path: Path) -> None:
    def go(rank: int) -> None:
        meets = StoreRendezvous(DirectoryStore(tmp_path), "group", rank, SIZE, 0.7)
        meets.join("")
        if rank != 1:
            meets.be_ready()

    for error in (each(go)[rank] for rank in (0, 2)):
        assert "timed out: rank 1 did not get ready for the group of 3 within 0.7 s" in str(error), error


def test_all_begin_again_with_a_rank_that_was_restarted(tmp_path: Path) -> None:
    """The others wait for it to be ready, or for what it says."""
    store = DirectoryStore(tmp_path)
    for phase in ("ready", "places"):

        def go(number: int, phase: str = phase) -> list[str]:
            rank = min(number, 2)  # the last process is another one of rank 2, which came before and is gone
            meets, found = StoreRendezvous(store, f"group {phase}", rank, SIZE, 20.0), []
            time.sleep(0.5 * (number == 3))
            while True:
                try:
                    found = meets.join(f"process {number}")
                    if number == 2:
                        return found
                    if phase == "places":
                        meets.exchange("places", "here")
                    meets.be_ready()
                    return found
                except RendezvousRestarted:
                    pass

        found = each(go, SIZE + 1)
        assert found[2] == ["process 0", "process 1", "process 2"]
        assert found[0] == found[1] == found[3] == ["process 0", "process 1", "process 3"]


def test_beginning_again_ends_with_the_time(tmp_path: Path) -> None:
    """A rank says over and over that it is not in the list."""

    def go(rank: int) -> None:
        meets = StoreRendezvous(DirectoryStore(tmp_path), "group", rank, 2, 1.5)
        while True:
            try:
                meets.join("")
                if rank == 0:
                    meets.be_ready()
                meets._set(meets._shared("again"), "+")
                meets.records = []
            except RendezvousRestarted:
                pass

    for error in each(go, 2):
        assert "timed out: rank " in str(error) and "the group of 2 within 1.5 s" in str(error), error


def test_who_has_not_read_that_all_are_ready_finds_it_in_the_next_run_too(tmp_path: Path) -> None:
    """Rank 0 has set another nonce by then."""

    class Slow(DirectoryStore):
        def check(self, keys: Any) -> bool:
            if any("/ready/" in key and key.endswith("/all") for key in keys):
                time.sleep(0.5)
            return super().check(keys)

    def go(rank: int) -> str:
        meets = StoreRendezvous((Slow if rank == 2 else DirectoryStore)(tmp_path), "group", rank, SIZE, 20.0)
        meets.join("")
        meets.be_ready()
        if rank == 0:
            StoreRendezvous(DirectoryStore(tmp_path), "group", 0, SIZE, 20.0).start()
        return meets.nonce

    nonces = each(go)
    assert nonces == [nonces[0]] * SIZE


class Newer(StoreRendezvous):
    """One of a later version."""

    VERSION = 999


@pytest.mark.parametrize("newer", [0, 1])
def test_ranks_of_another_version_are_refused_in_one_sentence(tmp_path: Path, newer: int) -> None:
    def go(rank: int) -> None:
        meets = (Newer if rank == newer else StoreRendezvous)(DirectoryStore(tmp_path), "group", rank, 2, 20.0)
        try:
            meets.join("")
            meets.be_ready()
        except CollectiveError as error:
            meets.give_up(str(error))
            raise

    for error in each(go, 2):
        assert "rank 1 runs another version of SoftMRC (its records are of version" in str(error), error
        assert "999" in str(error) and "install the same for all ranks (softmrc/group/record/" in str(error)


class Counted:
    """A store with torch's `multi_get`, which counts its calls."""

    def __init__(self, store: DirectoryStore) -> None:
        self._store, self.calls = store, 0

    def set(self, key: str, value: bytes) -> None:
        self.calls += 1
        self._store.set(key, value)

    def check(self, keys: list[str]) -> bool:
        """A repeated one is not counted: it depends on when others come."""
        found = self._store.check(keys)
        self.calls += found
        return found

    def has_extended_api(self) -> bool:
        return True

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.calls += 1
        return [self._store.get(key) for key in keys]


@pytest.mark.parametrize("size", [2, 9])
def test_a_rank_asks_the_store_as_often_for_any_number_of_ranks(tmp_path: Path, size: int) -> None:
    """Looking again, where others are late, comes on top."""

    def go(rank: int) -> tuple[int, int]:
        store = Counted(DirectoryStore(tmp_path))
        meets = StoreRendezvous(store, "group", rank, size, 20.0)
        meets.join("")
        before = store.calls
        meets.be_ready()
        return before, store.calls

    leader, *others = each(go, size)
    assert leader[0] >= 4 and min(others)[0] == 5, "to set and to read the nonce, the records and the list"
    assert leader[1] - leader[0] == min(after - before for before, after in others) == 2


def test_a_group_can_be_made_again(tmp_path: Path) -> None:
    def live(rank: int) -> int:
        data = bytearray(4)
        for _ in range(3):
            with Group.join(DirectoryStore(tmp_path), rank, SIZE) as group:
                group.all_reduce(data).wait()
                group.barrier().wait()
        return len(data)

    assert each(live) == [4] * SIZE


def test_names_may_be_longer_than_those_of_files(tmp_path: Path) -> None:
    store, key = DirectoryStore(tmp_path), "softmrc/" + "long" * 100
    store.set(key, b"one")
    store.set(key + "er", b"two")
    assert store.get(key) == b"one" and store.get(key + "er") == b"two"
