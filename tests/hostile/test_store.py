"""A store that holds something else than what ranks said: leftovers, lies, and bytes that mean nothing.

Whatever it is, every rank ends within its timeout, with an error that names the rank and the key; never with an
exception of the code that read it.
"""

from __future__ import annotations

import fnmatch
import json
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from softmrc.collectives import CollectiveError, DirectoryStore, Group
from softmrc.collectives.rank_info import RankInfo
from softmrc.collectives.rendezvous import GroupJoin
from softmrc.collectives.store_rendezvous import LONGEST_ENTRY, StoreRendezvous

SIZE, LIAR = 3, 1
PATIENCE_S = 60.0
Damage = Callable[[bytes], Any]


class Damaged:
    """A store that shows something else under keys that look like this."""

    def __init__(self, store: Any, damage: Damage, *keys: str) -> None:
        self._store, self._damage, self._keys = store, damage, keys

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check(keys))

    def get(self, key: str) -> Any:
        found = self._store.get(key)
        return self._damage(found) if any(fnmatch.fnmatch(key, one) for one in self._keys) else found


def outcomes(live: Callable[[int], Any], ranks: range = range(SIZE)) -> list[Any]:
    """What each rank returned or raised, in a thread each."""
    with ThreadPoolExecutor(SIZE) as pool:
        futures = [pool.submit(live, rank) for rank in ranks]
        return [future.exception(PATIENCE_S) or future.result() for future in futures]


def check(error: Any, *words: str) -> None:
    assert isinstance(error, CollectiveError), repr(error)
    for word in words:
        assert word in str(error), f"{word} is not in: {error}"
    assert str(error).isprintable() and len(str(error)) < 1000


def test_what_ranks_say_is_for_their_own_user(tmp_path: Path) -> None:
    """Whatever the process's mask allows others; a folder that was there before keeps what its owner gave it."""
    tmp_path.chmod(0o755)
    before = os.umask(0)
    try:
        for folder in (tmp_path / "made" / "by us", tmp_path):
            DirectoryStore(folder).set("key", b"its value")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "made" / "by us").stat().st_mode) == 0o700
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2 and all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)


# What is no entry at all. Each might be replaced by its rank in a moment, so ranks look until their time is up.

BYTES: dict[str, Damage] = {
    "nothing": lambda _: b"",
    "no text": lambda _: b"\xff\xfe\x00\x80",
    "half a character": lambda found: found + "é".encode()[:1],
    "zeros": lambda _: bytes(64),
    "too much": lambda _: b"x" * (LONGEST_ENTRY + 1),
    "no bytes": lambda _: 5,
    "JSON alone": lambda _: b'{"version": 1}',
    "the first half": lambda found: found[: len(found) // 2],
    "commands to a terminal": lambda _: b"\x1b[2J\x07 \r\n",
}


def join(store: Any, rank: int, timeout_s: float = 20.0, size: int = SIZE, text: str = "") -> list[str]:
    meets = StoreRendezvous(store, "group", rank, size, timeout_s)
    try:
        return meets.join(text or f"text of {rank}")
    except CollectiveError as error:
        meets.give_up(str(error))
        raise


@pytest.mark.parametrize("name", sorted({*BYTES} - {"the first half"}))
def test_what_is_no_record(tmp_path: Path, name: str) -> None:
    """Half a record is one: what is in it is checked below."""

    def live(rank: int) -> list[str]:
        key = f"softmrc/group/record/*/{LIAR}"
        return join(Damaged(DirectoryStore(tmp_path), BYTES[name], *([key] if rank != LIAR else [])), rank, 0.5)

    for rank, error in enumerate(outcomes(live)):
        if rank != LIAR:
            check(error, f"rank {LIAR} did not join", "within 0.5 s", "softmrc/group/record/", f"/{LIAR} holds")


@pytest.mark.parametrize("name", sorted({*BYTES} - {"the first half"}))
@pytest.mark.parametrize("key", ["nonce", "record/*/all"])
def test_what_rank_0_did_not_write(tmp_path: Path, key: str, name: str) -> None:
    """No nonce, or no list."""

    def live(rank: int) -> list[str]:
        return join(Damaged(DirectoryStore(tmp_path), BYTES[name], f"softmrc/group/{key}"), rank, 0.5)

    for error in outcomes(live)[1:]:
        check(error, "rank 0 did not join", "within 0.5 s", "softmrc/group/")


@pytest.mark.parametrize("name", BYTES)
def test_who_finds_its_own_record_changed_says_so(tmp_path: Path, name: str) -> None:
    def live(rank: int) -> list[str]:
        time.sleep(0.3 * (rank == 2))  # the others look during this time
        key = ("nonce", f"record/*/{LIAR}", "none")[rank]
        return join(Damaged(DirectoryStore(tmp_path), BYTES[name], f"softmrc/group/{key}"), rank, 2.0)

    found = outcomes(live)
    check(found[0], "softmrc/group/nonce", "another process is rank 0 too")
    check(found[LIAR], f"/{LIAR} does not hold what rank {LIAR} wrote", f"another process is rank {LIAR} too")


@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes_of_one_rank(tmp_path: Path, rank: int) -> None:
    """The one whose record was replaced reports it; the other and the rest go on."""
    store, key = DirectoryStore(tmp_path), "/nonce" if rank == 0 else "/record/"

    def written() -> list[str]:
        names = [file.stem for file in tmp_path.iterdir() if not file.suffix]
        return [store.get(one).decode() for one in (bytes.fromhex(name).decode() for name in names) if key in one]

    with ThreadPoolExecutor(3) as pool:
        if rank:
            StoreRendezvous(store, "group", 0, 2, 20.0).start()
        first = pool.submit(StoreRendezvous(store, "group", rank, 2, 20.0).join, "first")
        while not (before := written()):
            time.sleep(0.01)
        second = pool.submit(StoreRendezvous(store, "group", rank, 2, 20.0).join, "second")
        while written() == before:
            time.sleep(0.01)
        check(first.exception(PATIENCE_S), key, f"another process is rank {rank} too")
        other = pool.submit(join, store, 1 - rank, 20.0, 2, "other")
        expected = ["second", "other"] if rank == 0 else ["other", "second"]
        assert second.result(PATIENCE_S) == other.result(PATIENCE_S) == expected


@pytest.mark.parametrize("left", ["\xff\xfe of an earlier run", "10 0123456789abcdef", "11 0123456789abcdef", "10"])
def test_a_nonce_that_was_left_is_replaced(tmp_path: Path, left: str) -> None:
    store = DirectoryStore(tmp_path)
    store.set("softmrc/group/nonce", left.encode("latin1"))

    def live(rank: int) -> list[str]:
        time.sleep(0.05 * (SIZE - rank))
        return join(store, rank)

    assert outcomes(live) == [[f"text of {rank}" for rank in range(SIZE)]] * SIZE


@pytest.mark.parametrize("name", sorted({*BYTES} - {"the first half"}))
@pytest.mark.parametrize("what", [f"places/*/{LIAR}", "places/*/all"])
def test_an_exchange_of_what_nobody_wrote(tmp_path: Path, name: str, what: str) -> None:
    def live(rank: int) -> list[str]:
        store = Damaged(DirectoryStore(tmp_path), BYTES[name], f"softmrc/group/{what}")
        meets = StoreRendezvous(DirectoryStore(tmp_path) if rank == LIAR else store, "group", rank, SIZE, 0.7)
        meets.join("")
        return meets.exchange("places", f"place of {rank}")

    found = outcomes(live)
    is_text = name in ("nothing", "JSON alone")  # which is for others to understand
    if what.endswith("all"):
        check(found[2], "rank 0", "softmrc/group/places/")
    elif not is_text:
        check(found[0], f"rank {LIAR} did not get ready", "softmrc/group/places/")


# What is an entry, and says something that no rank says.

JUNK = (None, True, -1, 1.5, 10**30, "x", "", [], [[]], {}, {"a": {}}, "1" * 5000, float("nan"))
FIELDS = (
    *((field,) for field in ("rank", "byteorder", "size", "network", "cores", "lanes")),
    *((field,) for field in ("is_guess", "is_sure", "offer")),
    *(("offer", field) for field in ("icrc", "mtu", "max_wimm", "mpr")),
    ("offer", "channels"), ("offer", "channels", 0), *(("offer", "channels", 0, *path) for path in (
        ("planes",), ("planes", 0), ("planes", 0, "address"), ("planes", 0, "port"), ("planes", 0, "source_ports"),
        ("planes", 0, "source_ports", 0), ("pairs",), ("pairs", 0), ("pairs", 1), ("rings",),
    )),
)  # fmt: skip


# What some rank might say.
MEANT = {("offer", "icrc"): (True,), ("is_guess",): (True,), ("is_sure",): (True,), ("offer",): (None,)}


def changed(field: tuple[Any, ...], value: Any) -> Damage:
    """The entry with another value in this field; the value may be a function of the right one."""

    def damage(found: bytes) -> bytes:
        before, brace, text = found.decode().partition("{")
        offer = inner = json.loads(brace + text)
        *path, last = field
        for part in path:
            inner = inner[part]
        inner[last] = value(inner[last]) if callable(value) else value
        return f"{before}{json.dumps(offer)}".encode()

    return damage


def joined(folder: Path, damage: Damage, timeout_s: float = 20.0) -> list[Any]:
    """Rank 0 reads the malicious rank's record with this damage, and lists it so."""

    def live(rank: int) -> Any:
        keys = [f"softmrc/group/record/*/{LIAR}"] if rank != LIAR else []
        store = Damaged(DirectoryStore(folder), damage, *keys)
        with Group.join(store, rank, SIZE, timeout_s=timeout_s):
            return "joined"

    return outcomes(live)


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS, ids=lambda field: ".".join(map(str, field)))
def test_every_field_of_an_offer(tmp_path: Path, field: tuple[Any, ...]) -> None:
    values = [value for value in JUNK if value not in MEANT.get(field, ())]
    with ThreadPoolExecutor(4) as pool:
        joining = [pool.submit(joined, tmp_path / str(n), changed(field, value)) for n, value in enumerate(values)]
    for value, found in zip(values, (one.result() for one in joining), strict=True):
        if all(one == "joined" for one in found):
            raise AssertionError(f"{field} = {value!r} was taken")
        for rank in (0, 2):
            check(found[rank], f"rank {LIAR}", "softmrc/group/record/", f"/{LIAR}")
        check(found[LIAR], f"rank {LIAR}", "softmrc/group/record/")


def cut(length: int, more: bytes = b"") -> Damage:
    return lambda found: found[:length] + more


BEFORE = len("10 0123456789abcdef +")
OFFERS: dict[str, Damage] = {
    "no JSON": cut(BEFORE, b"{'version': 1}"),
    "half of it": lambda found: found[: len(found) // 2],
    "brackets without end": cut(BEFORE, b"[" * 100_000),
    "a list": cut(BEFORE, b"[1, 2]"),
    "nothing": cut(BEFORE),
    "another number of ranks": changed(("size",), 4),
    "another rank": changed(("rank",), 2),
    "a plane too many": changed(("offer", "channels", 0, "planes"), lambda planes: planes * 2),
    "a plane of IPv6": changed(("offer", "channels", 0, "planes", 0, "address"), "::1"),
    "a plane that is many": changed(("offer", "channels", 0, "planes", 0, "address"), "224.0.0.1"),
    "an address with a zone": changed(("offer", "channels", 0, "planes", 0, "address"), "127.0.0.1%lo"),
    "port 0": changed(("offer", "channels", 0, "planes", 0, "port"), 0),
    "too many ports": changed(("offer", "channels", 0, "planes", 0, "source_ports"), list(range(1, 5000))),
    "a channel too many": changed(
        (
            "offer",
            "channels",
        ),
        lambda channels: channels * 2,
    ),
    "numbers that end too high": changed(("offer", "channels", 0, "pairs"), [(1 << 24) - 3, 1]),
    "keys that end too high": changed(("offer", "channels", 0, "rings"), (1 << 32) - 2),
}


@pytest.mark.parametrize("name", OFFERS)
def test_offers(tmp_path: Path, name: str) -> None:
    found = joined(tmp_path, OFFERS[name])
    for rank in (0, 2):
        check(found[rank], f"rank {LIAR}", "softmrc/group/record/")
    check(found[LIAR], f"rank {LIAR}")


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_with_the_addresses_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: int) -> None:
    """Also its own: whatever is sent there would reach the wrong one."""

    offers: dict[int, Any] = {}
    offer = GroupJoin._offer

    def offered(self: GroupJoin, channels: Any) -> Any:
        offers[self.rank] = offer(self, channels)
        return offers[self.rank]

    monkeypatch.setattr(GroupJoin, "_offer", offered)
    found = joined(
        tmp_path, changed(("offer", "channels", 0, "planes"), lambda _: offers[victim]["channels"][0]["planes"])
    )
    for rank in (0, 2):
        check(found[rank], "rank 1", f"rank {victim}", "127.0.0.1 port", "softmrc/group/record/")


def test_a_copy_of_what_another_rank_wrote(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)

    def copied(found: bytes) -> bytes:
        nonce = store.get("softmrc/group/nonce").decode().split()[-1]
        return store.get(f"softmrc/group/record/{nonce}/2")

    for rank, error in enumerate(joined(tmp_path, copied, timeout_s=1.0)):
        if rank != LIAR:
            check(error, f"rank {LIAR} has rank 2, and not {LIAR}", "softmrc/group/record/", f"/{LIAR})")


def test_records_of_another_run(tmp_path: Path) -> None:
    """A whole run's, put back after it ended: none of its ranks is there, and no wait is longer than allowed."""
    store = DirectoryStore(tmp_path)

    def live(rank: int, timeout_s: float) -> str:
        with Group.join(store, rank, SIZE, timeout_s=timeout_s):
            return "joined"

    assert outcomes(lambda rank: live(rank, 20.0)) == ["joined"] * SIZE
    for error in outcomes(lambda rank: live(rank, 0.5), range(2)):
        check(error, "rank 2 did not join", "nothing is under softmrc/group/record/")
    for error in outcomes(lambda rank: live(rank + 1, 0.5), range(2)):
        check(error, "rank 0 did not join", "softmrc/group/record/")


# The same as a rank of torch meets it.

NO_NONCE = {
    "no text": b"\xff\xfe",
    "nothing": b"",
    "no nonce": b"somewhere else",
    "of another run": b"10 0123456789abcdef",
}


def member(store: Any, timeout_s: float, rank: int = 0) -> Any:
    from softmrc.torch import backend

    options = SimpleNamespace(
        store=store, group_rank=rank, group_size=2, timeout=timedelta(seconds=timeout_s), global_ranks_in_group=[]
    )
    return backend.MrcProcessGroup(options)


@pytest.mark.process
@pytest.mark.parametrize("name", NO_NONCE)
def test_a_rank_of_torch_that_finds_no_nonce(name: str) -> None:
    import torch.distributed as dist

    store = dist.HashStore()
    store.set("softmrc/mrc/nonce", NO_NONCE[name])
    with pytest.raises(RuntimeError) as raised:
        member(store, 0.5, rank=1)
    check(raised.value, "rank 0 did not join the group of 2", "softmrc/mrc/")


def record(**fields: Any) -> str:
    """What a rank says of itself that has yet to know where the others are."""
    return json.dumps({**json.loads(RankInfo.own(1, 0).to_wire(1, 2)), **fields})


@pytest.mark.process
@pytest.mark.parametrize(
    "offer", ["", "no JSON", "[]", "{}", '{"version": 1}', record(), record(offer={"channels": 7})]
)
def test_a_rank_of_torch_that_finds_an_offer_that_is_none(offer: str) -> None:
    import torch.distributed as dist

    store = dist.HashStore()

    def lie() -> None:
        meets = StoreRendezvous(store, "mrc", 1, 2, 20.0)
        meets.join(record())
        with pytest.raises(CollectiveError, match="did not get ready: rank 1"):
            meets.exchange("places", offer)
            meets.be_ready()

    with ThreadPoolExecutor(1) as pool:
        liar = pool.submit(lie)
        with pytest.raises(RuntimeError) as raised:
            member(store, 20.0)
        liar.result(PATIENCE_S)
    check(raised.value, "rank 1", "softmrc/mrc/places/")


@pytest.mark.process
@pytest.mark.parametrize("text", ["", "elsewhere", "[]", "{}", '{"version": 1}'])
def test_a_rank_of_torch_that_finds_a_record_of_something_else(text: str) -> None:
    import torch.distributed as dist

    store = dist.HashStore()
    with ThreadPoolExecutor(1) as pool:
        liar = pool.submit(lambda: StoreRendezvous(store, "mrc", 1, 2, 20.0).join(text))
        with pytest.raises(RuntimeError) as raised:
            member(store, 20.0)
        liar.result(PATIENCE_S)
    check(raised.value, "rank 1", "softmrc/mrc/record/")
