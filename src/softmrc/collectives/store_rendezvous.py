"""How ranks tell each other things through a store, and are sure to hear those who are there now.

A store may still hold what an earlier run of the job said: `torchrun` restarts its workers on the same store, and a
program may leave a group and make it again. So everybody adds a token of its own to what it says, and all tokens
make a name, under which everybody leaves a sign. All is well when all signs are there: a rank of the past cannot have
heard a token of today. Whatever is said after that is under this name, and heard at once. Who has all it needs in what
was said first may act on it before that, and leave its sign when it is ready; where a sign stays away it looks whether
somebody has said something new. It goes there once it is sure that those who made the name will never all be ready
(docs/design/collectives.md).

What makes no sense may also be of the past, and be replaced in a moment. So nobody fails of it before the time is up;
then the rank is named, the key, and what was found there.

Each time a rank speaks once, and reads all others in one go, where the store can do that. Of signs it is enough that
they are there.

With a secret every record carries a MAC: of its key, which names the rank and what all have heard so far, of the size
of the group, of its scope and of what it holds. A record without a valid MAC counts as absent: signs and excuses are
ignored, and a rank whose first record stays that way is refused after a while (`UNPROVED_S`). An old record with a
valid MAC can be put back, but it brings a token that nobody signs today. So with a secret nobody may act on what was
heard before `confirm`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
import secrets
import time
from datetime import timedelta
from typing import Any

from softmrc.collectives.work import CollectiveError
from softmrc.connection.keys import proof_of
from softmrc.errors import ConfigError

LAST_LOOK_S, PATIENT_LOOK_S = 0.01, 1.0
LOOK_AGAIN_S = 0.005
FIRST_GLANCE_S, LONGEST_GLANCE_S = 0.1, 0.5  # how long signs are waited for before looking elsewhere
ABOUT_S = 1.0
EXCUSE_S = 3.0  # how long whoever cannot join waits for those whom it should tell
# How long a first record without a valid MAC may be of the past, and its rank may come and replace it. One that was
# there before us may be of another run with this store, whose rank takes its time.
UNPROVED_S, OLDER_UNPROVED_S = 10.0, 120.0
LONGEST_S = 1e8  # stores count in types that overflow
LONGEST_ENTRY = 1 << 24  # bytes; a rank of thousands says less than a tenth of that
LONGEST_REASON = 300
TOKEN = re.compile("[0-9a-f]{16}")
PROOF = re.compile("proof:([0-9a-f]{64}) ")  # how a record begins that carries a MAC
SET_ALIKE = "set SOFTMRC_SECRET alike for all ranks"
WELL, FAILED = "+", "-"  # how what is told begins
TOLD = ("places", "sizes", "narrowed")  # what ranks tell each other, in this order, as far as it is needed
Words = tuple[str, str, str]  # what a rank says: token, space and text


class UnauthenticatedRecord(ValueError):
    """A record that was not written by anybody who shares our secret, or our lack of one."""


class StoreRendezvous:
    """One rank at a table with the others. Whoever does not come in time is named in the error."""

    def __init__(
        self,
        store: Any,
        name: str,
        rank: int,
        size: int,
        timeout_s: float,
        shared_secret: bytes | None = None,
        scope: str = "",
    ) -> None:
        """With a shared secret every record is proved with it. `scope` is what tells this group from others that have
        the same secret, names and size: their records are not valid here."""
        if size < 1 or not 0 <= rank < size:
            raise ConfigError("rank", rank, f"0 to {size - 1}")
        self.shared_secret, self._scope = shared_secret, scope
        self._store, self.name, self._rank, self._size = store, name, rank, size
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self.sitting = ""  # names those who agreed, this time
        self.said: list[str] = []  # what they said, by rank; none: they have not agreed
        self.secret = b""  # what they have in common, and nobody knows who cannot read the store
        self.is_confirmed = False  # everybody has heard that
        self._mine = ""
        self._tokens: list[str] = []  # by which they are known, by rank
        self._told: set[str] = set()
        self._has_given_up = False
        self._faults: dict[int, str] = {}  # what the store holds of a rank, where it should hold something else
        self._unproved: dict[int, tuple[float, str]] = {}  # by rank: until when, and why it is not proved
        self._older: dict[int, object] | None = None  # by rank: a record that was there before us

    def agree(self, text: str) -> list[str]:
        """What each rank says, by rank, and that it is there."""
        self.hear(text)
        while not self.confirm():
            pass
        return self.said

    def hear(self, text: str) -> list[str]:
        """What each rank says, by rank; it may be of an earlier run, until all have confirmed it, or are ready. Even
        with a secret: whoever can write to the store can put back what a rank said then."""
        self._mine = f"{secrets.token_hex(8)} {text}"
        self._set(self._own("says"), self._mine)
        self._listen()
        return self.said

    def _listen(self) -> None:
        while not (words := self._look()):
            self._check_time("join")
            time.sleep(LOOK_AGAIN_S)
        self._sit_with(words)

    def _look(self) -> list[Words]:
        """What each rank says now, by rank; nothing, while one of them says nothing that could be meant."""
        self._faults.clear()
        said = self._said(self._mine)
        return list(said.values()) if len(said) == self._size else []

    def _sit_with(self, words: list[Words]) -> None:
        self._tokens, self.said = [token for token, _, _ in words], [text for _, _, text in words]
        self.sitting = _name_of(words)
        said = "\n".join(" ".join(one) for one in words).encode()
        self.secret = hashlib.sha256(said).digest()
        if self.shared_secret is not None:  # then who can read the store does not know it either
            self.secret = hmac.digest(self.shared_secret, b"softmrc group\0" + self.secret, hashlib.sha256)

    def confirm(self) -> bool:
        """True when everybody has heard the same as this rank; False where something new was said, which is in `said`
        now."""
        glance_s = FIRST_GLANCE_S
        self._sign("heard")
        while not self._all_signed("heard", glance_s):
            if why := self._failure():
                raise CollectiveError(why)
            self._check_time("join")
            time.sleep(LOOK_AGAIN_S)
            self._sign("seen")
            words = self._look()
            is_news = words and _name_of(words) != self.sitting
            if is_news and not self._are_set(self._keys(f"heard/{self.sitting}")):  # or somebody went on from here
                self._sit_with(words)
                return False
            glance_s = min(2 * glance_s, LONGEST_GLANCE_S)
        self.is_confirmed = True
        return True

    def _has_moved(self) -> bool:
        """Something new was said, and this rank, which has said that it is ready here, is there now. Others may be
        ready with it as long as all signs may come: it goes only if one has left none here, and will not."""
        words = self._look()
        if not words:
            return False
        name = _name_of(words)
        self._sign("seen", name)  # what is older, and we are not ready at yet, we will never be
        if name == self.sitting:
            return False
        are_new = [token != before for (token, _, _), before in zip(words, self._tokens, strict=True)]
        gone = [rank for rank, is_new in enumerate(are_new) if is_new]
        there = [rank for rank, is_new in enumerate(are_new) if not is_new]
        if self._are_ready(gone) and all(self._are_ready([rank]) for rank in there if self._has_seen(rank, name)):
            return False
        self._sit_with(words)
        return True

    def _are_ready(self, ranks: list[int]) -> bool:
        return self._are_set([self.key(f"ready/{self.sitting}", rank) for rank in ranks])

    def _has_seen(self, rank: int, sitting: str) -> bool:
        keys = [self.key(f"seen/{sitting}", rank)]
        return self._refused(keys, LAST_LOOK_S) is None and not self._not_proved(keys)

    def _said(self, mine: str) -> dict[int, Words]:
        """Token, space and words of every rank that has said something. Ours must be there as we said it."""
        texts = self._all("says", "join")
        if self.shared_secret is not None and self._rank in self._unproved:
            self._set(self._own("says"), mine)  # whoever replaced it does not count; the others look again, as we do
        elif texts.get(self._rank) != mine:
            raise CollectiveError(
                f"{self.key('says', self._rank)} does not hold what rank {self._rank} said:"
                f" another process takes itself for rank {self._rank}, or the store is damaged"
            )
        said: dict[int, Words] = {}
        tokens: dict[str, int] = {}
        for rank, text in texts.items():
            one = text.partition(" ")
            if not TOKEN.fullmatch(one[0]):
                self._faults[rank] = f"{self.key('says', rank)} holds no token"
            elif (twin := tokens.setdefault(one[0], rank)) != rank:
                self._faults[rank] = f"{self.key('says', rank)} is a copy of what rank {twin} said"
            else:
                said[rank] = one
        return said

    @property
    def has_told(self) -> bool:
        """Whether it has told where it is."""
        return "places" in self._told

    def tell(self, text: str, about: str = "places") -> list[str]:
        """After `agree`: what each rank tells, by rank. One that has failed meanwhile says why."""
        what = f"{about}/{self.sitting}"
        self._told.add(about)
        self._set(self._own(what), WELL + text)
        self._faults.clear()
        told = self._all(what, "get ready for")
        for rank in range(self._size):
            words = told.get(rank, FAILED + self._faults.get(rank, ""))
            if not words.startswith(WELL):
                why = words.removeprefix(FAILED)[:LONGEST_REASON]
                raise CollectiveError(f"rank {rank} did not get ready: {why or self.key(what, rank)}")
        return [told[rank][1:] for rank in range(self._size)]

    def be_ready(self) -> bool:
        """Until everybody is. One that has failed meanwhile says why. False where something new was said, and nobody
        can be ready with what was said before: whoever has acted on that does so again."""
        glance_s = FIRST_GLANCE_S
        self._sign("ready")
        while not self._all_signed("ready", glance_s):
            if why := self._failure():
                raise CollectiveError(why)
            if not self.is_confirmed:
                self._sign("heard")  # for whoever waits for that, before it is ready
                if self._has_moved():
                    return False
                if time.monotonic() >= self._until:  # who is not there at all is not just late
                    if not self._all_signed("heard", LAST_LOOK_S):
                        self._check_time("join")
                    self._all_signed("ready", LAST_LOOK_S)
            self._check_time("get ready for")
            glance_s = min(2 * glance_s, LONGEST_GLANCE_S)
        self.is_confirmed = True
        return True

    def give_up(self, why: str) -> None:
        """Tell those who wait for us, once."""
        if not self.sitting or self._has_given_up:
            return
        self._has_given_up = True
        words = "".join(c if c.isprintable() else " " for c in why)[:LONGEST_REASON]
        # For whoever waits there, and not for signs. Others may have gone on from ours before we knew that they can.
        for about in TOLD:
            if about not in self._told:
                self._set(self._own(f"{about}/{self.sitting}"), FAILED + words)
        if not self._failure():
            self._set(self._shared("failed"), f"rank {self._rank} did not get ready: {words}")

    def excuse(self, error: BaseException, greeting: str) -> None:
        """Tell those who wait for us that we will not come, and why. Who has said nothing yet greets them for that, and
        waits a little for those who are about to come: they would wait for us for as long as they have."""
        if not self.sitting and isinstance(error, Exception):
            self._until = min(self._until, time.monotonic() + EXCUSE_S)
            self.agree(greeting)
        self.give_up(str(error) or type(error).__name__)

    def _failure(self) -> str:
        """What the first rank said that failed on the way; empty: none did."""
        key = self._shared("failed")
        if self._refused([key], LAST_LOOK_S):
            return ""
        try:
            return self._opened(key, self._store.get(key))[: 2 * LONGEST_REASON] or f"nothing is under {key}"
        except ValueError as error:  # with a secret it is whoever does not know it who writes what cannot be read
            is_forged = self.shared_secret is not None or isinstance(error, UnauthenticatedRecord)
            return "" if is_forged else f"{key} holds {error}"

    def told_at(self, rank: int) -> str:
        """Under which key that is."""
        return self.key(f"places/{self.sitting}", rank)

    def key(self, what: str, rank: int) -> str:
        """Under which the store holds it."""
        return f"softmrc/{self.name}/{what}/{rank}"

    def _own(self, what: str) -> str:
        return self.key(what, self._rank)

    def _shared(self, what: str) -> str:
        return f"softmrc/{self.name}/{what}/{self.sitting}"

    def _sign(self, what: str, sitting: str = "") -> None:
        self._set(self._own(f"{what}/{sitting or self.sitting}"), WELL)

    def _set(self, key: str, text: str) -> None:
        if self.shared_secret is not None:
            text = f"proof:{self._proof(self.shared_secret, key, text)} {text}"
        self._store.set(key, text.encode())

    def _proof(self, shared_secret: bytes, key: str, text: str) -> str:
        return proof_of(shared_secret, f"{key} of {self._size} in {self._scope}", text)

    def _opened(self, key: str, data: object) -> str:
        """The text of a record, if it was written by somebody who knows the secret where there is one."""
        text = _text(data)
        proof = PROOF.match(text)
        if self.shared_secret is None:
            if proof:
                raise UnauthenticatedRecord("a record proved with a secret, which this rank does not have")
            return text
        words = text[proof.end() :] if proof else text
        if not proof or not hmac.compare_digest(proof[1], self._proof(self.shared_secret, key, words)):
            raise UnauthenticatedRecord(
                f"a record {'proved with another secret' if proof else 'not proved with the secret'}"
            )
        return words

    def _not_proved(self, keys: list[str]) -> list[str]:
        """Those of these keys, all of which are set, whose records do not count."""
        if self.shared_secret is None:
            return []
        try:
            values = _values(self._store, keys)
        except Exception as error:
            raise self._store_failed(keys, error) from error
        bad = []
        for key, value in zip(keys, values, strict=True):
            try:
                self._opened(key, value)
            except ValueError:
                bad.append(key)
        return bad

    def _keys(self, what: str) -> list[str]:
        return [self.key(what, rank) for rank in range(self._size)]

    def _all_signed(self, what: str, glance_s: float) -> bool:
        """Whether everybody has left this sign within so long; when the time is up, who has not is remembered."""
        keys, start = self._keys(f"{what}/{self.sitting}"), time.monotonic()
        patience_s = min(glance_s, max(self._until - start, LAST_LOOK_S))
        error = self._refused(keys, patience_s)
        if error is None:
            if not self._not_proved(keys):
                return True
            time.sleep(LOOK_AGAIN_S)  # the store does not wait for what is set
        elif time.monotonic() - start < patience_s / 2:  # that was no timeout
            raise self._store_failed(keys, error)
        if time.monotonic() < self._until:
            return False
        for rank, key in enumerate(keys):
            if self._refused([key], LAST_LOOK_S):
                self._faults[rank] = f"nothing is under {key}; what it said before may be of an earlier run"
            elif self._not_proved([key]):
                self._faults[rank] = f"{key} holds a record not proved with the secret; {SET_ALIKE}"
        return not self._faults

    def _refused(self, keys: list[str], seconds: float) -> Exception | None:
        """What the store says if these are not all set so soon: every store has its own type for that."""
        try:
            self._store.wait(keys, timedelta(seconds=seconds))
        except Exception as error:
            return error
        return None

    def _are_set(self, keys: list[str]) -> bool:
        """For certain: to who does not wait, a store that is slow to answer seems to hold nothing."""
        start = time.monotonic()
        try:
            if check := getattr(self._store, "check", None):
                return bool(check(keys)) and not self._not_proved(keys)
        except Exception as error:
            raise self._store_failed(keys, error) from error
        refusal = self._refused(keys, PATIENT_LOOK_S)
        if refusal and time.monotonic() - start < PATIENT_LOOK_S / 2:  # that was no timeout
            raise self._store_failed(keys, refusal)
        return refusal is None and not self._not_proved(keys)

    def _store_failed(self, keys: list[str], error: Exception) -> CollectiveError:
        return CollectiveError(
            f"the store failed while rank {self._rank} waited for all {self._size} ({keys[0]}): {error}"
        )

    def _all(self, what: str, did: str) -> dict[int, str]:
        """What every rank said, by rank; those are not in it of whom the store holds no text."""
        texts: dict[int, str] = {}
        began = time.monotonic()
        found = self._read(what)
        if self._older is None:  # where we had to wait, some have come after us, and nobody knows who
            self._older = found if time.monotonic() < began + FIRST_GLANCE_S else {}
        for rank, data in found.items():
            key = self.key(what, rank)
            try:
                texts[rank] = self._opened(key, data)
                self._unproved.pop(rank, None)
            except ValueError as error:
                self._faults[rank] = f"{key} holds {error}"
                if isinstance(error, UnauthenticatedRecord):
                    self._faults[rank] += f"; {SET_ALIKE}"
                    patience_s = OLDER_UNPROVED_S if self._older.get(rank) == data else UNPROVED_S
                    until = min(time.monotonic() + patience_s, self._unproved.get(rank, (float("inf"), ""))[0])
                    self._unproved[rank] = until, self._faults[rank]
        if self._faults:
            self._check_time(did)
        return texts

    def _read(self, what: str) -> dict[int, object]:
        """What the store holds of each, in one go; where that fails, one by one, to say of whom it holds nothing."""
        keys = self._keys(what)
        if self._is_no_more_patient():
            with contextlib.suppress(Exception):  # what is wrong, the other way tells, and waits for what is left
                return dict(enumerate(self._store.multi_get(keys)))
        try:
            self._store.wait(keys, self._time_left())
            return dict(enumerate(_values(self._store, keys)))
        except Exception as error:
            if time.monotonic() < self._until - LAST_LOOK_S:  # a store may count in whole milliseconds
                raise self._store_failed(keys, error) from error
        found: dict[int, object] = {}
        for rank, key in enumerate(keys):
            try:
                self._store.wait([key], timedelta(seconds=LAST_LOOK_S))
                found[rank] = self._store.get(key)
            except Exception:
                self._faults[rank] = f"nothing is under {key}"
        return found

    def _is_no_more_patient(self) -> bool:
        """Whether the store, when it is asked for what nobody has said yet, waits for about as long as we would, or
        less."""
        patience = getattr(self._store, "timeout", None)
        if not isinstance(patience, timedelta) or not _takes_several(self._store):
            return False
        return patience.total_seconds() < self._until - time.monotonic() + ABOUT_S

    def _time_left(self) -> timedelta:
        return timedelta(seconds=min(max(self._until - time.monotonic(), LAST_LOOK_S), LONGEST_S))

    def _check_time(self, did: str) -> None:
        for rank, (until, fault) in self._unproved.items():
            if time.monotonic() >= until:
                raise CollectiveError(f"rank {rank} is refused: {fault}")
        if self._faults and time.monotonic() >= self._until:
            names = ", ".join(f"rank {rank}" for rank in sorted(self._faults))
            faults = "; ".join(self._faults[rank] for rank in sorted(self._faults))
            raise CollectiveError(
                f"timed out: {names} did not {did} the group of {self._size} within {self._timeout_s:g} s ({faults})"
            )


def _name_of(words: list[Words]) -> str:
    """The same for those alone who have heard the same tokens."""
    return hashlib.sha256(" ".join(token for token, _, _ in words).encode()).hexdigest()[:16]


def _values(store: Any, keys: list[str]) -> list[object]:
    """Of keys that are set, with one question where the store takes several."""
    return list(store.multi_get(keys)) if _takes_several(store) else [store.get(key) for key in keys]


def _takes_several(store: Any) -> bool:
    return bool(getattr(store, "has_extended_api", bool)())


def _text(data: object) -> str:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ValueError(f"no bytes but {type(data).__name__}")
    if len(data) > LONGEST_ENTRY:
        raise ValueError(f"{len(data):,} bytes, of at most {LONGEST_ENTRY:,}")
    text = bytes(data).decode(errors="replace")
    if "\ufffd" in text or not text.isprintable():
        raise ValueError(f"{len(data):,} bytes that are no text")
    return text
