"""Threads that carry operations on when no caller waits for them.

What users hang on a future may do anything, even wait for another operation whose end this crew has to tell: so a job
does not wait for a running one, a new thread takes it, until there are as many as the crew may have. A crew of one
keeps jobs in order instead.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from softmrc import leaving
from softmrc.fork import a_lock

Job = Callable[[], Any]
JOIN_S = 5.0
_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


class Crew:
    """Threads are started when they are needed. After `close` they end when there is nothing to do."""

    def __init__(self, name: str, most: int = 64) -> None:
        self.name = name
        self._most = most
        self._jobs: deque[Job] = deque()
        self._lock = a_lock()
        self._changed = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []
        self._hired = self._idle = 0
        self._closing = False
        _crews.add(self)

    def submit(self, job: Job) -> None:
        """Run it soon; at once, here, where nobody else can: the system has no thread to give."""
        with self._lock:
            self._jobs.append(job)
            if len(self._jobs) <= self._idle:
                self._changed.notify()
            elif self._hired < self._most:
                self._hire()
            if self._hired:
                return
            self._jobs.pop()
        job()

    @property
    def is_busy(self) -> bool:
        with self._lock:
            return bool(self._jobs) or self._idle < self._hired

    def _hire(self) -> None:
        # Daemons, so that the interpreter's end does not wait for a job before `atexit` has let us end it.
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._hired += 1
            self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]

    def _run(self) -> None:
        try:
            while (job := self._next()) is not None:
                job()
                del job  # it holds tensors
        except BaseException:
            with self._lock:
                self._hired -= 1
            raise

    def _next(self) -> Job | None:
        with self._lock:
            self._idle += 1
            while not self._jobs and not self._closing:
                self._changed.wait()
            self._idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self._hired -= 1
            return None

    def close(self) -> None:
        """Let what is there run to its end, and join."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        until = time.monotonic() + JOIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))


def _forget_threads() -> None:
    """A forked child has none of them."""
    for crew in list(_crews):
        crew._changed, crew._threads, crew._hired, crew._idle = threading.Condition(crew._lock), [], 0, 0
        crew._jobs.clear()


os.register_at_fork(after_in_child=_forget_threads)


def _close_all() -> None:
    """A thread that is inside torch when the interpreter ends brings the process down."""
    for crew in list(_crews):
        crew.close()


leaving.at_exit(_close_all)
