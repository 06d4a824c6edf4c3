"""MRC's headers as values. Field by field what docs/reference/wire.md lists; BTH first, then what may follow it."""

from __future__ import annotations

from dataclasses import dataclass, field

from softmrc.errors import ConfigError
from softmrc.wire.fields import Checked, as_integer, bits, flag, named, signed
from softmrc.wire.names import EndpointOp, Mark, NackReason, Opcode, Syndrome


@dataclass(frozen=True)
class Bth(Checked):
    """The base transport header, in front of every packet."""

    opcode: Opcode = named(Opcode)
    solicited: bool = flag()
    migration: bool = flag()
    pad: int = bits(2)
    version: int = bits(4)
    p_key: int = bits(16, 0xFFFF)
    dqp: int = bits(24)
    ack_request: bool = flag()
    retransmission: bool = flag()
    timestamped: bool = flag()
    psn: int = bits(24)


@dataclass(frozen=True)
class Timestamp(Checked):
    """When a packet left, in ticks of 128 ns that wrap after 8.4 ms."""

    ticks: int = bits(16)
    fine: bool = flag()  # tsr: the ticks are of another, finer unit
    ftype: int = bits(4, 1)


def as_timestamp(name: str, value: object) -> Timestamp:
    """A timestamp, or the number of its ticks."""
    if isinstance(value, Timestamp):
        return value
    return Timestamp(as_integer(name, value, 0, 0xFFFF))


@dataclass(frozen=True)
class Write(Checked):
    """METH, TSETH, RETH, ImmDt and the payload of a data packet.

    Three kinds: with `payload` bytes; with `payload_size` alone, for a packet whose bytes were not kept; and
    `trimmed`, where a switch cut everything after RETH and nothing tells how much there was.
    """

    rqmsn: int = bits(16)
    msn: int = bits(16)
    va: int = bits(64)
    rkey: int = bits(32)
    dmalen: int = bits(32, -1)  # -1: as long as this packet's payload
    imm: int | None = None
    timestamp: Timestamp | None = None
    payload: bytes | None = None
    payload_size: int = bits(32)
    trimmed: bool = flag()

    def __post_init__(self) -> None:
        self._settle_payload()
        if self.dmalen == -1:
            object.__setattr__(self, "dmalen", self.payload_size)
        super().__post_init__()
        if self.imm is not None:
            as_integer("Write.imm", self.imm, 0, 0xFFFFFFFF)
        if self.timestamp is not None:
            object.__setattr__(self, "timestamp", as_timestamp("Write.timestamp", self.timestamp))

    def _settle_payload(self) -> None:
        if self.payload is not None:
            if not isinstance(self.payload, bytes | bytearray | memoryview):
                raise ConfigError("Write.payload", self.payload, "must be bytes")
            object.__setattr__(self, "payload", bytes(self.payload))
            if self.payload_size not in (0, len(self.payload)):
                raise ConfigError(
                    "Write.payload_size", self.payload_size, f"must be {len(self.payload)}, as the payload has"
                )
            object.__setattr__(self, "payload_size", len(self.payload))
        if self.trimmed and (self.payload_size or self.imm is not None):
            raise ConfigError("Write.trimmed", True, "must have no payload and no immediate: a switch cut them off")
        is_empty = self.dmalen == 0 or (self.dmalen == -1 and self.payload is not None)
        if not self.trimmed and self.payload_size == 0 and not is_empty:
            raise ConfigError("Write.payload", self.payload, "must be bytes, and empty only where dmalen is 0")


@dataclass(frozen=True)
class Ack(Checked):
    """AETH, the transport acknowledgement: confirms operations, where a SACK confirms packets."""

    syndrome: Syndrome = named(Syndrome, Syndrome.ACK)
    msn: int = bits(24)


@dataclass(frozen=True)
class CcState(Checked):
    """What the receiver tells the sender's congestion control. `rcvd_bytes` counts units of 256 bytes."""

    tx_timestamp: int = bits(16)
    ooo_count: int = bits(15)
    restore_cwnd: bool = flag()
    rcv_cwnd_pen: int = bits(7)
    rcvd_bytes: int = bits(24)


@dataclass(frozen=True)
class Sack(Checked):
    """SETH and CC_STATE. With `answers_probe`, `ack_psn_offset` holds the probe's id."""

    mark: Mark = named(Mark, Mark.NONE)
    answers_probe: bool = flag()
    ack_psn_offset: int = signed(16)
    entropy: int = bits(32)
    spdcid: int = bits(16)
    dpdcid: int = bits(16)
    cack_psn: int = bits(24)
    cc_flags: int = bits(4)
    mpr: int = bits(8)
    sack_offset: int = signed(16)
    bitmap: int = bits(64)
    cc: CcState = field(default_factory=CcState)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.cc, CcState):
            raise ConfigError("Sack.cc", self.cc, "must be a CcState")

    @property
    def probe_id(self) -> int | None:
        """The id of the probe that this answers, if it answers one."""
        return self.ack_psn_offset & 0xFFFF if self.answers_probe else None

    @property
    def received(self) -> list[int]:
        """The PSNs that the bitmap reports as received."""
        base = self.cack_psn + self.sack_offset
        return [(base + i) & 0xFFFFFF for i in range(64) if self.bitmap >> i & 1]


@dataclass(frozen=True)
class Nack(Checked):
    """NETH: this packet did not make it into memory, and why."""

    reason: NackReason = named(NackReason, NackReason.TRIMMED)
    vendor: int = bits(8)
    entropy: int = bits(32)
    spdcid: int = bits(16)
    dpdcid: int = bits(16)
    nack_psn: int = bits(24)
    cc_flags: int = bits(4)
    tx_timestamp: int = bits(16)


class _Timestamped(Checked):
    """A control header with a timestamp, which may be given as a number of ticks."""

    timestamp: Timestamp

    def __post_init__(self) -> None:
        super().__post_init__()
        stamp = as_timestamp(f"{type(self).__name__}.timestamp", self.timestamp)
        object.__setattr__(self, "timestamp", stamp)


@dataclass(frozen=True)
class Probe(_Timestamped):
    """PETH: asks the peer queue pair for a SACK over a chosen path."""

    vendor: int = bits(8)
    probe_id: int = bits(16)
    spdcid: int = bits(16)
    dpdcid: int = bits(16)
    timestamp: Timestamp = field(default_factory=Timestamp)


@dataclass(frozen=True)
class EndpointRequest(_Timestamped):
    """ERTH, from node to node. The request's id is the packet's psn."""

    op: EndpointOp = named(EndpointOp, EndpointOp.EV_PROBE)
    vendor: int = bits(8)
    port_status_mask: int = bits(32)
    key: int = bits(64)  # 0: none follows
    timestamp: Timestamp = field(default_factory=Timestamp)


@dataclass(frozen=True)
class EndpointResponse(_Timestamped):
    """EETH, the answer to an endpoint request."""

    op: EndpointOp = named(EndpointOp, EndpointOp.EV_PROBE)
    key: int = bits(64)  # 0: none follows
    timestamp: Timestamp = field(default_factory=Timestamp)
    service_ns: int = bits(32)  # how long the answer was in the making; 0: not told


Body = Write | Ack | Sack | Nack | Probe | EndpointRequest | EndpointResponse


def body_type(opcode: Opcode) -> type[Body]:
    """Which body follows a BTH with this opcode."""
    if opcode.is_write:
        return Write
    return {
        Opcode.ACKNOWLEDGE: Ack,
        Opcode.ENDPOINT_REQUEST: EndpointRequest,
        Opcode.ENDPOINT_RESPONSE: EndpointResponse,
        Opcode.SACK: Sack,
        Opcode.NACK: Nack,
        Opcode.PROBE: Probe,
    }[opcode]
