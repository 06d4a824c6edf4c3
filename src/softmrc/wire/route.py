"""Where a datagram comes from and goes to."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from softmrc.errors import ConfigError
from softmrc.wire.fields import as_integer

Address = IPv4Address | IPv6Address
AddressLike = Address | str | bytes

UDP_PORT = 4791


def as_address(name: str, value: AddressLike) -> Address:
    """An address from itself, its text, or its 4 or 16 bytes."""
    try:
        return ip_address(value)
    except ValueError:
        raise ConfigError(name, value, "must be an IPv4 or IPv6 address") from None


def as_ipv6(name: str, value: AddressLike) -> IPv6Address:
    """An IPv6 address, and no other."""
    address = as_address(name, value)
    if not isinstance(address, IPv6Address):
        raise ConfigError(name, value, "must be an IPv6 address")
    return address


@dataclass(frozen=True, init=False)
class Route:
    """Addresses of one family and the UDP ports."""

    source: Address
    destination: Address
    source_port: int
    destination_port: int

    def __init__(
        self, source: AddressLike, destination: AddressLike, source_port: int = 0, destination_port: int = UDP_PORT
    ) -> None:
        set_field = object.__setattr__
        set_field(self, "source", as_address("Route.source", source))
        set_field(self, "destination", as_address("Route.destination", destination))
        set_field(self, "source_port", as_integer("Route.source_port", source_port, 0, 0xFFFF))
        set_field(self, "destination_port", as_integer("Route.destination_port", destination_port, 0, 0xFFFF))
        if self.source.version != self.destination.version:
            raise ConfigError(
                "Route.source", str(source), f"must be an IPv{self.destination.version} address, as destination"
            )

    @property
    def is_v4(self) -> bool:
        return self.destination.version == 4
