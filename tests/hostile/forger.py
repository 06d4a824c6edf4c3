"""Who forges packets, and what each kind of forger knows.

`STRANGER` writes no peer's address on its packets. `BLIND` writes the peer's, and knows the numbers of our queue pairs,
but reads nothing: every PSN, number of the other end, message, key and address of memory is a guess. `ON_PATH` has read
them all, and lies by a little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from tests import packer
from tests.packer import ACK, LAST_IMM, NACK, ONLY_IMM, PROBE, REQUEST, RESPONSE, SACK

WRITES = range(packer.FIRST, ONLY_IMM + 1)
OPCODES = (*WRITES, ACK, SACK, NACK, PROBE, REQUEST, RESPONSE)
REASONS = (0x00, 0x01, 0x02, 0x06, 0x07, 0x0A, 0x0B, packer.UNEXPECTED, 0x7F)
SYNDROMES = (packer.SYN_ACK, packer.SYN_INVALID, packer.SYN_ACCESS, packer.SYN_OPERATION, 0x20)
SIZES = (0, 1, 4, 63, 512, 513)


class Forger(Enum):
    STRANGER = "stranger"
    BLIND = "blind"
    ON_PATH = "on path"


@dataclass(frozen=True)
class Truth:
    """What there is to know about one queue pair of ours."""

    qpn: int
    other: int  # the number at the other end
    sends: tuple[int, int]  # the PSNs that it may have sent by the end, and a window more
    takes: tuple[int, int]  # the same of those that it may take
    key: int
    rkey: int
    mtu: int
    memory: int


def psn_between(rng: Random, span: tuple[int, int]) -> int:
    return rng.randrange(span[0] - 4, span[1]) & packer.PSN_MASK


def psn_beyond(rng: Random, span: tuple[int, int]) -> int:
    """A guess that misses. One in some thousands would not; only encrypted packets prevent what that can do."""
    return rng.randrange(span[1], span[0] + (1 << 24)) & packer.PSN_MASK


def write(rng: Random, opcode: int, truth: Truth, knows: bool) -> bytes:
    psn = psn_between(rng, truth.takes) if knows else psn_beyond(rng, truth.takes)
    payload = bytes(rng.choice((*SIZES, truth.mtu)))
    length = rng.choice((len(payload), truth.mtu, 3 * truth.mtu, 0, 0xFFFFFFFF))
    return packer.write(
        truth.qpn,
        psn,
        payload,
        opcode=opcode,
        va=rng.choice((0, rng.randrange(truth.memory), truth.memory - 1, rng.getrandbits(64))),
        rkey=truth.rkey if knows and rng.random() < 0.7 else rng.getrandbits(32) | 1 << 31,
        dmalen=length,
        msn=rng.randrange(8) if knows else rng.getrandbits(16),
        rqmsn=rng.randrange(8) if knows else rng.getrandbits(16),
        imm=rng.getrandbits(32) if opcode in (LAST_IMM, ONLY_IMM) else None,
        ticks=rng.choice((None, rng.getrandbits(16))),
        ack_request=rng.random() < 0.3,
        rtx=rng.random() < 0.3,
    )


def answer(rng: Random, opcode: int, truth: Truth, knows: bool) -> bytes:
    """SACK, NACK, acknowledgement, or a question to the queue pair."""
    psn = psn_between(rng, truth.sends) if knows else rng.getrandbits(24)
    if opcode == ACK:
        return packer.ack(truth.qpn, psn, rng.randrange(8) if knows else rng.getrandbits(16), rng.choice(SYNDROMES))
    # Of 65 536 guesses one would be right.
    wrong = 0 if knows else rng.randrange(1, 1 << 16)
    pdcids = {"spdcid": (truth.other ^ wrong) & 0xFFFF}
    if not knows and rng.random() < 0.3:
        pdcids["dpdcid"] = rng.getrandbits(16)
    ticks, entropy = rng.getrandbits(16), rng.getrandbits(32)
    if opcode == NACK:
        return packer.nack(truth.qpn, psn, rng.choice(REASONS), entropy=entropy, ticks=ticks, **pdcids)
    if opcode == PROBE:
        return packer.probe(truth.qpn, rng.getrandbits(16), ticks, **pdcids)
    return packer.sack(
        truth.qpn,
        psn,
        ack_psn=(psn + rng.choice((0, 1, -1, 40, 30_000, -30_000))) & packer.PSN_MASK,
        probe_id=rng.choice((None, None, rng.getrandbits(16))),
        mark=rng.randrange(3),
        entropy=entropy,
        mpr=rng.choice((0, 1, 8, 255)),
        base=(psn + rng.choice((1, -64, 64, 32_000, -32_000))) & packer.PSN_MASK,
        bitmap=rng.choice((0, 1, rng.getrandbits(64), (1 << 64) - 1)),
        ticks=ticks,
        ooo=rng.getrandbits(15),
        restore=rng.random() < 0.2,
        penalty=rng.choice((0, 1, 127)),
        rcvd_bytes=rng.getrandbits(32),
        **pdcids,
    )


def node_words(rng: Random, opcode: int, truth: Truth, knows: bool, ports: int) -> bytes:
    op, number, ticks = rng.randrange(2), rng.getrandbits(16), rng.getrandbits(16)
    key = truth.key if knows else rng.choice((0, rng.getrandbits(64) | 1))
    if opcode == REQUEST:
        mask = rng.choice((0, 1, rng.getrandbits(ports + 1), rng.getrandbits(32)))
        return packer.request(op, number, mask, ticks, key)
    return packer.response(op, number, ticks, key)


def forge(rng: Random, truth: Truth, knows: bool, ports: int, opcodes: Sequence[int] = OPCODES) -> bytes:
    """One packet of some opcode, mostly well formed, sometimes not even that."""
    opcode = rng.choice(opcodes)
    if opcode in WRITES:
        raw = write(rng, opcode, truth, knows)
    elif opcode in (REQUEST, RESPONSE):
        raw = node_words(rng, opcode, truth, knows, ports)
    else:
        raw = answer(rng, opcode, truth, knows)
    if rng.random() < 0.1:
        raw = raw[: rng.randrange(len(raw))] + rng.randbytes(rng.choice((0, 4, 8)))
    return raw
