"""The HTTP server of an agent, which closes idle connections.

A connection that does not ask in a while is closed, and so is one that does not take its answer; where many wait, the
one that waited longest goes, of those who have most. Otherwise a hundred silent ones would be the end of every scrape.
What is answered is decided in guard.py and web.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from softmrc.ops.agent.guard import ORIGIN, Guard
from softmrc.ops.agent.origin import origin_of

MAX_AT_ONCE = 128  # connections
MAX_SILENT = 64  # of them, that have asked nothing
HEAD_S = 5.0  # until the whole head of a request has arrived; the rest is not used
TAKEN_S = 10.0  # until some of an answer is taken that waits to be, each time


class HttpConnection(H11Protocol):
    """One connection and its idle timeout."""

    silent_since: float | None = None  # None: it is asking something, or over
    _ends: asyncio.TimerHandle | None = None
    origin = ""
    _untaken = 0  # bytes that waited when the timer was set

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.origin = origin_of(self.client, self.server)
        self.app_state = {**self.app_state, ORIGIN: self.origin}  # what its requests are given
        self._is_silent(True)
        silent = {one: one.silent_since for one in self.connections if isinstance(one, HttpConnection)}
        waiting = {one: since for one, since in silent.items() if since is not None}
        if len(waiting) > MAX_SILENT:
            crowd = Counter(one.origin for one in waiting)
            min(waiting, key=lambda one: (-crowd[one.origin], waiting[one])).close_now()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_silent(False)
        self._stop_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._is_silent(False)

    def on_response_complete(self) -> None:
        self._is_silent(True)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._set_timer()

    def _is_silent(self, is_so: bool) -> None:
        if is_so or self.silent_since is not None:
            self.silent_since = time.monotonic() if is_so else None
            self._set_timer()

    def _set_timer(self) -> None:
        self._stop_timer()
        if self.flow.write_paused or self.silent_since is not None:
            self._untaken = self.transport.get_write_buffer_size()
            self._ends = self.loop.call_later(TAKEN_S if self._untaken else HEAD_S, self._is_over)

    def _stop_timer(self) -> None:
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None

    def _is_over(self) -> None:
        """A slow reader still makes progress."""
        if 0 < self.transport.get_write_buffer_size() < self._untaken:
            self._set_timer()
        else:
            self.close_now()

    def close_now(self) -> None:
        self.silent_since = None
        self.transport.abort()  # close() would wait for a peer that does not read


def config_of(app: Guard) -> uvicorn.Config:
    """How an agent is served."""
    return uvicorn.Config(
        app,
        http=HttpConnection,
        ws="none",
        access_log=False,
        log_level="warning",
        lifespan="off",  # nothing of ours begins with it, and to be ended before it has begun is a traceback
        limit_concurrency=MAX_AT_ONCE,
        timeout_graceful_shutdown=1,
    )
