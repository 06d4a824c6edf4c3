"""Ranks that meet in a store that is a dictionary, one step at a time, by a clock that is a number.

Every question to the store may take long before it has its effect, or after, and may be the last one of a life. How
long it takes is drawn, so that a seed can be replayed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from softmrc.collectives import CollectiveError, store_rendezvous
from softmrc.collectives.store_rendezvous import RendezvousRestarted, StoreRendezvous

TIMEOUT_S, LAST_S = 60.0, 5.0  # how long a life waits, and in what time it gives up at most
QUICK_S, SLOW_S, LONG_S = 0.0005, 0.05, 0.7  # how long a step takes at most, mostly, sometimes and rarely
WHOLE, MORE = "whole", "more"  # whether what a life says is all there is to say


class Crash(BaseException):
    """A process is gone, without a word."""


@dataclass(eq=False)
class Life:
    """One attempt of a rank to join; another one comes after it has ended."""

    rank: int
    run: int
    words: str
    crashes_at: int = -1  # the step that it does not survive
    starts: float = 0.0
    steps: int = 0
    signs: list[str] = field(default_factory=list)  # that it left
    ready: str = ""  # the nonce
    said: list[str] = field(default_factory=list)  # by those who are ready with it
    error: BaseException | None = None
    wakes: float = 0.0
    turn: Any = field(default_factory=lambda: threading.Semaphore(0))
    is_doomed: bool = False
    has_ended: bool = False
    ended: float = 0.0

    def __repr__(self) -> str:
        return f"{self.words}: {self.ready or self.error!r}"


class World:
    """All lives, and what they can see."""

    def __init__(self, seed: int, size: int) -> None:
        self.random, self.size = random.Random(seed), size
        self.shared_secret = b"what all lives know" if seed % 2 else None
        self.now = 0.0
        self.held: dict[str, bytes] = {}
        self.takes_several = self.random.random() < 0.5
        self.lives: list[Life] = []
        self._alive: list[Life] = []
        self._turn = threading.Semaphore(0)
        self._now_lives: Life | None = None

    def begin(self, life: Life, after_s: float = 0.0) -> Life:
        life.wakes = life.starts = self.now + after_s
        self.lives.append(life)
        self._alive.append(life)
        threading.Thread(target=self._live, args=(life,), daemon=True).start()
        return life

    def run(self, then: Callable[[Life], None] = lambda _: None) -> None:
        """Until all lives have ended; `then` may begin another after each."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_rendezvous, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._pause))
            while self._alive:
                when = [(life.wakes, self.random.random()) for life in self._alive]
                life = self._alive[when.index(min(when))]
                self.now = max(self.now, min(when)[0])
                self._now_lives = life
                life.turn.release()
                assert self._turn.acquire(timeout=60), "a life does not pause"
                if life.has_ended:
                    self._alive.remove(life)
                    then(life)

    def end_all(self) -> None:
        """Crash all that live, wherever they are."""
        for life in self._alive:
            life.wakes, life.is_doomed = self.now, True

    def _live(self, life: Life) -> None:
        life.turn.acquire()
        try:
            self._join(life)
        except BaseException as error:
            life.error = error
        life.has_ended, life.ended = True, self.now
        self._turn.release()

    def _join(self, life: Life) -> None:
        """As `GroupJoin` does: at once where all have said all; else they say the rest in another exchange."""
        meets = StoreRendezvous(Steps(self, life), "group", life.rank, self.size, TIMEOUT_S, self.shared_secret)
        while True:
            try:
                said = meets.join(life.words)
                self.step()
                if not all(one.endswith(WHOLE) for one in said):
                    meets.exchange("places", "the rest")
                    self.step()
                meets.be_ready()
                break
            except RendezvousRestarted:
                pass
        life.ready, life.said = meets.nonce, said

    def step(self) -> None:
        """One rank does something, which takes a while."""
        life = self._now_lives
        assert life is not None
        if life.steps == life.crashes_at:
            raise Crash
        life.steps += 1
        most = self.random.choices((QUICK_S, SLOW_S, LONG_S), (85, 10, 5))[0]
        self._pause(self.random.uniform(0, most))

    def _pause(self, seconds: float) -> None:
        life = self._now_lives
        assert life is not None
        life.wakes = self.now + seconds
        self._turn.release()
        life.turn.acquire()
        if life.is_doomed:
            raise Crash


class Steps:
    """The store, as one life sees it."""

    def __init__(self, world: World, life: Life) -> None:
        self._world, self._life = world, life

    def set(self, key: str, value: bytes) -> None:
        self._world.step()
        self._world.held[key] = value
        self._life.signs.append(key)
        self._world.step()

    def get(self, key: str) -> bytes:
        self._world.step()
        return self._world.held[key]

    def check(self, keys: list[str]) -> bool:
        self._world.step()
        found = all(key in self._world.held for key in keys)
        self._world.step()
        return found

    def has_extended_api(self) -> bool:
        return self._world.takes_several

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._world.step()
        found = [self._world.held[key] for key in keys]
        self._world.step()
        return found


def check_safety(lives: list[Life]) -> dict[str, list[Life]]:
    """Who is ready is so with all that it has in its list, unless they died, or had waited for so long that they were
    about to give up. By nonce, who was ready."""
    ready: dict[str, list[Life]] = {}
    for life in lives:
        if life.ready:
            ready.setdefault(life.ready, []).append(life)
        else:
            assert isinstance(life.error, Crash | CollectiveError), life
    by_words = {life.words: life for life in lives}
    for nonce, together in ready.items():
        for life in together:
            assert life.said == together[0].said and life.words in life.said
            for words in life.said:
                other = by_words[words]
                is_late = other.error and other.ended < life.ended + LAST_S
                has_died = isinstance(other.error, Crash)
                assert other.ready == nonce or has_died or is_late, f"{life} is ready with {other}"
                assert f"softmrc/group/ready/{nonce}/{other.rank or 'all'}" in other.signs
    return ready
