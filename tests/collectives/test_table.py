"""Meeting through a store, also one in which the dead have left their words."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from softmrc.collectives import CollectiveError, DirectoryStore, Group
from softmrc.collectives.store_rendezvous import TOLD, StoreRendezvous

SIZE = 3


def each(go: Callable[[int], Any], size: int = SIZE) -> list[Any]:
    """What every rank makes of it, at once."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(go, range(size)))


def agreed(store: DirectoryStore, words: str, ranks: range, timeout_s: float = 20.0) -> list[object]:
    """What each of these ranks heard, or what it raised."""

    def sit(rank: int) -> list[str]:
        time.sleep(0.05 * rank)  # the first ones hear the dead
        return StoreRendezvous(store, "table", rank, SIZE, timeout_s).agree(f"{words} of {rank}")

    with ThreadPoolExecutor(SIZE) as pool:
        sitting = [pool.submit(sit, rank) for rank in ranks]
    return [one.exception() or one.result() for one in sitting]


def test_words_of_an_earlier_run_are_not_heard(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for words in ("first words", "second words", "third words"):
        expected = [f"{words} of {rank}" for rank in range(SIZE)]
        assert agreed(store, words, range(SIZE)) == [expected] * SIZE


def test_a_rank_that_was_there_only_in_an_earlier_run_is_named(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    agreed(store, "first", range(SIZE))
    for error in agreed(store, "second", range(2), timeout_s=0.3):
        assert isinstance(error, CollectiveError)
        assert "rank 2 did not join the group of 3 within 0.3 s" in str(error)
        assert "nothing is under softmrc/table/heard/" in str(error) and "of an earlier run" in str(error)


@pytest.mark.parametrize("late", [False, True])
def test_a_rank_that_fails_on_the_way_tells_the_others(tmp_path: Path, late: bool) -> None:
    """Before it has told them where it is, or after."""

    def go(rank: int) -> None:
        table = StoreRendezvous(DirectoryStore(tmp_path), "table", rank, SIZE, 20.0)
        table.agree("")
        if late:
            assert table.tell(f"place of {rank}") == [f"place of {one}" for one in range(SIZE)]
        if rank == 1:
            table.give_up("it has no memory left")
        else:
            with pytest.raises(CollectiveError, match="rank 1 did not get ready: it has no memory left"):
                table.be_ready() if late else table.tell("a place")

    each(go)


@pytest.mark.parametrize("about", TOLD)
@pytest.mark.parametrize("is_ready", [False, True])
def test_a_rank_that_fails_tells_those_who_wait_for_what_it_has_not_told(
    tmp_path: Path, about: str, is_ready: bool
) -> None:
    """Whether it knows that all have heard it, or has only left the signs that let the others go on."""

    def go(rank: int) -> None:
        table = StoreRendezvous(DirectoryStore(tmp_path), "table", rank, SIZE, 20.0)
        table.hear("")
        if rank == 1 and not is_ready:
            table._sign("heard")
            table._sign("ready")
        elif is_ready:
            assert table.confirm()
        else:
            assert table.be_ready()
        for one in TOLD[: TOLD.index(about)]:
            table.tell(f"{one} of {rank}", one)
        if rank == 1:
            table.give_up("it was interrupted")
        else:
            table.tell("", about)

    with ThreadPoolExecutor(SIZE) as pool:
        errors = [one.exception() for one in [pool.submit(go, rank) for rank in range(SIZE)]]
    assert errors[1] is None
    for error in (errors[0], errors[2]):
        assert isinstance(error, CollectiveError)
        assert str(error) == "rank 1 did not get ready: it was interrupted"


def test_a_rank_that_does_not_get_ready_is_named(tmp_path: Path) -> None:
    def go(rank: int) -> None:
        table = StoreRendezvous(DirectoryStore(tmp_path), "table", rank, SIZE, 0.5)
        table.agree("")
        table.tell("a place")
        if rank != 1:
            with pytest.raises(CollectiveError, match=r"timed out: rank 1 did not get ready .* within 0.5 s"):
                table.be_ready()

    each(go)


class Counted:
    """A store with torch's `multi_get`, which counts what it is asked."""

    def __init__(self, store: DirectoryStore) -> None:
        self._store, self.calls = store, 0

    def set(self, key: str, value: bytes) -> None:
        self.calls += 1
        self._store.set(key, value)

    def wait(self, keys: list[str], timeout: Any) -> None:
        self.calls += 1
        self._store.wait(keys, timeout)

    def has_extended_api(self) -> bool:
        return True

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.calls += 1
        return [self._store.get(key) for key in keys]


@pytest.mark.parametrize("size", [2, 9])
def test_a_meeting_asks_the_store_as_often_for_any_number_of_ranks(tmp_path: Path, size: int) -> None:
    """Four sentences; two are read, of two it is enough that they are there. Looking again, where others are late,
    comes on top."""

    def go(rank: int) -> int:
        store = Counted(DirectoryStore(tmp_path))
        table = StoreRendezvous(store, "table", rank, size, 20.0)
        table.agree("")
        table.tell("a place")
        table.be_ready()
        return store.calls

    assert min(each(go, size)) == 3 + 2 + 3 + 2


def test_who_says_all_at_once_asks_the_store_four_things(tmp_path: Path) -> None:
    """One of them twice where a store might wait for longer than its rank."""

    def go(rank: int, patience_s: int | None) -> int:
        store = Counted(DirectoryStore(tmp_path / str(patience_s)))
        if patience_s is not None:
            store.timeout = timedelta(seconds=patience_s)  # type: ignore[attr-defined]
        table = StoreRendezvous(store, "table", rank, 2, 20.0)
        assert table.hear(f"place of {rank}") == ["place of 0", "place of 1"] and not table.is_confirmed
        assert table.be_ready() and table.is_confirmed
        return store.calls

    for patience_s, calls in ((20, 4), (10, 4), (30, 5), (None, 5)):
        assert min(each(lambda rank, patience_s=patience_s: go(rank, patience_s), 2)) == calls


def test_who_acted_on_words_of_an_earlier_run_does_so_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for rank in range(2):
        store.set(f"softmrc/table/says/{rank}", f"{rank:016x} of the past".encode())

    def go(rank: int) -> list[list[str]]:
        table = StoreRendezvous(store, "table", rank, 2, 20.0)
        time.sleep(0.3 * rank)
        heard = [table.hear(f"place of {rank}")]
        while not table.be_ready():
            heard.append(table.said)
        return heard

    early, late = each(go, 2)
    today = ["place of 0", "place of 1"]
    assert early == [["place of 0", "of the past"], today] and late == [today]


def test_a_group_can_be_made_again(tmp_path: Path) -> None:
    def live(rank: int) -> int:
        data = bytearray(4)
        for _ in range(3):
            with Group.join(DirectoryStore(tmp_path), rank, SIZE) as group:
                group.all_reduce(data).wait()
                group.barrier().wait()
        return len(data)

    assert each(live) == [4] * SIZE


class Hasty:
    """A store that counts in whole milliseconds, and so may give up a moment early."""

    def __init__(self, store: DirectoryStore) -> None:
        self._store = store
        self.set, self.get = store.set, store.get

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self._store.wait(keys, timeout - timedelta(seconds=0.002) if timeout > timedelta(seconds=0.1) else timeout)


def test_a_store_that_gives_up_a_moment_early_has_not_failed(tmp_path: Path) -> None:
    table = StoreRendezvous(Hasty(DirectoryStore(tmp_path)), "table", 0, 2, 0.3)
    with pytest.raises(CollectiveError, match="timed out: rank 1 did not join the group of 2"):
        table.agree("here")


def test_who_gives_up_says_so_once(tmp_path: Path) -> None:
    def go(rank: int) -> None:
        table = StoreRendezvous(DirectoryStore(tmp_path), "table", rank, 2, 20.0)
        table.agree("")
        if rank == 1:
            table.give_up("the first reason")
            table.give_up("what followed from it")
        else:
            with pytest.raises(CollectiveError, match="the first reason"):
                table.tell("")

    each(go, 2)


def test_names_may_be_longer_than_those_of_files(tmp_path: Path) -> None:
    store, key = DirectoryStore(tmp_path), "softmrc/" + "long" * 100
    store.set(key, b"one")
    store.set(key + "er", b"two")
    assert store.get(key) == b"one" and store.get(key + "er") == b"two"
