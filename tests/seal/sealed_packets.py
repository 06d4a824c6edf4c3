"""A packet of every opcode, with every field filled, as `wire.emit` makes them; and sessions to seal them with."""

from __future__ import annotations

import secrets

from softmrc import wire
from softmrc._core import Cipher
from softmrc._core.parts import Inbound, Outbound

QPN = 0x00ABCD
SECRET = bytes(range(32))
WRITES = ("write_first", "write_middle", "write_last", "write_last_imm", "write_only", "write_only_imm")
OTHERS = ("acknowledge", "sack", "nack", "probe", "endpoint_request", "endpoint_response")


def of_every_opcode(size: int = 61) -> dict[str, bytes]:
    made = {}
    for name in WRITES:
        imm = {"imm": 0xCAFE} if name.endswith("imm") else {}
        payload = secrets.token_bytes(size)
        made[name] = bytes(wire.Packet(name, dqp=QPN, psn=7, va=0x1000, rkey=3, dmalen=size, payload=payload, **imm))
    for name in OTHERS:
        made[name] = bytes(wire.Packet(name, dqp=QPN, psn=7))
    return made


def outbound(
    cipher: Cipher = Cipher.AES_256_GCM, secret: bytes = SECRET, packets: int = 1 << 36, s: int = 3600
) -> Outbound:
    return Outbound(cipher, secret, QPN, packets, s)


def inbound(cipher: Cipher = Cipher.AES_256_GCM, secret: bytes = SECRET) -> Inbound:
    return Inbound(cipher, secret)
