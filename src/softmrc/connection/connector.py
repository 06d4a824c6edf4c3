"""The side that calls."""

from __future__ import annotations

import ipaddress
import os
import random
import socket
import time
from collections.abc import Sequence
from typing import Any

from softmrc import _core
from softmrc._core import DialCandidate, HandshakeEvent
from softmrc._support.weak_registry import WeakRegistry
from softmrc.connection import path_check
from softmrc.connection.acceptor import HANDSHAKE_S
from softmrc.connection.bootstrap import (
    TO_AUTHENTICATE,
    Folder,
    Knowledge,
    all_named,
    credentials_of,
    device_for,
    is_loopback,
    native_credentials,
    planes_before,
    tcp_port,
)
from softmrc.connection.connection import Connection
from softmrc.connection.dial import dial_candidates, fabric_candidates
from softmrc.connection.handshake import BootstrapSocket, Session
from softmrc.connection.identity import Identity
from softmrc.connection.memory import OfferedMemory
from softmrc.connection.offer import Offer
from softmrc.connection.waiting import AsyncWait, BlockingWait, Wait, run_blocking
from softmrc.device import Device
from softmrc.device.checks import seconds
from softmrc.errors import MISSING, ConfigError, DeviceError, HandshakeError, MrcError, RemoteError
from softmrc.fabric.host import FabricHost

FIRST_PAUSE_S = 0.02  # before it is tried again at a listener that was busy; then twice as long each time ...
LONGEST_PAUSE_S = 0.5  # ... up to this


_connectors: WeakRegistry[Connector] = WeakRegistry()


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
    there. Without it and `secret`, SOFTMRC_IDENTITY or else SOFTMRC_SECRET."""
    caller = Connector(host, port, memory, credentials_of(secret, identity), device, planes, timeout_s, settings)
    return run_blocking(caller.connection(BlockingWait()))


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
    return await caller.connection(AsyncWait())


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
        self._native: _core.Connector | None = None
        _connectors.add(self)

    async def connection(self, patience: Wait) -> Connection:
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

    async def _try(self, patience: Wait) -> Connection:
        self._native = native = _core.Connector(await self._ways(patience), native_credentials(self._knowledge))
        try:
            connection = await self._introduce(native, patience)
        except HandshakeError as refusal:
            if refusal.message_to_peer:
                native.refuse(str(refusal), refusal.message_to_peer)
            raise (ListenerBusy if refusal.busy else RemoteError)(f"{native.peer} {refusal}") from None
        except OSError as error:
            if isinstance(error, MrcError):
                raise
            if native.is_connected:  # the system is short of something
                raise DeviceError(error.errno, f"cannot finish the handshake: {error.strerror}") from None
            raise self._unanswered(error) from None
        finally:
            native.close()
        await self._see_planes(connection, patience)
        return connection

    def close_after_fork(self) -> None:
        """In a child: the copies of its sockets."""
        if self._native is not None:
            self._native.close_after_fork()

    async def _ways(self, patience: Wait) -> list[DialCandidate]:
        """By every name and address, over every plane."""
        planes = planes_before(self._hosts[0], self._device, self._planes)
        here = None if self._knowledge is None else FabricHost.from_environment()  # all its paths leave the machine
        places: list[tuple[Any, ...]] = []
        failure: OSError = TimeoutError("timed out")
        for host in self._hosts:
            try:
                places += await patience.resolve(host, self._port, max(self._until - time.monotonic(), 0.0))
            except OSError as error:
                failure = error
        if not places:
            raise self._unanswered(failure)
        if self._knowledge is None:
            places = [place for place in places if is_loopback(place[-1][0])]
            if not places:
                raise ConfigError("secret", MISSING, f"needs {TO_AUTHENTICATE} for connections that leave the machine")
        return dial_candidates(
            places, planes, [way for host in self._hosts for way in fabric_candidates(here, host, self._port)]
        )

    def _unanswered(self, error: OSError) -> RemoteError:
        names = ", ".join(self._hosts)
        if isinstance(error, socket.gaierror):
            return RemoteError(f"cannot resolve {names}: {error.strerror or error}")
        if isinstance(error, ConnectionRefusedError):
            hint = "Start the other end first, for example `softmrc perf`."
            return RemoteError(f"nothing listens on {names} port {self._port} (connection refused). {hint}")
        return RemoteError(f"{names} port {self._port} does not answer: {error.strerror or error}")

    async def _introduce(self, native: _core.Connector, patience: Wait) -> Connection:
        """What was made for a connection that fails is let go of."""
        made: Connection | None = None
        try:
            while True:
                event = native.poll()
                if event is HandshakeEvent.IDENTIFIED:
                    known_as = self._identified(native.peer_key)
                    native.allow()
                    made = self._half_made(native, known_as)
                    native.offer(made.offer())
                elif event is HandshakeEvent.OFFERED:
                    assert made is not None
                    made.accept(Offer.checked(native.content, made.device, made.is_sealed))
                    mtu = await self._measured(made, patience)
                    native.ready(mtu, made.narrow(mtu))
                elif made is not None and native.is_done:
                    made.begin(BootstrapSocket(*native.take()))
                    return made
                elif event is HandshakeEvent.NONE:
                    await self._wait_for(native, patience)
        except BaseException:
            if made is not None:
                made.abandon()
            raise

    async def _wait_for(self, native: _core.Connector, patience: Wait) -> None:
        left_s = self._until - time.monotonic()
        if left_s <= 0 and not native.is_connected:
            raise TimeoutError("timed out")
        if left_s <= 0:
            hint = "" if native.has_heard else "; is it something else that has this port?"
            raise HandshakeError(f"did not finish the handshake in time{hint}")
        due_s = native.due_s()
        await patience.readable(native.fileno(), left_s if due_s is None else min(due_s, left_s))

    async def _measured(self, connection: Connection, patience: Wait) -> int:
        """Which packets get through to the listener, which answers already."""
        left_s = self._until - time.monotonic()
        survey = connection.discover_mtu()
        for pause_s in survey.pauses(until=self._until):
            await patience.pause(pause_s)
        survey.note(connection.peer_name)
        if survey.found and not survey.has_answer and time.monotonic() >= self._until:
            _check_reached(connection, left_s)
        return survey.payload

    async def _see_planes(self, connection: Connection, patience: Wait) -> None:
        """That TCP came through says little about planes: see on which of them the peer answers."""
        try:
            left_s = self._until - time.monotonic()
            for pause_s in path_check.pauses([connection.qp], until=self._until):
                if connection.has_lost_peer():
                    return  # the caller learns of it when it uses the connection
                await patience.pause(pause_s)
            _check_reached(connection, left_s)
            path_check.warn_of_links(connection.device)
            path_check.warn_of_silence(connection.qp, connection.peer, connection.peer_name)
        except BaseException:
            connection.abandon()
            raise

    def _identified(self, key: bytes) -> str:
        """The name by which the listener's key is known, where keys authenticate."""
        return self._knowledge.name_of(key, self._dialled) if isinstance(self._knowledge, Identity) else ""

    def _half_made(self, native: _core.Connector, known_as: str) -> Connection:
        """To a listener that has authenticated itself."""
        if self._device is None or not self._owns_device:
            here = str(ipaddress.ip_address(native.local_address))
            self._device = device_for(here, self._device, self._planes, self._settings)
        offered = OfferedMemory(self._device, self._memory)
        session = Session(True, native.peer, native.exporter, known_as)
        try:
            return Connection(self._device, session, offered, self._owns_device)
        finally:
            offered.release()  # from here on the connection holds it


def _in_child() -> None:
    for connector in _connectors:
        connector.close_after_fork()


os.register_at_fork(after_in_child=_in_child)


class ListenerBusy(RemoteError):
    """The listener could not receive everybody."""


def _check_reached(connection: Connection, left_s: float) -> None:
    """That the peer has answered on some plane, in the time that was left for it."""
    if words := path_check.never_reached(connection.qp, connection.peer):
        short = "" if left_s >= path_check.SILENT_S else f"; `timeout_s` left {max(left_s, 0.0):.1f} s for an answer"
        raise RemoteError(f"{connection.peer_name} answers TCP, and {words}{short}")
