"""Threads that carry operations on when no caller waits for them.

What users hang on a future may do anything, even wait for another operation whose end this pool has to tell: so a job
does not wait for a running one, a new thread takes it, until there are as many as the pool may have. A pool of one
keeps jobs in order instead.

A finalizer may give it a job, or close it, in the middle of anything: while the lock is held nothing is called but what
numbers are made with, and the queue is one that bears it (docs/design/driver.md).
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from softmrc._support.threads import fork_safe_lock, has_started
from softmrc.device import shutdown

Job = Callable[[], Any]
JOIN_S = 5.0
_pools: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


class ThreadPool:
    """Threads are started when they are needed. After `close` they end when there is nothing to do."""

    def __init__(self, name: str, most: int = 64) -> None:
        self.name = name
        self._most = most
        self._lock = fork_safe_lock()
        self._closing = False
        _pools.add(self)
        self.restart()

    def restart(self) -> None:
        """Without threads or jobs, as in a forked child."""
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()  # None: look whether there is anything to do
        self._due = 0  # jobs that are waiting, or being done
        self._running = 0
        self._threads: list[threading.Thread] = []

    def submit(self, job: Job) -> None:
        """Run it soon; at once in the calling thread, if the system has no thread to give."""
        is_short = False
        with self._lock:
            self._due += 1
            if self._running < self._most and self._running < self._due:
                self._running += 1
                is_short = True
        self._jobs.put(job)
        if is_short:
            self._spawn()

    @property
    def is_busy(self) -> bool:
        return self._due > 0

    def _spawn(self) -> None:
        # Daemons, so that the interpreter's end does not wait for a job before `atexit` has let us end it.
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except BaseException as error:
            if not has_started(thread):
                with self._lock:
                    self._running -= 1
                if not self._running:
                    self._do_all()
            if not isinstance(error, RuntimeError):
                raise

    def _do_all(self) -> None:
        """Run all jobs in the calling thread."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            self._do(job)

    def _do(self, job: Job | None) -> None:
        if job is None:
            return
        try:
            job()
        finally:
            with self._lock:
                self._due -= 1

    def _run(self) -> None:
        is_needed = True
        while is_needed:
            try:
                self._do(self._jobs.get())
            except BaseException:  # a job reports its own errors; this is something else
                sys.excepthook(*sys.exc_info())
            with self._lock:
                is_needed = bool(self._due) or not self._closing
                self._running -= not is_needed
        if self._running:
            self._jobs.put(None)

    def close(self) -> None:
        """Let what is there run to its end, and join."""
        self._closing = True
        self._jobs.put(None)
        until = time.monotonic() + JOIN_S
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))


def _forget_threads() -> None:
    """A forked child has none of them."""
    for pool in list(_pools):
        pool.restart()


os.register_at_fork(after_in_child=_forget_threads)


def _close_all() -> None:
    """A thread that is inside torch when the interpreter ends brings the process down."""
    for pool in list(_pools):
        pool.close()


shutdown.at_exit(_close_all)
