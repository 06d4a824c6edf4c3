"""The side that waits to be called."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from softmrc import _core
from softmrc.connection.acceptor import Acceptor, Refusals
from softmrc.connection.bootstrap import (
    TO_AUTHENTICATE,
    Folder,
    Knowledge,
    credentials_of,
    device_for,
    named,
    native_credentials,
    tcp_port,
)
from softmrc.connection.connection import Connection
from softmrc.connection.memory import OfferedMemory
from softmrc.device import Device, MemoryRegion, shutdown
from softmrc.device.checks import FOR_EVER, seconds
from softmrc.errors import MISSING, ConfigError, DeviceError
from softmrc.fabric.host import FabricHost


class Listener:
    """Receives connectors, in the background; `accept` returns those that have come through."""

    def __init__(
        self, device: Device, owns_device: bool, at: Addresses, port: int, knowledge: Knowledge, memory: Any
    ) -> None:
        self.device = device
        self._owns_device = owns_device
        self._is_closed = False
        self._memory = OfferedMemory(device, memory)
        try:
            listening, self.port = _core.listen_at([address.packed for address in at.addresses], at.scope_id, port)
            self._acceptor = Acceptor(listening, device, knowledge, self._memory)
            self._acceptor.open()
            shutdown.track_connection(self)
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """While it is made: the device is still the caller's."""
        self._is_closed = True
        try:
            if hasattr(self, "_acceptor"):
                self._acceptor.close()
        finally:
            self._memory.release()

    @property
    def regions(self) -> tuple[MemoryRegion, ...]:
        return self._memory.regions

    @property
    def refused(self) -> Refusals:
        """Clients that were turned away: how many, the last reasons, and how many were answered to try again."""
        return self._acceptor.refused()

    def accept(self, timeout_s: float | None = None) -> Connection:
        """The next peer that knows the secret and whose offer fits. Others are counted in `refused` and raise no
        exception. With `timeout_s=0`, one that is there already."""
        if timeout_s is not None:
            seconds("timeout_s", timeout_s, or_else=FOR_EVER)
        before = self.refused.count
        connection = self._acceptor.take(timeout_s)
        if connection is not None:
            return connection
        now = self.refused
        turned_away = now.count - before
        why = f"; turned away: {turned_away}, the last of them {now.reasons[-1]}" if turned_away else ""
        if not timeout_s:
            raise TimeoutError("no peer has connected yet")
        raise TimeoutError(f"no peer connected within {timeout_s} s{why}")

    async def accept_async(self) -> Connection:
        """`accept` for asyncio."""
        loop = asyncio.get_running_loop()
        while (connection := self._acceptor.take(0)) is None:
            changed = asyncio.Event()
            wake = partial(loop.call_soon_threadsafe, changed.set)
            if self._acceptor.call_when_changed(wake):
                try:
                    await changed.wait()
                finally:
                    self._acceptor.forget(wake)
        return connection

    def close(self) -> None:
        """Accept no more peers; `accept` raises. Accepted connections go on, unless the device was made by `listen`:
        then they end, and their peers notice at once."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._acceptor.close()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._memory.release()
        if self._owns_device:
            self.device.close()

    def __del__(self) -> None:
        """Waits for no thread: it may run in one that holds what the acceptor's thread needs to end."""
        with contextlib.suppress(Exception):  # half made
            if not self._is_closed:
                self._is_closed = True
                self._acceptor.end()
                self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"on port {self.port}, {self.refused.count} turned away"
        return f"<Listener, {state}>"


def listen(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    memory: Any = None,
    secret: str | bytes | None = None,
    identity: Folder | None = None,
    device: Device | None = None,
    planes: Sequence[str] | None = None,
    **settings: Any,
) -> Listener:
    """Be reachable at `host`, at each address that a name has. Where one of them is that of a plane, be reachable at
    the addresses of all planes, and no others, so that no single cable cuts this side off. `memory` (a buffer, a region
    of `device`, or several) is what peers may write to, `settings` are fields of `DeviceConfig`. `identity` is a folder
    with a key and those of known peers (`softmrc.connection.identity`); without it and `secret`, SOFTMRC_IDENTITY or
    else SOFTMRC_SECRET; without `planes`, SOFTMRC_PLANES.
    `port` is the TCP port where connectors find this side; packets use separate UDP ports, which you
    set on the device: `listen(device=Device(planes, port=4791))`."""
    host, port, shared = named(host), tcp_port(port, 0), credentials_of(secret, identity)
    native_credentials(shared)
    at = _resolved(_everywhere(host))
    if shared is None and not all(address.is_loopback for address in at.addresses):
        raise ConfigError(
            "secret",
            MISSING,
            f"needs {TO_AUTHENTICATE} to listen on {host}",
            "Without one, listen on a loopback address.",
        )
    with contextlib.ExitStack() as undo:
        made = device_for(host, device, planes, settings)
        if device is None:
            undo.callback(made.close)
        listener = Listener(made, device is None, at.on_planes(made, is_open=shared is None), port, shared, memory)
        undo.pop_all()
        return listener


@dataclass(frozen=True)
class Addresses:
    """Where a listener is reached; listening fails if it cannot listen at the first."""

    addresses: tuple[Any, ...]
    scope_id: int = 0

    def on_planes(self, device: Device, is_open: bool) -> Addresses:
        """Those of the device's planes, if one of them is among these. A listener that `is_open` authenticates no
        peer, and so listens on loopback alone."""
        planes = tuple(
            plane.address
            for plane in device.local_planes
            if not plane.address.is_link_local and (plane.address.is_loopback or not is_open)
        )
        named = tuple(address for address in self.addresses if address in planes)
        return replace(self, addresses=named + planes) if named else self


def _resolved(host: str) -> Addresses:
    try:
        found = [place for *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except socket.gaierror as error:
        raise DeviceError(error.errno, f"cannot listen on {host}: {error.strerror}") from None
    addresses = dict.fromkeys(ipaddress.ip_address(str(place[0]).partition("%")[0]) for place in found)
    return Addresses(tuple(addresses), int(found[0][3]) if len(found[0]) > 3 else 0)


def _everywhere(host: str) -> str:
    """Of a fabric a host is all its addresses: each is a path to it."""
    here = FabricHost.from_environment()
    return "::" if here is not None and here.number_of(host) == here.host else host
