"""How the ranks of a group exchange records through a store, led by rank 0.

1. Rank 0 draws a nonce and sets it under a key that all ranks know.
2. Every other rank reads the nonce and sets its record: a token that it draws, and its text.
3. Rank 0 waits for all records and sets the list of them.
4. A rank that finds its own record in the list takes part. One that does not tells rank 0 so (`again`), and waits for
   another nonce.
5. Every rank sets a sign when it is ready. Rank 0 alone decides: with all signs it sets the sign for all; where a rank
   has joined again since the list was made it sets another nonce, and all begin again.

All keys but the first contain the nonce. A store may still hold what an earlier run left: `torchrun` restarts its
workers on the same store, and a program may leave a group and make it again. The list of such a run lacks the tokens
of today, and rank 0 reads nothing that does not answer its own nonce. No key is ever removed, since rank 0 may be in
the next run while another rank has yet to read that all are ready in this one (docs/design/collectives.md).

With a secret every record carries a MAC: of its key, which names the group, the nonce and the rank; of the size of the
group, its scope, and the text. A record without a valid MAC counts as absent. Whoever does not know the secret can
show a rank another nonce, an old one with its valid list among them, and so keep the group from forming; the rank then
publishes a record that nobody uses, since nothing is done but by a list that contains the token it has just drawn.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
import secrets
import time
from datetime import timedelta
from typing import Any

from softmrc.collectives.work import CollectiveError
from softmrc.errors import ConfigError

LAST_LOOK_S, PATIENT_LOOK_S, LONGEST_LOOK_S = 0.01, 1.0, 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 0.5  # for a key, before this rank looks whether the others have begun again
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.05  # between two looks at what the store cannot wait for
EXCUSE_S = 3.0  # how long a rank that cannot join waits for those whom it should tell
# How long a record without a valid MAC is ignored, since the right rank may replace it; then its rank is refused. A
# nonce that was there before this rank may be of another run with this store, whose rank 0 takes its time.
UNPROVED_S, OLDER_UNPROVED_S = 10.0, 120.0
LONGEST_ENTRY = 1 << 24  # bytes; a list of thousands of ranks has less
LONGEST_REASON = 300
NONCE = re.compile(r"(?:proof:[0-9a-f]{64} )?([0-9]{1,9}) ([0-9a-f]{16})")
RECORD = re.compile(r"([0-9]{1,9}) ([0-9a-f]{16}) ([+-])(.*)")  # version, token, whether the rank joins, text
MAC = re.compile("proof:([0-9a-f]{64}) ")  # how a record begins that carries one
NOTHING, TIMED_OUT = "nothing is under", "timed out: "
SET_ALIKE = "set SOFTMRC_SECRET alike for all ranks"
WELL, FAILED = "+", "-"  # whether a rank joins, or only says why it cannot


class UnauthenticatedRecord(ValueError):
    """A record that was not written by anybody who shares our secret, or our lack of one."""


class RendezvousRestarted(Exception):
    """Rank 0 has begun again with another nonce: join again."""


class StoreRendezvous:
    """One rank's part in the rendezvous of a group. A rank that does not come in time is named in the error."""

    VERSION = 10  # of all that ranks write to the store

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
        """With a shared secret every record carries a MAC. `scope` is what tells this group from others that have
        the same secret, names and size: their records are not valid here."""
        if size < 1 or not 0 <= rank < size:
            raise ConfigError("rank", rank, f"0 to {size - 1}")
        self.shared_secret, self._scope = shared_secret, scope
        self._store, self.name, self._rank, self._size = store, name, rank, size
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self.nonce = ""  # of this rendezvous
        self.records: list[str] = []  # what each rank said, by rank; none: this rank is in no list
        self.secret = b""  # what all ranks have in common, and nobody knows who cannot read the store
        self._nonce_key = f"softmrc/{name}/nonce"
        self._is_proved = False  # the nonce, by its MAC
        self._version = str(self.VERSION)  # of rank 0
        self._written = ("", "")  # the last key that is this rank's alone, and its text
        self._has_list = False  # rank 0: it is set; others: it contains this rank
        self._is_going = False  # all were ready
        self._has_given_up = False
        self._failure = ""  # which rank cannot join, and why, as the others were told
        self._stale = ""  # why this rank waits for another nonce
        self._refusals: dict[int, tuple[float, str]] = {}  # by rank: from when on it is refused, and why

    def start(self) -> None:
        """Rank 0 sets the nonce, which others wait for; `join` does so too, but may come later."""
        if self._rank == 0 and not self.nonce:
            self._restart()

    def _restart(self) -> None:
        self.nonce, self.records, self._has_list = secrets.token_hex(8), [], False
        self._write(self._nonce_key, f"{self.VERSION} {self.nonce}")

    def join(self, text: str, mark: str = WELL) -> list[str]:
        """The texts of all ranks, by rank, each written in this rendezvous."""
        while not self.records:
            record = f"{self.VERSION} {secrets.token_hex(8)} {mark}{text}"
            try:
                found = self._lead(record) if self._rank == 0 else self._follow(record)
            except RendezvousRestarted:
                continue
            if found:
                self._take(found)
        return self.records

    def _lead(self, record: str) -> list[str]:
        self.start()
        found = [record, *self._await_all("record")]
        for rank, one in enumerate(found):
            self._check_version(rank, one.partition(" ")[0], self.key("record", rank))
        self._set(self._all_key("record"), json.dumps(["", *found]))
        self._has_list = True
        return found

    def _check_version(self, rank: int, version: str, key: str) -> None:
        if version != str(self.VERSION):
            raise CollectiveError(
                f"rank {rank} runs another version of SoftMRC (its records are of version {version}, those of rank"
                f" {self._rank} of version {self.VERSION}): install the same for all ranks ({key})"
            )

    def _follow(self, record: str) -> list[str]:
        """Nothing where the list of this nonce lacks this rank."""
        self._find_nonce()
        self._write(self.key("record", self._rank), record)
        failure, *found = _strings(self._await([self._all_key("record")], "record")[0]) or [""]
        own = found[self._rank] if self._rank < len(found) else ""
        if own.split(" ")[1:2] != record.split(" ")[1:2]:
            self._stale = f"{self._all_key('record')} does not list this process as rank {self._rank}"
            self._stale += f": {failure[: 2 * LONGEST_REASON]}" if failure else "; it may be of an earlier run"
            self._set(self._shared("again"), WELL)
            return []
        self._has_list = True
        if own != record:
            raise CollectiveError(self._not_ours(self.key("record", self._rank)))
        if failure:
            self._failure = failure[: 2 * LONGEST_REASON]
            raise CollectiveError(self._failure)
        self._check_version(0, self._version, self._nonce_key)
        if len(found) != self._size:
            raise CollectiveError(
                f"rank 0 has size {len(found)}, and not {self._size}; set them alike ({self._all_key('record')})"
            )
        return found

    def _take(self, found: list[str]) -> None:
        texts = []
        for rank, one in enumerate(found):
            fields = RECORD.fullmatch(one)
            if fields is None:
                raise CollectiveError(f"rank {rank}: {self.key('record', rank)} holds no record")
            if fields[3] == FAILED:
                self._failure = f"rank {rank} did not get ready: {fields[4][:LONGEST_REASON]}"
                raise CollectiveError(self._failure)
            texts.append(fields[4])
        self.records = texts
        self.secret = hashlib.sha256("\n".join([self.nonce, *found]).encode()).digest()
        if self.shared_secret is not None:  # then who can read the store does not know it either
            self.secret = hmac.digest(self.shared_secret, b"softmrc group\0" + self.secret, hashlib.sha256)

    def exchange(self, what: str, text: str) -> list[str]:
        """After `join`: what each rank says under this name, by rank."""
        if self._rank == 0:
            found = [text, *self._await_all(what)]
            self._set(self._all_key(what), json.dumps(found))
            return found
        self._write(self.key(what, self._rank), text)
        found = _strings(self._await([self._all_key(what)], what)[0])
        if len(found) != self._size:
            raise CollectiveError(f"rank 0: {self._all_key(what)} holds no list of {self._size} records")
        return found

    def be_ready(self) -> None:
        """Until rank 0 has said that all ranks are."""
        if self._rank == 0:
            self._await_all("ready")
            self._set(self._all_key("ready"), WELL)
        else:
            self._write(self.key("ready", self._rank), WELL)
            self._await([self._all_key("ready")], "ready")
        self._is_going = True

    def give_up(self, why: str, linger_s: float = EXCUSE_S) -> None:
        """Tell those who wait for this rank, once. Rank 0 tells those who have come, or come within so long."""
        if not self.nonce or self._has_given_up:
            return
        self._has_given_up = True
        about = "" if why.startswith(TIMED_OUT) else f"rank {self._rank} did not get ready: "  # that names others
        self._failure = self._failure or f"{about}{_words(why)}"
        if self._rank == 0 and not self._has_list:
            keys = self._keys_of_others("record")
            if (left_s := min(linger_s, self._until - time.monotonic())) > 0:
                self._refused(keys, left_s)
            self._set(self._all_key("record"), json.dumps([self._failure, "", *(self._read(key)[0] for key in keys)]))
        elif not self._read(self._shared("failed"))[0]:
            self._set(self._shared("failed"), self._failure)

    def excuse(self, error: BaseException) -> None:
        """Tell the others that this rank will not come, and why. They may be about to come: one that has written
        nothing yet does so for that, and waits a little."""
        why, is_error = str(error) or type(error).__name__, isinstance(error, Exception)
        if is_error and not self._written[0]:
            self._until = min(self._until, time.monotonic() + EXCUSE_S)
            self.start()
            if self._rank:
                with contextlib.suppress(CollectiveError):
                    self.join(_words(why), FAILED)
        self.give_up(why, EXCUSE_S if is_error else 0.0)

    # What others wrote -------------------------------------------------------------------------------------------

    def _find_nonce(self) -> None:
        """One that this rank has not answered. One without a valid MAC is answered too, so that rank 0 can say that
        only one side has the secret; nothing is believed for that."""
        start = time.monotonic()
        while True:
            if self._is_there([self._nonce_key], LONGEST_LOOK_S):
                nonce, why = self._read_nonce()
                if nonce not in ("", self.nonce):
                    break
                self._stale = self._stale or f"{self._nonce_key} holds {why}"
                self._pause(start)
            self._check_refusals()
            if time.monotonic() >= self._until:
                raise self._timed_out("join", {0: self._stale or f"{NOTHING} {self._nonce_key}"})
        was_there = self.nonce == "" and time.monotonic() < start + FIRST_WAIT_S
        self.nonce, self._is_proved, self._has_list, self._stale = nonce, not why, False, ""
        if why:
            until = time.monotonic() + (OLDER_UNPROVED_S if was_there else UNPROVED_S)
            fault = f"{self._nonce_key} holds {why}; {SET_ALIKE}"
            self._refusals[0] = min(until, self._refusals.get(0, (until, ""))[0]), fault
        else:
            self._refusals.pop(0, None)

    def _read_nonce(self) -> tuple[str, str]:
        """What it is, if anything, and why it does not count."""
        nonce = ""
        try:
            data = self._values([self._nonce_key])[0]
            if not (found := NONCE.fullmatch(_text(data))):
                return "", "no nonce"
            self._version, nonce = found.groups()
            self._opened(self._nonce_key, data)
        except ValueError as error:
            return nonce, str(error)
        return nonce, ""

    def _await_all(self, what: str) -> list[str]:
        return self._await(self._keys_of_others(what), what) if self._size > 1 else []

    def _await(self, keys: list[str], what: str) -> list[str]:
        """The texts under these keys, as soon as all are there."""
        start, wait_s = time.monotonic(), FIRST_WAIT_S
        while True:
            if self._is_there(keys, wait_s):
                if (found := self._opened_all(keys, what)) is not None:
                    return found
                self._pause(start)  # the store does not wait for what is there
            error, is_late = self._event(), time.monotonic() >= self._until
            if error is None and not is_late:
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                continue
            # What rank 0 has decided with this nonce holds, whatever came after it.
            is_open = error is None or self._rank > 0
            if is_open and self._are_set(keys) and (found := self._opened_all(keys, what)) is not None:
                return found
            if isinstance(error, RendezvousRestarted):
                self.records = []
                error = None if is_late else error
                if error and self._rank == 0:
                    self._restart()
            raise error or self._late(what)

    def _event(self) -> Exception | None:
        """What makes it useless to wait any longer for what others write in this rendezvous."""
        self._check_refusals()
        self._check_written()
        if (self._rank == 0 or self._has_list) and (why := self._read(self._shared("failed"))[0]):
            self._failure = why[: 2 * LONGEST_REASON]
            return CollectiveError(self._failure)
        if self._rank == 0:
            is_over = self._has_list and self._read(self._shared("again"))[0] != ""
        else:
            nonce, why = self._read_nonce()
            if nonce == self.nonce and not why:
                self._is_proved = True
                self._refusals.pop(0, None)
            is_over = nonce not in ("", self.nonce) and (not why or not self._is_proved)
        if is_over and self._is_going:
            return CollectiveError("a rank of this group has ended, and joins again")
        return RendezvousRestarted() if is_over else None

    def _check_written(self) -> None:
        """What this rank wrote last must be there. With a secret whoever replaced it may not know that, and does not
        count; then it is written again."""
        key, text = self._written
        found, fault = self._read(key)
        if fault and self.shared_secret is not None:
            self._set(key, text)
        elif found != text and not fault.startswith(NOTHING):
            raise CollectiveError(self._not_ours(key))

    def _not_ours(self, key: str) -> str:
        return (
            f"{key} does not hold what rank {self._rank} wrote:"
            f" another process takes itself for rank {self._rank}, or the store is damaged"
        )

    def _read(self, key: str) -> tuple[str, str]:
        """The text under a key, and why there is none."""
        if not self._is_set(key):
            return "", f"{NOTHING} {key}"
        try:
            return self._opened(key, self._values([key])[0]), ""
        except ValueError as error:
            return "", _fault(key, error)

    def _opened_all(self, keys: list[str], what: str) -> list[str] | None:
        """The texts under keys that are all set; None where one of them does not count."""
        if what == "ready" and self.shared_secret is None:
            return [WELL] * len(keys)
        found, faults = [], {}
        for rank, (key, data) in enumerate(zip(keys, self._values(keys), strict=True), 1):
            try:
                found.append(self._opened(key, data))
            except ValueError as error:
                faults[rank] = _fault(key, error)
        if self._rank == 0 and what == "record":
            until = time.monotonic() + UNPROVED_S
            self._refusals = {rank: (self._refusals.get(rank, (until, ""))[0], fault) for rank, fault in faults.items()}
        return None if faults else found

    def _opened(self, key: str, data: object) -> str:
        """The text of a record, if it was written by somebody who knows the secret where there is one."""
        text = _text(data)
        mac = MAC.match(text)
        if self.shared_secret is None:
            if mac:
                raise UnauthenticatedRecord("a record proved with a secret, which this rank does not have")
        elif not mac or not hmac.compare_digest(mac[1], self._mac(self.shared_secret, key, text[mac.end() :])):
            raise UnauthenticatedRecord(
                f"a record {'proved with another secret' if mac else 'not proved with the secret'}"
            )
        else:
            text = text[mac.end() :]
        if key.startswith(f"{self._shared('record')}/") and not key.endswith("/all") and not RECORD.fullmatch(text):
            raise ValueError("no record")
        return text

    # Errors ------------------------------------------------------------------------------------------------------

    def _check_refusals(self) -> None:
        for rank, (until, fault) in self._refusals.items():
            if time.monotonic() >= until:
                raise CollectiveError(f"rank {rank} is refused: {fault}")

    def _late(self, what: str) -> CollectiveError:
        """Who has not written this in time. Where all have, rank 0 has not listed it."""
        faults = {rank: self._read(self.key(what, rank))[1] for rank in range(1, self._size) if rank != self._rank}
        if not any(faults.values()):
            faults = {0: self._read(self._all_key(what))[1] or f"another nonce is under {self._nonce_key}"}
        return self._timed_out("join" if what == "record" else "get ready for", faults)

    def _timed_out(self, did: str, faults: dict[int, str]) -> CollectiveError:
        names = ", ".join(f"rank {rank}" for rank, fault in faults.items() if fault)
        said = "; ".join(filter(None, faults.values()))
        return CollectiveError(
            f"{TIMED_OUT}{names} did not {did} the group of {self._size} within {self._timeout_s:g} s ({said})"
        )

    def _store_failed(self, keys: list[str], error: Exception) -> CollectiveError:
        return CollectiveError(
            f"the store failed while rank {self._rank} waited for all {self._size} ({keys[0]}): {error}"
        )

    # The store ---------------------------------------------------------------------------------------------------

    def key(self, what: str, rank: int) -> str:
        """Under which the store holds it."""
        return f"{self._shared(what)}/{rank}"

    def _keys_of_others(self, what: str) -> list[str]:
        return [self.key(what, rank) for rank in range(1, self._size)]

    def _all_key(self, what: str) -> str:
        """Under which rank 0 lists what all wrote."""
        return f"{self._shared(what)}/all"

    def _shared(self, what: str) -> str:
        return f"softmrc/{self.name}/{what}/{self.nonce}"

    def _write(self, key: str, text: str) -> None:
        self._written = key, text
        self._set(key, text)

    def _set(self, key: str, text: str) -> None:
        if self.shared_secret is not None:
            text = f"proof:{self._mac(self.shared_secret, key, text)} {text}"
        self._store.set(key, text.encode())

    def _mac(self, shared_secret: bytes, key: str, text: str) -> str:
        about = "\0".join(("softmrc store", f"{key} of {self._size} in {self._scope}", text))
        return hmac.digest(shared_secret, about.encode(), hashlib.sha256).hex()

    def _values(self, keys: list[str]) -> list[object]:
        """Of keys that are set, with one question where the store takes several."""
        try:
            if getattr(self._store, "has_extended_api", bool)():
                return list(self._store.multi_get(keys))
            return [self._store.get(key) for key in keys]
        except Exception as error:
            raise self._store_failed(keys, error) from error

    def _is_there(self, keys: list[str], seconds: float) -> bool:
        """Whether all are set, or will be so soon."""
        start, left_s = time.monotonic(), max(self._until - time.monotonic(), LAST_LOOK_S)
        error = self._refused(keys, min(seconds, left_s))
        if error and time.monotonic() - start < min(seconds, left_s) / 2:  # that was no timeout
            raise self._store_failed(keys, error)
        return error is None

    def _refused(self, keys: list[str], seconds: float) -> Exception | None:
        """What the store says if these are not all set so soon: every store has its own type for that."""
        try:
            self._store.wait(keys, timedelta(seconds=seconds))
        except Exception as error:
            return error
        return None

    def _is_set(self, key: str) -> bool:
        check = getattr(self._store, "check", None)
        return self._are_set([key]) if check else self._refused([key], LAST_LOOK_S) is None

    def _are_set(self, keys: list[str]) -> bool:
        """For certain: to who does not wait, a store that is slow to answer seems to hold nothing."""
        start = time.monotonic()
        try:
            if check := getattr(self._store, "check", None):
                return bool(check(keys))
        except Exception as error:
            raise self._store_failed(keys, error) from error
        refusal = self._refused(keys, PATIENT_LOOK_S)
        if refusal and time.monotonic() - start < PATIENT_LOOK_S / 2:  # that was no timeout
            raise self._store_failed(keys, refusal)
        return refusal is None

    def _pause(self, since: float) -> None:
        waited_s = time.monotonic() - since
        time.sleep(min(max(waited_s / 10, SHORTEST_PAUSE_S), LONGEST_PAUSE_S))


def _fault(key: str, error: ValueError) -> str:
    return f"{key} holds {error}" + (f"; {SET_ALIKE}" if isinstance(error, UnauthenticatedRecord) else "")


def _words(why: str) -> str:
    return "".join(c if c.isprintable() else " " for c in why)[:LONGEST_REASON]


def _strings(text: str) -> list[str]:
    """A list of them; empty where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else []


def _text(data: object) -> str:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ValueError(f"no bytes but {type(data).__name__}")
    if len(data) > LONGEST_ENTRY:
        raise ValueError(f"{len(data):,} bytes, of at most {LONGEST_ENTRY:,}")
    text = bytes(data).decode(errors="replace")
    if "\ufffd" in text or not text.isprintable():
        raise ValueError(f"{len(data):,} bytes that are no text")
    return text
