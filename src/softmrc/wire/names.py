"""The numbers that have names on the wire."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class OpenEnum(IntEnum):
    """An enum of one byte whose unnamed values are values too: a peer may know more of them than we do."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int) or not 0 <= value <= 0xFF:
            return None
        member = int.__new__(cls, value)
        member._name_ = f"UNKNOWN_{value:02X}"
        member._value_ = value
        return member


class Opcode(IntEnum):
    """BTH byte 0."""

    WRITE_FIRST = 0xC6
    WRITE_MIDDLE = 0xC7
    WRITE_LAST = 0xC8
    WRITE_LAST_IMM = 0xC9
    WRITE_ONLY = 0xCA
    WRITE_ONLY_IMM = 0xCB
    ACKNOWLEDGE = 0xD1
    ENDPOINT_REQUEST = 0xD8
    ENDPOINT_RESPONSE = 0xD9
    SACK = 0xDC
    NACK = 0xDD
    PROBE = 0xDE

    @property
    def is_write(self) -> bool:
        """Whether the packet carries data."""
        return Opcode.WRITE_FIRST <= self <= Opcode.WRITE_ONLY_IMM

    @property
    def has_imm(self) -> bool:
        """Whether the packet carries an immediate."""
        return self in (Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY_IMM)


class Mark(IntEnum):
    """What a SACK says of the path that the triggering packet took."""

    NONE = 0
    SKIP_ONCE = 1
    ALWAYS_SKIP = 2


class NackReason(OpenEnum):
    """Why a packet did not make it into memory."""

    TRIMMED = 0x01
    TRIMMED_LASTHOP = 0x02
    NO_BITMAP = 0x06
    NO_PKT_BUFFER = 0x07
    NO_RESOURCE = 0x0A
    PSN_OOR_WINDOW = 0x0B
    UNEXP_EVENT = 0x19


class Syndrome(OpenEnum):
    """What a transport acknowledgement says of an operation."""

    ACK = 0x1F
    INVALID_REQUEST = 0x61
    REMOTE_ACCESS = 0x62
    REMOTE_OPERATION = 0x63


class EndpointOp(IntEnum):
    """What one node asks of another."""

    PORT_STATUS_UPDATE = 0
    EV_PROBE = 1


class Ecn(IntEnum):
    """The two congestion bits of an IP header."""

    NOT_CAPABLE = 0
    CAPABLE_1 = 1
    CAPABLE_0 = 2
    CONGESTION = 3


class Sum(IntEnum):
    """What is known of a checksum. Absent: trimmed away, or a UDP checksum of zero."""

    ABSENT = 0
    GOOD = 1
    BAD = 2
