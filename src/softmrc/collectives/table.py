"""How ranks tell each other things through a store, and are sure to hear those who are there now.

A store may still hold what an earlier run of the job said: `torchrun` restarts its workers on the same store, and a
program may leave a group and make it again. So everybody adds a token of its own to what it says, and says which tokens
it has heard; all is well when everybody has heard the same ones. A rank of the past cannot have heard a token of today.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from softmrc.collectives.work import CollectiveError
from softmrc.errors import ConfigError

LAST_LOOK_S = 0.01
LOOK_AGAIN_S = 0.005
LONGEST_S = 1e8  # stores count in types that overflow


class Table:
    """One rank at a table with the others. Whoever does not come in time is named in the error."""

    def __init__(self, store: Any, name: str, rank: int, size: int, timeout_s: float) -> None:
        if size < 1 or not 0 <= rank < size:
            raise ConfigError("rank", rank, f"0 to {size - 1}")
        self._store, self._name, self._rank, self._size = store, name, rank, size
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self._sitting = ""  # names those who agreed

    def agree(self, text: str) -> list[str]:
        """What each rank says, by rank."""
        self._set("says", f"{secrets.token_hex(8)} {text}")
        while True:
            said = [one.partition(" ") for one in self._all("says", "join")]
            tokens = " ".join(one[0] for one in said)
            self._set("heard", tokens)
            others = [rank for rank, heard in enumerate(self._all("heard", "join")) if heard != tokens]
            if not others:
                self._sitting = hashlib.sha256(tokens.encode()).hexdigest()[:16]
                return [one[2] for one in said]
            self._check_time(others, "join")
            time.sleep(LOOK_AGAIN_S)

    def ready(self) -> None:
        """After `agree`: wait until all are. One that has failed meanwhile says why."""
        self._set(f"ready/{self._sitting}", "")
        for rank, why in enumerate(self._all(f"ready/{self._sitting}", "get ready")):
            if why:
                raise CollectiveError(f"rank {rank} did not get ready: {why}")

    def give_up(self, why: str) -> None:
        """Tell those who wait for us to be ready."""
        if self._sitting:
            self._set(f"ready/{self._sitting}", why)

    def _key(self, what: str, rank: int) -> str:
        return f"softmrc/{self._name}/{what}/{rank}"

    def _set(self, what: str, text: str) -> None:
        self._store.set(self._key(what, self._rank), text.encode())

    def _all(self, what: str, did: str) -> list[str]:
        """What every rank said."""
        texts: list[str] = []
        missing: list[int] = []
        for rank in range(self._size):
            left = min(max(self._until - time.monotonic(), LAST_LOOK_S), LONGEST_S)
            try:
                self._store.wait([self._key(what, rank)], timedelta(seconds=left))
                texts.append(bytes(self._store.get(self._key(what, rank))).decode())
            except Exception as error:  # every store has its own type for "not in time"
                if time.monotonic() < self._until:
                    raise CollectiveError(
                        f"the store failed while rank {self._rank} waited for rank {rank}: {error}"
                    ) from error
                missing.append(rank)
        self._check_time(missing, did)
        return texts

    def _check_time(self, missing: Sequence[int], did: str) -> None:
        if missing and time.monotonic() >= self._until:
            names = ", ".join(f"rank {rank}" for rank in missing)
            raise CollectiveError(f"{names} did not {did} the group of {self._size} within {self._timeout_s:g} s")
