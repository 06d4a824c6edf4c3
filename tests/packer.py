"""Packets as bytes, written and read from the header tables alone: the tests' own view of the wire.

It shares no line with the engine's encoder, so that a field both sides of the engine get wrong in the same way still
shows. Only what tests need is here; every number is big-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM = 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB
ACK, REQUEST, RESPONSE, SACK, NACK, PROBE = 0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE

PSN_MASK = 0xFFFFFF
PEER_PAIR = 0x80  # the queue pair at the other end, unless a test says otherwise
TRIMMED, TRIMMED_LAST_HOP, NO_BITMAP, NO_PKT_BUFFER, NO_RESOURCE, OUT_OF_WINDOW, UNEXPECTED = 1, 2, 6, 7, 10, 11, 0x19
SYN_ACK, SYN_INVALID, SYN_ACCESS, SYN_OPERATION = 0x1F, 0x61, 0x62, 0x63


def bth(
    opcode: int, dqp: int, psn: int, *, pad: int = 0, ack_request: bool = False, rtx: bool = False, ts: bool = False
) -> bytes:
    flags = ack_request << 7 | rtx << 5 | ts << 4
    return struct.pack(">BBHII", opcode, pad << 4, 0xFFFF, dqp & PSN_MASK, flags << 24 | psn & PSN_MASK)


def write(
    dqp: int,
    psn: int,
    payload: bytes,
    *,
    opcode: int = ONLY,
    va: int = 0,
    rkey: int = 1,
    dmalen: int | None = None,
    msn: int | None = None,
    rqmsn: int = 0,
    imm: int | None = None,
    ticks: int | None = None,
    ack_request: bool = False,
    rtx: bool = False,
    trimmed: bool = False,
) -> bytes:
    """Without `msn`, a packet that is a whole message is the one that packets numbered from 0 make it."""
    msn = msn if msn is not None else psn if opcode in (ONLY, ONLY_IMM) else 0
    pad = -len(payload) % 4
    raw = bth(opcode, dqp, psn, pad=pad, ack_request=ack_request, rtx=rtx, ts=ticks is not None)
    raw += struct.pack(">HH", rqmsn & 0xFFFF, msn & 0xFFFF)
    if ticks is not None:
        raw += struct.pack(">HBB", ticks, 0, 1)
    raw += struct.pack(">QII", va & (1 << 64) - 1, rkey, len(payload) if dmalen is None else dmalen)
    if trimmed:
        return raw
    if opcode in (LAST_IMM, ONLY_IMM):
        raw += struct.pack(">I", imm or 0)
    return raw + payload + bytes(pad)


def sack(
    dqp: int,
    cack: int,
    *,
    ack_psn: int | None = None,
    probe_id: int | None = None,
    mark: int = 0,
    entropy: int = 0,
    mpr: int = 0,
    base: int | None = None,
    bitmap: int = 0,
    ticks: int = 0,
    ooo: int = 0,
    restore: bool = False,
    penalty: int = 0,
    rcvd_bytes: int = 0,
    spdcid: int = PEER_PAIR,
    dpdcid: int | None = None,
) -> bytes:
    offset = 0 if ack_psn is None else signed24(ack_psn - cack)
    base_offset = 1 if base is None else signed24(base - cack)
    raw = bth(SACK, dqp, cack)
    raw += struct.pack(">BB", 0, mark << 5 | (probe_id is not None) << 1)
    raw += struct.pack(">H", (offset if probe_id is None else probe_id) & 0xFFFF)
    raw += struct.pack(">IHH", entropy, spdcid, (dqp if dpdcid is None else dpdcid) & 0xFFFF)
    raw += struct.pack(">I", cack & PSN_MASK)
    raw += struct.pack(">BBhQ", 0, mpr, base_offset, bitmap)
    units = -(-rcvd_bytes // 256) & 0xFFFFFF
    return raw + struct.pack(">HHI", ticks, ooo, (restore << 7 | penalty) << 24 | units)


def ack(dqp: int, cack: int, msn: int, syndrome: int = SYN_ACK) -> bytes:
    return bth(ACK, dqp, cack) + struct.pack(">I", syndrome << 24 | msn & PSN_MASK)


def nack(dqp: int, psn: int, reason: int, *, entropy: int = 0, ticks: int = 0, spdcid: int = PEER_PAIR,
         dpdcid: int | None = None) -> bytes:  # fmt: skip
    to = (dqp if dpdcid is None else dpdcid) & 0xFFFF
    raw = bth(NACK, dqp, psn) + struct.pack(">HBBIHH", 0, reason, 0, entropy, spdcid, to)
    return raw + struct.pack(">IBBH", psn & PSN_MASK, 0, 0, ticks)


def probe(dqp: int, probe_id: int, ticks: int = 0, *, spdcid: int = PEER_PAIR, dpdcid: int | None = None) -> bytes:
    to = (dqp if dpdcid is None else dpdcid) & 0xFFFF
    raw = bth(PROBE, dqp, 0) + struct.pack(">HBBHHHH", 0, 0, 0, probe_id, 0, spdcid, to)
    return raw + struct.pack(">HBB", ticks, 0, 1)


def request(op: int, request_id: int, mask: int = 0, ticks: int = 0, key: int = 0) -> bytes:
    """op 0: port status, whose mask counts ports from 1; op 1: EV probe."""
    raw = bth(REQUEST, 2, request_id) + struct.pack(">BBBBII", 0, op, 0, 0, mask, 0)
    return raw + struct.pack(">HBB", ticks, 0, 1) + (struct.pack(">Q", key) if key else b"")


def response(op: int, request_id: int, ticks: int = 0, key: int = 0, service_ns: int = 0) -> bytes:
    raw = bth(RESPONSE, 2, request_id) + struct.pack(">BB26xHBBI", 0, op << 2, ticks, 0, 1, service_ns)
    return raw + (struct.pack(">Q", key) if key else b"")


def signed24(n: int) -> int:
    n &= PSN_MASK
    return n - (1 << 24) if n >> 23 else n


@dataclass(frozen=True)
class Parsed:
    """A packet as read: its opcode, BTH fields, and the fields of whatever follows."""

    opcode: int
    dqp: int
    psn: int
    ack_request: bool
    rtx: bool
    fields: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None


def parse(raw: bytes) -> Parsed:
    opcode, second, _, dqp, word = struct.unpack_from(">BBHII", raw)
    flags = word >> 24
    body, fields = raw[12:], {}
    if opcode in (FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM):
        fields = _parse_write(opcode, second >> 4 & 3, bool(flags & 0x10), body)
    elif opcode == SACK:
        fields = _parse_sack(body)
    elif opcode == NACK:
        reason, entropy, psn, ticks = body[2], *struct.unpack_from(">I4xI2xH", body, 4)
        fields = {"reason": reason, "entropy": entropy, "nack_psn": psn & PSN_MASK, "ticks": ticks}
    elif opcode == ACK:
        (aeth,) = struct.unpack(">I", body)
        fields = {"syndrome": aeth >> 24, "msn": aeth & PSN_MASK}
    elif opcode == PROBE:
        fields = {"probe_id": struct.unpack_from(">H", body, 4)[0]}
    elif opcode == REQUEST:
        mask, ticks = struct.unpack_from(">I4xH", body, 4)
        fields = {"op": body[1] & 3, "mask": mask, "ticks": ticks, "key": int.from_bytes(body[16:], "big")}
    elif opcode == RESPONSE:
        ticks, service_ns = struct.unpack_from(">H2xI", body, 28)
        key = int.from_bytes(body[36:], "big")
        fields = {"op": body[1] >> 2 & 3, "ticks": ticks, "service_ns": service_ns, "key": key}
    return Parsed(opcode, dqp & PSN_MASK, word & PSN_MASK, bool(flags & 0x80), bool(flags & 0x20), fields)


def _parse_write(opcode: int, pad: int, has_ts: bool, body: bytes) -> dict[str, Any]:
    rqmsn, msn = struct.unpack_from(">HH", body)
    at, ticks = 4, None
    if has_ts:
        ticks = struct.unpack_from(">H", body, at)[0]
        at += 4
    va, rkey, dmalen = struct.unpack_from(">QII", body, at)
    at += 16
    imm = None
    if opcode in (LAST_IMM, ONLY_IMM):
        imm = struct.unpack_from(">I", body, at)[0]
        at += 4
    payload = body[at : len(body) - pad]
    return {"rqmsn": rqmsn, "msn": msn, "ticks": ticks, "va": va, "rkey": rkey, "dmalen": dmalen, "imm": imm,
            "payload": payload}  # fmt: skip


def _parse_sack(body: bytes) -> dict[str, Any]:
    _, flags, offset, entropy, _, _, cack = struct.unpack_from(">BBhIHHI", body)
    _, mpr, base_offset, bitmap, ticks, ooo, word = struct.unpack_from(">BBhQHHI", body, 16)
    cack &= PSN_MASK
    is_answer = bool(flags & 2)
    return {
        "mark": flags >> 5 & 3,
        "answers_probe": is_answer,
        "probe_id": offset & 0xFFFF if is_answer else None,
        "ack_psn": None if is_answer else (cack + offset) & PSN_MASK,
        "entropy": entropy,
        "cack": cack,
        "mpr": mpr,
        "base": (cack + base_offset) & PSN_MASK,
        "bitmap": bitmap,
        "ticks": ticks,
        "ooo": ooo & 0x7FFF,
        "restore": bool(word >> 31),
        "penalty": word >> 24 & 0x7F,
        "rcvd_bytes": (word & 0xFFFFFF) * 256,
    }
