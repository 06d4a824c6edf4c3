"""What Python adds to the handshake of the core (`core/host/handshake.h`): what it has established when offers are
made, and the TCP connection that stays when it is over."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field

from softmrc._support.weak_registry import WeakRegistry

_open: WeakRegistry[BootstrapSocket] = WeakRegistry()


@dataclass(frozen=True)
class Session:
    """Two ends that have authenticated each other."""

    is_connector: bool
    peer_name: str  # its address and port
    # Of which keys are derived, until they are; None: neither end has a secret or a key.
    exporter: bytes | None = field(default=None, repr=False)
    known_as: str = ""  # the name by which the other end's key is known


class BootstrapSocket:
    """The TCP connection of a handshake that is over. Its end tells the other side that this one has left, which the
    device watches for (`core/udp/bootstrap_watch.h`)."""

    def __init__(self, fd: int, goodbye: bytes, goodbye_of_peer: bytes, rest: bytes) -> None:
        # With a family Python does not ask the kernel for it, which could fail; it matters for addresses alone.
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
        self.goodbye_of_peer, self.rest = goodbye_of_peer, rest
        self._goodbye = goodbye
        _open.add(self)

    def hang_up(self) -> None:
        """The other end notices at once; the descriptor stays until `close`, since others may be using it."""
        with suppress(OSError):
            if self._goodbye:
                self.socket.send(self._goodbye, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()


def _in_child() -> None:
    """A forked child lets go of its copies: else a parent that is killed would seem to be there while the child is."""
    for channel in _open:
        channel.close()


os.register_at_fork(after_in_child=_in_child)
