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

from softmrc.connection.connection import Connection, Message
from softmrc.connection.connector import connect, connect_async
from softmrc.connection.listener import Listener, listen
from softmrc.connection.offer import RemoteRegion
from softmrc.connection.reception import HANDSHAKE_S, Refusals

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
