"""How a connector waits: a thread that may block, and a task that must not.

What it does is written once, as a coroutine. A task awaits it. A thread runs it to its end in one go, because all that
it awaits then is a `BlockingWait` that returns when it is done.
"""

from __future__ import annotations

import asyncio
import queue
import select
import socket
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from softmrc.errors import InternalError

T = TypeVar("T")
Where = list[tuple[Any, ...]]  # as getaddrinfo returns it
NOT_RESOLVED = "the name was not resolved in time"


class Wait(Protocol):
    async def resolve(self, host: str, port: int, left_s: float) -> Where: ...
    async def readable(self, fd: int, left_s: float) -> None: ...
    async def pause(self, duration_s: float) -> None: ...


class BlockingWait:
    """The thread sleeps."""

    async def resolve(self, host: str, port: int, left_s: float) -> Where:
        """A name is looked up in a separate thread, since the system may take longer than there is time."""
        with suppress(socket.gaierror):
            return _numeric(host, port)
        answers: queue.SimpleQueue[Where | Exception] = queue.SimpleQueue()

        def look_up() -> None:
            try:
                answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except Exception as error:
                answers.put(error)

        threading.Thread(target=look_up, name="softmrc-resolver", daemon=True).start()
        try:
            found = answers.get(timeout=left_s)
        except queue.Empty:
            raise TimeoutError(NOT_RESOLVED) from None
        if isinstance(found, Exception):
            raise found
        return found

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
        with suppress(socket.gaierror):
            return _numeric(host, port)
        try:
            async with asyncio.timeout(left_s):
                return await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise TimeoutError(NOT_RESOLVED) from None

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


def _numeric(host: str, port: int) -> Where:
    """An address needs no name server, and so no thread."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)


def run_blocking(waiting: Coroutine[Any, Any, T]) -> T:
    """The end of a coroutine that awaits a `BlockingWait`."""
    try:
        waiting.send(None)
    except StopIteration as end:
        return end.value
    raise InternalError("a coroutine that blocks has waited for an event loop")
