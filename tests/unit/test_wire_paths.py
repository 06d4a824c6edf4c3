"""SRv6 paths and entropy values, by example."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv6Address

import pytest

from softmrc import wire
from softmrc.errors import ConfigError
from softmrc.wire import EvField, Path, PathTemplate, Refused, Srh, srv6

BLOCK = 0xFCBBBB00


# spec: usid-shift
def test_a_switch_shifts_its_own_usid_out() -> None:
    address = srv6.carrier(BLOCK, [0x100, 0x203, 0x101, 0x1002, 0xD006])
    assert str(address) == "fcbb:bb00:100:203:101:1002:d006:0"
    assert srv6.matches(address, BLOCK, 0x100)
    assert not srv6.matches(address, BLOCK, 0x203)
    assert not srv6.matches(address, BLOCK + 1, 0x100)
    assert str(srv6.shift(address)) == "fcbb:bb00:203:101:1002:d006::"


def test_a_carrier_ends_at_the_first_zero() -> None:
    assert srv6.split("fcbb:bb00:100:200:0:dead::") == (BLOCK, [0x100, 0x200])
    assert srv6.split("fcbb:bb00:1:2:3:4:5:6") == (BLOCK, [1, 2, 3, 4, 5, 6])
    assert srv6.split("fcbb:bb00::") == (BLOCK, [])


# spec: usid-carrier
def test_the_seventh_usid_goes_into_a_reduced_srh() -> None:
    path = Path.through(BLOCK, range(1, 15))
    assert str(path.destination) == "fcbb:bb00:1:2:3:4:5:6"
    assert path.srh is not None
    assert [str(s) for s in path.srh.segments] == ["fcbb:bb00:d:e::", "fcbb:bb00:7:8:9:a:b:c"]
    assert path.srh.segments_left == 2
    assert bytes(path.srh)[:8].hex(" ") == "29 04 04 02 01 00 00 00"
    assert str(path) == "fcbb:bb00/1>2>3>4>5>6>7>8>9>a>b>c>d>e"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bytes(7), "shorter than its own length"),
        (bytes([41, 2, 3, 0, 0, 0, 0, 0]) + bytes(16), "a routing header of another type"),
        (bytes([41, 2, 4, 0, 0, 0, 0, 0]) + bytes(15), "shorter than its own length"),
        (bytes([41, 2, 4, 0, 1, 0, 0, 0]) + bytes(16), "a length without room for its segments"),
        (bytes([41, 2, 4, 2, 0, 0, 0, 0]) + bytes(16), "more segments left than there are"),
        (bytes([41, 18, 4, 0, 8, 0, 0, 0]) + bytes(144), "more than 8 segments"),
    ],
)
def test_bad_routing_headers_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(Refused) as caught:
        Srh.parse(data)
    assert caught.value.reason == reason


def test_what_follows_the_segments_is_skipped() -> None:
    with_tlv = bytes([41, 3, 4, 0, 0, 0, 0, 9]) + IPv6Address("fc00::1").packed + b"\x04\x06\0\0\0\0\0\0"
    assert Srh.parse(with_tlv) == Srh((IPv6Address("fc00::1"),), tag=9)


# The computed destination: T0 | T1 | T0 | host, plane bits in every uSID, the uplink in the T1's.

IN_USIDS = PathTemplate(BLOCK, (0x0105, 0x0300, 0x0109, 0x1007), plane_in_usid=(13, 3), uplink_in_t1=(0, 8))
IN_BLOCK = PathTemplate(BLOCK, (0x0105, 0x0300, 0x0109, 0x1007), plane_in_block=(0, 8), uplink_in_t1=(0, 8))


def test_the_plane_goes_into_every_usid() -> None:
    assert str(IN_USIDS.destination(plane=5, uplink=0x42)) == "fcbb:bb00:a105:a342:a109:b007::"
    assert str(IN_USIDS.destination(plane=0, uplink=0)) == "fcbb:bb00:105:300:109:1007::"


def test_or_into_the_block() -> None:
    assert str(IN_BLOCK.destination(plane=5, uplink=0x42)) == "fcbb:bb05:105:342:109:1007::"


def test_the_values_replace_what_the_template_holds() -> None:
    full = PathTemplate(BLOCK, (0xFFFF, 0xFFFF), plane_in_usid=(13, 3), uplink_in_t1=(0, 8), t1=1)
    assert srv6.split(full.destination(plane=1, uplink=2)) == (BLOCK, [0x3FFF, 0x3F02])


# Entropy


# spec: ev-expansion
def test_generated_values_by_hand() -> None:
    fields = [EvField(4, init_val=0b1001, max=3, mask=0b0110), EvField(8, init_val=0xA0, max=15, mask=0x0F)]
    # EV 110101: 11 into the first field's mask, 0101 into the second's; fields stand at the right of their widths.
    value = wire.expand(bytes([0b11010100]), fields, [6, 8, 2])
    assert value.hex() == f"{0b001111_10100101_00:04x}".ljust(64, "0")


def test_a_generated_srv6_path_with_a_segment_behind_it() -> None:
    block = EvField(32, init_val=BLOCK)
    near = [EvField(16, init_val=usid, max=0xFF, mask=0xFF) for usid in (0x100, 0x200, 0x300, 0x400, 0x500, 0x600)]
    far = [EvField(16, init_val=usid) for usid in (0x700, 0x1001)]
    value = wire.expand(bytes([1, 2, 3, 4, 5, 6]), [block, *near, block, *far], [32, *[16] * 6, 32, 16, 16])
    path = wire.path_of(value)
    assert path.usids == [0x101, 0x202, 0x303, 0x404, 0x505, 0x606, 0x700, 0x1001]
    assert wire.ev_of_path(path) == value


def test_a_path_of_one_carrier_is_an_address() -> None:
    address = IPv6Address("fcbb:bb00:100:242:101::")
    assert wire.path_of(address.packed) == Path(address)
    assert wire.ev_of_path(Path(address)) == address.packed.ljust(32, b"\0")


EV = bytes(1)


def field(**changes: int) -> EvField:
    return EvField(**({"width": 8, "max": 255, "mask": 0xFF} | changes))


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (lambda: wire.expand(EV, [field(), field(width=0)], [8, 8]), "fields[1].width", 0),
        (lambda: wire.expand(EV, [field(width=33)], [64]), "fields[0].width", 33),
        (lambda: wire.expand(EV, [field(width=9)], [8]), "fields[0].width", 9),
        (lambda: wire.expand(EV, [field(init_val=256)], [8]), "fields[0].init_val", 256),
        (lambda: wire.expand(EV, [field(mask=256)], [8]), "fields[0].mask", 256),
        (lambda: wire.expand(EV, [field(max=256)], [8]), "fields[0].max", 256),
        (lambda: wire.expand(EV, [field(mask=0xF0, max=16)], [8]), "fields[0].max", 16),
        (lambda: wire.expand(EV, [field(mask=0, max=1)], [8]), "fields[0].max", 1),
        (lambda: wire.expand(EV, [field(min=9, max=8)], [8]), "fields[0].min", 9),
        (lambda: wire.expand(EV, [field()] * 3, [8, 8]), "fields", "3 entries"),
        (lambda: wire.expand(EV, [], []), "widths", "0 bits"),
        (lambda: wire.expand(EV, [], [200, 57]), "widths", "257 bits"),
        (lambda: wire.expand(EV, [], [8, 0]), "widths[1]", 0),
        (lambda: wire.expand(EV, [], [257]), "widths[0]", 257),
        (lambda: wire.expand(bytes(33), [], [8]), "ev", bytes(33)),
        (lambda: wire.expand(b"", [], [8]), "ev", b""),
        (lambda: wire.expand(7, [], [8]), "ev", 7),  # type: ignore[arg-type]
        (lambda: wire.expand(EV, [(8, 0, 0, 0, 0)], [8]), "fields[0]", (8, 0, 0, 0, 0)),  # type: ignore[list-item]
        (lambda: wire.entropy.validate([field()], [17], 16), "widths", "17 bits"),
        (lambda: wire.ev_of_path(Path.through(BLOCK, [1] * 13)), "path", "2 segments, 2 of them left"),
        (lambda: wire.pack_stev([10, 8, 4], [1024, 0, 0]), "values[0]", 1024),
        (lambda: wire.pack_stev([10, 8, 4], [0, 0]), "values", "2 entries"),
        (lambda: wire.pack_stev([20, 20], [0, 0]), "widths", "40 bits"),
        (lambda: wire.pack_stev([0], [0]), "widths[0]", 0),
        (lambda: srv6.carrier(BLOCK, []), "usids", "0 entries"),
        (lambda: srv6.carrier(BLOCK, range(1, 8)), "usids", "7 entries"),
        (lambda: srv6.carrier(BLOCK, [1, 0]), "usids[1]", 0),
        (lambda: srv6.carrier(BLOCK, [0x10000]), "usids[0]", 0x10000),
        (lambda: srv6.carrier(1 << 32, [1]), "block", 1 << 32),
        (lambda: srv6.split("10.0.0.1"), "address", "10.0.0.1"),
        (lambda: Path.through(BLOCK, [1] * 55), "usids", "55 entries"),
        (lambda: Srh(()), "Srh.segments", "0 entries"),
        (lambda: Srh((IPv6Address("::1"),), 2), "Srh.segments_left", 2),
        (lambda: IN_USIDS.destination(8, 0), "plane", 8),
        (lambda: IN_USIDS.destination(0, 256), "uplink", 256),
        (lambda: PathTemplate(BLOCK, ()).destination(0, 0), "usids", "0 entries"),
        (
            lambda: PathTemplate(BLOCK, (1,), plane_in_usid=(14, 3)).destination(0, 0),
            "plane_in_usid",
            "shift 14, width 3",
        ),
        (lambda: PathTemplate(BLOCK, (1,), uplink_in_t1=(0, 4)).destination(0, 0), "t1", 1),
    ],
)
def test_bad_values_name_field_value_and_what_is_allowed(make: Callable[[], object], name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert (caught.value.field, caught.value.value) == (name, value)
    assert caught.value.problem
