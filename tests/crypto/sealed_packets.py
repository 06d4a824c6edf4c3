"""A packet of every opcode, with every field filled, as `wire.emit` makes them; and sessions to encrypt them with."""

from __future__ import annotations

import secrets

import parts
from parts import Outbound
from softmrc import wire
from softmrc._core import Cipher, Inbound

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
    cipher: Cipher = Cipher.AES_256_GCM,
    secret: bytes = SECRET,
    packets: int = 1 << 36,
    s: int = 3600,
    most: int = 1 << 36,
) -> Outbound:
    return Outbound(cipher, secret, QPN, packets, s, most)


def heard(out: Outbound) -> Outbound:
    """One whose peer has shown that it has this key, so that it may be replaced."""
    out.on_heard(out.epoch)
    return out


def numbered(number: int) -> bytes:
    """A SACK under any number, which only who has the keys can make."""
    packet = bytearray(bytes(wire.Packet("sack", dqp=QPN, psn=7)))
    packet[1] |= 1
    front = bytes(packet) + QPN.to_bytes(3, "big") + b"\0" + number.to_bytes(8, "big")
    key, iv = (parts.seal_expand(SECRET, b"softmrc seal " + what) for what in (b"key", b"iv"))
    nonce = iv[:4] + bytes(a ^ b for a, b in zip(iv[4:12], number.to_bytes(8, "big"), strict=True))
    return front + parts.aead_seal(Cipher.AES_256_GCM, key, nonce, front, b"")


def inbound(cipher: Cipher = Cipher.AES_256_GCM, secret: bytes = SECRET) -> Inbound:
    return Inbound(cipher, secret)
