"""Packets that no honest peer would send, and the queue pairs that they are sent to.

A victim carries no flow of the plan. There is one for every state, and for every way into ERROR; what it is sent may
take it further, and is answered or refused, but must disturb nobody else.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from softmrc.config import InitAttributes, RtrAttributes, RtsAttributes
from softmrc.engine import Endpoint, QueuePair, Trim
from softmrc.engine.pair import Pair

FIRST, LAST_WRITE = 0xC6, 0xCB
ACK, REQUEST, RESPONSE, SACK, NACK, PROBE = 0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE
HAS_IMMEDIATE = (0xC9, 0xCB)
NODE = 2
# Everything but "unexpected event", which ends a connection by right.
NACK_REASONS = (0x01, 0x02, 0x06, 0x07, 0x0A, 0x0B, 0x00, 0x30)
FATAL = 0x19

WAYS = ((), ("init",), ("init", "rtr"), ("init", "rtr", "rts"), ("init", "error"), ("init", "rtr", "error"))
WAYS += (("init", "rtr", "rts", "error"), ("init", "rtr", "rts", "destroy"), ("init", "error", "destroy"))
QPN, NOBODY, RKEY, MTU = 0x3000, 0x3FFF, 0x300, 512


def bth(opcode: int, dqp: int, psn: int, flags: int = 0, pad: int = 0) -> bytes:
    return struct.pack(">BBHII", opcode, pad << 4, 0xFFFF, dqp, flags << 24 | psn & 0xFFFFFF)


def nack(dqp: int, psn: int, reason: int, ticks: int, source: int) -> bytes:
    """`source` is the queue pair that it claims to come from."""
    raw = bth(NACK, dqp, psn) + struct.pack(">HBBIHH", 0, reason, 0, 0, source & 0xFFFF, dqp & 0xFFFF)
    return raw + struct.pack(">IBBH", psn & 0xFFFFFF, 0, 0, ticks)


def write(rng: Random, dqp: int, psn: int) -> bytes:
    opcode = rng.randint(FIRST, LAST_WRITE)
    size = rng.choice([0, 4, 64, MTU])
    flags = rng.choice([0, 0x80, 0x20, 0x10, 0xB0])
    raw = bth(opcode, dqp, psn, flags) + struct.pack(">HH", rng.randrange(4), rng.randrange(4))
    if flags & 0x10:
        raw += struct.pack(">HBB", rng.getrandbits(16), 0, 1)
    raw += struct.pack(
        ">QII", rng.choice([0, 100]), rng.choice([RKEY, RKEY, 9]), rng.choice([size, 2 * MTU, MTU + size])
    )
    if opcode in HAS_IMMEDIATE:
        raw += struct.pack(">I", rng.getrandbits(32))
    return raw + bytes(size)


def sack(rng: Random, dqp: int, psn: int) -> bytes:
    raw = bth(SACK, dqp, psn) + struct.pack(">BBH", 0, rng.choice([0, 2, 0x20, 0x40]), rng.choice([0, 1, 0xFFFF]))
    raw += struct.pack(">IHHI", rng.getrandbits(32), rng.choice([NOBODY, 0]), dqp & 0xFFFF, psn & 0xFFFFFF)
    raw += struct.pack(">BBhQ", 0, rng.choice([0, 8, 255]), rng.choice([1, -3, 600]), rng.getrandbits(64))
    return raw + struct.pack(">HHI", rng.getrandbits(16), rng.randrange(9), rng.getrandbits(32))


def any_packet(rng: Random, dqp: int) -> bytes:
    psn = rng.choice([0, 0, 1, 5, 1 << 20, 0xFFFFFF])
    kind = rng.choice([FIRST, FIRST, FIRST, ACK, SACK, NACK, PROBE, REQUEST, RESPONSE])
    if kind == FIRST:
        return write(rng, dqp, psn)
    if kind == SACK:
        return sack(rng, dqp, psn)
    if kind == NACK:
        return nack(dqp, psn, rng.choice([*NACK_REASONS, FATAL]), rng.getrandbits(16), rng.choice([NOBODY, 0]))
    if kind == ACK:
        syndrome = rng.choice([0x1F, 0x1F, 0x61, 0x62, 0x63, 0x20])
        return bth(ACK, dqp, psn) + struct.pack(">I", syndrome << 24 | rng.choice([0, 3, 0xFFFF]))
    if kind == PROBE:
        pdcids = (rng.choice([NOBODY, 0]), dqp & 0xFFFF)
        return bth(PROBE, dqp, psn) + struct.pack(">HBBHHHHHBB", 0, 0, 0, rng.getrandbits(16), 0, *pdcids, 7, 0, 1)
    # A node's own number answers; any other refuses. A port status would be believed, so only probes are asked for.
    to, number = rng.choice([NODE, dqp]), rng.getrandbits(16)
    if kind == REQUEST:
        return bth(REQUEST, to, number) + struct.pack(">BBBBIIHBB", 0, 1, 0, 0, 0, 0, 7, 0, 1)
    return bth(RESPONSE, to, number) + struct.pack(">BB26xHBB4x", 0, rng.choice([0, 1]) << 2, 7, 0, 1)


class Victims:
    """The queue pairs of one side that strangers write to."""

    def __init__(self, pair: Pair, side: int) -> None:
        self.pair = pair
        self.endpoint: Endpoint = pair.sides[side]
        self.cq = self.endpoint.create_cq()
        self.endpoint.register(length=4 * MTU, rkey=RKEY)
        for number, way in enumerate(WAYS):
            qp = self.endpoint.create_qp(QPN + number)
            for step in way:
                self._take(qp, step)

    def _take(self, qp: QueuePair, step: str) -> None:
        now = self.pair.now_ps
        if step == "init":
            qp.init(InitAttributes(send_cq=self.cq, recv_cq=self.cq))
        elif step == "rtr":
            qp.rtr(now, RtrAttributes(peer=0, dest_qpn=NOBODY, mtu=MTU))
        elif step == "rts":
            qp.rts(now, RtsAttributes())
        elif step == "error":
            qp.error(now)
        else:
            qp.destroy(now)

    def suffer(self, count: int, rng: Random) -> None:
        for _ in range(count):
            raw: Any = any_packet(rng, QPN + rng.randrange(len(WAYS) + 1))
            is_write = FIRST <= raw[0] <= LAST_WRITE
            trim = Trim.TRIMMED if is_write and rng.random() < 0.2 else Trim.NONE
            if trim == Trim.TRIMMED:
                raw = raw[: 12 + 4 + (4 if raw[8] & 0x10 else 0) + 16]
            port = rng.randrange(self.pair.planes)
            peer = rng.choice([0, 0, 0, 0, 7])
            self.endpoint.handle_datagram(self.pair.now_ps, raw, peer=peer, port=port, entropy=5, trim=trim)
