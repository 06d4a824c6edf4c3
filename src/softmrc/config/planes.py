"""Which planes a device has: from what a person writes to addresses, interfaces and packet sizes.

"10.0.0.1"          this address, wherever the routes lead
"10.0.0.1%eth0"     this address, and nothing leaves but by eth0
"eth0"              the first address of eth0, bound to it
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from softmrc import _core
from softmrc._core import LONGEST_PACKET_OVERHEAD, LONGEST_SEALED_OVERHEAD
from softmrc._support.units import rate_text
from softmrc.config import PAYLOAD_UNIT, RtrAttributes, bounds, whole_payload
from softmrc.errors import ConfigError, DeviceError

UDP_BYTES = 8
LOOPBACK4 = re.compile(r"127(\.\d{1,3}){3}")
LINKS = Path("/sys/class/net")
IP6_LOOPBACK = ipaddress.IPv6Address("::1").packed
SMALLEST_MTU, LARGEST_MTU = bounds(RtrAttributes, "mtu")


@dataclass(frozen=True)
class LocalPlane:
    """One plane of a device, resolved."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    interface: str  # bound to it; empty: follow the routes
    link: str  # the interface that has the address; empty where none does
    link_mtu: int

    @cached_property
    def speed_bps(self) -> int:
        """What the kernel said of the link when it was first asked; 0 where it does not know, as of loopback and veth,
        or guesses."""
        return speed_of(self.link) if self.link else 0

    @property
    def speed(self) -> str:
        """The same in words; empty where it is not known."""
        return rate_text(self.speed_bps) if self.speed_bps else ""

    @property
    def scope_id(self) -> int:
        is_link_local = self.address.version == 6 and self.address.is_link_local
        return socket.if_nametoindex(self.interface or self.link) if is_link_local else 0

    @property
    def payload_mtu(self) -> int:
        """The largest payload whose packet fits the link."""
        return self.payload_mtu_with(LONGEST_PACKET_OVERHEAD)

    def payload_mtu_with(self, overhead: int) -> int:
        """The same with so many bytes around the payload."""
        if not self.link_mtu:
            return 1024
        room = self.link_mtu - (20 if self.address.version == 4 else 40) - UDP_BYTES - overhead
        return whole_payload(min(room, LARGEST_MTU))

    def __str__(self) -> str:
        return f"{self.address}%{self.interface}" if self.interface else str(self.address)


def speed_of(link: str) -> int:
    """Bits a second; 0: not known."""
    folder = f"{LINKS}/{link}"
    if os.path.exists(f"{folder}/tun_flags") or not os.path.exists(f"{folder}/device"):
        return 0  # software, whose speed is an arbitrary number
    try:
        return max(int(Path(f"{folder}/speed").read_text()), 0) * 1_000_000
    except (OSError, ValueError):
        return 0


def resolve_all(texts: Iterable[str | LocalPlane], why: str = "") -> list[LocalPlane]:
    """Several at once, with one look at the machine; what is resolved stays as it is."""
    listed = list(texts)
    if all(isinstance(one, str) and LOOPBACK4.fullmatch(one) for one in listed):
        return list(_on_loopback(tuple(listed), namespace(), LINKS))
    local = [] if all(isinstance(one, LocalPlane) for one in listed) else _core.local_addresses()
    return [one if isinstance(one, LocalPlane) else resolve(one, why, local) for one in listed]


@functools.lru_cache(16)
def _on_loopback(texts: tuple[str, ...], *_: object) -> tuple[LocalPlane, ...]:
    """Which is the same for as long as this process is in one namespace, and is told of it in one place."""
    local = _core.local_addresses()
    return tuple(resolve(one, "", local) for one in texts)


def namespace() -> int:
    """The same for two processes of a machine exactly if loopback connects them."""
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0


def resolve(text: str, why: str = "", local: list[tuple[str, bytes, int]] | None = None) -> LocalPlane:
    """What a person wrote, as a plane of this machine, which has `local` addresses; `why` says where."""
    if not isinstance(text, str) or not text:
        raise ConfigError("planes", text, "an address, ADDRESS%INTERFACE or an interface's name")
    local = _core.local_addresses() if local is None else local
    name, _, interface = text.partition("%")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return _of_interface(text, local, why)
    if interface and interface not in dict(socket.if_nameindex()).values():
        raise DeviceError(f"no interface {interface} (plane {text}){_told(why)}")
    for link, raw, mtu in local:
        if raw == address.packed and interface in ("", link):
            return LocalPlane(address, interface, link, mtu)
    if address.is_loopback:
        loopback = [(link, mtu) for link, raw, mtu in local if _is_loopback(raw)]
        return LocalPlane(address, interface, *(loopback[0] if loopback else ("", 0)))
    return LocalPlane(address, interface, interface, next((mtu for link, _, mtu in local if link == interface), 0))


def _is_loopback(raw: bytes) -> bool:
    return raw[0] == 127 if len(raw) == 4 else raw == IP6_LOOPBACK


def _told(why: str) -> str:
    """Where a wrong name was, and which ones would be right."""
    names = sorted(name for _, name in socket.if_nameindex())
    return f"{f', {why}' if why else ''}; there is {', '.join(names)}"


def _of_interface(name: str, local: list[tuple[str, bytes, int]], why: str) -> LocalPlane:
    if name not in dict(socket.if_nameindex()).values():
        raise DeviceError(f"no interface {name}, and {name!r} is no address either{_told(why)}")
    found = [(ipaddress.ip_address(raw), mtu) for link, raw, mtu in local if link == name]
    found.sort(key=lambda row: (row[0].is_link_local, row[0].version))
    if not found:
        raise DeviceError(f"interface {name} has no address{f', {why}' if why else ''}")
    address, mtu = found[0]
    return LocalPlane(address, name, name, mtu)


def payload_mtu(planes: list[LocalPlane], overhead: int = LONGEST_PACKET_OVERHEAD) -> int:
    """The packet payload that fits every plane."""
    mtu = min(plane.payload_mtu_with(overhead) for plane in planes)
    if mtu < SMALLEST_MTU:
        names = [str(plane) for plane in planes]
        raise ConfigError("planes", names, f"links that carry {SMALLEST_MTU} bytes of payload")
    return mtu


def chosen_mtu(planes: list[LocalPlane], wanted: int, limit: int) -> int:
    """The payload of a device's full packets: what is wanted, or with 0 what fits every plane, up to a limit."""
    largest = payload_mtu(planes)
    if limit < SMALLEST_MTU:
        raise ConfigError("mtu_limit", limit, f"at least {SMALLEST_MTU}")
    if not wanted:
        return whole_payload(min(largest, limit))
    nearest = whole_payload(min(max(wanted, SMALLEST_MTU), largest))
    if wanted != nearest:
        allowed = f"a multiple of {PAYLOAD_UNIT}, such as {nearest}; at least {SMALLEST_MTU}"
        why = "which is what the links carry" if largest < LARGEST_MTU else "the most that a packet holds"
        raise ConfigError("mtu", wanted, f"{allowed}, and at most {largest}, {why}")
    return wanted


def sealed_mtu(planes: list[LocalPlane], plain: int) -> int:
    """The payload of an encrypted packet, where a plain one has so much."""
    return min(plain, payload_mtu(planes, LONGEST_SEALED_OVERHEAD))
