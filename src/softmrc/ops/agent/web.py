"""The agent's pages: /metrics, /healthz, /api/state, /api/stream; and / for people, where it is a dashboard."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from softmrc.ops.agent.collect import Collector
from softmrc.ops.agent.guard import ORIGIN, Guard, ListenAddress
from softmrc.ops.agent.metrics import text_of
from softmrc.ops.agent.state import state_of
from softmrc.ops.agent.watch import FabricWatch

EVERY_S = 0.5
MAX_STREAMS = 32
MAX_STREAMS_OF_ONE = 16  # user, or address: one alone leaves places for the others
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
}


class EventStream(StreamingResponse):
    """Server-sent events. Says when it has ended, however it did, also before its first line."""

    def __init__(self, lines: AsyncIterator[bytes], leave: Callable[[], None]) -> None:
        super().__init__(lines, headers=HEADERS, media_type="text/event-stream")
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


class AsciiJsonResponse(JSONResponse):
    """In ASCII: what devices say may have halves of characters in it, which no encoding takes."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class Site:
    """What is served, from one collector; with a page if it is a dashboard."""

    def __init__(self, collector: Collector, watch: FabricWatch | None = None, page: bool = False) -> None:
        self.collector, self.watch, self._has_page = collector, watch, page
        self._streams: Counter[str] = Counter()  # by whose they are

    def app(self, listen: ListenAddress) -> Guard:
        routes = [
            Route("/metrics", self._metrics),
            Route("/healthz", self._health),
            Route("/api/state", self._state),
            Route("/api/stream", self._stream),
        ]
        if self._has_page:
            routes += [Route("/", self._page), Route("/fabric.svg", self._drawing)]
        return Guard(Starlette(routes=routes), listen)

    async def _metrics(self, _: Request) -> Response:
        text = await run_in_threadpool(text_of, self.collector)
        return Response(text, headers=HEADERS, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _health(self, _: Request) -> Response:
        seen = await run_in_threadpool(self.collector.look)
        words = f"{len(seen)} device{'s' * (len(seen) != 1)}" if seen else "no device is running"
        return PlainTextResponse(f"ok, {words}\n", headers=HEADERS)

    async def _state(self, _: Request) -> Response:
        return AsciiJsonResponse(await run_in_threadpool(state_of, self.collector, self.watch), headers=HEADERS)

    async def _stream(self, request: Request) -> Response:
        origin = request.scope.get("state", {}).get(ORIGIN, "")
        for count, most in ((self._streams.total(), MAX_STREAMS), (self._streams[origin], MAX_STREAMS_OF_ONE)):
            if count >= most:
                return PlainTextResponse(f"{most} pages look already\n", status_code=503, headers=HEADERS)
        self._streams[origin] += 1  # before the limit is checked for another; given back when the answer has ended
        return EventStream(self._lines(request), partial(self._leave, origin))

    def _leave(self, origin: str) -> None:
        self._streams[origin] -= 1
        if not self._streams[origin]:
            del self._streams[origin]

    async def _lines(self, request: Request) -> AsyncIterator[bytes]:
        while not await request.is_disconnected():
            state: dict[str, Any] = await run_in_threadpool(state_of, self.collector, self.watch)
            yield b"data: " + json.dumps(state, separators=(",", ":")).encode() + b"\n\n"
            await asyncio.sleep(EVERY_S)

    async def _page(self, _: Request) -> Response:
        text = (resources.files(__package__) / "page.html").read_text(encoding="utf-8")
        return Response(text, headers=HEADERS, media_type="text/html; charset=utf-8")

    async def _drawing(self, _: Request) -> Response:
        if self.watch is None:
            return PlainTextResponse("no fabric is watched\n", status_code=404, headers=HEADERS)
        return Response(await run_in_threadpool(self.watch.drawing), headers=HEADERS, media_type="image/svg+xml")
