"""What holds for every packet, frame, path and entropy value, and for every string of bytes."""

from __future__ import annotations

import contextlib
import itertools
import struct
import zlib
from ipaddress import IPv6Address

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from wire_strategies import frames, ipv4, ipv6, octets, packets, paths, ports, trimmed_packets, unsigned, usids

from softmrc import wire
from softmrc.wire import CrcMethod, EvField, Frame, Opcode, Packet, Path, PcapngWriter, Refused, Route, Srh, srv6

# Random bytes rarely get past the opcode; these begin like a packet and go on like anything.
almost_packets = st.builds(
    lambda op, flags, rest: bytes([op, flags]) + rest,
    st.sampled_from(Opcode) | octets,
    st.sampled_from([0, 0x10, 0x20, 0x30]) | octets,
    st.binary(max_size=120),
)


def mutated(strategy: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Bytes of something real, with one byte changed and perhaps the end cut off or extended."""

    def change(data: bytes, at: int, value: int, cut: int, tail: bytes) -> bytes:
        at %= len(data)
        data = data[:at] + bytes([value]) + data[at + 1 :]
        return data[: len(data) - cut % 4] + tail

    return st.builds(change, strategy, unsigned(16), octets, octets, st.binary(max_size=4))


# Packets


@given(packets)
def test_parse_undoes_emit(packet: Packet) -> None:
    assert Packet.parse(bytes(packet)) == packet


@given(trimmed_packets)
def test_parse_undoes_emit_of_what_a_switch_left(packet: Packet) -> None:
    assert Packet.parse(bytes(packet), trimmed=True) == packet


@given(almost_packets | mutated(packets.map(bytes)), st.booleans(), st.booleans())
def test_any_bytes_are_understood_or_refused(data: bytes, icrc: bool, trimmed: bool) -> None:
    try:
        packet = Packet.parse(data, icrc=icrc, trimmed=trimmed)
    except Refused as refused:
        assert refused.reason
        return
    assert Packet.parse(bytes(packet), trimmed=trimmed) == packet
    if not trimmed:
        assert len(bytes(packet)) == len(data) - 4 * icrc


@given(packets, st.integers(1, 5000))
def test_an_elided_payload_is_only_counted(packet: Packet, size: int) -> None:
    assume(packet.opcode.is_write)
    elided = Packet(packet.opcode, **_fields_without_payload(packet), payload_size=size)
    headers = bytes(elided)[: len(bytes(elided)) - size - -size % 4]
    assert Packet.parse(headers, elided_payload=size + -size % 4) == elided


def _fields_without_payload(packet: Packet) -> dict[str, object]:
    bth = {n: getattr(packet.bth, n) for n in ("solicited", "migration", "p_key", "dqp", "psn")}
    body = {n: getattr(packet.body, n) for n in ("rqmsn", "msn", "va", "rkey", "dmalen", "imm", "timestamp")}
    return bth | body


@given(packets | trimmed_packets)
def test_a_description_is_one_line_that_names_the_opcode(packet: Packet) -> None:
    line = packet.describe()
    assert line.startswith(packet.opcode.name)
    assert line.isprintable() and line == line.rstrip()


# Frames, which have so many parts that a hundred of them meet too few combinations

many = settings(max_examples=400)


@many
@given(frames())
def test_frame_parse_undoes_emit(frame: Frame) -> None:
    read = Frame.parse(bytes(frame))
    assert read == frame
    assert read.icrc == frame.icrc
    assert read.trimmed == frame.trimmed


@many
@given(st.binary(max_size=200) | mutated(frames().map(bytes)), st.booleans())
def test_any_frame_is_understood_or_refused(data: bytes, link_header: bool) -> None:
    try:
        frame = Frame.parse(data, link_header=link_header)
    except Refused as refused:
        assert refused.reason
        return
    again = Frame.parse(bytes(frame))
    assert again == frame.replace(udp_checksum=again.udp_checksum)


@given(frames(), st.integers(0, 10_000))
def test_a_changed_payload_is_noticed(frame: Frame, where: int) -> None:
    assume(not frame.trimmed)
    data = bytearray(bytes(frame))
    udp_payload = len(bytes(frame.packet)) + 4
    at = len(data) - udp_payload + where % udp_payload
    assume(at != len(data) - udp_payload + 4)  # BTH byte 4 is the one that may change
    data[at] ^= 1
    with contextlib.suppress(Refused):
        assert Frame.parse(bytes(data)).icrc == wire.Sum.BAD


@many
@given(frames(), st.booleans())
# spec: trimmed-layout
def test_trimming_keeps_the_headers_and_nothing_else(frame: Frame, last_hop: bool) -> None:
    cut = wire.trim(bytes(frame), last_hop=last_hop)
    seen = frame.outer.dscp if frame.outer else frame.dscp
    if frame.trimmed or not frame.packet.opcode.is_write or seen not in (4, 8):
        assert cut is None
        return
    assert cut is not None
    left = Frame.parse(cut)
    body, was = left.packet.body, frame.packet.body
    assert left.trimmed and left.dscp == (16 if last_hop else 12) and left.icrc == left.udp_checksum == wire.Sum.ABSENT
    assert left.outer is None or left.outer.dscp == left.dscp
    assert left.packet.bth == frame.packet.bth
    assert (body.va, body.rkey, body.dmalen, body.msn, body.rqmsn) == (was.va, was.rkey, was.dmalen, was.msn, was.rqmsn)
    assert (left.route, left.ev, left.ecn) == (frame.route, frame.ev, frame.ecn)
    assert bytes(left) == cut
    assert wire.trim(cut) is None


# ICRC, against a model made of zlib and plain slices


def icrc_model(route: Route, packet: bytes) -> int:
    size = len(packet) + 4 + 8
    if route.is_v4:
        ip = struct.pack(">BBHHHBBH", 0x45, 0xFF, size + 20, 0, 0x4000, 0xFF, 17, 0xFFFF)
    else:
        ip = b"\x6f\xff\xff\xff" + struct.pack(">HBB", size, 17, 0xFF)
    ip += route.source.packed + route.destination.packed
    udp = struct.pack(">HHHH", route.source_port, route.destination_port, size, 0xFFFF)
    return zlib.crc32(b"\xff" * 8 + ip + udp + packet[:4] + b"\xff" + packet[5:])


routes = st.builds(Route, ipv6, ipv6, ports, ports) | st.builds(Route, ipv4, ipv4, ports, ports)


@given(routes, st.binary(min_size=12, max_size=600), st.lists(st.integers(0, 600), max_size=4))
def test_icrc_over_pieces_is_icrc_over_the_whole(route: Route, data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    expected = icrc_model(route, data)
    for method in CrcMethod:
        assert wire.icrc(route, *pieces, method=method) == expected
    sealed = wire.seal(route, data)
    assert sealed == data + struct.pack("<I", expected)
    assert wire.verify(route, sealed)
    assert not wire.verify(route, sealed[:-1] + bytes([sealed[-1] ^ 0x80]))


@given(st.binary(max_size=2000), unsigned(32))
def test_both_ways_to_the_crc_agree_with_zlib(data: bytes, start: int) -> None:
    for method in CrcMethod:
        assert wire.crc32(data, start, method) == zlib.crc32(data, start)


# Paths


@given(unsigned(32), st.lists(usids, min_size=1, max_size=6))
def test_a_carrier_splits_into_what_it_was_built_from(block: int, hops: list[int]) -> None:
    assert srv6.split(srv6.carrier(block, hops)) == (block, hops)


@given(ipv6)
def test_shift_moves_all_but_the_block_by_sixteen_bits(address: IPv6Address) -> None:
    low = (1 << 96) - 1
    assert int(srv6.shift(address)) == (int(address) & ~low) | ((int(address) << 16) & low)


@given(unsigned(32), st.lists(usids, min_size=1, max_size=54))
def test_a_path_is_walked_uSID_by_uSID(block: int, hops: list[int]) -> None:
    path: Path | None = Path.through(block, hops)
    assert path is not None and path.usids == hops
    assert (path.srh is None) == (len(hops) <= 6)
    walked = []
    while path is not None:
        walked.append(path.usids[0])
        assert srv6.matches(path.destination, block, walked[-1])
        path = path.advance()
    assert walked == hops


@settings(suppress_health_check=[HealthCheck.filter_too_much])  # long lists of segments are drawn and refused
@given(paths)
def test_srh_parse_undoes_emit(path: Path) -> None:
    assume(path.srh is not None)
    assert path.srh is not None
    assert Srh.parse(bytes(path.srh)) == path.srh
    assert Srh.parse(bytes(path.srh) + b"more") == path.srh


@given(st.binary(max_size=160))
def test_any_srh_is_understood_or_refused(data: bytes) -> None:
    try:
        srh = Srh.parse(data)
    except Refused as refused:
        assert refused.reason
        return
    assert Srh.parse(bytes(srh)) == srh


# Entropy


@st.composite
def ev_layouts(draw: st.DrawFn) -> tuple[list[EvField], list[int]]:
    """Widths of up to 256 bits, and fields for the first of them; some fixed, some with holes in their masks."""
    widths: list[int] = []
    fields: list[EvField] = []
    room = 256
    for _ in range(draw(st.integers(1, 12))):
        if room == 0:
            break
        widths.append(draw(st.integers(1, min(room, draw(st.sampled_from([4, 16, 32, 64]))))))
        room -= widths[-1]
    for format_width in widths[: draw(st.integers(0, len(widths)))]:
        width = draw(st.integers(1, min(format_width, 32)))
        top = (1 << width) - 1
        mask = draw(st.just(0) | st.integers(0, top) | st.sampled_from([1, top & 0xF, top]))
        most = (1 << mask.bit_count()) - 1
        low, high = sorted((draw(st.integers(0, most)), draw(st.integers(0, most))))
        fields.append(EvField(width, draw(st.integers(0, top)), low, high, mask))
    return fields, widths


def expand_model(ev: bytes, fields: list[EvField], widths: list[int]) -> bytes:
    """The rule on strings of digits."""
    supply = iter("".join(f"{byte:08b}" for byte in ev).ljust(256, "0"))
    out = ""
    for f, width in zip(fields, widths, strict=False):
        initial, mask = f"{f.init_val:0{f.width}b}", f"{f.mask:0{f.width}b}"
        out += "".join(next(supply) if m == "1" else i for i, m in zip(initial, mask, strict=True)).rjust(width, "0")
    return int(out.ljust(256, "0"), 2).to_bytes(32)


@given(st.binary(min_size=1, max_size=32), ev_layouts())
# spec: ev-expansion
def test_expansion_is_the_rule_on_digits(ev: bytes, layout: tuple[list[EvField], list[int]]) -> None:
    fields, widths = layout
    assert wire.expand(ev, fields, widths) == expand_model(ev, fields, widths)


@given(st.binary(min_size=32, max_size=32))
def test_expanded_values_and_paths_are_the_same_thing(value: bytes) -> None:
    assert wire.ev_of_path(wire.path_of(value)) == value


@given(st.lists(st.integers(1, 16), min_size=1, max_size=6), st.data())
# spec: ev-formats
def test_structured_evs_unpack_what_was_packed(widths: list[int], data: st.DataObject) -> None:
    assume(sum(widths) <= 32)
    values = [data.draw(unsigned(width)) for width in widths]
    ev = wire.pack_stev(widths, values)
    assert wire.unpack_stev(widths, ev) == values
    digits = "".join(f"{v:0{w}b}" for v, w in zip(values, widths, strict=True)).ljust(32, "0")
    assert ev == int(digits, 2)


@given(unsigned(32))
def test_port_and_label_carry_the_whole_ev(ev: int) -> None:
    assert wire.ev_of(*wire.ports_of(ev)) == ev
    assert wire.ports_of(ev) == (ev & 0xFFFF, ev >> 16)


# Captures

records = st.lists(st.tuples(st.integers(0, 2), unsigned(64), st.binary(max_size=80), st.text(max_size=20)), max_size=8)


def capture_of(written: list[tuple[int, int, bytes, str]]) -> bytes:
    with PcapngWriter() as capture:
        for plane in range(3):
            capture.add_interface(f"plane{plane}")
        for interface, time_ns, frame, comment in written:
            capture.write(interface, time_ns, frame, comment)
    return capture.contents


@given(records)
def test_a_capture_gives_back_what_was_written(written: list[tuple[int, int, bytes, str]]) -> None:
    read = list(wire.read_pcapng(capture_of(written)))
    assert [(r.interface.index, r.time_ns, r.frame, r.comment) for r in read] == written
    assert all(r.interface.name == f"plane{r.interface.index}" for r in read)


@given(records, st.data())
def test_any_capture_is_read_or_refused(written: list[tuple[int, int, bytes, str]], data: st.DataObject) -> None:
    contents = data.draw(mutated(st.just(capture_of(written))))
    try:
        list(wire.read_pcapng(contents))
    except wire.CaptureError as error:
        assert "byte" in str(error)
