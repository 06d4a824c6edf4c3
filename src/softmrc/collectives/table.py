"""How ranks tell each other things through a store, and are sure to hear those who are there now.

A store may still hold what an earlier run of the job said: `torchrun` restarts its workers on the same store, and a
program may leave a group and make it again. So everybody adds a token of its own to what it says, and says which tokens
it has heard; all is well when everybody has heard the same ones. A rank of the past cannot have heard a token of today.

What makes no sense may also be of the past, and be replaced in a moment. So nobody fails of it before the time is up;
then the rank is named, the key, and what was found there.

Once they agree, keys carry a name that all those tokens make, so that whatever is said after that is heard at once.
Each time a rank speaks once and reads all others in one go, where the store can do that.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from datetime import timedelta
from typing import Any

from softmrc.collectives.work import CollectiveError
from softmrc.errors import ConfigError

LAST_LOOK_S = 0.01
LOOK_AGAIN_S = 0.005
LONGEST_S = 1e8  # stores count in types that overflow
LONGEST_ENTRY = 1 << 24  # bytes; a rank of thousands says less than a tenth of that
LONGEST_REASON = 300
TOKEN = re.compile("[0-9a-f]{16}")
MATTERS = ("facts", "places", "ready")  # what may be told after an agreement, in this order
WELL, FAILED = "+", "-"  # how what is told begins


class Table:
    """One rank at a table with the others. Whoever does not come in time is named in the error."""

    def __init__(self, store: Any, name: str, rank: int, size: int, timeout_s: float) -> None:
        if size < 1 or not 0 <= rank < size:
            raise ConfigError("rank", rank, f"0 to {size - 1}")
        self._store, self.name, self._rank, self._size = store, name, rank, size
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self._sitting = ""  # names those who agreed
        self.secret = b""  # what they have in common, and nobody knows who cannot read the store
        self._untold = list(MATTERS)
        self._faults: dict[int, str] = {}  # what the store holds of a rank, where it should hold something else

    def agree(self, text: str) -> list[str]:
        """What each rank says, by rank."""
        mine = f"{secrets.token_hex(8)} {text}"
        self._set("says", mine)
        while True:
            self._faults.clear()
            said = self._said(mine)
            if len(said) == self._size and self._is_heard(" ".join(one[0] for one in said.values())):
                self.secret = hashlib.sha256("\n".join(" ".join(one) for one in said.values()).encode()).digest()
                return [one[2] for one in said.values()]
            self._check_time("join")
            time.sleep(LOOK_AGAIN_S)

    def _is_heard(self, tokens: str) -> bool:
        """Whether everybody has heard the same."""
        self._set("heard", tokens)
        heard = self._all("heard", "join")
        for rank in heard:
            if heard[rank] != tokens:
                self._faults[rank] = f"{self.key('heard', rank)} is of an earlier run or another group"
        if not self._faults:
            self._sitting = hashlib.sha256(tokens.encode()).hexdigest()[:16]
        return not self._faults

    def _said(self, mine: str) -> dict[int, tuple[str, str, str]]:
        """Token, space and words of every rank that has said something. Ours must be there as we said it."""
        texts = self._all("says", "join")
        if texts.get(self._rank) != mine:
            raise CollectiveError(
                f"{self.key('says', self._rank)} does not hold what rank {self._rank} said:"
                f" another process takes itself for rank {self._rank}, or the store is damaged"
            )
        said: dict[int, tuple[str, str, str]] = {}
        for rank, text in texts.items():
            one = text.partition(" ")
            if not TOKEN.fullmatch(one[0]):
                self._faults[rank] = f"{self.key('says', rank)} holds no token"
            elif twin := [other for other in said if said[other][0] == one[0]]:
                self._faults[rank] = f"{self.key('says', rank)} is a copy of what rank {twin[0]} said"
            else:
                said[rank] = one
        return said

    @property
    def has_agreed(self) -> bool:
        return bool(self._sitting)

    def tell(self, matter: str, text: str = "") -> list[str]:
        """After `agree`: what each rank tells of this matter, by rank. One that has failed meanwhile says why."""
        what = f"{matter}/{self._sitting}"
        self._untold = self._untold[self._untold.index(matter) + 1 :]
        self._set(what, WELL + text)
        self._faults.clear()
        told = self._all(what, "get ready for")
        for rank in range(self._size):
            words = told.get(rank, FAILED + self._faults.get(rank, ""))
            if not words.startswith(WELL):
                why = words.removeprefix(FAILED)[:LONGEST_REASON]
                raise CollectiveError(f"rank {rank} did not get ready: {why or self.key(what, rank)}")
        return [told[rank][1:] for rank in range(self._size)]

    def give_up(self, why: str) -> None:
        """Tell those who wait for us to be ready."""
        words = FAILED + "".join(c if c.isprintable() else " " for c in why)
        for matter in self._untold if self._sitting else []:
            self._set(f"{matter}/{self._sitting}", words)

    def told_at(self, matter: str, rank: int) -> str:
        """Under which key that is."""
        return self.key(f"{matter}/{self._sitting}", rank)

    def key(self, what: str, rank: int) -> str:
        """Under which the store holds it."""
        return f"softmrc/{self.name}/{what}/{rank}"

    def _set(self, what: str, text: str) -> None:
        self._store.set(self.key(what, self._rank), text.encode())

    def _all(self, what: str, did: str) -> dict[int, str]:
        """What every rank said, by rank; those are not in it of whom the store holds no text."""
        texts: dict[int, str] = {}
        for rank, data in self._read(what).items():
            try:
                texts[rank] = _text(data)
            except ValueError as error:
                self._faults[rank] = f"{self.key(what, rank)} holds {error}"
        if self._faults:
            self._check_time(did)
        return texts

    def _read(self, what: str) -> dict[int, object]:
        """What the store holds of each, in one go; where that fails, one by one, to say of whom it holds nothing."""
        keys = [self.key(what, rank) for rank in range(self._size)]
        try:
            self._store.wait(keys, self._time_left())
            return dict(enumerate(_values(self._store, keys)))
        except Exception as error:  # every store has its own type for "not in time"
            if time.monotonic() < self._until:
                raise CollectiveError(
                    f"the store failed while rank {self._rank} waited for all {self._size} ({keys[0]}): {error}"
                ) from error
        found: dict[int, object] = {}
        for rank, key in enumerate(keys):
            try:
                self._store.wait([key], timedelta(seconds=LAST_LOOK_S))
                found[rank] = self._store.get(key)
            except Exception:
                self._faults[rank] = f"nothing is under {key}"
        return found

    def _time_left(self) -> timedelta:
        return timedelta(seconds=min(max(self._until - time.monotonic(), LAST_LOOK_S), LONGEST_S))

    def _check_time(self, did: str) -> None:
        if time.monotonic() >= self._until:
            names = ", ".join(f"rank {rank}" for rank in sorted(self._faults))
            faults = "; ".join(self._faults[rank] for rank in sorted(self._faults))
            raise CollectiveError(
                f"timed out: {names} did not {did} the group of {self._size} within {self._timeout_s:g} s ({faults})"
            )


def _values(store: Any, keys: list[str]) -> list[object]:
    """Of keys that are set, with one question where the store takes several."""
    if getattr(store, "has_extended_api", bool)():
        return list(store.multi_get(keys))
    return [store.get(key) for key in keys]


def _text(data: object) -> str:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ValueError(f"no bytes but {type(data).__name__}")
    if len(data) > LONGEST_ENTRY:
        raise ValueError(f"{len(data):,} bytes, of at most {LONGEST_ENTRY:,}")
    text = bytes(data).decode(errors="replace")
    if "\ufffd" in text or not text.isprintable():
        raise ValueError(f"{len(data):,} bytes that are no text")
    return text
