"""The agent's pages: /metrics, /healthz, /api/state, /api/stream; and / for people, where it is a dashboard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from softmrc.agent.collect import Collector
from softmrc.agent.guard import Guard, Listen
from softmrc.agent.metrics import text_of
from softmrc.agent.state import state_of
from softmrc.agent.watch import FabricWatch

EVERY_S = 0.5
MOST_STREAMS = 32
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


class Site:
    """What is served, from one collector; with a page if it is a dashboard."""

    def __init__(self, collector: Collector, watch: FabricWatch | None = None, page: bool = False) -> None:
        self.collector, self.watch, self._has_page = collector, watch, page
        self._streams = 0

    def app(self, listen: Listen) -> Guard:
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
        return JSONResponse(await run_in_threadpool(state_of, self.collector, self.watch), headers=HEADERS)

    async def _stream(self, request: Request) -> Response:
        if self._streams >= MOST_STREAMS:
            return PlainTextResponse(f"{MOST_STREAMS} pages look already\n", status_code=503, headers=HEADERS)
        return StreamingResponse(self._lines(request), headers=HEADERS, media_type="text/event-stream")

    async def _lines(self, request: Request) -> AsyncIterator[bytes]:
        self._streams += 1
        try:
            while not await request.is_disconnected():
                state: dict[str, Any] = await run_in_threadpool(state_of, self.collector, self.watch)
                yield b"data: " + json.dumps(state, separators=(",", ":")).encode() + b"\n\n"
                await asyncio.sleep(EVERY_S)
        finally:
            self._streams -= 1

    async def _page(self, _: Request) -> Response:
        text = (resources.files(__package__) / "page.html").read_text(encoding="utf-8")
        return Response(text, headers=HEADERS, media_type="text/html; charset=utf-8")

    async def _drawing(self, _: Request) -> Response:
        if self.watch is None:
            return PlainTextResponse("no fabric is watched\n", status_code=404, headers=HEADERS)
        return Response(await run_in_threadpool(self.watch.drawing), headers=HEADERS, media_type="image/svg+xml")
