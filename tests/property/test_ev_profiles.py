"""EV profiles in the engine: what is generated or listed, and that this, expanded, is what leaves."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv6Address
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from rig import QPN, RKEY, Rig
from softmrc import wire
from softmrc.config import EndpointConfig, EvFormat, EvMode, EvProfile
from softmrc.engine import Endpoint
from softmrc.engine.pair import Pair
from softmrc.errors import ConfigError
from softmrc.wire import EvField, Path

ROOM = {EvFormat.UDP: 16, EvFormat.STEV: 32, EvFormat.SRV6: 256}
BLOCK = 0xFCBBBB00


def field(width: int = 16, init: int = 0, low: int = 0, high: int = 0, mask: int = 0) -> EvField:
    return EvField(width, init, low, high, mask)


@st.composite
def generated(draw: st.DrawFn) -> EvProfile:
    """Any layout that fits its format; masks with holes, fields without any, bounds of all kinds."""
    format = draw(st.sampled_from(list(ROOM)))
    widths: list[int] = []
    fields: list[EvField] = []
    while sum(widths) < ROOM[format] and len(widths) < 8 and (not widths or draw(st.booleans())):
        widths.append(draw(st.integers(1, min(ROOM[format] - sum(widths), 48))))
        width = draw(st.integers(1, min(widths[-1], 32)))
        mask = draw(st.integers(0, (1 << width) - 1))
        most = (1 << mask.bit_count()) - 1
        low, high = sorted((draw(st.integers(0, most)), draw(st.integers(0, most))))
        fields.append(EvField(width, draw(st.integers(0, (1 << width) - 1)), low, high, mask))
    widths += [1] * draw(st.integers(0, min(3, ROOM[format] - sum(widths))))
    count = draw(st.sampled_from([2, 8, 32, 64]))
    return EvProfile(mode=EvMode.GENERATED, format=format, count=count, widths=tuple(widths), fields=tuple(fields))


def spelt(value: bytes, profile: EvProfile) -> list[int]:
    """What the bits under each mask spell in an expanded value; all other bits must be as the fields have them."""
    digits = f"{int.from_bytes(value):0256b}"
    found, at = [], 0
    for width, f in zip(profile.widths, profile.fields, strict=False):
        bits, at = digits[at : at + width], at + width
        number = int(bits, 2)
        assert number & ~f.mask == f.init_val & ~f.mask, "a bit outside the mask is init_val's"
        pairs = zip(bits[-f.width :], f"{f.mask:0{f.width}b}", strict=True)
        found.append(int("0" + "".join(digit for digit, mask in pairs if mask == "1"), 2))
    assert "1" not in digits[at:], "what no field fills is zero"
    return found


def values_of(rig: Rig) -> dict[tuple[int, int], bytes]:
    """(port, EV) to what the network reads."""
    keys = [(int(ev["port"]), int(ev["value"])) for ev in rig.qp.evs()]
    return dict(zip(keys, rig.qp.ev_values(), strict=True))


@given(generated())
@settings(max_examples=150, deadline=None)
# spec: ev-modes ev-expansion
def test_generated_evs_are_valid_different_and_evenly_spread(profile: EvProfile) -> None:
    rig = Rig(ports=2, evs={f: getattr(profile, f) for f in ("mode", "format", "count", "widths", "fields")})
    values = rig.qp.ev_values()
    tuples = [tuple(spelt(value, profile)) for value in values]
    for numbers in tuples:
        assert all(f.min <= n <= f.max for f, n in zip(profile.fields, numbers, strict=True))
    space = prod(f.max - f.min + 1 for f in profile.fields)
    uses = Counter(tuples)
    assert len(uses) == min(space, profile.count), "no EV twice before every one was dealt"
    assert max(uses.values()) <= -(-profile.count // space)


@given(generated())
@settings(max_examples=60, deadline=None)
# spec: ev-modes
def test_what_leaves_is_the_expanded_value(profile: EvProfile) -> None:
    """Data and acknowledgements: the 32 bits are the value, or in SRV6 the number of one."""
    rig = Rig(ports=2, evs={f: getattr(profile, f) for f in ("mode", "format", "count", "widths", "fields")})
    rig.post(1 << 17)
    for psn in range(4):
        rig.receive(packer.write(QPN, psn, b"data", va=0x1000, rkey=RKEY, msn=psn, ack_request=True), port=psn % 2)
    table = values_of(rig)
    assert len(rig.routes) >= 128 and {port for port, _ in rig.routes} == {0, 1}
    for route in rig.routes:
        value = table[route]
        if profile.format == EvFormat.UDP:
            assert route[1] == int.from_bytes(value[:2]) and not any(value[2:])
        elif profile.format == EvFormat.STEV:
            assert route[1] == int.from_bytes(value[:4]) and not any(value[4:])
    if profile.format == EvFormat.SRV6:
        assert len({ev for _, ev in table}) == len(rig.qp.evs()), "a number names one path"


def test_each_value_of_a_field_gets_its_share() -> None:
    """Eight spines, 64 paths: eight through each of them, on every port, for every queue pair in its own way."""
    tier = [field(8, low=0, high=7, mask=7), field(8, 0x80, low=0, high=63, mask=63)]
    profile = EvProfile(mode=EvMode.GENERATED, count=128, format=EvFormat.UDP, widths=(8, 8), fields=tuple(tier))
    drawn = []
    for seed in range(5):
        pair = Pair(2, seed=seed, ev_profile=profile)
        a, _ = pair.connect()
        for port in (0, 1):
            spines = Counter(int(v) >> 8 for v in a.evs()["value"][a.evs()["port"] == port])
            assert set(spines.values()) == {8} and len(spines) == 8
        drawn.append(tuple(sorted(int(v) for v in a.evs()["value"])))
    assert len(set(drawn)) == 5


# A controller's list.


def srv6_entries(count: int) -> tuple[tuple[bytes, int], ...]:
    paths = [Path.through(BLOCK + port, [0x100, 0x200 + i, 0x101, 0x1001]) for i in range(count) for port in (0, 1)]
    return tuple((wire.ev_of_path(path), i % 2) for i, path in enumerate(paths))


# spec: ev-modes
def test_a_listed_srv6_path_is_carried_by_its_number() -> None:
    entries = srv6_entries(8)
    rig = Rig(ports=2, evs={"mode": EvMode.EXPLICIT, "format": EvFormat.SRV6, "count": 8, "entries": entries})
    for (port, number), value in values_of(rig).items():
        assert entries[number] == (value, port)
    assert len(rig.qp.evs()) == 8, "half of the list, dealt at random"


def test_listed_evs_expand_by_the_profiles_fields() -> None:
    """The block is fixed, four uSIDs are the EV; bounds do not hold for what a controller lists."""
    fields = (field(32, BLOCK), *[field(mask=0xFFFF)] * 4)
    ev = bytes.fromhex("0100 0207 0101 1001")
    rig = Rig(evs={"mode": EvMode.EXPLICIT, "format": EvFormat.SRV6, "count": 1, "widths": (32, 16, 16, 16, 16),
                   "fields": fields, "entries": ((ev, 0),)})  # fmt: skip
    (value,) = rig.qp.ev_values()
    assert wire.path_of(value) == Path("fcbb:bb00:100:207:101:1001::")
    rig.qp.replace_ev(0, 0, bytes.fromhex("0100 0208 0101 1001"))
    assert wire.path_of(rig.qp.ev_values()[0]).usids == [0x100, 0x208, 0x101, 0x1001]
    assert rig.qp.evs()["value"][0] == 1, "under a number that the old path never had"


def test_listed_structured_evs_are_what_packets_carry() -> None:
    fields = (field(10, mask=0x3FF), field(8, mask=0xFF), field(4, mask=0xF))
    rig = Rig(evs={"mode": EvMode.EXPLICIT, "count": 1, "widths": (10, 8, 4), "fields": fields,
                   "entries": ((bytes.fromhex("ffc03c"), 0),)})  # fmt: skip
    rig.post(1024)
    assert rig.routes == [(0, wire.pack_stev([10, 8, 4], [0x3FF, 0, 0xF]))]


def test_two_endpoints_talk_over_generated_srv6_paths() -> None:
    fields = (field(32, BLOCK), *[field(16, 0x100 * (i + 1), 1, 15, 15) for i in range(4)])
    profile = EvProfile(mode=EvMode.GENERATED, format=EvFormat.SRV6, count=32, widths=(32, *[16] * 4), fields=fields)
    pair = Pair(4, seed=2, ev_profile=profile)
    a, b = pair.connect()
    remote = pair.b.register(length=1 << 20, rkey=1)
    assert pair.pump(a, remote, count=8, length=1 << 16) == (8, 0, 0)
    paths = [wire.path_of(v) for qp in (a, b) for v in qp.ev_values()]
    assert len(set(map(str, paths))) > 60 and all(len(path.usids) == 4 for path in paths)


# What is refused.

TWO = (field(8, mask=0xFF), field(8))


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ({"mode": EvMode.GENERATED}, "fields"),
        ({"mode": EvMode.GENERATED, "widths": (8,)}, "fields"),
        ({"mode": EvMode.GENERATED, "widths": (8,), "fields": TWO}, "fields"),
        ({"mode": EvMode.GENERATED, "widths": (16, 17), "fields": TWO}, "widths"),
        ({"mode": EvMode.GENERATED, "format": EvFormat.UDP, "widths": (8, 9), "fields": TWO}, "widths"),
        ({"mode": EvMode.GENERATED, "widths": (4, 8), "fields": TWO}, "fields[0].width"),
        ({"mode": EvMode.GENERATED, "widths": (8,), "fields": (field(8, low=2, high=1, mask=3),)}, "fields[0].min"),
        ({"mode": EvMode.GENERATED, "widths": (8,), "fields": (field(8, high=4, mask=3),)}, "fields[0].max"),
        ({"mode": EvMode.GENERATED, "widths": (8,), "fields": TWO[:1], "entries": ((1, 0),)}, "entries"),
        ({"widths": (8,), "fields": TWO[:1]}, "fields"),
        ({"format": EvFormat.SRV6}, "format"),
        ({"mode": EvMode.EXPLICIT, "entries": ((1, 0), (b"2", 0))}, "entries"),
        ({"mode": EvMode.EXPLICIT, "format": EvFormat.SRV6, "entries": ((1, 0), (2, 0))}, "entries.value"),
        ({"mode": EvMode.EXPLICIT, "widths": (8,), "fields": TWO[:1], "entries": ((1, 0), (2, 0))}, "entries.value"),
        ({"mode": EvMode.EXPLICIT, "format": EvFormat.UDP, "entries": ((1, 0), (65536, 0))}, "entries.value"),
        ({"mode": EvMode.EXPLICIT, "entries": ((bytes(33), 0),)}, "ev"),
        ({"mode": EvMode.EXPLICIT, "entries": ((IPv6Address("::1"), 0),)}, "entries"),
    ],
)
def test_profiles_that_make_no_sense(profile: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint(EndpointConfig()).add_ev_profile(EvProfile(**{"count": 2, **profile}))
    assert caught.value.field == name and caught.value.problem
