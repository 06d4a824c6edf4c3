"""The side that calls."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from softmrc.connection.arrange import device_for, named, secret_of, tcp_port
from softmrc.connection.connection import Connection
from softmrc.connection.line import Blocking, Line, Patience, Yielding, dialled, finished
from softmrc.connection.memory import OfferedMemory
from softmrc.connection.offer import Offer
from softmrc.connection.reception import HANDSHAKE_S
from softmrc.errors import RemoteError
from softmrc.handshake import CONNECTOR, Channel, Proof, Refusal, call
from softmrc.verbs import Device
from softmrc.verbs.bounds import seconds

FIRST_PAUSE_S = 0.02  # before it is tried again at a listener that was busy; then twice as long each time ...
LONGEST_PAUSE_S = 0.5  # ... up to this


def connect(
    host: str,
    port: int,
    *,
    memory: Any = None,
    secret: str | bytes | None = None,
    device: Device | None = None,
    planes: Sequence[str] | None = None,
    timeout_s: float = HANDSHAKE_S,
    **settings: Any,
) -> Connection:
    """Reach a listener, at its TCP port. Without `planes`, one plane on the address that leads there; on a host of a
    fabric (`softmrc.fabric.host`), all its planes and every path. `memory` (a buffer, a region of `device`, or several)
    is what the listener may write to; `timeout_s` is for the handshake as a whole, and while there is time left a
    listener that is busy is called again. Without `secret`, SOFTMRC_SECRET."""
    caller = Caller(host, port, memory, secret, device, planes, timeout_s, settings)
    return finished(caller.connection(Blocking()))


async def connect_async(
    host: str,
    port: int,
    *,
    memory: Any = None,
    secret: str | bytes | None = None,
    device: Device | None = None,
    planes: Sequence[str] | None = None,
    timeout_s: float = HANDSHAKE_S,
    **settings: Any,
) -> Connection:
    """`connect` for asyncio. Cancelling it takes effect at once, and leaves nothing behind."""
    caller = Caller(host, port, memory, secret, device, planes, timeout_s, settings)
    return await caller.connection(Yielding())


class Caller:
    """One connect, of as many tries as its time allows."""

    def __init__(
        self,
        host: str,
        port: int,
        memory: Any,
        secret: str | bytes | None,
        device: Device | None,
        planes: Sequence[str] | None,
        timeout_s: float,
        settings: dict[str, Any],
    ) -> None:
        self._host, self._port, self._secret = named(host), tcp_port(port, 1), secret_of(secret)
        self._memory, self._planes, self._settings = memory, planes, settings
        self._device, self._owns_device = device, device is None
        self._until = time.monotonic() + seconds("timeout_s", timeout_s, is_positive=True)

    async def connection(self, patience: Patience) -> Connection:
        """A device that was made for it serves every try, and ends with the last of them."""
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    return await self._try(patience)
                except Busy as busy:
                    wait_s = random.uniform(0.5, 1) * pause_s
                    if time.monotonic() + wait_s >= self._until:
                        raise RemoteError(str(busy)) from None
                await patience.pause(wait_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        except BaseException:
            if self._owns_device and self._device is not None:
                self._device.close()
            raise

    async def _try(self, patience: Patience) -> Connection:
        try:
            sock = await dialled(patience, self._host, self._port, self._until)
        except OSError as error:
            why = error.strerror or error
            raise RemoteError(f"{self._host} port {self._port} does not answer: {why}") from None
        channel = Channel(sock)
        try:
            if self._secret is None:
                channel.require_loopback()
            connection = await self._introduce(Line(channel, patience, self._until), channel)
            sock.settimeout(None)
            return connection
        except Refusal as refusal:
            channel.close()
            raise (Busy if refusal.busy else RemoteError)(f"{channel.peer_name} {refusal}") from None
        except BaseException:
            channel.close()
            raise

    async def _introduce(self, line: Line, channel: Channel) -> Connection:
        """What was made for a connection that fails is let go of."""
        made: list[Connection] = []

        def offer() -> dict[str, Any]:
            made.append(self._half_made(channel, proof))
            return made[0]._offer()

        def accept(said: dict[str, Any]) -> None:
            made[0]._accept(Offer.checked(said, made[0].device, made[0].is_sealed))

        proof = Proof(CONNECTOR, self._secret)
        try:
            await line.follow(call(proof, offer, accept))
        except BaseException:
            for connection in made:
                connection._abandon()
            raise
        return made[0]

    def _half_made(self, channel: Channel, proof: Proof) -> Connection:
        """Of a listener that has proved itself."""
        if self._device is None or not self._owns_device:
            here = channel.socket.getsockname()[0]
            self._device = device_for(here, self._device, self._planes, self._settings)
        offered = OfferedMemory(self._device, self._memory)
        try:
            return Connection(self._device, channel, proof, offered, self._owns_device)
        finally:
            offered.release()  # from here on the connection holds it


class Busy(RemoteError):
    """The listener could not receive everybody."""
