"""The easy way: one connection over every plane, in a few lines.

    with listen("127.0.0.1", 7000, memory=bytearray(1 << 20)) as listener:      # one process
        connection = listener.accept()
        print(connection.recv())

    with connect("127.0.0.1", 7000) as connection:                              # another
        connection.write(connection.remote[0], 0, b"hello", imm=1)

`write` returns when the bytes are in the peer's memory; `recv` returns the next immediate. Each has a twin for asyncio
that ends in `_async`. Between machines, give both sides the same `secret`, or set SOFTMRC_SECRET.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softmrc.connection.acceptor import HANDSHAKE_S, Refusals
    from softmrc.connection.connection import Connection, Message
    from softmrc.connection.connector import connect, connect_async
    from softmrc.connection.listener import Listener, listen
    from softmrc.connection.offer import RemoteRegion

__all__ = [
    "HANDSHAKE_S",
    "Connection",
    "Listener",
    "Message",
    "Refusals",
    "RemoteRegion",
    "connect",
    "connect_async",
    "listen",
]

_HOMES = {
    "Connection": "connection",
    "Message": "connection",
    "connect": "connector",
    "connect_async": "connector",
    "RemoteRegion": "offer",
    "HANDSHAKE_S": "acceptor",
    "Refusals": "acceptor",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'softmrc.connection' has no attribute {name!r}")
    found = getattr(importlib.import_module("softmrc.connection." + _HOMES.get(name, "listener")), name)
    globals()[name] = found
    return found
