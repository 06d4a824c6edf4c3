"""With a secret, whoever can read and write the store but does not know it cannot be a rank: neither by writing
records, nor by putting back what ranks wrote before. Addresses are on loopback, where packets are not encrypted by
default."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softmrc.collectives import CollectiveError, DirectoryStore, Group, store_rendezvous
from softmrc.collectives.rank_info import RankInfo
from softmrc.collectives.store_rendezvous import StoreRendezvous, _name_of

SECRET, KNOWN = "SOFTMRC_SECRET", b"what all ranks know"
PATIENCE_S = 60.0
BOTH = [["place of 0", "place of 1"]] * 2  # what each of two ranks is told


@pytest.fixture(autouse=True)
def shared_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, KNOWN.decode())


def sit(
    store: Any, rank: int, secret: bytes | None = KNOWN, scope: str = "", timeout_s: float = 20.0, size: int = 2
) -> list[str]:
    at = StoreRendezvous(store, "table", rank, size, timeout_s, secret, scope)
    at.agree(f"words of {rank}")
    told = at.tell(f"place of {rank}")
    assert at.be_ready()
    return told


def outcomes(*lives: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(lives)) as pool:
        return [one.exception(PATIENCE_S) or one.result() for one in [pool.submit(live) for live in lives]]


def test_ranks_that_share_a_secret_meet(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for _ in range(2):
        assert outcomes(*(lambda rank=rank: sit(store, rank) for rank in range(2))) == BOTH


@pytest.mark.parametrize(
    "theirs, words",
    [
        ((None, ""), "a record not proved with the secret"),
        ((b"another", ""), "a record proved with another secret"),
        ((KNOWN, "another group"), "a record proved with another secret"),
    ],
    ids=["no secret", "another secret", "another group"],
)
def test_who_proves_nothing_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: Any, words: str
) -> None:
    """Before the time is up, which may be half an hour; and on both sides."""
    monkeypatch.setattr(store_rendezvous, "UNPROVED_S", 0.2)
    monkeypatch.setattr(store_rendezvous, "OLDER_UNPROVED_S", 0.4)
    store = DirectoryStore(tmp_path)
    first, second = outcomes(lambda: sit(store, 0, timeout_s=1e4), lambda: sit(store, 1, *theirs, timeout_s=1e4))
    assert isinstance(first, CollectiveError), first
    assert "rank 1 is refused" in str(first) and words in str(first) and SECRET in str(first)
    assert isinstance(second, CollectiveError), second
    assert "rank 0 is refused" in str(second) and SECRET in str(second)


def test_who_comes_late_replaces_what_was_not_proved(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.set("softmrc/table/says/1", b"0123456789abcdef words of 1")

    def late() -> Any:
        time.sleep(0.2)
        return sit(store, 1)

    assert outcomes(lambda: sit(store, 0), late) == BOTH


def test_what_was_there_before_is_waited_for_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run of three with the same store: its records are proved, but not for a group of two."""
    monkeypatch.setattr(store_rendezvous, "UNPROVED_S", 0.2)
    store = DirectoryStore(tmp_path)
    assert len(outcomes(*(lambda rank=rank: sit(store, rank, size=3) for rank in range(3)))[0]) == 3

    def late() -> list[str]:
        time.sleep(1.0)
        return sit(store, 1)

    assert outcomes(lambda: sit(store, 0), late) == BOTH


def test_a_record_that_was_replaced_is_set_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)

    def replaces() -> None:
        key, until = "softmrc/table/says/1", time.monotonic() + PATIENCE_S
        while not (tmp_path / key.encode().hex()).exists() and time.monotonic() < until:
            time.sleep(0.001)
        store.set(key, b"0123456789abcdef words of nobody")

    def late() -> Any:
        time.sleep(0.3)
        return sit(store, 0)

    assert outcomes(late, lambda: sit(store, 1), replaces)[:2] == BOTH


class Forged:
    """A store in which somebody sets every sign as soon as it is asked for, and says that the group has failed."""

    def __init__(self, store: DirectoryStore, absent: int) -> None:
        self._store, self._absent = store, absent

    def _is_forged(self, key: str) -> bool:
        parts = key.split("/")
        return parts[2] in ("heard", "ready", "seen") and parts[-1] == str(self._absent)

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def wait(self, keys: list[str], timeout: Any) -> None:
        for key in keys:
            if self._is_forged(key):
                self._store.set(key, b"+")
            elif key.split("/")[2] == "failed":
                self._store.set(key, b"rank 1 did not get ready: so there")
        self._store.wait(keys, timeout)

    def get(self, key: str) -> bytes:
        return self._store.get(key)


def test_a_forged_excuse_is_ignored(tmp_path: Path) -> None:
    stores = [Forged(DirectoryStore(tmp_path), absent=9) for _ in range(2)]

    def late() -> Any:
        time.sleep(0.5)  # the other one waits, and looks for excuses meanwhile
        return sit(stores[1], 1)

    assert outcomes(lambda: sit(stores[0], 0), late) == BOTH


@pytest.mark.parametrize("acts_at_once", [False, True])
def test_a_whole_run_that_is_put_back_makes_no_rank(tmp_path: Path, acts_at_once: bool) -> None:
    """Its first record has a valid MAC. Signs of today have not."""
    store = DirectoryStore(tmp_path)
    assert outcomes(*(lambda rank=rank: sit(store, rank) for rank in range(2))) == BOTH
    victim = StoreRendezvous(Forged(store, absent=1), "table", 0, 2, 1.0, KNOWN)

    def join() -> None:
        victim.hear("words of 0")
        assert victim.said == ["words of 0", "words of 1"]
        if acts_at_once:
            victim.be_ready()
        else:
            victim.confirm()

    (error,) = outcomes(join)
    assert isinstance(error, CollectiveError), error
    assert "rank 1 did not" in str(error) and "holds a record not proved with the secret" in str(error)


def test_signs_of_another_meeting_are_none_of_this(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    assert outcomes(*(lambda rank=rank: sit(store, rank) for rank in range(2))) == BOTH
    said = [store.get(f"softmrc/table/says/{rank}").decode().split(" ", 1)[1].partition(" ") for rank in range(2)]
    sign = store.get(f"softmrc/table/heard/{_name_of(said)}/1")
    assert sign.startswith(b"proof:")

    class PutBack(Forged):
        def wait(self, keys: list[str], timeout: Any) -> None:
            for key in keys:
                if self._is_forged(key):
                    self._store.set(key, sign)
            self._store.wait(keys, timeout)

    (error,) = outcomes(lambda: sit(PutBack(store, absent=1), 0, timeout_s=1.0))
    assert isinstance(error, CollectiveError) and "not proved with the secret" in str(error)


def test_who_only_reads_the_store_does_not_know_what_packets_are_numbered_by(tmp_path: Path) -> None:
    tables = [StoreRendezvous(DirectoryStore(tmp_path), "table", rank, 2, 20.0, KNOWN) for rank in range(2)]
    outcomes(*(lambda at=at: at.agree("words") for at in tables))
    assert tables[0].secret == tables[1].secret
    words = list(zip(tables[0]._tokens, [" "] * 2, tables[0].said, strict=True))
    reader = StoreRendezvous(DirectoryStore(tmp_path), "table", 0, 2, 20.0)
    reader._sit_with(words)
    assert reader.sitting == tables[0].sitting and reader.secret != tables[0].secret


def test_a_group_on_loopback_is_proved_and_not_encrypted(tmp_path: Path) -> None:
    def live(rank: int) -> float:
        with Group.join(DirectoryStore(tmp_path), rank, 2, timeout_s=20.0) as group:
            assert group._meeting._share is None, 'seal = "auto" leaves loopback as it is'
            values = np.full(1000, rank + 1, np.float32)
            group.all_reduce(values).wait()
            return float(values[-1])

    assert outcomes(*(lambda rank=rank: live(rank) for rank in range(2))) == [3.0, 3.0]
    for path in tmp_path.iterdir():
        if not path.suffix:
            assert path.read_bytes().startswith(b"proof:"), bytes.fromhex(path.stem)


def test_who_claims_to_be_on_this_host_has_to_prove_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An impostor that speaks as ranks do, and says that all are on one host: it is offered nothing."""
    monkeypatch.setattr(store_rendezvous, "UNPROVED_S", 0.2)
    monkeypatch.setattr(store_rendezvous, "OLDER_UNPROVED_S", 0.4)
    store = DirectoryStore(tmp_path)

    def impostor() -> None:
        at = StoreRendezvous(store, "group", 1, 2, 20.0)
        at.agree(RankInfo.own(1, 1).to_wire(1, 2))

    first, second = outcomes(lambda: Group.join(store, 0, 2, timeout_s=20.0), impostor)
    assert isinstance(first, CollectiveError) and "rank 1 is refused" in str(first), first
    assert isinstance(second, CollectiveError), second
    assert b'"channels"' not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
