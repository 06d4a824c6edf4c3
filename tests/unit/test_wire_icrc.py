"""The ICRC against readers that are not ours: scapy's RoCE layer, and zlib."""

from __future__ import annotations

import struct
import zlib

import pytest

from softmrc import wire
from softmrc.errors import ConfigError, UsageError
from softmrc.wire import CrcMethod, Frame, Packet, Route

PACKETS = [
    Packet("write_only", dqp=0x123456, psn=0xABCDEF, va=0x1122334455667788, rkey=9, payload=bytes(range(256)) * 4),
    Packet("write_last_imm", dqp=1, psn=1, imm=7, payload=b"odd", timestamp=5, ack_request=True, solicited=True),
    Packet("sack", dqp=0x21, cack_psn=77, bitmap=0xF0F0, entropy=0xDEADBEEF),
    Packet("nack", dqp=0x21, nack_psn=78),
    Packet("acknowledge", dqp=0x21, psn=79, msn=3),
    Packet("endpoint_response", psn=80),
]
ADDRESSES = [("fd00::1", "fd00::2"), ("10.1.2.3", "192.168.7.8")]


@pytest.mark.parametrize("addresses", ADDRESSES, ids=["v6", "v4"])
@pytest.mark.parametrize("packet", PACKETS, ids=lambda p: p.opcode.name)
def test_scapy_computes_the_same(packet: Packet, addresses: tuple[str, str]) -> None:
    roce = pytest.importorskip("scapy.contrib.roce", reason="scapy is not installed")
    inet6 = pytest.importorskip("scapy.layers.inet6")
    inet = pytest.importorskip("scapy.layers.inet")
    frame = Frame.build(packet, *addresses, ev=0x0001C0DE)
    data = bytes(frame)[14:]
    seen = inet.IP(data) if frame.route.is_v4 else inet6.IPv6(data)
    bth = seen[roce.BTH]
    assert (bth.opcode, bth.dqpn, bth.psn, bth.ackreq) == (packet.opcode, packet.dqp, packet.psn, packet.ack_request)
    # scapy fills in lengths again from its own layers, so its sum depends on reading every layer as we wrote it.
    assert bth.compute_icrc(None) == bytes(frame)[-4:]


# spec: icrc
def test_by_hand() -> None:
    """One packet with every masked field spelt out."""
    ack = bytes(Packet("acknowledge", dqp=0x21, psn=258, msn=8))
    assert ack.hex() == "d100ffff00000021000001021f000008"
    covered = bytes.fromhex(
        "ffffffffffffffff"  # in the place of a local route header
        "6fffffff 001c 11 ff"  # version, masked class and label; length 28; UDP; masked hop limit
        "fd000000000000000000000000000001 fd000000000000000000000000000002"
        "c0de 12b7 001c ffff"  # ports, length 28, masked checksum
        "d100ffff ff 000021 00000102 1f000008"  # BTH with its fifth byte masked, AETH
    )
    route = Route("fd00::1", "fd00::2", 0xC0DE)
    assert wire.icrc(route, ack) == zlib.crc32(covered)
    assert wire.seal(route, ack)[-4:] == struct.pack("<I", zlib.crc32(covered))


def test_every_length_both_ways() -> None:
    for size in (*range(300), 1023, 1024, 4096, 9001):
        data = bytes((i * 7919 + size) & 0xFF for i in range(size))
        wanted = zlib.crc32(data)
        assert {m: wire.crc32(data, method=m) for m in CrcMethod} == dict.fromkeys(CrcMethod, wanted), f"{size} bytes"


def test_what_is_too_short_is_neither_sealed_nor_verified() -> None:
    route = Route("fd00::1", "fd00::2")
    with pytest.raises(ConfigError, match="12 bytes"):
        wire.seal(route, bytes(11))
    assert not wire.verify(route, b"")
    assert not wire.verify(route, bytes(15))


def test_the_measure_measures_every_method() -> None:
    rates = wire.measure_crc(sizes=[1024], seconds=0.003)
    assert (CrcMethod.TABLE, 1024) in rates
    assert ((CrcMethod.CARRYLESS, 1024) in rates) == wire.carryless_available()
    assert all(rate > 0 for rate in rates.values())
    with pytest.raises(UsageError):
        wire.measure_crc(seconds=0)
