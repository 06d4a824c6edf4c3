"""What a side offers: where it is, its queue pair, its memory; and what of a peer's offer is believed.

A peer that is authenticated may still lie. The core checks every field before anything is made of it
(`core/host/offer.h`), and the peer receives a message that says what was wrong.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from softmrc import _core
from softmrc.device import Device, MemoryRegion, PeerPlane, QueuePair


@dataclass(frozen=True)
class RemoteRegion:
    """Memory of the peer that this side may write to."""

    va: int
    length: int
    rkey: int

    def __repr__(self) -> str:
        return f"<RemoteRegion {self.length:,} bytes>"


@dataclass(frozen=True)
class Offer:
    """A peer's offer."""

    native: _core.Offer
    planes: tuple[PeerPlane, ...]
    regions: tuple[RemoteRegion, ...]

    @classmethod
    def parse(cls, content: bytes) -> Offer:
        """Raises HandshakeError where it makes no sense."""
        return cls._of(_core.Offer.decode(content))

    @classmethod
    def checked(cls, content: bytes, device: Device, is_sealed: bool) -> Offer:
        """What a peer said, if it fits this device, and does not have it talk to itself. Raises HandshakeError."""
        native = _core.Offer.decode(content)
        rows = zip(device.local_planes, device.planes(), strict=True)
        own = [_core.PeerPlane(plane.address.packed, 0, 0, row["source_ports"]) for plane, row in rows]
        native.check(device.local_planes, own, device.config.icrc, is_sealed)
        return cls._of(native)

    @classmethod
    def _of(cls, native: _core.Offer) -> Offer:
        planes = (PeerPlane(ipaddress.ip_address(at), port, ports) for at, port, ports in native.planes)
        return cls(native, tuple(planes), tuple(RemoteRegion(*region) for region in native.regions))


def offer_of(
    device: Device, qp: QueuePair, regions: tuple[MemoryRegion, ...], port_key: int, is_sealed: bool
) -> _core.Offer:
    """What this side says."""
    return _core.Offer(
        planes=[plane.native() for plane in qp.reached_at],
        qpn=qp.qpn,
        first_psn=qp.first_psn,
        port_key=port_key,
        mtu=device.payload(is_sealed),
        icrc=device.config.icrc,
        is_encrypted=is_sealed,
        max_wimm=device.config.max_wimm,
        mpr=device.config.mpr,
        regions=[(region.va, region.length, region.rkey) for region in regions],
    )
