"""The ways by which TCP may reach a listener: every address it is known by, over every plane of this side.

A handshake is one TCP connection, and TCP takes one path. Whichever cable is dead, some other way is not. The first is
the one that the kernel would take by itself; the others differ from it as soon as possible: in the plane, then in the
path. On a host of a fabric each path has an address, so that both directions can be chosen.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Any

from softmrc._core import DialCandidate
from softmrc.config.planes import LocalPlane
from softmrc.fabric.host import FabricHost

MAX_WAYS = 10
AGAIN = 2  # how often the first is tried again: another source port, and so another path where the network hashes


def dial_candidates(
    found: Sequence[tuple[Any, ...]], planes: Sequence[LocalPlane], fabric: Sequence[DialCandidate]
) -> list[DialCandidate]:
    """The ways to addresses as getaddrinfo gives them, best first."""
    plain = list(dict.fromkeys(_by_the_routes(address) for *_, address in found))
    over = [
        DialCandidate(way.address, way.port, way.scope_id, plane.address.packed, plane.interface or plane.link)
        for plane in reversed(planes)  # the kernel's way is the first plane's as a rule
        for way in plain
        if _leads_there(plane, way)
    ]
    several = [*plain, *fabric, *over]
    return [*several[: MAX_WAYS - AGAIN], *plain[:1] * AGAIN]


def _by_the_routes(found: tuple[Any, ...]) -> DialCandidate:
    """To an address as getaddrinfo gives it."""
    host, port, *more = found
    return DialCandidate(ipaddress.ip_address(host.partition("%")[0]).packed, port, more[1] if more else 0)


def _leads_there(plane: LocalPlane, way: DialCandidate) -> bool:
    is_local = plane.address.is_loopback or plane.address.is_link_local
    return len(plane.address.packed) == len(way.address) and bool(plane.interface or plane.link) and not is_local


def fabric_candidates(here: FabricHost | None, host: str, port: int) -> Iterator[DialCandidate]:
    """Along the paths of a fabric, each in another plane and by another spine than the last."""
    to = here.number_of(host) if here is not None else None
    if here is None or to is None or to == here.host:
        return
    planes, paths = here.description.fabric.planes, here.description.fabric.paths(here.host, to)
    for turn in range(1, min(planes * paths, MAX_WAYS)):
        plane, path = turn % planes, (turn + turn // planes) % paths
        there, source = (here.plan.path_address(one, plane, path) for one in (to, here.host))
        yield DialCandidate(there.packed, port, 0, source.packed)
