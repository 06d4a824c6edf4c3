"""Unauthenticated handshakes at a steady rate, until it is ended.

    python -m softmrc_bench.handshake_flood RATE HOST:PORT

Each says hello with a message that proves nothing: a key, and a tag of nothing. Loopback only.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import sys
import time

from softmrc import _core
from softmrc._support.subprocesses import write_message
from softmrc_bench import flood

PER_S = 10_000
AT_ONCE = 256  # that are open
OF_SECRET = 1  # what the sender authenticates itself by
BODY = struct.pack(">4sHHB", b"SMRC", _core.HANDSHAKE_VERSION, _core.WIRE_VERSION, OF_SECRET) + secrets.token_bytes(48)
HELLO = struct.pack(">Ic", len(BODY) + 1, b"H") + BODY
NO_LINGER = struct.pack("ii", 1, 0)  # what is closed is gone, and its port free


def handshakes(port: int, per_s: int = PER_S) -> contextlib.AbstractContextManager[None]:
    """From another process, until the context ends."""
    return flood.running(__name__, per_s, f"127.0.0.1:{port}")


def knock(target: tuple[str, int]) -> socket.socket:
    """Without waiting for anything: on loopback a connection is made at once, or the backlog is full."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
    with contextlib.suppress(OSError):
        sock.connect(target)
        sock.send(HELLO)
    return sock


def main() -> None:
    per_s, target = int(sys.argv[1]), flood.end_of(sys.argv[2])
    write_message(ready=True)
    began, count = time.monotonic(), 0
    knocking: list[socket.socket] = []
    while time.monotonic() - began < flood.LONGEST_S:
        knocking.append(knock(target))
        if len(knocking) > AT_ONCE:
            knocking.pop(0).close()
        count += 1
        if (ahead := count / per_s - (time.monotonic() - began)) > 0:
            time.sleep(ahead)


if __name__ == "__main__":
    main()
