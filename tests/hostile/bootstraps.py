"""The targets of attacks: listener and connector of connections, and those of the NCCL plugin in another process."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from liar import LIMIT_S, Liar, encoded, eventually, honest, is_left_as_it_was, serves_an_honest_one

import parts
from nccl.story import begin
from softmrc._core import Credentials, HandshakeEvent
from softmrc.connection import connect, listen
from softmrc.errors import MrcError

SECRET = "what both ends know"
HOST = "127.0.0.1"
LAYOUT = 32  # bytes of an NCCL offer that say how its memory is laid out


class Bootstrap(Protocol):
    port: int

    def credentials(self, secret: str = SECRET) -> Credentials:
        """Those of this listener, if the secret is the right one."""

    def log(self) -> str:
        """What the listener has said of those that it refused."""

    def serves(self, port: int = 0) -> bool:
        """Whether data gets through from an honest connector, by another port if one is given."""

    def call(self, port: int) -> str:
        """How a connector ends that connects to this port."""

    def offer(self, changes: dict[str, Any]) -> bytes:
        """An honest one with these changes."""

    def is_left_as_it_was(self) -> bool:
        """No client has been accepted, and nothing is left of those that were refused."""

    def starved(self) -> Any:
        """A context in which the listener's process can open no descriptor."""


@contextmanager
def only(free: int, more: int = 104) -> Iterator[None]:
    """This process may open so many descriptors more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        with open(os.devnull) as source:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, source.fileno() + more), hard))
            with suppress(OSError):
                while True:
                    held.append(os.dup(source.fileno()))
            for _ in range(free):
                os.close(held.pop())
            yield
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Connections:
    def __init__(self, stack: ExitStack) -> None:
        self.listener = stack.enter_context(listen(memory=bytearray(64), secret=SECRET))
        self.port = self.listener.port

    def credentials(self, secret: str = SECRET) -> Credentials:
        return Credentials.of_secret(secret.encode())

    def log(self) -> str:
        return "\n".join(self.listener.refused.reasons)

    def serves(self, port: int = 0) -> bool:
        return serves_an_honest_one(self.listener, port=port, secret=SECRET)

    def call(self, port: int) -> str:
        try:
            connect(HOST, port, secret=SECRET, timeout_s=LIMIT_S).close()
        except MrcError as error:
            return str(error)
        return "connected"

    def offer(self, changes: dict[str, Any]) -> bytes:
        return encoded(honest(**changes))

    def is_left_as_it_was(self) -> bool:
        with suppress(TimeoutError):
            self.listener.accept(0)
            return False
        return is_left_as_it_was(self.listener)

    def starved(self) -> Any:
        return only(0)


class Plugin:
    def __init__(self, stack: ExitStack, folder: Path, **more: str) -> None:
        self._story = begin(folder, 11, 1, "attacked", SOFTMRC_SECRET=SECRET, SOFTMRC_PLANES=HOST, **more)
        stack.callback(self._end)
        port, token = self._line().split()
        self.port, self._token = int(port), bytes.fromhex(token)
        self.pid = self._story.process.pid
        self._layout = self._seen_offer()[-LAYOUT:]
        self.serves()
        self._before = self.held()

    def _seen_offer(self) -> bytes:
        """What its connector offers."""
        with socket.create_server((HOST, 0)) as server:
            seen: list[bytes] = []

            def listen_once() -> None:
                with server.accept()[0] as sock:
                    liar = Liar(sock, self.credentials(), is_connector=False)
                    liar.greet()
                    liar.receive(HandshakeEvent.OFFERED)
                    seen.append(liar.handshake.content)
                    liar.handshake.refuse("", "thank you")
                    liar.send()

            thread = threading.Thread(target=listen_once)
            thread.start()
            assert "refused: thank you" in self.call(server.getsockname()[1])
            thread.join(LIMIT_S)
            return seen[0]

    def _end(self) -> None:
        code, said, wrong = self._story.end()
        assert code == 0 and "all holds" in said, f"{code} {said}{wrong}"

    def _line(self) -> str:
        assert self._story.process.stdout is not None
        line = self._story.process.stdout.readline()
        if not line:
            self._end()
        return line.rstrip("\n")

    def command(self, words: str) -> str:
        assert self._story.process.stdin is not None
        self._story.process.stdin.write(words + "\n")
        self._story.process.stdin.flush()
        return self._line()

    def credentials(self, secret: str = SECRET) -> Credentials:
        return parts.credentials(secret.encode(), self._token)

    def log(self) -> str:
        lines = [self.command("log")]
        while lines[-1] != ".":
            lines.append(self._line())
        return "\n".join(lines[:-1])

    def serves(self, port: int = 0, times: int = 1) -> bool:
        return self.command(f"serve {times} {port}") == "served"

    def call(self, port: int) -> str:
        return self.command(f"call {port}")

    def offer(self, changes: dict[str, Any]) -> bytes:
        return encoded(honest(regions=[], more=self._layout) | changes)

    def held(self) -> tuple[int, int, int]:
        """Descriptors, threads, KiB of memory."""
        descriptors, threads, kib = map(int, self.command("held").split())
        return descriptors, threads, kib

    def is_left_as_it_was(self) -> bool:
        """The process ends where a client was accepted."""
        return eventually(lambda: all(now <= then for now, then in zip(self.held()[:2], self._before, strict=False)))

    @contextmanager
    def starved(self) -> Iterator[None]:
        assert self.command("starve") == "starved"
        try:
            yield
        finally:
            assert self.command("feed") == "fed"
