"""MRC on the wire: packets, frames, paths and captures, built and read by the native core.

>>> from softmrc import wire
>>> p = wire.Packet("write_only", dqp=0x11, psn=5, va=0x1000, rkey=7, payload=b"hello")
>>> f = wire.Frame.build(p, "fd00::1", "fd00::2", ev=0x0001C000)
>>> f == wire.Frame.parse(bytes(f))
True
"""

from __future__ import annotations

from softmrc.wire import entropy, srv6
from softmrc.wire.capture import (
    LINKTYPE_ETHERNET,
    LINKTYPE_RAW,
    CaptureError,
    Interface,
    PcapngWriter,
    Record,
    read_pcapng,
)
from softmrc.wire.crc import CrcMethod, carryless_available, crc32, icrc, measure_crc, print_crc_rates, seal, verify
from softmrc.wire.entropy import (
    EvField,
    EvFormat,
    entropy_bits,
    ev_of,
    ev_of_path,
    expand,
    pack_stev,
    path_of,
    ports_of,
    unpack_stev,
)
from softmrc.wire.frame import DEFAULT_DSCP, DscpMap, Frame, Outer, SealKey, trim
from softmrc.wire.headers import (
    Ack,
    Body,
    Bth,
    CcState,
    EndpointRequest,
    EndpointResponse,
    Nack,
    Probe,
    Sack,
    Timestamp,
    Write,
)
from softmrc.wire.names import Ecn, EndpointOp, Mark, NackReason, Opcode, Sum, Syndrome
from softmrc.wire.packet import ENDPOINT_QPN, Packet, Refused
from softmrc.wire.route import UDP_PORT, Route
from softmrc.wire.srv6 import Path, PathTemplate, Srh

__all__ = [
    "DEFAULT_DSCP", "ENDPOINT_QPN", "LINKTYPE_ETHERNET", "LINKTYPE_RAW", "UDP_PORT",
    "Ack", "Body", "Bth", "CaptureError", "CcState", "CrcMethod", "DscpMap", "Ecn", "EndpointOp", "EndpointRequest",
    "EndpointResponse", "EvField", "EvFormat", "Frame", "Interface", "Mark", "Nack", "NackReason", "Opcode", "Outer",
    "Packet", "Path", "PathTemplate", "PcapngWriter", "Probe", "Record", "Refused", "Route", "Sack", "SealKey", "Srh",
    "Sum", "Syndrome", "Timestamp", "Write",
    "carryless_available", "crc32", "entropy", "entropy_bits", "ev_of", "ev_of_path", "expand", "icrc", "measure_crc",
    "pack_stev", "path_of", "ports_of", "print_crc_rates", "read_pcapng", "seal", "srv6", "trim", "unpack_stev",
    "verify",
]  # fmt: skip
