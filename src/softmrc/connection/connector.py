"""The side that calls."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import Any

from softmrc.connection.arrange import device_for, named, secret_of, tcp_port
from softmrc.connection.connection import Connection
from softmrc.connection.memory import OfferedMemory
from softmrc.connection.offer import Offer
from softmrc.connection.reception import HANDSHAKE_S
from softmrc.errors import ConfigError, RemoteError
from softmrc.handshake import Caller, Channel
from softmrc.verbs import Device


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
    is what the listener may write to; `timeout_s` is for the handshake as a whole. Without `secret`, SOFTMRC_SECRET."""
    host, port, shared = named(host), tcp_port(port, 1), secret_of(secret)
    if not timeout_s > 0:
        raise ConfigError("timeout_s", timeout_s, "more than 0 seconds")
    until = time.monotonic() + timeout_s
    try:
        sock = socket.create_connection((host, port), timeout_s)
    except OSError as error:
        raise RemoteError(f"{host} port {port} does not answer: {error.strerror or error}") from None
    channel = Channel(sock)
    try:
        if shared is None:
            channel.require_loopback()
        caller = Caller(channel, shared, until)
        caller.greet()
        made = device_for(sock.getsockname()[0], device, planes, settings)
        try:
            connection = _connected(caller, made, memory, device is None)
        except BaseException:
            if device is None:
                made.close()
            raise
        sock.settimeout(None)
    except BaseException:
        channel.close()
        raise
    return connection


def _connected(caller: Caller, device: Device, memory: Any, owns_device: bool) -> Connection:
    """Of a listener that has proved itself. What was made for a connection that fails is let go of."""
    offered = OfferedMemory(device, memory)
    try:
        connection = Connection(device, caller.channel, offered, owns_device)
        try:
            caller.exchange(connection._offer(), lambda said: connection._accept(Offer.checked(said, device)))
        except BaseException:
            connection.close(0.0)
            raise
    finally:
        offered.release()  # from here on the connection holds it
    return connection


async def connect_async(host: str, port: int, **settings: Any) -> Connection:
    """`connect` for asyncio."""
    return await asyncio.to_thread(connect, host, port, **settings)
