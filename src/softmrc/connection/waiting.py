"""How a connector waits: a thread that may block, and a task that must not.

What it does is written once, as a coroutine. A task awaits it. A thread runs it to its end in one go, because all that
it awaits then is a `BlockingWait` that returns when it is done.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from softmrc.errors import InternalError

T = TypeVar("T")
Where = list[tuple[Any, ...]]  # as getaddrinfo says it


class Wait(Protocol):
    async def resolve(self, host: str, port: int, left_s: float) -> Where: ...
    async def readable(self, fd: int, left_s: float) -> None: ...
    async def pause(self, duration_s: float) -> None: ...


class BlockingWait:
    """The thread sleeps."""

    async def resolve(self, host: str, port: int, left_s: float) -> Where:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    async def readable(self, fd: int, left_s: float) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(max(left_s, 0.0) * 1e3)

    async def pause(self, duration_s: float) -> None:
        time.sleep(duration_s)


class AsyncWait:
    """Other tasks of the event loop run; cancelling takes effect at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def resolve(self, host: str, port: int, left_s: float) -> Where:
        with suppress(socket.gaierror):  # an address needs no asking, and so no thread
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        async with asyncio.timeout(left_s):
            return await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    async def readable(self, fd: int, left_s: float) -> None:
        is_readable = asyncio.Event()
        self._loop.add_reader(fd, is_readable.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(left_s, 0.0)):
                    await is_readable.wait()
        finally:
            self._loop.remove_reader(fd)

    async def pause(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


def run_blocking(told: Coroutine[Any, Any, T]) -> T:
    """The end of a coroutine that awaits a `BlockingWait`."""
    try:
        told.send(None)
    except StopIteration as end:
        return end.value
    raise InternalError("a coroutine that blocks has waited for an event loop")
