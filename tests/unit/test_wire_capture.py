"""Capture files: ours, others' byte order, the older format, and broken ones."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest

from softmrc import wire
from softmrc.errors import ConfigError, DeviceError, UsageError
from softmrc.wire import CaptureError, PcapngWriter, read_pcapng


def block(order: str, kind: int, body: bytes) -> bytes:
    size = 12 + len(body)
    return struct.pack(order + "II", kind, size) + body + struct.pack(order + "I", size)


def option(order: str, code: int, value: bytes) -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def section(order: str) -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(order: str, options: bytes = b"", linktype: int = 1, limit: int = 0) -> bytes:
    return block(order, 1, struct.pack(order + "HHI", linktype, 0, limit) + options)


def packet(order: str, number: int, ticks: int, frame: bytes) -> bytes:
    head = struct.pack(order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame))
    return block(order, 6, head + frame + bytes(-len(frame) % 4))


def test_planes_keep_their_names_and_packets_their_comments(tmp_path: Path) -> None:
    file = tmp_path / "two.pcapng"
    with PcapngWriter(file) as capture:
        planes = [capture.add_interface(f"plane{p}", f"the port of plane {p}") for p in range(2)]
        capture.write(planes[1], 1_700_000_000_123_456_789, b"one", comment="hé")
        capture.write(planes[0], 1_700_000_000_123_456_790, b"four", original_size=9000)
    one, four = read_pcapng(file)
    assert (one.interface.name, one.interface.description) == ("plane1", "the port of plane 1")
    assert (one.time_ns, one.frame, one.comment, one.is_whole) == (1_700_000_000_123_456_789, b"one", "hé", True)
    assert (four.interface.index, four.frame, four.original_size, four.is_whole) == (0, b"four", 9000, False)


def test_a_capture_without_packets_is_one() -> None:
    with PcapngWriter() as capture:
        pass
    assert list(read_pcapng(capture.contents)) == []


def test_a_long_capture_reaches_its_file_in_pieces() -> None:
    target = io.BytesIO()
    capture = PcapngWriter(target)
    capture.add_interface("plane0")
    for i in range(3):
        capture.write(0, i, bytes(700_000))
    assert len(target.getvalue()) > 1_000_000
    capture.close()
    capture.close()
    assert [r.time_ns for r in read_pcapng(target.getvalue())] == [0, 1, 2]


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
def test_either_byte_order(order: str) -> None:
    data = section(order) + interface(order, option(order, 2, b"eth7")) + packet(order, 0, 5, b"12345")
    (record,) = read_pcapng(data)
    assert (record.interface.name, record.time_ns, record.frame) == ("eth7", 5_000, b"12345")


@pytest.mark.parametrize(
    ("resolution", "ticks", "time_ns"),
    [
        (b"\x06", 1_000_001, 1_000_001_000),
        (b"\x09", 1_000_001, 1_000_001),
        (b"\x0c", 1_000_001, 1_000),
        (b"\x00", 3, 3_000_000_000),
        (b"\x8a", 1536, 1_500_000_000),
        (b"\xbf", (1 << 63) + (1 << 62), 1_500_000_000),
        (b"\xc0", 1 << 63, 0),
    ],
)
def test_ticks_are_of_any_length(resolution: bytes, ticks: int, time_ns: int) -> None:
    data = section("<") + interface("<", option("<", 9, resolution)) + packet("<", 0, ticks, b"")
    assert [r.time_ns for r in read_pcapng(data)] == [time_ns]


def test_an_offset_moves_the_clock() -> None:
    options = option("<", 14, struct.pack("<q", 1_700_000_000))
    data = section("<") + interface("<", options) + packet("<", 0, 1, b"")
    assert [r.time_ns for r in read_pcapng(data)] == [1_700_000_000_000_001_000]


def test_simple_packets_and_unknown_blocks() -> None:
    simple = block("<", 3, struct.pack("<I", 5) + b"1234")
    data = section("<") + interface("<", limit=4) + block("<", 0x0BAD, b"whatever") + simple
    (record,) = read_pcapng(data)
    assert (record.frame, record.original_size, record.time_ns) == (b"1234", 5, 0)


def test_each_section_has_interfaces_of_its_own() -> None:
    first = section("<") + interface("<", option("<", 2, b"a")) + packet("<", 0, 1, b"x")
    second = section(">") + interface(">", option(">", 2, b"b"), linktype=101) + packet(">", 0, 2, b"y")
    records = list(read_pcapng(first + second))
    assert [(r.interface.index, r.interface.name, r.interface.linktype) for r in records] == [
        (0, "a", 1),
        (1, "b", 101),
    ]


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize(("magic", "unit"), [(0xA1B2C3D4, 1000), (0xA1B23C4D, 1)], ids=["us", "ns"])
def test_the_older_format_is_read_too(order: str, magic: int, unit: int) -> None:
    data = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, 101)
    data += struct.pack(order + "IIII", 7, 9, 3, 8) + b"abc"
    (record,) = read_pcapng(data)
    assert (record.time_ns, record.frame, record.original_size) == (7_000_000_000 + 9 * unit, b"abc", 8)
    assert record.interface.linktype == 101
    with pytest.raises(CaptureError, match="truncated: a packet ends early at byte 24"):
        list(read_pcapng(data[:-1]))
    with pytest.raises(CaptureError, match="truncated: a packet header ends early"):
        list(read_pcapng(data[:30]))
    with pytest.raises(CaptureError, match="truncated: the pcap file header"):
        list(read_pcapng(data[:20]))


GOOD = section("<") + interface("<") + packet("<", 0, 1, b"1234")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a capture"),
        (b"PNG", "not a capture"),
        (b"#!/usr/bin/env python", "not a capture"),
        (GOOD[:-1], "truncated: a block ends early at byte 48"),
        (GOOD[:-30], "truncated: a block header ends early at byte 48"),
        (GOOD[:20], "truncated: a section header ends early at byte 0"),
        (GOOD[:8] + b"oops" + GOOD[12:], "a section header without a byte order"),
        (GOOD[:12] + b"\x02\0" + GOOD[14:], "pcapng version 2, which is not known here"),
        (section("<") + struct.pack("<II", 1, 8) + bytes(8), "a block of impossible length 8"),
        (section("<") + struct.pack("<II", 1, 13) + bytes(8), "a block of impossible length 13"),
        (GOOD[:-4] + bytes(4), "a block whose two lengths differ"),
        (section("<") + block("<", 1, b"1234"), "an interface block that is too short"),
        (section("<") + packet("<", 0, 1, b""), "a packet of interface 0, which the section does not have"),
        (section("<") + interface("<") + block("<", 6, b"1234"), "a packet block that is too short"),
        (GOOD[:48] + block("<", 6, struct.pack("<5I", 0, 0, 0, 5, 5) + b"1234"), "longer than its block"),
        (section("<") + block("<", 3, b"1234"), "a packet before any interface"),
        (section("<") + interface("<") + block("<", 3, struct.pack("<I", 9)), "longer than its block"),
        (section("<") + interface("<") + block("<", 3, b""), "a packet block that is too short"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_a_place(data: bytes, problem: str) -> None:
    with pytest.raises(CaptureError) as caught:
        list(read_pcapng(data))
    assert problem in caught.value.problem and "at byte" in caught.value.problem


def test_what_came_before_the_damage_is_still_read() -> None:
    records = read_pcapng(GOOD + b"rubbish that is no block")
    assert next(records).frame == b"1234"
    with pytest.raises(CaptureError):
        next(records)


def test_misuse_is_named() -> None:
    capture = PcapngWriter()
    with pytest.raises(ConfigError, match=r"interface`: .*.got 0"):
        capture.write(0, 0, b"")
    capture.add_interface("a")
    with pytest.raises(ConfigError, match=r"interface`: .*.got -1"):
        capture.write(-1, 0, b"")
    with pytest.raises(ConfigError, match=r"time_ns`: .*.got -1"):
        capture.write(0, -1, b"")
    capture.close()
    with pytest.raises(UsageError, match="closed"):
        capture.write(0, 0, b"")
    with pytest.raises(UsageError, match="goes to a file"):
        _ = PcapngWriter(io.BytesIO()).contents
    with pytest.raises(DeviceError, match="no such file"):
        read_pcapng("/nowhere/at/all.pcapng")


def test_scapy_reads_what_we_write(tmp_path: Path) -> None:
    scapy = pytest.importorskip("scapy.utils", reason="scapy is not installed")
    file = tmp_path / "ours.pcapng"
    frame = bytes(wire.Frame.build(wire.Packet("sack"), "fd00::1", "fd00::2"))
    with PcapngWriter(file) as capture:
        capture.add_interface("plane0")
        capture.write(0, 1_234_567_891, frame, comment="hello")
    (seen,) = scapy.rdpcap(str(file))
    assert bytes(seen) == frame
    assert round(float(seen.time) * 1e9) == 1_234_567_891
