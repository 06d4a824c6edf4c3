"""Where a peer is, plane by plane, and which SRv6 paths may lead there."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from softmrc import _core, wire
from softmrc.device.checks import instance, whole
from softmrc.errors import ConfigError

A_PEER = "must be a Peer, which add_peer returns"


@dataclass(frozen=True)
class PeerPlane:
    """Where one plane of a peer is."""

    address: Any
    port: int
    source_ports: tuple[int, ...] = ()  # of its sockets; empty: any
    scope_id: int = 0
    paths: tuple[Any, ...] = ()  # SRv6 carriers towards it

    def native(self) -> Any:
        """As the core has it."""
        return _core.PeerPlane(self.address.packed, self.scope_id, self.port, list(self.source_ports))

    def to_wire(self) -> dict[str, Any]:
        """What others receive about it; the scope and the paths to it they know themselves."""
        return {"address": str(self.address), "port": self.port, "source_ports": self.source_ports}


@dataclass(frozen=True)
class Peer:
    """A node that a device talks to. Its number is never used again, on its device."""

    id: int
    planes: tuple[PeerPlane, ...]

    def __str__(self) -> str:
        first = self.planes[0]
        others = len(self.planes) - 1
        more = f" and {others} more plane{'s' * (others > 1)}" if others else ""
        return f"{first.address} port {first.port}{more}"


def checked_planes(planes: Iterable[PeerPlane]) -> tuple[PeerPlane, ...]:
    """Planes of a peer, as far as types go."""
    known = tuple(planes) if isinstance(planes, Iterable) else (planes,)
    for plane in known:
        instance("planes", plane, PeerPlane, "must be a list of PeerPlane, one for each plane")
        either = ipaddress.IPv4Address | ipaddress.IPv6Address
        instance("address", plane.address, either, "must be an ipaddress.ip_address")  # type: ignore[arg-type]
        for field in ("source_ports", "paths"):
            instance(field, getattr(plane, field), tuple | list, "must be a tuple")  # type: ignore[arg-type]
        for path in plane.paths:
            instance("paths", getattr(path, "packed", None), bytes, "must be paths, as `softmrc.wire.Srv6Path` is one")
    return known


def new_port_key() -> int:
    """What a peer is given to prove that a word about its ports is its own."""
    return secrets.randbelow((1 << 64) - 1) + 1


def port_keys(given: int, told: int) -> dict[str, int]:
    """The keys of a queue pair, for `QueuePair.rtr`: both, or none where the peer did not tell one."""
    keys = {"port_key": whole("given", given, 64), "peer_port_key": whole("told", told, 64)}
    return keys if told else {}


def check_carrier(name: str, value: bytes, plane: PeerPlane) -> None:
    """Refuse an SRv6 path that a datagram socket cannot send along to this plane.

    Switches shorten the carrier in flight without rewriting the UDP checksum, so it has to sum up like the final
    address; and a socket writes no segment routing header.
    """
    instance("plane", plane, PeerPlane, "must be a PeerPlane")
    path = wire.path_of(value)
    if path.srh is not None:
        raise ConfigError(name, str(path), "must be a path of one carrier: sockets write no segment routing header")
    if _core.address_sum(path.destination.packed) != _core.address_sum(plane.address.packed):
        problem = f"must be a carrier that leaves the checksum towards {plane.address} as it is"
        raise ConfigError(name, str(path.destination), problem)
