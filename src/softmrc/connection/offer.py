"""What a side offers: where it is, its queue pair, its memory; and what of a peer's offer is believed.

A peer that knows the secret may still lie. Every field is checked for type and range before anything is made of it, and
it is told in words what was wrong.
"""

from __future__ import annotations

import ipaddress
import reprlib
from dataclasses import dataclass
from typing import Any

from softmrc.handshake import Refusal
from softmrc.planes import LARGEST_MTU, SMALLEST_MTU
from softmrc.verbs import MOST_SOCKETS, Device, MemoryRegion, PeerPlane, QueuePair

MOST_PLANES = 16
MOST_REGIONS = 1024
LONGEST_REGION = 1 << 63

# Nobody's, or everybody's: unspecified, multicast, reserved, broadcast; then all that an IPv6 address may hide IPv4 in.
NO_HOSTS = tuple(map(ipaddress.ip_network, ("0.0.0.0/8", "224.0.0.0/3", "ff00::/8"))) + tuple(
    map(ipaddress.ip_network, ("::/80", "::ffff:0:0:0/96", "64:ff9b::/96", "2001::/32", "2002::/16"))
)
LOOPBACK = ipaddress.ip_address("::1")  # lies among them

End = tuple[bytes, int]  # an address and a port


@dataclass(frozen=True)
class RemoteRegion:
    """Memory of the peer that this side may write to."""

    va: int
    length: int
    rkey: int

    def __repr__(self) -> str:
        return f"<RemoteRegion {self.length:,} bytes>"


def _refusal(field: str, value: object, allowed: str) -> Refusal:
    what = f"{field} = {reprlib.repr(value)} is not allowed: {allowed}"
    return Refusal(f"sent an offer that makes no sense: {what}", f"your offer makes no sense: {what}")


def _whole(field: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _refusal(field, value, f"a whole number from {least:,} to {most:,}")
    return value


def _list(field: str, value: object, least: int, most: int) -> list[Any]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise _refusal(field, value, f"a list of {least} to {most:,}")
    return value


def _address(field: str, value: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address that belongs to one host: what is sent there reaches nobody else, and is what it seems to be."""
    try:
        if not isinstance(value, str) or "%" in value:
            raise ValueError
        address = ipaddress.ip_address(value)
    except ValueError:
        raise _refusal(field, value, "an IPv4 or IPv6 address") from None
    if any(address in network for network in NO_HOSTS) and address != LOOPBACK:
        raise _refusal(field, value, "the unicast address of a host, and no IPv4 address dressed as IPv6")
    return address


def _plane(number: int, value: object) -> PeerPlane:
    name = f"planes[{number}]"
    if not isinstance(value, dict):
        raise _refusal(name, value, "an address, a port and source ports")
    port = _whole(f"{name}.port", value.get("port"), 1, 0xFFFF)
    field = f"{name}.source_ports"
    ports = tuple(_whole(field, one, 1, 0xFFFF) for one in _list(field, value.get("source_ports"), 1, MOST_SOCKETS))
    if port not in ports or len(set(ports)) < len(ports):
        raise _refusal(field, list(ports), f"each of its ports once, and {port} among them")
    return PeerPlane(_address(f"{name}.address", value.get("address")), port, ports)


def _region(number: int, value: object) -> RemoteRegion:
    name = f"regions[{number}]"
    va, length, rkey = _list(name, value, 3, 3)
    region = RemoteRegion(
        _whole(f"{name}.va", va, 0, (1 << 64) - 1),
        _whole(f"{name}.length", length, 1, LONGEST_REGION),
        _whole(f"{name}.rkey", rkey, 0, 0xFFFFFFFF),
    )
    if region.va + region.length > 1 << 64:
        raise _refusal(name, value, "memory that ends before 2^64")
    return region


@dataclass(frozen=True)
class Offer:
    """A peer's offer, as far as it can be checked without knowing ours."""

    planes: tuple[PeerPlane, ...]
    qpn: int
    first_psn: int
    mtu: int
    icrc: bool
    max_wimm: int
    mpr: int
    port_key: int  # what words about its ports must carry; 0: it takes none
    regions: tuple[RemoteRegion, ...]

    @classmethod
    def checked(cls, said: dict[str, Any], device: Device) -> Offer:
        """What a peer said, if this device can believe it."""
        offer = cls.parse(said)
        offer._check_match(device)
        return offer

    @classmethod
    def parse(cls, said: dict[str, Any]) -> Offer:
        planes = tuple(_plane(n, one) for n, one in enumerate(_list("planes", said.get("planes"), 1, MOST_PLANES)))
        if len(ends_of(planes)) < sum(len(plane.source_ports) for plane in planes):
            raise _refusal("planes", said["planes"], "each address and port once")
        if type(said.get("icrc")) is not bool:
            raise _refusal("icrc", said.get("icrc"), "true or false")
        regions = _list("regions", said.get("regions"), 0, MOST_REGIONS)
        return cls(
            planes=planes,
            qpn=_whole("qpn", said.get("qpn"), 3, 0xFFFFFF),
            first_psn=_whole("first_psn", said.get("first_psn"), 0, 0xFFFFFF),
            mtu=_whole("mtu", said.get("mtu"), SMALLEST_MTU, LARGEST_MTU),
            icrc=said["icrc"],
            max_wimm=_whole("max_wimm", said.get("max_wimm"), 1, 16384),
            mpr=_whole("mpr", said.get("mpr"), 8, 255),
            port_key=_whole("port_key", said.get("port_key", 0), 0, (1 << 64) - 1),
            regions=tuple(_region(n, one) for n, one in enumerate(regions)),
        )

    def _check_match(self, device: Device) -> None:
        """Refuse what does not fit this device, or would have it talk to itself."""
        mine = device.local_planes
        if len(self.planes) != len(mine):
            theirs = len(self.planes)
            raise Refusal(
                f"has {theirs} planes, this device {len(mine)}", f"you have {theirs} planes, this side {len(mine)}"
            )
        for plane, local in zip(self.planes, mine, strict=True):
            if plane.address.version != local.address.version:
                both = "a plane that is IPv4 on one side and IPv6 on the other"
                raise Refusal(f"has {both}", f"there is {both}")
            if plane.address.is_loopback != local.address.is_loopback:
                both = f"a plane at {plane.address}, and this side's is at {local.address}: only one is on loopback"
                raise Refusal(f"has {both}", f"you have {both}")
        if self.icrc != device.config.icrc:
            both = "ICRC is on at one side and off at the other"
            raise Refusal(f"differs: {both}; set icrc alike", both)
        own = {
            (plane.address.packed, port)
            for plane, ports in zip(mine, device.source_ports, strict=True)
            for port in ports
        }
        if not own.isdisjoint(ends_of(self.planes)):
            both = "a device does not connect to itself: make a second one"
            raise Refusal(
                f"offers this device's own address and port ({both})",
                f"you offer this side's own address and port ({both})",
            )


def ends_of(planes: tuple[PeerPlane, ...]) -> frozenset[End]:
    """Every address and port that packets of such a peer come from."""
    return frozenset((plane.address.packed, port) for plane in planes for port in plane.source_ports)


def offer_of(device: Device, qp: QueuePair, regions: tuple[MemoryRegion, ...], port_key: int) -> dict[str, Any]:
    """What this side says."""
    planes = [
        {"address": str(plane.address), "port": ports[0], "source_ports": ports}
        for plane, ports in zip(device.local_planes, device.source_ports, strict=True)
    ]
    return {
        "planes": planes,
        "qpn": qp.qpn,
        "first_psn": qp.first_psn,
        "mtu": device.mtu,
        "icrc": device.config.icrc,
        "max_wimm": device.config.max_wimm,
        "mpr": device.config.mpr,
        "port_key": port_key,
        "regions": [[region.va, region.length, region.rkey] for region in regions],
    }
