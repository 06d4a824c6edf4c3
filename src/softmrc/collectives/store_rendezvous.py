"""How the ranks of a group exchange records through a store, led by rank 0.

1. Rank 0 draws a nonce and sets it under a key that all ranks know.
2. Every other rank reads the nonce and sets its record: a token that it draws, and its text.
3. Rank 0 waits for all records and sets the list of them.
4. A rank that finds its own record in the list takes part. Any other sets `again` and waits for another nonce.
5. Every rank sets that it is ready. Rank 0 alone decides: with all of these it sets their list; where a rank has set
   `again` since, it sets another nonce, and all join again.

All keys but the first contain the nonce. A store may still hold what an earlier run left: `torchrun` restarts its
workers on the same store, and a program may leave a group and make it again. The list of such a run lacks the tokens
of today, and rank 0 reads nothing that does not answer its own nonce. No key is ever removed, since rank 0 may be in
the next run while another rank has yet to read that all are ready in this one (docs/design/collectives.md).

With a secret every record carries a MAC of its key (which names the group, the nonce and the rank), the size of the
group, its scope, and the text. A record without a valid MAC counts as absent. Without the secret an attacker can show
a rank another nonce, also an old one with its valid list, and so keep the group from forming. The rank then publishes a
record that no rank uses: a rank acts only on a list that contains the token which it has just drawn.

The store is polled with `check`: torch prints a warning for each `wait` that expires.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, TypeVar

from softmrc.collectives.work import CollectiveError
from softmrc.errors import ConfigError

# Between two polls an eighth of the time waited so far. More ranks take longer to come, and keep the store busier.
SHORTEST_PAUSE_S, PAUSE_PER_RANK_S, LONGEST_PAUSE_S = 1e-5, 2e-5, 0.2
FIRST_EVENT_S, LONGEST_EVENT_S = 0.1, 0.5  # between two checks whether it is useless to wait any longer
LINGER_S = 3.0  # how long a rank that cannot join waits for others to read why
# How long a record without a valid MAC is ignored, since the right rank may replace it; then its rank is refused. A
# nonce that was there before this rank may be of another run with this store, whose rank 0 starts later.
UNPROVED_S, OLDER_UNPROVED_S = 10.0, 120.0
LONGEST_ENTRY = 1 << 24  # bytes; a list of thousands of ranks has less
LONGEST_REASON = 500
NONCE = re.compile(r"[0-9]{1,9} ([0-9a-f]{16})")  # version, nonce
RECORD = re.compile(r"([0-9]{1,9}) ([0-9a-f]{16}) ([+-])(.*)")  # version, token, whether the rank joins, text
MAC = re.compile("(?:proof:([0-9a-f]{64}) )?")  # how a record begins
NOTHING, TIMED_OUT = "nothing is under", "timed out: "
UNAUTHENTICATED = "; rank 0, unauthenticated: "
NAMES_THE_RANK = re.compile(f"{TIMED_OUT}|rank [0-9]+ (did not get ready|is refused|runs another version)")
SET_ALIKE = "set SOFTMRC_SECRET alike for all ranks"
JOINS, FAILED = "+", "-"  # a record of a rank that joins, or says why it cannot

T = TypeVar("T")


class RendezvousRestarted(Exception):
    """Rank 0 has set another nonce: join again."""


class StoreRendezvous:
    """One rank's part in the rendezvous of a group. Errors name the rank that is missing or has failed."""

    VERSION = 11  # of all that ranks write to the store

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
        """With a shared secret every record carries a MAC. `scope` distinguishes this group from others with the same
        secret, names and size: their records are not valid here."""
        if size < 1 or not 0 <= rank < size:
            raise ConfigError("rank", rank, f"must be 0 to {size - 1}")
        self.shared_secret, self._scope = shared_secret, scope
        self._store, self.name, self._rank, self._size = store, name, rank, size
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self.nonce = ""  # of this rendezvous
        self.records: list[str] = []  # the texts of all ranks, by rank; none: this rank is in no list
        self.secret = b""  # what all ranks have in common, and others only if they can read the store
        self._nonce_key = f"softmrc/{name}/nonce"
        self._is_proved = False  # the nonce, by its MAC
        self._written = ("", "")  # the last key that is this rank's alone, and its text
        self._has_list = False  # rank 0: it is set; others: it contains this rank
        self._is_ready = False  # as all others are
        self._has_given_up = False
        self._absence = ""  # why this rank waits for another nonce
        self._answered_at = 0.0  # when it read the nonce
        self._invalid: dict[int, tuple[float, str]] = {}  # by rank: from when on it is refused, and why

    def start(self) -> None:
        """Rank 0 sets the nonce, which others wait for; `join` does so too, but may come later."""
        if self._rank == 0 and not self.nonce:
            self._restart()

    def _restart(self) -> None:
        self.nonce, self.records, self._has_list = secrets.token_hex(8), [], False
        self._write(self._nonce_key, f"{self.VERSION} {self.nonce}")

    def join(self, text: str, mark: str = JOINS) -> list[str]:
        """The texts of all ranks, by rank, each written in this rendezvous."""
        while not self.records:
            record = f"{self.VERSION} {secrets.token_hex(8)} {mark}{text}"
            with contextlib.suppress(RendezvousRestarted):
                self._accept(self._lead(record) if self._rank == 0 else self._follow(record))
        return self.records

    def _lead(self, record: str) -> list[str]:
        self.start()
        found = [record, *self._await_all("record")]
        for rank, one in enumerate(found):
            if (version := one.partition(" ")[0]) != str(self.VERSION):
                raise CollectiveError(
                    f"rank {rank} runs another version of SoftMRC (its records are of version {version}, those of"
                    f" rank 0 of version {self.VERSION}): install the same for all ranks ({self.key('record', rank)})"
                )
        self._set(self._all_key("record"), json.dumps(["", *found]))
        self._has_list = True
        return found

    def _follow(self, record: str) -> list[str]:
        """Raises RendezvousRestarted where the list of this nonce lacks this rank."""
        self._find_nonce()
        self._write(self.key("record", self._rank), record)
        list_key = self._all_key("record")
        failure, *found = _strings(self._await([list_key], "record")[0]) or [""]
        if not self._is_in(found):
            self._absence = f"{list_key} does not list this process as rank {self._rank}"
            self._absence += f": {_printable(failure)}" if failure else "; it may be of an earlier run"
            self._set(self._shared("again"), JOINS)
            raise RendezvousRestarted
        self._has_list = True
        if found[self._rank] != record:
            raise CollectiveError(self._not_ours(self.key("record", self._rank)))
        if failure:
            raise CollectiveError(_printable(failure))
        if len(found) != self._size:
            raise CollectiveError(f"rank 0 has size {len(found)}, and not {self._size}; set them alike ({list_key})")
        return found

    def _is_in(self, found: list[str]) -> bool:
        """Whether this list has the token that this rank wrote last."""
        own = found[self._rank] if self._rank < len(found) else ""
        return own.split(" ")[1:2] == self._written[1].split(" ")[1:2]

    def _accept(self, found: list[str]) -> None:
        texts = []
        for rank, one in enumerate(found):
            fields = RECORD.fullmatch(one)
            if fields is None:
                raise CollectiveError(f"rank {rank}: {self.key('record', rank)} holds no record")
            if fields[3] == FAILED:
                raise CollectiveError(_failure(rank, fields[4]))
            texts.append(fields[4])
        self.records = texts
        self.secret = hashlib.sha256("\n".join([self.nonce, *found]).encode()).digest()
        if self.shared_secret is not None:  # then reading the store is not enough to know it
            self.secret = hmac.digest(self.shared_secret, b"softmrc group\0" + self.secret, hashlib.sha256)

    def exchange(self, what: str, text: str) -> list[str]:
        """After `join`: what each rank writes under this name, by rank."""
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
        """Until all ranks are."""
        if self._rank == 0:
            self._await_all("ready")
            self._set(self._all_key("ready"), JOINS)
        else:
            self._write(self.key("ready", self._rank), JOINS)
            self._await([self._all_key("ready")], "ready")
        self._is_ready = True

    def give_up(self, why: str, linger_s: float | None = None) -> None:
        """Write why, once, for those that wait for this rank. Rank 0 first waits for those that are about to join, and
        then until the others have left: the store may end with its process. Each takes so long at most."""
        if not self.nonce or self._has_given_up:
            return
        self._has_given_up, linger_s = True, LINGER_S if linger_s is None else linger_s
        failure = _failure(self._rank, why)
        if self._rank or self._has_list:
            if not self._valid(self._shared("failed")):
                self._set(self._shared("failed"), failure)
        else:
            keys = self._keys_of_others("record")
            self._wait_for(keys, min(linger_s, self._until - time.monotonic()))
            self._set(self._all_key("record"), json.dumps([failure, "", *(self._read(key)[0] for key in keys)]))
        if self._rank:
            self._set(self.key("left", self._rank), JOINS)
        else:
            there = [rank for rank in range(1, self._size) if self._are_set([self.key("record", rank)])]
            self._wait_for([self.key("left", rank) for rank in there], linger_s)

    def excuse(self, error: BaseException) -> None:
        """Write that this rank will not join, and why. The others may be about to join, so that one which has written
        nothing yet waits for them a little."""
        why, is_error = str(error) or type(error).__name__, isinstance(error, Exception)
        if is_error and not self._written[0]:
            self._until = min(self._until, time.monotonic() + LINGER_S)
            self.start()
            if self._rank:
                with contextlib.suppress(CollectiveError):
                    self.join(_printable(why), FAILED)
        self.give_up(why, LINGER_S if is_error else 0.0)

    # What others wrote -------------------------------------------------------------------------------------------

    def _find_nonce(self) -> None:
        """One that this rank has not answered. One without a valid MAC is answered too, so that rank 0 can say that
        only one side has the secret; nothing else depends on it."""
        start, is_first = time.monotonic(), self.nonce == ""
        while True:
            nonce, fault = self._read_nonce()
            if nonce not in ("", self.nonce):
                break
            self._check_invalid()
            if time.monotonic() >= self._until:
                raise self._timed_out("join", {0: self._absence or fault or f"{self._nonce_key} holds an old nonce"})
            self._pause(start)
        self._answered_at = now = time.monotonic()
        self.nonce, self._is_proved, self._has_list, self._absence = nonce, not fault, False, ""
        if fault:
            patience_s = OLDER_UNPROVED_S if is_first and now < start + FIRST_EVENT_S else UNPROVED_S
            self._invalid[0] = min(now + patience_s, self._invalid.get(0, (math.inf, ""))[0]), fault
        else:
            self._invalid.pop(0, None)

    def _read_nonce(self) -> tuple[str, str]:
        """What it is, if anything, and why it does not count."""
        text, fault = self._read(self._nonce_key)
        nonce = NONCE.fullmatch(text)
        return (nonce[1], fault) if nonce else ("", fault or f"{self._nonce_key} holds no nonce")

    def _await_all(self, what: str) -> list[str]:
        return self._await(self._keys_of_others(what), what) if self._size > 1 else []

    def _await(self, keys: list[str], what: str) -> list[str]:
        """The texts under these keys, as soon as all are there."""
        start = time.monotonic()
        look_at, error = start + FIRST_EVENT_S, None
        while True:
            now = time.monotonic()
            if (is_late := now >= self._until) or now >= look_at:
                error, look_at = self._event(), now + min(max(now - start, FIRST_EVENT_S), LONGEST_EVENT_S)
            # After that: what rank 0 has decided with this nonce holds, whatever followed.
            is_open = error is None or self._rank > 0
            if is_open and self._are_set(keys) and (found := self._opened_all(keys, what)) is not None:
                return found
            if isinstance(error, RendezvousRestarted):
                self.records = []
                if self._rank == 0 and not is_late:
                    self._restart()
            if is_late and (not isinstance(error, CollectiveError) or str(error).startswith(TIMED_OUT)):
                raise self._late(what)
            if error:
                raise error
            self._pause(start)

    def _event(self) -> Exception | None:
        """What makes it useless to wait any longer for what others write in this rendezvous."""
        self._check_invalid()
        self._check_written()
        if (self._rank == 0 or self._has_list) and (why := self._valid(self._shared("failed"))):
            return CollectiveError(_printable(why))
        if self._rank == 0:
            is_over = self._has_list and self._valid(self._shared("again")) != ""
        else:
            nonce, fault = self._read_nonce()
            if nonce == self.nonce and not fault:
                self._is_proved = True
                self._invalid.pop(0, None)
            is_over = nonce not in ("", self.nonce) and (not fault or not self._is_proved)
        if is_over and self._is_ready:
            return CollectiveError("a rank of this group has ended, and joins again")
        return RendezvousRestarted() if is_over else None

    def _check_invalid(self) -> None:
        for rank, (until, fault) in self._invalid.items():
            if time.monotonic() >= until:
                raise CollectiveError(f"rank {rank} is refused: {fault}")

    def _check_written(self) -> None:
        """What this rank wrote last must be there. With a secret, a record that replaced it may be of a process that
        does not have the secret; it does not count, and the right one is written again."""
        key, text = self._written
        found, fault = self._read(key)
        if fault and self.shared_secret is not None:
            self._set(key, text)
        elif (fault or found != text) and not fault.startswith(NOTHING):
            raise CollectiveError(self._not_ours(key))

    def _not_ours(self, key: str) -> str:
        return (
            f"{key} does not hold what rank {self._rank} wrote:"
            f" another process is rank {self._rank} too, or the store is damaged"
        )

    def _read(self, key: str) -> tuple[str, str]:
        """The text under a key, and why it does not count."""
        return self._opened(key, self._values([key])[0]) if self._are_set([key]) else ("", f"{NOTHING} {key}")

    def _valid(self, key: str) -> str:
        text, fault = self._read(key)
        return "" if fault else text

    def _opened_all(self, keys: list[str], what: str) -> list[str] | None:
        """The texts under keys that are all set; None where one of them does not count."""
        if what == "ready" and self.shared_secret is None:  # one request less: that they are set says all
            return [JOINS] * len(keys)
        found = [self._opened(key, data) for key, data in zip(keys, self._values(keys), strict=True)]
        if what == "record" and self._rank == 0:
            until = time.monotonic() + UNPROVED_S
            faults = {rank: fault for rank, (_, fault) in enumerate(found, 1) if fault}
            self._invalid = {rank: (self._invalid.get(rank, (until,))[0], fault) for rank, fault in faults.items()}
        elif what == "record" and found[0][1]:
            self._hear(found[0][0])
        return None if any(fault for _, fault in found) else [text for text, _ in found]

    def _hear(self, text: str) -> None:
        """Of a list without a valid MAC, why rank 0 gives up. It answers this process, so that it is of no earlier run;
        nothing proves that it is of rank 0, whose nonce has no valid MAC either."""
        failure, *found = _strings(text) or [""]
        if failure and self._is_in(found) and 0 in self._invalid:
            until, fault = self._invalid[0]
            fault = f"{fault.partition(UNAUTHENTICATED)[0]}{UNAUTHENTICATED}{_printable(failure)}"
            self._invalid[0] = min(until, self._answered_at + UNPROVED_S), fault

    def _opened(self, key: str, data: object) -> tuple[str, str]:
        """The text of a record without its MAC, and why it does not count."""
        text, fault = _text(data)
        mac = MAC.match(text)
        assert mac is not None, "an empty one is one"
        text = text[mac.end() :]
        if not fault and self.shared_secret is None:
            fault = f"a record proved with a secret, which this rank does not have; {SET_ALIKE}" if mac[1] else ""
        elif not fault and not hmac.compare_digest(mac[1] or "", self._mac(self.shared_secret or b"", key, text)):
            fault = f"a record {'proved with another secret' if mac[1] else 'not proved with the secret'}; {SET_ALIKE}"
        is_record = key.startswith(f"{self._shared('record')}/") and not key.endswith("/all")
        if not fault and is_record and not RECORD.fullmatch(text):
            fault = "no record"
        return text, fault and f"{key} holds {fault}"

    # Errors ------------------------------------------------------------------------------------------------------

    def _late(self, what: str) -> CollectiveError:
        """Who has not written this in time. Where all have, rank 0 has not listed it."""
        faults = {rank: self._read(self.key(what, rank))[1] for rank in range(1, self._size) if rank != self._rank}
        if not any(faults.values()):
            faults = {0: self._read(self._all_key(what))[1] or f"another nonce is under {self._nonce_key}"}
        return self._timed_out("join" if what == "record" else "get ready for", faults)

    def _timed_out(self, did: str, faults: dict[int, str]) -> CollectiveError:
        names = ", ".join(f"rank {rank}" for rank, fault in faults.items() if fault)
        reasons = "; ".join(filter(None, faults.values()))
        return CollectiveError(
            f"{TIMED_OUT}{names} did not {did} the group of {self._size} within {self._timeout_s:g} s ({reasons})"
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
        self._ask([key], lambda keys: self._store.set(key, text.encode()))

    def _mac(self, shared_secret: bytes, key: str, text: str) -> str:
        about = "\0".join(("softmrc store", f"{key} of {self._size} in {self._scope}", text))
        return hmac.digest(shared_secret, about.encode(), hashlib.sha256).hex()

    def _values(self, keys: list[str]) -> list[object]:
        """Of keys that are set, with one request where the store takes several."""
        if getattr(self._store, "has_extended_api", bool)():
            return self._ask(keys, lambda keys: list(self._store.multi_get(keys)))
        return self._ask(keys, lambda keys: [self._store.get(key) for key in keys])

    def _are_set(self, keys: list[str]) -> bool:
        return self._ask(keys, lambda keys: bool(self._store.check(keys)))

    def _ask(self, keys: list[str], request: Callable[[list[str]], T]) -> T:
        try:
            return request(keys)
        except Exception as error:
            raise CollectiveError(
                f"the store failed while rank {self._rank} waited for all {self._size} ({keys[0]}): {error}"
            ) from error

    def _wait_for(self, keys: list[str], seconds: float) -> None:
        """Until all are set, or not."""
        start = time.monotonic()
        while keys and not self._are_set(keys) and time.monotonic() < start + seconds:
            self._pause(start)

    def _pause(self, since: float) -> None:
        now = time.monotonic()
        pause_s = max((now - since) / 8, min(PAUSE_PER_RANK_S * self._size, 0.001))
        time.sleep(max(min(pause_s, LONGEST_PAUSE_S, self._until - now), SHORTEST_PAUSE_S))


def _failure(rank: int, why: str) -> str:
    """What is written of a rank that failed; it may have read so of another one."""
    return _printable(why if NAMES_THE_RANK.match(why) else f"rank {rank} did not get ready: {why}")


def _printable(why: str) -> str:
    return "".join(c if c.isprintable() else " " for c in why)[:LONGEST_REASON]


def _strings(text: str) -> list[str]:
    """A list of them; empty where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else []


def _text(data: object) -> tuple[str, str]:
    """What it is, or why it is none."""
    if not isinstance(data, bytes | bytearray | memoryview):
        return "", f"no bytes but {type(data).__name__}"
    if len(data) > LONGEST_ENTRY:
        return "", f"{len(data):,} bytes, of at most {LONGEST_ENTRY:,}"
    text = bytes(data).decode(errors="replace")
    if "\ufffd" in text or not text.isprintable():
        return "", f"{len(data):,} bytes that are no text"
    return text, ""
