"""What a side offers: where it is, its queue pair, its memory; and what of a peer's offer is believed.

A peer that knows the secret may still lie. Every field is checked for type and range before anything is made of it, and
it is told in words what was wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softmrc.config import RtrAttributes, RtsAttributes, bounds
from softmrc.connection import validate
from softmrc.connection.handshake import HandshakeError
from softmrc.connection.keys import KeyShare, PeerEncryption
from softmrc.connection.validate import ProtocolError, socket_addresses
from softmrc.device import Device, MemoryRegion, PeerPlane, QueuePair

MAX_REGIONS = 1024
LONGEST_REGION = 1 << 63


@dataclass(frozen=True)
class RemoteRegion:
    """Memory of the peer that this side may write to."""

    va: int
    length: int
    rkey: int

    def __repr__(self) -> str:
        return f"<RemoteRegion {self.length:,} bytes>"


def _region(number: int, value: object) -> RemoteRegion:
    name = f"regions[{number}]"
    va, length, rkey = validate.a_list(name, value, 3, 3)
    region = RemoteRegion(
        validate.whole(f"{name}.va", va, 0, (1 << 64) - 1),
        validate.whole(f"{name}.length", length, 1, LONGEST_REGION),
        validate.whole(f"{name}.rkey", rkey, 0, 0xFFFFFFFF),
    )
    if region.va + region.length > 1 << 64:
        raise ProtocolError(name, value, "memory that ends before 2^64")
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
    seal: PeerEncryption | None  # its part of the keys; None: it does not seal packets

    @classmethod
    def checked(cls, words: dict[str, Any], device: Device, is_sealed: bool) -> Offer:
        """What a peer said, if this device can believe it."""
        try:
            offer = cls.parse(words)
        except ProtocolError as error:
            raise HandshakeError(
                f"sent an offer that makes no sense: {error}", f"your offer makes no sense: {error}"
            ) from None
        offer.check_match(device, is_sealed)
        return offer

    @classmethod
    def parse(cls, words: dict[str, Any]) -> Offer:
        planes = validate.planes(words.get("planes"))
        if type(words.get("icrc")) is not bool:
            raise ProtocolError("icrc", words.get("icrc"), "true or false")
        regions = validate.a_list("regions", words.get("regions"), 0, MAX_REGIONS)
        return cls(
            planes=planes,
            qpn=validate.whole("qpn", words.get("qpn"), *bounds(RtrAttributes, "dest_qpn")),
            first_psn=validate.whole("first_psn", words.get("first_psn"), *bounds(RtrAttributes, "first_psn")),
            mtu=validate.whole("mtu", words.get("mtu"), *bounds(RtrAttributes, "mtu")),
            icrc=words["icrc"],
            max_wimm=validate.whole("max_wimm", words.get("max_wimm"), *bounds(RtsAttributes, "max_wimm")),
            mpr=validate.whole("mpr", words.get("mpr"), *bounds(RtsAttributes, "mpr")),
            port_key=validate.whole("port_key", words.get("port_key", 0), 0, (1 << 64) - 1),
            regions=tuple(_region(n, one) for n, one in enumerate(regions)),
            seal=PeerEncryption.parse("seal", words.get("seal")),
        )

    def check_match(self, device: Device, is_sealed: bool) -> None:
        """Refuse what does not fit this device, or would have it talk to itself."""
        mine = device.local_planes
        if len(self.planes) != len(mine):
            theirs = len(self.planes)
            raise HandshakeError(
                f"has {theirs} planes, this device {len(mine)}", f"you have {theirs} planes, this side {len(mine)}"
            )
        for plane, local in zip(self.planes, mine, strict=True):
            if plane.address.version != local.address.version:
                both = "a plane that is IPv4 on one side and IPv6 on the other"
                raise HandshakeError(f"has {both}", f"there is {both}")
            if plane.address.is_loopback != local.address.is_loopback:
                both = f"a plane at {plane.address}, and this side's is at {local.address}: only one is on loopback"
                raise HandshakeError(f"has {both}", f"you have {both}")
        if self.icrc != device.config.icrc:
            both = "ICRC is on at one side and off at the other"
            raise HandshakeError(f"differs: {both}; set icrc alike", both)
        if (self.seal is not None) is not is_sealed:
            both = "packets are sealed at one side and not at the other"
            raise HandshakeError(f"differs: {both}; set seal alike", f"{both}; set seal alike")
        rows = zip(mine, device.planes(), strict=True)
        own = {(plane.address.packed, port) for plane, row in rows for port in row["source_ports"]}
        if not own.isdisjoint(socket_addresses(self.planes)):
            both = "a device does not connect to itself: make a second one"
            raise HandshakeError(
                f"offers this device's own address and port ({both})",
                f"you offer this side's own address and port ({both})",
            )


def offer_of(
    device: Device, qp: QueuePair, regions: tuple[MemoryRegion, ...], port_key: int, share: KeyShare | None
) -> dict[str, Any]:
    """What this side says."""
    return {
        "planes": [plane.to_wire() for plane in qp.reached_at],
        "qpn": qp.qpn,
        "first_psn": qp.first_psn,
        "mtu": device.payload(share is not None),
        "icrc": device.config.icrc,
        "max_wimm": device.config.max_wimm,
        "mpr": device.config.mpr,
        "port_key": port_key,
        "regions": [[region.va, region.length, region.rkey] for region in regions],
        "seal": share and share.to_wire(),
    }
