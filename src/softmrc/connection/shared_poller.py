"""Several who wait for one completion queue: one of them takes what comes, for all, and the others are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from softmrc._support.threads import fork_safe_lock
from softmrc.device import Completion, CompletionQueue

Note = Callable[[list[Completion]], None]
Question = Callable[[], bool]


class SharedPoller:
    """Whoever took a completion that is another's would leave the other asleep, so only one takes at a time: the
    attendant. What it takes is noted before anybody is told; `note` is given with each call and not kept, since it
    is a method of who keeps this.

    Ctrl-C may come after any call. So a call becomes the attendant by one assignment inside its `try`, and stops being
    it by one, before it calls anything else; and the lock is not the condition's, which takes it in a method. What was
    taken is kept until it has been noted, by the next attendant if this one is interrupted: `note` may be called with
    the same list again."""

    def __init__(self, queue: CompletionQueue) -> None:
        self._queue = queue
        self._lock = fork_safe_lock()
        self._changed = threading.Condition(self._lock)
        self._attendant: object = None  # a token of the call that takes what comes
        self._taken: list[Any] = []  # and not noted yet: lists of completions, or what they will be made of

    def wait(self, is_done: Question, note: Note, timeout_s: float) -> bool:
        """Until something was noted, by this thread or another; False when the time is up."""
        token = object()
        try:
            with self._lock:
                if is_done():
                    return True
                if self._attendant is not None:
                    return self._changed.wait_for(lambda: is_done() or self._attendant is None, timeout_s)
                self._attendant = token
            if not self._taken:
                self._queue.take(self._taken, timeout_s)
            return self._note_taken(note)
        finally:
            if self._attendant is token:
                self._attendant = None
                self._tell()

    async def wait_async(self, is_done: Question, note: Note, timeout_s: float) -> bool:
        """The same for a task, which never attends for longer than a moment."""
        self.look(note)
        if is_done():
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._queue.readable(unless=is_done)
                self.look(note)
                return True
        return False

    def look(self, note: Note) -> bool:
        """Have noted what is there now; False if that was nothing."""
        token = object()
        try:
            with self._lock:
                if self._attendant is not None:
                    return True  # who knows: another is about to say
                self._attendant = token
            self._queue.take(self._taken)
            return self._note_taken(note)
        finally:
            if self._attendant is token:
                self._attendant = None
                self._tell()

    def _note_taken(self, note: Note) -> bool:
        taken = self._taken
        has_any = bool(taken)
        while taken:
            if not isinstance(taken[0], list):
                taken[0] = self._queue.completions(taken[0])
            note(taken[0])
            del taken[0]
        return has_any

    def _tell(self) -> None:
        """That nobody is the attendant. Who is not told looks again when its time is up."""
        with self._lock:
            self._changed.notify_all()
        self._queue.wake()
