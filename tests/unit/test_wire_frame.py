"""Frames: what each layer refuses, what a switch does, what DSCP says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from softmrc import wire
from softmrc.errors import ConfigError
from softmrc.wire import DscpMap, Ecn, Frame, Outer, Packet, Path, Refused, Route, Sum

WRITE = Packet("write_only", dqp=0x11, psn=5, va=0x1000, rkey=7, payload=b"hello")
V6 = Frame.build(WRITE, "fd00::1", "fd00::2", ev=0x0001C000)
V4 = Frame.build(WRITE, "10.0.0.1", "10.0.0.2", ev=0x0001C000)
SHORT = Frame.build(WRITE, "fd00::1", "fd00::2", outer=Outer("fd00::9", Path.through(0xFCBBBB00, [1, 2, 3])))
LONG = Frame.build(WRITE, "fd00::1", "fd00::2", outer=Outer("fd00::9", Path.through(0xFCBBBB00, range(1, 9))))

ETH, IP6, IP4, UDP = 14, 40, 20, 8


def edit(frame: Frame, *changes: tuple[int, int]) -> bytes:
    data = bytearray(bytes(frame))
    for at, value in changes:
        data[at] = value
    return bytes(data)


def with_ipv4_sum(data: bytes) -> bytes:
    """The frame with a right IPv4 checksum, so that a test of something else gets past it."""
    header = bytearray(data[ETH : ETH + IP4])
    header[10:12] = b"\0\0"
    total = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, IP4, 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    header[10:12] = (total ^ 0xFFFF).to_bytes(2, "big")
    return data[:ETH] + bytes(header) + data[ETH + IP4 :]


# spec: entropy-split
def test_an_ev_travels_as_port_and_label() -> None:
    assert (V6.route.source_port, V6.flow_label, V6.ev) == (0xC000, 1, 0x0001C000)
    assert (V4.route.source_port, V4.flow_label, V4.ev) == (0xC000, 0, 0xC000), "IPv4 carries the lower half only"


@pytest.mark.parametrize("frame", [V6, V4, SHORT, LONG], ids=["v6", "v4", "outer", "srh"])
def test_a_frame_is_read_back(frame: Frame) -> None:
    read = Frame.parse(bytes(frame))
    assert read == frame
    assert (read.icrc, read.udp_checksum) == (Sum.GOOD, Sum.GOOD)
    assert Frame.parse(bytes(frame) + bytes(6)) == frame, "Ethernet's own padding is no part of the packet"
    assert Frame.parse(bytes(frame)[ETH:], link_header=False).packet == WRITE


def test_an_outer_header_follows_the_inner_unless_told() -> None:
    assert SHORT.outer is not None
    assert (SHORT.outer.dscp, SHORT.outer.ecn) == (SHORT.dscp, SHORT.ecn) == (4, Ecn.CAPABLE_0)
    marked = Frame.build(WRITE, "fd00::1", "fd00::2", outer=Outer("fd00::9", "fc00::1", ecn=Ecn.CONGESTION))
    assert marked.marked and not SHORT.marked


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bytes(V6)[:13], "shorter than an Ethernet header"),
        (edit(V6, (12, 0x08), (13, 0x06)), "neither IPv4 nor IPv6"),
        (edit(V6, (ETH, 0x40)), "neither IPv4 nor IPv6"),
        (edit(V4, (ETH, 0x65)), "neither IPv4 nor IPv6"),
        (bytes(V6)[: ETH + 39], "fewer bytes than the IP header calls for"),
        (bytes(V6)[:-1], "fewer bytes than the IP header calls for"),
        (bytes(V4)[: ETH + 19], "fewer bytes than the IP header calls for"),
        (bytes(V4)[:-1], "fewer bytes than the IP header calls for"),
        (edit(V4, (ETH, 0x46)), "an IPv4 header with options or a reserved bit"),
        (with_ipv4_sum(edit(V4, (ETH + 6, 0xC0))), "an IPv4 header with options or a reserved bit"),
        (edit(V4, (ETH + 8, 1)), "an IPv4 header checksum that is wrong"),
        (with_ipv4_sum(edit(V4, (ETH + 2, 0), (ETH + 3, 19))), "an IP length without room for UDP"),
        (edit(V6, (ETH + 4, 0), (ETH + 5, 7)), "an IP length without room for UDP"),
        (with_ipv4_sum(edit(V4, (ETH + 6, 0x20))), "an IP fragment"),
        (with_ipv4_sum(edit(V4, (ETH + 7, 1))), "an IP fragment"),
        (edit(V6, (ETH + 6, 6)), "not UDP"),
        (with_ipv4_sum(edit(V4, (ETH + 9, 6))), "not UDP"),
        (edit(SHORT, (ETH + IP6 + 6, 41)), "not UDP"),
        (edit(LONG, (ETH + IP6 + 2, 0)), "a routing header that is not a well-formed SRH"),
        (edit(LONG, (ETH + IP6 + 1, 200)), "a routing header that is not a well-formed SRH"),
        (edit(LONG, (ETH + IP6 + 3, 3)), "a routing header that is not a well-formed SRH"),
        (edit(LONG, (ETH + IP6, 17)), "an SRH without an IP header behind it"),
        (edit(V6, (ETH + IP6 + 3, 0xB8)), "another UDP port"),
        (edit(V6, (ETH + IP6 + 5, 0xFF)), "a UDP length that differs from what IP carries"),
        (edit(V6, (ETH + IP6 + UDP, 0)), "an opcode that MRC does not have"),
    ],
)
def test_frames_are_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(Refused, match="bytes are no MRC frame") as caught:
        Frame.parse(data)
    assert caught.value.reason == reason


def test_wrong_sums_are_reported_not_refused() -> None:
    last = len(bytes(V6)) - 1
    broken = Frame.parse(edit(V6, (last, bytes(V6)[last] ^ 1)))
    assert (broken.icrc, broken.udp_checksum) == (Sum.BAD, Sum.BAD)
    assert Frame.parse(edit(V6, (ETH + IP6 + 6, 0), (ETH + IP6 + 7, 0))).udp_checksum == Sum.ABSENT


@pytest.mark.parametrize("frame", [V6, V4], ids=["v6", "v4"])
def test_what_may_change_on_the_way_does_not_touch_the_icrc(frame: Frame) -> None:
    changes: list[Callable[[Frame], Frame]] = [
        lambda f: f.replace(hop_limit=3),
        lambda f: f.replace(ecn=Ecn.CONGESTION, dscp=0),
        lambda f: f.replace(udp_checksum=Sum.ABSENT),
    ]
    for change in changes:
        assert bytes(change(frame))[-4:] == bytes(frame)[-4:]
    assert bytes(V6.replace(flow_label=9))[-4:] == bytes(V6)[-4:]
    assert bytes(SHORT)[-4:] == bytes(LONG)[-4:], "the path is not covered"
    ip = IP4 if frame.route.is_v4 else IP6
    assert Frame.parse(edit(frame, (ETH + ip + UDP + 4, 0xC0))).icrc == Sum.GOOD, "nor is BTH byte 4"


@pytest.mark.parametrize("frame", [V6, V4], ids=["v6", "v4"])
def test_what_may_not_change_does(frame: Frame) -> None:
    route = frame.route
    others = [Route(route.source, route.destination, 1), Route(route.destination, route.source, route.source_port)]
    for other in others:
        assert bytes(frame.replace(route=other))[-4:] != bytes(frame)[-4:]
    assert bytes(V4.replace(identification=1))[-4:] != bytes(V4)[-4:]
    assert Frame.parse(bytes(V4.replace(identification=1, dont_fragment=False))).icrc == Sum.GOOD


def test_a_socket_cannot_know_its_identification() -> None:
    """It computes the ICRC with 0, its kernel writes another number, and the reader of the frame understands."""
    data = bytearray(bytes(V4))
    data[ETH + 4 : ETH + 6] = b"\xab\x18"
    assert Frame.parse(with_ipv4_sum(bytes(data))).icrc == Sum.GOOD
    data[-1] ^= 1
    assert Frame.parse(with_ipv4_sum(bytes(data))).icrc == Sum.BAD


def test_a_switch_does_not_trim_everything() -> None:
    assert wire.trim(b"nonsense") is None
    for packet in (Packet("sack"), Packet("probe"), Packet("acknowledge")):
        assert wire.trim(bytes(Frame.build(packet, "fd00::1", "fd00::2", dscp=4))) is None
    assert wire.trim(bytes(V6.replace(dscp=0))) is None, "NO_TRIM"
    own = DscpMap(trimmable=20, trimmed=21)
    mine = bytes(Frame.build(WRITE, "fd00::1", "fd00::2", dscp_map=own))
    assert wire.trim(mine) is None
    cut = wire.trim(mine, dscp_map=own)
    assert cut is not None and Frame.parse(cut, dscp_map=own).dscp == 21


def test_a_switch_reads_the_outer_header() -> None:
    path = Path.through(0xFCBBBB00, [1, 2])
    only_inner = Frame.build(WRITE, "fd00::1", "fd00::2", dscp=4, outer=Outer("fd00::9", path, dscp=0))
    assert wire.trim(bytes(only_inner)) is None
    only_outer = Frame.build(WRITE, "fd00::1", "fd00::2", dscp=0, outer=Outer("fd00::9", path, dscp=8))
    assert wire.trim(bytes(only_outer)) is not None


def test_a_path_that_was_decapsulated_still_says_trimmed() -> None:
    cut = wire.trim(bytes(SHORT))
    assert cut is not None
    assert Frame.parse(cut[ETH + IP6 :], link_header=False).trimmed


def test_classes_of_service() -> None:
    of = wire.DEFAULT_DSCP.of
    assert of(WRITE) == 4
    assert of(WRITE.replace(retransmission=True)) == 8
    assert of(Packet("write_only", trimmed=True)) == 12
    assert [of(Packet(op)) for op in ("sack", "nack", "acknowledge", "endpoint_response")] == [46] * 4
    assert [of(Packet(op)) for op in ("probe", "endpoint_request")] == [0, 0]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Route("fd00::1", "10.0.0.1"), "Route.source"),
        (lambda: Route("fd00::g", "fd00::1"), "Route.source"),
        (lambda: Route("fd00::1", "fd00::2", 70000), "Route.source_port"),
        (lambda: V6.replace(dscp=64), "Frame.dscp"),
        (lambda: V6.replace(ecn=4), "Frame.ecn"),
        (lambda: V6.replace(flow_label=1 << 20), "Frame.flow_label"),
        (lambda: V4.replace(flow_label=1), "Frame.flow_label"),
        (lambda: V6.replace(source_mac="02:00"), "Frame.source_mac"),
        (lambda: V6.replace(packet=b""), "Frame.packet"),
        (lambda: Outer("10.0.0.1", "fc00::1"), "Outer.source"),
        (lambda: Outer("fd00::1", "fc00::1", dscp=64), "Outer.dscp"),
        (lambda: DscpMap(control=64), "DscpMap.control"),
        (lambda: Frame.build(WRITE, "fd00::1", "fd00::2", ev=1 << 32), "ev"),
        (lambda: bytes(V6.replace(packet=WRITE.replace(payload=bytes(65536)))), "Frame.packet"),
    ],
)
def test_bad_values_are_refused_by_name(make: Callable[[], object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


@pytest.mark.parametrize("frame", [V6, V4, SHORT], ids=["v6", "v4", "outer"])
def test_the_longest_packet_that_ip_can_tell_of(frame: Frame) -> None:
    room = 65535 - UDP - 4 - 32 - (0 if frame is V6 else IP4 if frame is V4 else IP6)
    payload = bytes(room - room % 4)
    largest = frame.replace(packet=WRITE.replace(payload=payload, dmalen=len(payload)))
    assert Frame.parse(bytes(largest)) == largest
    with pytest.raises(ConfigError, match="65535"):
        bytes(frame.replace(packet=WRITE.replace(payload=payload + b"more")))


def test_a_udp_checksum_of_zero_is_written_as_ones() -> None:
    """Zero means absent, so the sum that comes out as zero is sent as its other form. This PSN makes one."""
    frame = Frame.build(Packet("acknowledge", psn=18891), "fd00::1", "fd00::2")
    assert bytes(frame)[ETH + IP6 + 6 : ETH + IP6 + 8] == b"\xff\xff"
    assert Frame.parse(bytes(frame)).udp_checksum == Sum.GOOD


def test_another_port_may_be_used() -> None:
    frame = Frame.build(WRITE, "fd00::1", "fd00::2", udp_port=4971)
    with pytest.raises(Refused, match="another UDP port"):
        Frame.parse(bytes(frame))
    assert Frame.parse(bytes(frame), udp_port=4971) == frame
