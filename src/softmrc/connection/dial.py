"""The ways by which TCP may reach a listener: every address it is known by, over every plane of this side.

A handshake is one TCP connection, and TCP takes one path. Whichever cable is dead, some other way is not. The first is
the one that the kernel would take by itself; the others differ from it as soon as possible: in the plane, then in the
path. On a host of a fabric each path has an address, so that both directions can be chosen.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from softmrc.config.planes import LocalPlane
from softmrc.fabric.host import FabricHost

MAX_WAYS = 10
AGAIN = 2  # how often the first is tried anew: another source port, and so another path where the network hashes them
IPV6_FREEBIND = 78


@dataclass(frozen=True)
class DialCandidate:
    """Where to, and from where: an address of this side, an interface, or whatever the routes say."""

    family: int
    address: Any
    source: str = ""
    interface: str = ""

    def begin(self) -> socket.socket:
        """A socket that is connecting, or is connected already."""
        sock = socket.socket(self.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if self.interface:
                with contextlib.suppress(PermissionError):  # before Linux 5.7 that took root; the source may do
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.interface.encode())
            if self.source:
                if self.family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
                sock.bind((self.source, 0))
            if (error := sock.connect_ex(self.address)) not in (0, errno.EINPROGRESS):
                raise OSError(error, os.strerror(error))
            return sock
        except BaseException:
            sock.close()
            raise


def dial_candidates(
    found: Sequence[tuple[Any, ...]], planes: Sequence[LocalPlane], fabric: Sequence[DialCandidate]
) -> list[DialCandidate]:
    """The ways to addresses as getaddrinfo gives them, best first."""
    plain = list(dict.fromkeys(DialCandidate(family, address) for family, _, _, _, address in found))
    over = [
        DialCandidate(way.family, way.address, str(plane.address), plane.interface or plane.link)
        for plane in reversed(planes)  # the kernel's way is the first plane's as a rule
        for way in plain
        if _leads_there(plane, way)
    ]
    several = [*plain, *fabric, *over]
    return [*several[: MAX_WAYS - AGAIN], *plain[:1] * AGAIN]


def _leads_there(plane: LocalPlane, way: DialCandidate) -> bool:
    family = socket.AF_INET if plane.address.version == 4 else socket.AF_INET6
    is_local = plane.address.is_loopback or plane.address.is_link_local
    return family == way.family and bool(plane.interface or plane.link) and not is_local


def fabric_candidates(here: FabricHost | None, host: str, port: int) -> Iterator[DialCandidate]:
    """Along the paths of a fabric, each in another plane and by another spine than the last."""
    to = here.number_of(host) if here is not None else None
    if here is None or to is None or to == here.host:
        return
    planes, paths = here.description.fabric.planes, here.description.fabric.paths(here.host, to)
    for turn in range(1, min(planes * paths, MAX_WAYS)):
        plane, path = turn % planes, (turn + turn // planes) % paths
        there, source = (here.plan.path_address(one, plane, path) for one in (to, here.host))
        yield DialCandidate(socket.AF_INET6, (str(there), port, 0, 0), str(source))
