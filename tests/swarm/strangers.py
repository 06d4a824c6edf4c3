"""Packets that no honest peer would send, and the queue pairs that they are sent to.

A victim carries no flow of the plan. There is one for every state, and for every way into ERROR; what it is sent may
take it further, and is answered or refused, but must not disturb other queue pairs.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import packer
from packer import ACK, FIRST, LAST_IMM, NACK, ONLY_IMM, PROBE, REQUEST, RESPONSE, SACK, bth
from softmrc.config import InitAttributes, RtrAttributes, RtsAttributes
from softmrc.engine import Endpoint, QueuePair, Trim
from softmrc.engine.pair import Pair

NODE = 2
# Everything but "unexpected event", which ends a connection by right.
NACK_REASONS = (0x01, 0x02, 0x06, 0x07, 0x0A, 0x0B, 0x00, 0x30)
FATAL = 0x19

WAYS = ((), ("init",), ("init", "rtr"), ("init", "rtr", "rts"), ("init", "error"), ("init", "rtr", "error"))
WAYS += (("init", "rtr", "rts", "error"), ("init", "rtr", "rts", "destroy"), ("init", "error", "destroy"))
QPN, NOBODY, RKEY, MTU = 0x3000, 0x3FFF, 0x300, 512


def nack(dqp: int, psn: int, reason: int, ticks: int, source: int) -> bytes:
    """`source` is the queue pair that it claims to come from."""
    return packer.nack(dqp, psn, reason, ticks=ticks, spdcid=source & 0xFFFF)


def write(rng: Random, dqp: int, psn: int) -> bytes:
    opcode = rng.randint(FIRST, ONLY_IMM)
    size = rng.choice([0, 4, 64, MTU])
    flags = rng.choice([0, 0x80, 0x20, 0x10, 0xB0])
    rqmsn, msn = rng.randrange(4), rng.randrange(4)
    ticks = rng.getrandbits(16) if flags & 0x10 else None
    va, rkey, dmalen = rng.choice([0, 100]), rng.choice([RKEY, RKEY, 9]), rng.choice([size, 2 * MTU, MTU + size])
    imm = rng.getrandbits(32) if opcode in (LAST_IMM, ONLY_IMM) else None
    return packer.write(
        dqp, psn, bytes(size), opcode=opcode, va=va, rkey=rkey, dmalen=dmalen, msn=msn, rqmsn=rqmsn, imm=imm,
        ticks=ticks, ack_request=bool(flags & 0x80), rtx=bool(flags & 0x20),
    )  # fmt: skip


def sack(rng: Random, dqp: int, psn: int) -> bytes:
    flags, offset = rng.choice([0, 2, 0x20, 0x40]), rng.choice([0, 1, 0xFFFF])
    about = {"probe_id": offset} if flags == 2 else {"ack_psn": psn + offset - (offset >> 15 << 16)}
    entropy, source = rng.getrandbits(32), rng.choice([NOBODY, 0])
    mpr, base, bitmap = rng.choice([0, 8, 255]), psn + rng.choice([1, -3, 600]), rng.getrandbits(64)
    ticks, ooo, word = rng.getrandbits(16), rng.randrange(9), rng.getrandbits(32)
    return packer.sack(
        dqp, psn, **about, mark=flags >> 5, entropy=entropy, mpr=mpr, base=base, bitmap=bitmap, ticks=ticks, ooo=ooo,
        restore=bool(word >> 31), penalty=word >> 24 & 0x7F, rcvd_bytes=(word & 0xFFFFFF) << 8, spdcid=source,
    )  # fmt: skip


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
        return packer.ack(dqp, psn, rng.choice([0, 3, 0xFFFF]), syndrome)
    if kind == PROBE:
        pdcids = (rng.choice([NOBODY, 0]), dqp & 0xFFFF)
        return bth(PROBE, dqp, psn) + struct.pack(">HBBHHHHHBB", 0, 0, 0, rng.getrandbits(16), 0, *pdcids, 7, 0, 1)
    # A node's own number answers; any other refuses. A port status would be believed, so only probes are used.
    to, number = rng.choice([NODE, dqp]), rng.getrandbits(16)
    if kind == REQUEST:
        return bth(REQUEST, to, number) + struct.pack(">BBBBIIHBB", 0, 1, 0, 0, 0, 0, 7, 0, 1)
    return bth(RESPONSE, to, number) + struct.pack(">BB26xHBB4x", 0, rng.choice([0, 1]) << 2, 7, 0, 1)


class Victims:
    """The queue pairs of one side that get packets from unauthenticated hosts."""

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
            is_write = FIRST <= raw[0] <= ONLY_IMM
            trim = Trim.TRIMMED if is_write and rng.random() < 0.2 else Trim.NONE
            if trim == Trim.TRIMMED:
                raw = raw[: 12 + 4 + (4 if raw[8] & 0x10 else 0) + 16]
            port = rng.randrange(self.pair.planes)
            peer = rng.choice([0, 0, 0, 0, 7])
            self.endpoint.handle_datagram(self.pair.now_ps, raw, peer=peer, port=port, entropy=5, trim=trim)
