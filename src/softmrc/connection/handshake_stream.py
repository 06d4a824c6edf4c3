"""Frames over a TCP connection, in time: for a thread that may block, and for a task that must not.

What is said on a line is written once, as a coroutine. A task awaits it. A thread runs it to its end in one go, because
all that it awaits then is a `BlockingIo` that returns when it is done.
"""

from __future__ import annotations

import asyncio
import errno
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from softmrc.connection.dial import DialCandidate
from softmrc.connection.handshake import WHAT_IS_IT, BootstrapSocket, Call, HandshakeError, framed
from softmrc.errors import InternalError

HEAD_START_S = 0.1  # of each way before the next one
T = TypeVar("T")
Where = list[tuple[Any, ...]]  # as getaddrinfo says it


class HandshakeIo(Protocol):
    """How one waits. Whatever takes longer than `left_s` raises TimeoutError."""

    async def resolve(self, host: str, port: int, left_s: float) -> Where: ...
    async def writable(self, socks: list[socket.socket], left_s: float) -> list[socket.socket]: ...
    async def send(self, sock: socket.socket, data: bytes, left_s: float) -> None: ...
    async def receive(self, sock: socket.socket, left_s: float) -> bytes: ...
    async def pause(self, duration_s: float) -> None: ...


class BlockingIo:
    """The thread sleeps."""

    async def resolve(self, host: str, port: int, left_s: float) -> Where:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    async def writable(self, socks: list[socket.socket], left_s: float) -> list[socket.socket]:
        with selectors.DefaultSelector() as selector:
            for sock in socks:
                selector.register(sock, selectors.EVENT_WRITE, sock)
            return [key.data for key, _ in selector.select(left_s)]

    async def send(self, sock: socket.socket, data: bytes, left_s: float) -> None:
        sock.settimeout(left_s)
        sock.sendall(data)

    async def receive(self, sock: socket.socket, left_s: float) -> bytes:
        sock.settimeout(left_s)
        return sock.recv(1 << 16)

    async def pause(self, duration_s: float) -> None:
        time.sleep(duration_s)


class AsyncIo:
    """Other tasks of the event loop run; cancelling takes effect at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def resolve(self, host: str, port: int, left_s: float) -> Where:
        with suppress(socket.gaierror):  # an address needs no asking, and so no thread
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        async with asyncio.timeout(left_s):
            return await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    async def writable(self, socks: list[socket.socket], left_s: float) -> list[socket.socket]:
        found: asyncio.Future[socket.socket] = self._loop.create_future()

        def tell(sock: socket.socket) -> None:
            if not found.done():
                found.set_result(sock)

        try:
            for sock in socks:
                self._loop.add_writer(sock, tell, sock)
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    return [await found]
            return []
        finally:
            for sock in socks:
                self._loop.remove_writer(sock)

    async def send(self, sock: socket.socket, data: bytes, left_s: float) -> None:
        async with asyncio.timeout(left_s):
            await self._loop.sock_sendall(sock, data)

    async def receive(self, sock: socket.socket, left_s: float) -> bytes:
        async with asyncio.timeout(left_s):
            return await self._loop.sock_recv(sock, 1 << 16)

    async def pause(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


def run_blocking(told: Coroutine[Any, Any, T]) -> T:
    """The end of a coroutine whose patience is `BlockingIo`."""
    try:
        told.send(None)
    except StopIteration as end:
        return end.value
    raise InternalError("a coroutine that blocks has waited for an event loop")


async def dialled(patience: HandshakeIo, ways: list[DialCandidate], until: float) -> socket.socket:
    """A TCP connection by the first way that answers. Each has a head start before the next is tried beside it, so that
    one that is dead costs a moment; a refusal is an answer too, for all ways to that address."""
    left, trying = deque(ways), dict[socket.socket, DialCandidate]()
    failure: OSError | None = None
    next_at = 0.0
    try:
        while left or trying:
            if left and time.monotonic() >= next_at:
                way = left.popleft()
                try:
                    trying[way.begin()] = way
                    next_at = time.monotonic() + HEAD_START_S
                except OSError as error:
                    failure = failure or error
                continue
            left_s = min(_left_s(until), max(0.0, next_at - time.monotonic()) if left else _left_s(until))
            for sock in await patience.writable(list(trying), left_s):
                way = trying.pop(sock)
                if not (number := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
                    return sock
                sock.close()
                next_at = 0.0
                if number == errno.ECONNREFUSED:
                    left = deque(other for other in left if other.address != way.address)
                if failure is None or number == errno.ECONNREFUSED:
                    failure = OSError(number, os.strerror(number))
    finally:
        for sock in trying:
            sock.close()
    raise failure or TimeoutError("timed out")


def _left_s(until: float) -> float:
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s


class HandshakeStream:
    """One end of a handshake."""

    def __init__(self, channel: BootstrapSocket, patience: HandshakeIo, until: float) -> None:
        self._channel = channel
        self.patience = patience
        self._until = until
        self._doubt = WHAT_IS_IT  # until it has said something

    async def follow(self, steps: Call, measure: Callable[[], Awaitable[int]]) -> None:
        """Take each step when its turn has come; where it is refused, the other side is told. One that says nothing
        wants to know what `measure` finds."""
        try:
            frame = next(steps)
            while True:
                try:
                    if frame is None:
                        frame = steps.send({"mtu": await measure()})
                        continue
                    await self._send(frame)
                    frame = steps.send(await self._receive())
                except StopIteration as end:
                    if end.value is not None:
                        await self._send(end.value)
                    return
        except HandshakeError as refusal:
            if refusal.told:
                with suppress(HandshakeError):
                    await self._send(refusal.frame)
            raise

    async def _send(self, frame: dict[str, Any]) -> None:
        sock, data = self._channel.socket, framed(frame)
        try:
            await self._in_time(lambda left_s: self.patience.send(sock, data, left_s))
        except HandshakeError:
            await self._receive()  # who hung up may have said why
            raise

    async def _receive(self) -> dict[str, Any]:
        sock = self._channel.socket
        while (frame := self._channel.inbox.next()) is None:
            data = await self._in_time(lambda left_s: self.patience.receive(sock, left_s))
            if not data:
                raise HandshakeError(f"closed the connection during the handshake{self._doubt}")
            self._channel.inbox.add(data)
        self._doubt = ""
        return frame

    async def _in_time(self, act: Callable[[float], Awaitable[T]]) -> T:
        try:
            return await act(_left_s(self._until))
        except TimeoutError:
            raise HandshakeError(f"did not finish the handshake in time{self._doubt}") from None
        except OSError as error:
            raise HandshakeError(f"is gone: {error.strerror or error}") from None
