"""A whole frame around a packet: Ethernet, an optional outer IPv6 that is the path, IP, UDP, ICRC."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address
from typing import Any, NamedTuple, Self

from softmrc._core import wire as _native
from softmrc.errors import ConfigError
from softmrc.wire.entropy import ev_of, ports_of
from softmrc.wire.fields import Checked, as_integer, as_named, bits, flag, named
from softmrc.wire.names import Ecn, Sum
from softmrc.wire.packet import Packet, Refused
from softmrc.wire.route import UDP_PORT, AddressLike, Route, as_ipv6
from softmrc.wire.srv6 import Path


@dataclass(frozen=True)
class DscpMap(Checked):
    """The operator's DSCP code points."""

    no_trim: int = bits(6, 0)
    trimmable: int = bits(6, 4)
    trimmable_retx: int = bits(6, 8)
    trimmed: int = bits(6, 12)
    trimmed_last_hop: int = bits(6, 16)
    control: int = bits(6, 46)

    def of(self, packet: Packet) -> int:
        """The code point that a packet travels with."""
        if packet.trimmed:
            return self.trimmed
        dscp: int = _native.dscp_of(packet, self)
        return dscp


DEFAULT_DSCP = DscpMap()
ANY_PORT = 0  # as the native reader takes it


@dataclass(frozen=True, init=False)
class Outer:
    """The IPv6 header in front of the real one. DSCP and ECN are the inner header's unless given."""

    source: IPv6Address
    path: Path
    flow_label: int
    dscp: int | None
    ecn: Ecn | None
    hop_limit: int

    def __init__(
        self,
        source: AddressLike,
        path: Path | AddressLike,
        *,
        flow_label: int = 0,
        dscp: int | None = None,
        ecn: Ecn | int | None = None,
        hop_limit: int = 64,
    ) -> None:
        set_field = object.__setattr__
        set_field(self, "source", as_ipv6("Outer.source", source))
        set_field(self, "path", path if isinstance(path, Path) else Path(path))
        set_field(self, "flow_label", as_integer("Outer.flow_label", flow_label, 0, 0xFFFFF))
        set_field(self, "dscp", None if dscp is None else as_integer("Outer.dscp", dscp, 0, 63))
        set_field(self, "ecn", None if ecn is None else as_named("Outer.ecn", ecn, Ecn))
        set_field(self, "hop_limit", as_integer("Outer.hop_limit", hop_limit, 0, 255))

    def around(self, dscp: int, ecn: Ecn, next_header: int) -> Outer:
        path = self.path
        if path.srh is not None and path.srh.next_header != next_header:
            path = Path(path.destination, replace(path.srh, next_header=next_header))
        return Outer(
            self.source, path, flow_label=self.flow_label, hop_limit=self.hop_limit,
            dscp=dscp if self.dscp is None else self.dscp, ecn=ecn if self.ecn is None else self.ecn,
        )  # fmt: skip


def _as_mac(name: str, value: object) -> str:
    parts = value.lower().replace("-", ":").split(":") if isinstance(value, str) else []
    try:
        raw = bytes(int(part, 16) for part in parts)
    except ValueError:
        raw = b""
    if len(raw) != 6:
        raise ConfigError(name, value, "must be six hexadecimal bytes, as 02:00:00:00:00:01")
    return raw.hex(":")


class SealKey(NamedTuple):
    """The key field of an encrypted packet: whose key, how often it was replaced, and the packet number."""

    qpn: int  # of the receiver
    epoch: int
    number: int


@dataclass(frozen=True)
class Frame(Checked):
    """A frame. `Frame.build` makes one from addresses and an EV; `Frame.parse` reads one.

    `icrc` and `udp_checksum` tell what was found in a frame that was read. `bytes(frame)` always writes a good ICRC,
    and a UDP checksum unless it is to be absent; a trimmed packet gets neither.
    """

    packet: Packet
    route: Route
    flow_label: int = bits(20)
    dscp: int = bits(6, -1)  # -1: what the default map says of the packet
    ecn: Ecn = named(Ecn, Ecn.CAPABLE_0)
    hop_limit: int = bits(8, 64)
    outer: Outer | None = None
    source_mac: str = "02:00:00:00:00:01"
    destination_mac: str = "02:00:00:00:00:02"
    identification: int = bits(16)
    dont_fragment: bool = flag(True)
    udp_checksum: Sum = named(Sum, Sum.GOOD)
    icrc: Sum = field(default=Sum.GOOD, metadata={"enum": Sum}, compare=False)
    sealed: SealKey | None = field(
        default=None, compare=False
    )  # found; the payload is then hidden, and so is an immediate

    def __post_init__(self) -> None:
        if not isinstance(self.packet, Packet):
            raise ConfigError("Frame.packet", self.packet, "must be a Packet")
        if self.dscp == -1:
            object.__setattr__(self, "dscp", DEFAULT_DSCP.of(self.packet))
        super().__post_init__()
        if self.sealed is not None:
            object.__setattr__(self, "sealed", SealKey(*self.sealed))
        for name in ("source_mac", "destination_mac"):
            object.__setattr__(self, name, _as_mac(f"Frame.{name}", getattr(self, name)))
        if self.outer is not None:
            object.__setattr__(self, "outer", self.outer.around(self.dscp, self.ecn, 4 if self.route.is_v4 else 41))
        if self.route.is_v4 and self.flow_label:
            raise ConfigError("Frame.flow_label", self.flow_label, "must be 0: IPv4 has no flow label")
        if self.trimmed:
            object.__setattr__(self, "udp_checksum", Sum.ABSENT)
            object.__setattr__(self, "icrc", Sum.ABSENT)

    @classmethod
    def build(
        cls,
        packet: Packet,
        source: AddressLike,
        destination: AddressLike,
        *,
        ev: int = 0,
        udp_port: int = UDP_PORT,
        dscp_map: DscpMap = DEFAULT_DSCP,
        **others: Any,
    ) -> Self:
        """A frame whose source port and flow label carry the EV, as far as the address family lets them."""
        port, label = ports_of(ev)
        route = Route(source, destination, port, udp_port)
        others.setdefault("dscp", dscp_map.of(packet))
        return cls(packet, route, 0 if route.is_v4 else label, **others)

    @classmethod
    def parse(
        cls, data: bytes, *, link_header: bool = True, udp_port: int | None = UDP_PORT, dscp_map: DscpMap = DEFAULT_DSCP
    ) -> Frame:
        """Read a frame; one that carries no MRC packet raises `Refused`. A wrong checksum is reported, not refused.
        `udp_port` is MRC's, or None: whichever it is. `Record.parse` knows that of what was captured."""
        native: Any = _native.parse_frame(bytes(data), link_header, udp_port or ANY_PORT, dscp_map)
        if isinstance(native, str):
            raise Refused("frame", native, len(data))
        return native

    @property
    def ev(self) -> int:
        """The EV as far as the frame carries it."""
        return ev_of(self.route.source_port, self.flow_label)

    @property
    def trimmed(self) -> bool:
        return self.packet.trimmed

    @property
    def marked(self) -> bool:
        """Whether a switch on the way marked congestion, in either IP header."""
        return Ecn.CONGESTION in (self.ecn, self.outer.ecn if self.outer else None)

    def replace(self, **changes: Any) -> Frame:
        """The same frame with other values for some fields."""
        return replace(self, **changes)

    def __bytes__(self) -> bytes:
        if self.sealed is not None:
            raise ConfigError(
                "Frame.sealed", self.sealed, "must be None: an encrypted packet cannot be written without its keys"
            )
        data: bytes = _native.emit_frame(self)
        if not data:
            size = len(bytes(self.packet))
            raise ConfigError("Frame.packet", f"{size} bytes", "must fit an IP packet of 65535 bytes")
        return data


def trim(
    frame: bytes,
    *,
    last_hop: bool = False,
    link_header: bool = True,
    udp_port: int = UDP_PORT,
    dscp_map: DscpMap = DEFAULT_DSCP,
) -> bytes | None:
    """What a switch makes of a frame that finds no room, or None when the frame may not be trimmed.

    It is cut after RETH, its lengths are rewritten, it is marked TRIMMED in every IP header, and its checksums go.
    """
    data: bytes = _native.trim(bytes(frame), last_hop, link_header, udp_port, dscp_map)
    return data or None
