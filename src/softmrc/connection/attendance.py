"""Several who wait for one completion queue: one of them takes what comes, for all, and the others are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from softmrc.verbs import Completion, CompletionQueue

Note = Callable[[list[Completion]], None]
Question = Callable[[], bool]


class Attendance:
    """Whoever took a completion that is another's would leave the other asleep, so only one takes at a time: the
    attendant. What it takes is noted before anybody is told; `note` is given with each call and not kept, since it
    is a method of who keeps this."""

    def __init__(self, queue: CompletionQueue) -> None:
        self._queue = queue
        self._changed = threading.Condition()
        self._is_attended = False

    def wait(self, is_done: Question, note: Note, timeout_s: float) -> bool:
        """Until something was noted, by this thread or another; False when the time is up."""
        with self._changed:
            if is_done():
                return True
            if self._is_attended:
                return self._changed.wait_for(lambda: is_done() or not self._is_attended, timeout_s)
            self._is_attended = True
        return self._attend(lambda: self._queue.wait(timeout_s), note)

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
        with self._changed:
            if self._is_attended:
                return True  # who knows: another is about to say
            self._is_attended = True
        return self._attend(self._queue.poll, note)

    def _attend(self, take: Callable[[], list[Completion]], note: Note) -> bool:
        try:
            found = take()
            note(found)
        finally:
            with self._changed:
                self._is_attended = False
                self._changed.notify_all()
            self._queue.wake()
        return bool(found)
