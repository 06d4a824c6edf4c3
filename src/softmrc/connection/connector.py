"""The side that calls."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Sequence
from typing import Any

from softmrc.connection import path_check
from softmrc.connection.acceptor import HANDSHAKE_S
from softmrc.connection.bootstrap import (
    Folder,
    Knowledge,
    all_named,
    authenticator_of,
    credentials_of,
    device_for,
    planes_before,
    tcp_port,
)
from softmrc.connection.connection import Connection
from softmrc.connection.dial import DialCandidate, dial_candidates, fabric_candidates
from softmrc.connection.handshake import CONNECTOR, Authenticator, BootstrapSocket, HandshakeError, call
from softmrc.connection.handshake_stream import AsyncIo, BlockingIo, HandshakeIo, HandshakeStream, dialled, run_blocking
from softmrc.connection.memory import OfferedMemory
from softmrc.connection.offer import Offer
from softmrc.connection.path_mtu import MtuDiscovery
from softmrc.device import Device
from softmrc.device.checks import seconds
from softmrc.errors import RemoteError
from softmrc.fabric.host import FabricHost

FIRST_PAUSE_S = 0.02  # before it is tried again at a listener that was busy; then twice as long each time ...
LONGEST_PAUSE_S = 0.5  # ... up to this


def connect(
    host: str,
    port: int,
    *,
    memory: Any = None,
    secret: str | bytes | None = None,
    identity: Folder | None = None,
    device: Device | None = None,
    planes: Sequence[str] | None = None,
    timeout_s: float = HANDSHAKE_S,
    **settings: Any,
) -> Connection:
    """Reach a listener, at its TCP port. `host` may be several addresses of it, with commas between them; the handshake
    takes the first way that answers, over any plane of this side. Without `planes`, those of SOFTMRC_PLANES; on a host
    of a fabric (`softmrc.fabric.host`), all its planes and every path; else one plane, on the address that leads there.
    `memory` (a buffer, a region of `device`, or several) is what the listener may write to; `timeout_s` is for all of
    it, the first answers by UDP too, and while there is time left a listener that is busy is called again. `identity`
    is a folder with a key and those of known peers (`softmrc.connection.identity`); the peer must have the name given
    there. Without it and `secret`, SOFTMRC_IDENTITY or SOFTMRC_SECRET."""
    caller = Connector(host, port, memory, credentials_of(secret, identity), device, planes, timeout_s, settings)
    return run_blocking(caller.connection(BlockingIo()))


async def connect_async(
    host: str,
    port: int,
    *,
    memory: Any = None,
    secret: str | bytes | None = None,
    identity: Folder | None = None,
    device: Device | None = None,
    planes: Sequence[str] | None = None,
    timeout_s: float = HANDSHAKE_S,
    **settings: Any,
) -> Connection:
    """`connect` for asyncio. Cancelling it takes effect at once, and leaves nothing behind."""
    caller = Connector(host, port, memory, credentials_of(secret, identity), device, planes, timeout_s, settings)
    return await caller.connection(AsyncIo())


class Connector:
    """One connect, of as many tries as its time allows."""

    def __init__(
        self,
        host: str,
        port: int,
        memory: Any,
        knowledge: Knowledge,
        device: Device | None,
        planes: Sequence[str] | None,
        timeout_s: float,
        settings: dict[str, Any],
    ) -> None:
        self._hosts, self._port, self._knowledge = all_named(host), tcp_port(port, 1), knowledge
        self._dialled = (*self._hosts, *host.split(","))
        self._memory, self._planes, self._settings = memory, planes, settings
        self._device, self._owns_device = device, device is None
        self._until = time.monotonic() + seconds("timeout_s", timeout_s, is_positive=True)

    async def connection(self, patience: HandshakeIo) -> Connection:
        """A device that was made for it serves every try, and ends with the last of them."""
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    return await self._try(patience)
                except ListenerBusy as busy:
                    wait_s = random.uniform(0.5, 1) * pause_s
                    if time.monotonic() + wait_s >= self._until:
                        raise RemoteError(str(busy)) from None
                await patience.pause(wait_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        except BaseException:
            if self._owns_device and self._device is not None:
                self._device.close()
            raise

    async def _try(self, patience: HandshakeIo) -> Connection:
        ways = await self._ways(patience)
        try:
            sock = await dialled(patience, ways, self._until)
        except OSError as error:
            raise self._unanswered(error) from None
        channel = BootstrapSocket(sock)
        try:
            if self._knowledge is None:
                channel.require_loopback()
            connection = await self._introduce(HandshakeStream(channel, patience, self._until), channel)
            sock.settimeout(None)
            await self._see_planes(connection, patience)
            return connection
        except HandshakeError as refusal:
            channel.close()
            raise (ListenerBusy if refusal.busy else RemoteError)(f"{channel.peer_name} {refusal}") from None
        except BaseException:
            channel.close()
            raise

    async def _ways(self, patience: HandshakeIo) -> list[DialCandidate]:
        """By every name and address, over every plane."""
        planes, here = planes_before(self._hosts[0], self._device, self._planes), FabricHost.from_environment()
        places: list[tuple[Any, ...]] = []
        failure: OSError = TimeoutError("timed out")
        for host in self._hosts:
            try:
                places += await patience.resolve(host, self._port, max(self._until - time.monotonic(), 0.0))
            except OSError as error:
                failure = error
        if not places:
            raise self._unanswered(failure)
        return dial_candidates(
            places, planes, [way for host in self._hosts for way in fabric_candidates(here, host, self._port)]
        )

    def _unanswered(self, error: OSError) -> RemoteError:
        names = ", ".join(self._hosts)
        if isinstance(error, socket.gaierror):
            return RemoteError(f"nobody knows the address of {names}: {error.strerror or error}")
        return RemoteError(f"{names} port {self._port} does not answer: {error.strerror or error}")

    async def _introduce(self, line: HandshakeStream, channel: BootstrapSocket) -> Connection:
        """What was made for a connection that fails is let go of."""
        made: list[Connection] = []

        def offer() -> dict[str, Any]:
            made.append(self._half_made(channel, proof))
            return made[0].offer()

        def accept(said: dict[str, Any]) -> None:
            made[0].accept(Offer.checked(said, made[0].device, made[0].is_sealed))

        def narrow(mtu: int) -> bool:
            return made[0].narrow(mtu)

        async def measure() -> int:
            left_s = self._until - time.monotonic()
            survey = await _measured(made[0], line.patience, channel.peer_name, self._until)
            if survey.found and not survey.has_answer and time.monotonic() >= self._until:
                _check_reached(made[0], left_s)
            return survey.payload

        proof = authenticator_of(self._knowledge, CONNECTOR, self._dialled)
        try:
            await line.follow(call(proof, offer, accept, narrow), measure)
            made[0].begin()
        except BaseException:
            for connection in made:
                connection.abandon()
            raise
        return made[0]

    async def _see_planes(self, connection: Connection, patience: HandshakeIo) -> None:
        """That TCP came through says little about planes: see on which of them the peer answers."""
        try:
            left_s = self._until - time.monotonic()
            for pause_s in path_check.pauses([connection.qp], until=self._until):
                if connection.has_lost_peer():
                    return  # which whoever uses it is told
                await patience.pause(pause_s)
            _check_reached(connection, left_s)
            path_check.warn_of_links(connection.device)
            path_check.warn_of_silence(connection.qp, connection.peer, connection.peer_name)
        except BaseException:
            connection.abandon()
            raise

    def _half_made(self, channel: BootstrapSocket, proof: Authenticator) -> Connection:
        """Of a listener that has proved itself."""
        if self._device is None or not self._owns_device:
            here = channel.socket.getsockname()[0]
            self._device = device_for(here, self._device, self._planes, self._settings)
        offered = OfferedMemory(self._device, self._memory)
        try:
            return Connection(self._device, channel, proof, offered, self._owns_device)
        finally:
            offered.release()  # from here on the connection holds it


class ListenerBusy(RemoteError):
    """The listener could not receive everybody."""


def _check_reached(connection: Connection, left_s: float) -> None:
    """That the peer has answered on some plane, in the time that was left for it."""
    if words := path_check.never_reached(connection.qp, connection.peer):
        short = "" if left_s >= path_check.SILENT_S else f"; `timeout_s` left {max(left_s, 0.0):.1f} s for an answer"
        raise RemoteError(f"{connection.peer_name} answers TCP, and {words}{short}")


async def _measured(connection: Connection, patience: HandshakeIo, name: str, until: float) -> MtuDiscovery:
    """Which packets get through to the listener, which answers already."""
    survey = connection.discover_mtu()
    for pause_s in survey.pauses(until=until):
        await patience.pause(pause_s)
    survey.note(name)
    return survey
