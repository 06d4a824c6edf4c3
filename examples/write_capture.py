"""Writes a capture by hand: a message of three packets over two planes, one of them trimmed and retransmitted.

python examples/write_capture.py capture.pcapng
softmrc dissect capture.pcapng
"""

from __future__ import annotations

import sys

from softmrc import wire
from softmrc.wire import CcState, Ecn, Frame, Outer, Packet, Path, PcapngWriter

BLOCKS = [0xFCBBBB00, 0xFCBBBB01]  # one block a plane
A, B = "fd00:0:0:1::a", "fd00:0:0:1::b"
START_NS = 1_700_000_000_000_000_000


def piece(opcode: str, psn: int, **others: object) -> Packet:
    """One packet of the message: it says where its own bytes go, and how long the whole is."""
    return Packet(
        opcode, dqp=0x22, psn=psn, msn=3, va=0x7F0000000000 + 4096 * psn, rkey=0x2A, dmalen=3 * 4096,
        timestamp=100 + psn, payload=bytes(4096), **others,
    )  # fmt: skip


def there(packet: Packet, plane: int, spine: int, **others: object) -> bytes:
    """The frame that carries a packet from A to B through a spine of a plane."""
    path = Path.through(BLOCKS[plane], [0x100, 0x300 + spine, 0x101, 0x1002, 0xD006])
    return bytes(Frame.build(packet, A, B, ev=plane << 16 | 0xC000 + spine, outer=Outer(A, path), **others))


def back(packet: Packet, plane: int, spine: int) -> bytes:
    """The frame that carries an answer from B to A."""
    path = Path.through(BLOCKS[plane], [0x101, 0x300 + spine, 0x100, 0x1001, 0xD006])
    return bytes(Frame.build(packet, B, A, ev=plane << 16 | 0xC000 + spine, outer=Outer(B, path)))


def main(target: str) -> None:
    last = piece("write_last_imm", 2, imm=7, ack_request=True)
    peers = {"dqp": 0x11, "spdcid": 0x22, "dpdcid": 0x11}
    sack = Packet(
        "sack", **peers, cack_psn=0, ack_psn_offset=1, sack_offset=1, bitmap=1, entropy=0x1C002, mark="skip_once",
        cc=CcState(tx_timestamp=101, rcvd_bytes=33),
    )  # fmt: skip
    nack = Packet("nack", **peers, nack_psn=2, reason="trimmed", entropy=0xC003, tx_timestamp=102)
    trimmed = wire.trim(there(last, 0, 3))
    assert trimmed is not None
    frames = [
        (0, 0, there(piece("write_first", 0), 0, 1), ""),
        (1, 340, there(piece("write_middle", 1), 1, 2, ecn=Ecn.CONGESTION), "marked by spine 302"),
        (0, 680, trimmed, "no room at spine 303"),
        (1, 2_100, back(sack, 1, 4), ""),
        (0, 2_140, back(nack, 0, 5), ""),
        (1, 4_200, there(last.replace(retransmission=True), 1, 6), ""),
        (1, 6_300, back(Packet("acknowledge", dqp=0x11, psn=2, msn=3), 1, 7), ""),
    ]
    with PcapngWriter(target) as capture:
        for plane in range(len(BLOCKS)):
            capture.add_interface(f"plane{plane}")
        for plane, after_ns, frame, comment in frames:
            capture.write(plane, START_NS + after_ns, frame, comment)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "capture.pcapng")
