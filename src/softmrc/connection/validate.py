"""What a peer says of itself, checked field by field: types and ranges first, before anything is made of it."""

from __future__ import annotations

import functools
import ipaddress
import reprlib
from typing import TYPE_CHECKING, Any

from softmrc import _core

if TYPE_CHECKING:
    from softmrc.device import PeerPlane

MAX_PLANES = 16
SocketAddress = tuple[bytes, int]  # an address and a port


class ProtocolError(ValueError):
    """Something that no honest peer says."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"`{field}`: must be {expected} (got {reprlib.repr(value)})")


def whole(field: str, value: object, least: int, most: int) -> int:
    """A whole number; true is none."""
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(field, value, f"a whole number from {least:,} to {most:,}")
    return value


def in_hex(field: str, value: object, size: int) -> bytes:
    """So many bytes, two digits each."""
    if not isinstance(value, str) or len(value) != 2 * size or not set(value) <= set("0123456789abcdef"):
        raise ProtocolError(field, value, f"{size} bytes, in hexadecimal digits")
    return bytes.fromhex(value)


def a_list(field: str, value: object, least: int, most: int) -> list[Any]:
    """A list of that many."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ProtocolError(field, value, f"a list of {least} to {most:,}")
    return value


def flag(field: str, value: object) -> bool:
    """A truth."""
    if not isinstance(value, bool):
        raise ProtocolError(field, value, "true or false")
    return value


def address(field: str, value: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address that belongs to exactly one host, and not an IPv4 address inside an IPv6 one."""
    try:
        if not isinstance(value, str) or "%" in value:
            raise ValueError
        found, is_a_hosts = _address(value)
    except ValueError:
        raise ProtocolError(field, value, "an IPv4 or IPv6 address") from None
    if not is_a_hosts:
        raise ProtocolError(field, value, "the unicast address of a host, and no IPv4 address dressed as IPv6")
    return found


@functools.lru_cache(1024)
def _address(text: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, bool]:
    found = ipaddress.ip_address(text)
    return found, _core.is_address_of_host(found.packed)


def plane(name: str, value: object) -> PeerPlane:
    """Where a peer is on one plane."""
    from softmrc.device import MAX_SOCKETS, PeerPlane  # imports NumPy, which `softmrc key` does not need

    if not isinstance(value, dict):
        raise ProtocolError(name, value, "an address, a port and source ports")
    port = whole(f"{name}.port", value.get("port"), 1, 0xFFFF)
    field = f"{name}.source_ports"
    ports = a_list(field, value.get("source_ports"), 1, MAX_SOCKETS)
    for one in ports:
        whole(field, one, 1, 0xFFFF)
    if port not in ports or len(set(ports)) < len(ports):
        raise ProtocolError(field, ports, f"each of its ports once, and {port} among them")
    return PeerPlane(address(f"{name}.address", value.get("address")), port, tuple(ports))


def planes(value: object) -> tuple[PeerPlane, ...]:
    """Where a peer is."""
    found = tuple(plane(f"planes[{n}]", one) for n, one in enumerate(a_list("planes", value, 1, MAX_PLANES)))
    if len(socket_addresses(found)) < sum(len(one.source_ports) for one in found):
        raise ProtocolError("planes", value, "each address and port once")
    return found


def socket_addresses(found: tuple[PeerPlane, ...]) -> frozenset[SocketAddress]:
    """Every address and port that packets of such a peer come from."""
    places = [(one.address.packed, one.source_ports) for one in found]
    return frozenset([(address, port) for address, ports in places for port in ports])
