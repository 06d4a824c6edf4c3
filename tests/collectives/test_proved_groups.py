"""With a secret, a process that can read and write the store but does not know it cannot be a rank: neither by writing
records, nor by putting back or moving what ranks wrote. Addresses are on loopback, where packets are not encrypted by
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
from softmrc.collectives.store_rendezvous import RendezvousRestarted, StoreRendezvous

SECRET, KNOWN = "SOFTMRC_SECRET", b"what all ranks know"
PATIENCE_S = 60.0
BOTH = [["place of 0", "place of 1"]] * 2  # what each of two ranks gets
TOKEN = "0123456789abcdef"


@pytest.fixture(autouse=True)
def shared_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, KNOWN.decode())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_rendezvous, "UNPROVED_S", 0.3)
    monkeypatch.setattr(store_rendezvous, "OLDER_UNPROVED_S", 0.6)


def meet(
    store: Any,
    rank: int,
    secret: bytes | None = KNOWN,
    scope: str = "",
    timeout_s: float = 20.0,
    size: int = 2,
    name: str = "group",
    stops: str = "",
) -> list[str]:
    meets = StoreRendezvous(store, name, rank, size, timeout_s, secret, scope)
    meets.join(f"text of {rank}")
    if stops == "ready":
        return []
    places = meets.exchange("places", f"place of {rank}")
    meets.be_ready()
    return places


def outcomes(*lives: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(lives)) as pool:
        return [one.exception(PATIENCE_S) or one.result() for one in [pool.submit(live) for live in lives]]


def late(rank: int, *more: Any, after_s: float = 0.5) -> Callable[[], Any]:
    def life() -> Any:
        time.sleep(after_s)
        return meet(*more[:1], rank, *more[1:])

    return life


def refused(error: Any, *words: str) -> None:
    assert isinstance(error, CollectiveError), error
    for one in words:
        assert one in str(error), error


def keys_of(store: DirectoryStore, part: str) -> list[str]:
    found = [bytes.fromhex(path.stem).decode() for path in store.path.iterdir() if not path.suffix]
    return [key for key in found if part in key]


class Tampered(DirectoryStore):
    """A store in which an attacker sets this, under keys with this part, before each look at them."""

    def __init__(self, path: Path, part: str, forged: Callable[[str], bytes]) -> None:
        super().__init__(path)
        self._part, self._forged, self.count = part, forged, 0

    def check(self, keys: Any) -> bool:
        self._tamper(keys)
        return super().check(keys)

    def _tamper(self, keys: Any) -> None:
        for key in keys:
            if self._part in f"{key}.":
                self.set(key, self._forged(key))
                self.count += 1


def test_ranks_that_share_a_secret_meet(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for _ in range(2):
        assert outcomes(lambda: meet(store, 0), lambda: meet(store, 1)) == BOTH


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("honest", [0, 1])
@pytest.mark.parametrize(
    "theirs, words",
    [
        ((None, ""), "a record not proved with the secret"),
        ((b"another", ""), "a record proved with another secret"),
        ((KNOWN, "another group"), "a record proved with another secret"),
    ],
    ids=["no secret", "another secret", "another group"],
)
def test_who_proves_nothing_is_refused_by_name(tmp_path: Path, theirs: Any, words: str, honest: int) -> None:
    """Before the time is up, which may be half an hour; and on both sides."""
    store = DirectoryStore(tmp_path)
    both = outcomes(lambda: meet(store, honest, timeout_s=1e4), lambda: meet(store, 1 - honest, *theirs, timeout_s=1e4))
    refused(both[0], f"rank {1 - honest} is refused", words, f"set {SECRET} alike for all ranks")
    refused(both[1], f"rank {honest} is refused", f"set {SECRET} alike for all ranks")


def test_what_was_there_before_is_waited_for_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run of three with the same store: its records are proved, but not for a group of two."""
    monkeypatch.setattr(store_rendezvous, "UNPROVED_S", 0.2)
    store = DirectoryStore(tmp_path)
    outcomes(*(lambda rank=rank: meet(store, rank, size=3) for rank in range(3)))
    assert outcomes(late(0, store, after_s=1.0), lambda: meet(store, 1)) == BOTH


@pytest.mark.parametrize("honest_is_late", [0, 1])
@pytest.mark.parametrize("part", ["/nonce", "record"])
def test_what_somebody_else_writes_is_replaced(tmp_path: Path, part: str, honest_is_late: int) -> None:
    """Before the honest rank has written it, or after."""
    store = DirectoryStore(tmp_path)

    def attack() -> None:
        until = time.monotonic() + PATIENCE_S
        if part == "/nonce":
            if not honest_is_late:
                while not keys_of(store, part) and time.monotonic() < until:
                    time.sleep(0.001)
            store.set("softmrc/group/nonce", f"{StoreRendezvous.VERSION} {TOKEN}".encode())
            return
        while not keys_of(store, part if honest_is_late == 0 else "/nonce") and time.monotonic() < until:
            time.sleep(0.001)
        nonce = store.get("softmrc/group/nonce").decode().split()[-1]
        store.set(f"softmrc/group/record/{nonce}/1", f"{StoreRendezvous.VERSION} {TOKEN} +text of nobody".encode())

    slow = 0 if part == "/nonce" else 1
    others = [
        late(slow, store, after_s=0.3 * honest_is_late),
        late(1 - slow, store, after_s=0.3 * (not honest_is_late)),
    ]
    found = outcomes(*others, attack)
    assert found[:2] == BOTH, found


@pytest.mark.parametrize("kind", ["failed", "again"])
def test_a_forged_message_is_ignored(tmp_path: Path, kind: str) -> None:
    """That a rank has failed, or has joined again. Rank 1 is late, and rank 0 looks for them in that time."""
    stores = [Tampered(tmp_path, f"/{kind}/", lambda _: b"rank 1 did not get ready: so there") for _ in range(2)]

    def slow() -> list[str]:
        meets = StoreRendezvous(stores[1], "group", 1, 2, 20.0, KNOWN)
        meets.join("text of 1")
        time.sleep(0.5)
        places = meets.exchange("places", "place of 1")
        time.sleep(0.5)
        meets.be_ready()
        return places

    assert outcomes(lambda: meet(stores[0], 0), slow) == BOTH
    assert stores[0].count > 2


@pytest.mark.parametrize("forged", ["unproved", "of an earlier run", "of another rank"])
@pytest.mark.parametrize("absent", [0, 1])
def test_a_forged_sign_makes_nobody_ready(tmp_path: Path, absent: int, forged: str) -> None:
    """Of a rank that has joined, and of rank 0 for all."""
    store, part = DirectoryStore(tmp_path), "/all." if absent == 0 else "/1."
    assert outcomes(lambda: meet(store, 0), lambda: meet(store, 1)) == BOTH
    signs = {key.rpartition("/")[2]: store.get(key) for key in keys_of(store, "/ready/")}
    assert all(sign.startswith(b"proof:") for sign in signs.values()) and signs.keys() == {"1", "all"}

    def sign(key: str) -> bytes:
        if "/ready/" not in key:
            return store.get(key) if Path(store._file(key)).exists() else b""
        if forged == "unproved":
            return b"+"
        own = key.rpartition("/")[2]
        return signs[own if forged == "of an earlier run" else {"1": "all", "all": "1"}[own]]

    class Signs(Tampered):
        def _tamper(self, keys: Any) -> None:
            super()._tamper([key for key in keys if "/ready/" in key and f"{key}.".endswith(part)])

    victim = 1 - absent

    def waits() -> None:
        meets = StoreRendezvous(Signs(tmp_path, "/ready/", sign), "group", victim, 2, 1.0, KNOWN)
        meets.join("")
        meets.be_ready()

    error, _ = outcomes(waits, lambda: meet(store, absent, stops="ready"))
    secret = "another secret" if forged != "unproved" else "not proved with the secret"
    refused(error, f"rank {absent} did not get ready", "holds a record", secret)


def test_a_whole_run_that_is_put_back_makes_no_rank_0(tmp_path: Path) -> None:
    """All its records have valid MACs, and lie where they did. Its list lacks the token that was drawn today."""
    store = DirectoryStore(tmp_path)
    assert outcomes(lambda: meet(store, 0), lambda: meet(store, 1)) == BOTH
    assert all(store.get(key).startswith(b"proof:") for key in keys_of(store, "softmrc/group/"))
    meets = StoreRendezvous(store, "group", 1, 2, 1.0, KNOWN)
    (error,) = outcomes(lambda: meets.join("text of 1"))
    refused(error, "rank 0 did not join", "/all does not list this process")
    assert not meets.records and not meets.secret


def test_a_nonce_that_is_put_back_while_ranks_join(tmp_path: Path) -> None:
    """With all that was written for it: no rank acts on that, and rank 0 says that its nonce was replaced."""
    store = DirectoryStore(tmp_path)
    assert outcomes(lambda: meet(store, 0), lambda: meet(store, 1)) == BOTH
    old = store.get("softmrc/group/nonce")
    stores = [Tampered(tmp_path, "/nonce.", lambda _: old) for _ in range(2)]
    rendezvous = [StoreRendezvous(one, "group", rank, 2, 2.0, KNOWN) for rank, one in enumerate(stores)]
    first, second = outcomes(*(lambda one=one: one.join("") for one in rendezvous))
    refused(first, "softmrc/group/nonce does not hold what rank 0 wrote")
    refused(second, "rank 0 did not join")
    assert not any(one.records for one in rendezvous)


def test_a_nonce_that_the_same_rank_has_answered_is_put_back(tmp_path: Path) -> None:
    """Before rank 0 died, with which it was in one list."""
    store = DirectoryStore(tmp_path)
    dead, victim = (StoreRendezvous(store, "group", rank, 2, 2.0, KNOWN) for rank in range(2))
    assert outcomes(lambda: dead.join("0"), lambda: victim.join("1")) == [["0", "1"]] * 2
    old = store.get("softmrc/group/nonce")
    StoreRendezvous(store, "group", 0, 2, 2.0, KNOWN).start()
    with pytest.raises(RendezvousRestarted):
        victim.be_ready()
    for _ in range(2):
        (error,) = outcomes(lambda: victim.join("1"))
        refused(error, "rank 0 did not join")
        assert not victim.records
        victim._until += 1.0
        store.set("softmrc/group/nonce", old)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("source", ["an earlier run", "another rank", "another group", "another scope"])
def test_a_record_that_is_moved_makes_no_rank(tmp_path: Path, source: str) -> None:
    """A valid one, for the nonce of today: it may have been obtained from a rank of another group."""
    store = DirectoryStore(tmp_path)
    victim = StoreRendezvous(store, "group", 0, 3 if source == "another rank" else 2, 20.0, KNOWN, "here")
    victim.start()

    def lured(rank: int, name: str, scope: str) -> bytes:
        """What an honest rank writes that is shown this nonce."""
        store.set(f"softmrc/{name}/nonce", store.get("softmrc/group/nonce"))
        one = StoreRendezvous(store, name, rank, victim._size, 0.2, KNOWN, scope)
        outcomes(lambda: one.join("lured"))
        return store.get(one.key("record", rank))

    if source == "an earlier run":
        meet_again = StoreRendezvous(DirectoryStore(tmp_path / "past"), "group", 0, 2, 20.0, KNOWN, "here")
        outcomes(lambda: meet_again.join(""), lambda: meet(meet_again._store, 1, scope="here", stops="ready"))
        record = meet_again._store.get(meet_again.key("record", 1))
    elif source == "another rank":
        record = lured(2, "group", "here")
    else:
        record = lured(1, "another" if source == "another group" else "group", "there")
    assert record.startswith(b"proof:")
    store.set(victim.key("record", 1), record)
    (error,) = outcomes(lambda: victim.join("text of 0"))
    refused(error, "rank 1 is refused", "a record proved with another secret")


def test_who_only_reads_the_store_does_not_know_what_packets_are_numbered_by(tmp_path: Path) -> None:
    rendezvous = [StoreRendezvous(DirectoryStore(tmp_path), "group", rank, 2, 20.0, KNOWN) for rank in range(2)]
    outcomes(*(lambda one=one: one.join("text") for one in rendezvous))
    assert rendezvous[0].secret == rendezvous[1].secret
    reader = StoreRendezvous(DirectoryStore(tmp_path), "group", 0, 2, 20.0)
    reader.nonce = rendezvous[0].nonce
    text = reader._store.get(reader._all_key("record")).decode()
    reader._accept(store_rendezvous._strings(text[text.index("[") :])[1:])
    assert reader.records == rendezvous[0].records and reader.secret != rendezvous[0].secret


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


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("impostor", [0, 1])
def test_who_claims_to_be_on_this_host_has_to_prove_it(tmp_path: Path, impostor: int) -> None:
    """An impostor that speaks as ranks do, and says that all are on one host."""
    store = DirectoryStore(tmp_path)

    def lie() -> None:
        StoreRendezvous(store, "group", impostor, 2, 20.0).join(RankInfo.own(1, 1).to_wire(impostor, 2))

    first, second = outcomes(lambda: Group.join(store, 1 - impostor, 2, timeout_s=20.0), lie)
    refused(first, f"rank {impostor} is refused")
    refused(second, f"rank {1 - impostor} is refused")
