"""SRv6 compressed segments (uSID, format F3216): a path written into an IPv6 address.

A carrier is a 32-bit block and up to six 16-bit uSIDs; a switch that finds its own uSID first shifts it out:

>>> a = carrier(0xFCBBBB00, [0x100, 0x200, 0x101, 0x1001])
>>> str(a), str(shift(a))
('fcbb:bb00:100:200:101:1001::', 'fcbb:bb00:200:101:1001::')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Any, Self

from softmrc._core import wire as _native
from softmrc.errors import ConfigError
from softmrc.wire.fields import Checked, as_integer, bits
from softmrc.wire.packet import Refused
from softmrc.wire.route import AddressLike, as_ipv6

MAX_USIDS = 6
MAX_SEGMENTS = 8


def _usids(usids: Sequence[int]) -> list[int]:
    return [as_integer(f"usids[{i}]", usid, 0, 0xFFFF) for i, usid in enumerate(usids)]


def _block(block: int) -> int:
    return as_integer("block", block, 0, 0xFFFFFFFF)


def carrier(block: int, usids: Sequence[int]) -> IPv6Address:
    """The address that carries up to six uSIDs, none of them zero."""
    return IPv6Address(_native.build_carrier(_block(block), _usids(usids)))


def split(address: AddressLike) -> tuple[int, list[int]]:
    """The block, and the uSIDs up to the first zero."""
    block, usids = _native.split_carrier(as_ipv6("address", address).packed)
    return block, usids


def matches(address: AddressLike, block: int, usid: int) -> bool:
    """Whether a switch with this block and uSID takes the address for its own (uN, the first 48 bits)."""
    usid = as_integer("usid", usid, 0, 0xFFFF)
    found: bool = _native.matches_usid(as_ipv6("address", address).packed, _block(block), usid)
    return found


def shift(address: AddressLike) -> IPv6Address:
    """What a switch makes of an address that was its own: the first uSID out, a zero in at the end."""
    return IPv6Address(_native.shift_carrier(as_ipv6("address", address).packed))


@dataclass(frozen=True)
class Srh(Checked):
    """The segment routing header. `segments` are in the order of the wire: the last one of the path first."""

    segments: tuple[IPv6Address, ...] = ()
    segments_left: int = bits(8)
    flags: int = bits(8)
    tag: int = bits(16)
    next_header: int = bits(8, 41)

    def __post_init__(self) -> None:
        super().__post_init__()
        segments = tuple(as_ipv6(f"Srh.segments[{i}]", s) for i, s in enumerate(self.segments))
        if not 1 <= len(segments) <= MAX_SEGMENTS:
            raise ConfigError("Srh.segments", f"{len(segments)} entries", f"must be 1 to {MAX_SEGMENTS} entries")
        if self.segments_left > len(segments):
            raise ConfigError("Srh.segments_left", self.segments_left, f"must be 0 to {len(segments)}")
        object.__setattr__(self, "segments", segments)

    @classmethod
    def parse(cls, data: bytes) -> Srh:
        """Read the header at the front of `data`."""
        native: Any = _native.parse_srh(bytes(data))
        if isinstance(native, str):
            raise Refused("SRH", native, len(data))
        return native

    def __bytes__(self) -> bytes:
        data: bytes = _native.emit_srh(self)
        return data


@dataclass(frozen=True, init=False)
class Path:
    """Where an outer header points, and the SRH with which it goes on from there."""

    destination: IPv6Address
    srh: Srh | None = None

    def __init__(self, destination: AddressLike, srh: Srh | None = None) -> None:
        object.__setattr__(self, "destination", as_ipv6("Path.destination", destination))
        object.__setattr__(self, "srh", srh)

    @classmethod
    def through(cls, block: int, usids: Sequence[int]) -> Self:
        """The path along these uSIDs; from the seventh on they travel in a reduced SRH."""
        path: Any = _native.build_path(_block(block), _usids(usids))
        return path

    @property
    def usids(self) -> list[int]:
        """The uSIDs still ahead."""
        usids: list[int] = _native.path_usids(self)
        return usids

    def advance(self) -> Path | None:
        """The path after the next switch, or None where it ends."""
        path: Any = _native.advance_path(self)
        return path

    def __str__(self) -> str:
        block = int(self.destination) >> 96
        return f"{block >> 16:x}:{block & 0xFFFF:x}/" + ">".join(f"{usid:x}" for usid in self.usids)


@dataclass(frozen=True)
class PathTemplate(Checked):
    """A path that is computed: one destination's uSIDs (T0, T1, T0, host), into which plane and uplink are written.

    A field is (shift of its lowest bit, width). The plane goes into every uSID, or into the block where each plane has
    a separate block; the uplink goes into the T1's uSID.
    """

    block: int = bits(32)
    usids: tuple[int, ...] = field(default=())
    plane_in_usid: tuple[int, int] | None = None
    plane_in_block: tuple[int, int] | None = None
    uplink_in_t1: tuple[int, int] | None = None
    t1: int = bits(8, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "usids", tuple(_usids(self.usids)))

    def destination(self, plane: int, uplink: int) -> IPv6Address:
        """The address of the path through this plane and uplink."""
        address = _native.computed_destination(
            self.block, list(self.usids), self.plane_in_usid, self.plane_in_block, self.uplink_in_t1, self.t1,
            as_integer("plane", plane, 0, 0xFFFFFFFF), as_integer("uplink", uplink, 0, 0xFFFFFFFF),
        )  # fmt: skip
        return IPv6Address(address)
