"""Settings as people write them: with units, or as the plain number of the field."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softmrc.config import DeviceConfig, text
from softmrc.device import Device
from softmrc.errors import ConfigError

NAMES = [one.name for one in fields(DeviceConfig)]


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("rate_bps", "10G", 10_000_000_000),
        ("rate_bps", "2.5Gbit/s", 2_500_000_000),
        ("rate_bps", 1e9, 1_000_000_000),
        ("rate_bps", 7, 7),
        ("base_rtt_us", "2ms", 2000.0),
        ("base_rtt_us", "50us", 50.0),
        ("base_rtt_us", 2, 2),
        ("buffer_bytes", "8MiB", 8 << 20),
        ("buffer_bytes", "64k", 64_000),
        ("timeout", "67ms", 16),
        ("timeout", "68ms", 17),
        ("timeout", 16, 16),
        ("icrc", False, False),
        ("congestion_control", "nscc", "nscc"),
    ],
)
def test_what_is_meant(name: str, value: object, meant: object) -> None:
    found = text.device({name: value}, "x.toml")[name]
    assert found == meant and type(found) is type(meant)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"rate_bp": 1}, "Did you mean device.rate_bps?"),
        ({"base_rtt": 1}, "Did you mean device.base_rtt_us?"),
        ({"xyzzy": 1}, "x.toml: `device.xyzzy`: unknown key (got 1)"),
        ({"rate_bps": "10X"}, "as 100G"),
        ({"rate_bps": "fast"}, "as 100G"),
        ({"rate_bps": 1.5}, '"10G"'),
        ({"base_rtt_us": "2"}, "a duration with its unit"),
        ({"timeout": "67"}, "a duration with its unit"),
        ({"timeout": "2h"}, "at most 2,199 s"),
        ({"buffer_bytes": "8 parsecs"}, "as 8MiB"),
        ({"mtu": "4096"}, "without quotes"),
        ({"icrc": 1}, "true or false"),
        ({"icrc": "yes"}, "true or false"),
        ({"lanes": True}, "a whole number"),
        ({"congestion_control": 7}, "a text"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(table: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        text.device(table, "x.toml")
    name = next(iter(table))
    assert words in str(refusal.value) and f"x.toml: `device.{name}`: " in str(refusal.value)


@given(st.integers(1, 2_000_000_000_000))
def test_a_timeout_is_no_shorter_than_wanted_and_less_than_twice_as_long(ns: int) -> None:
    exponent = text.setting("timeout", f"{ns}ns")
    assert 1024 << exponent >= ns
    assert exponent == 0 or 1024 << (exponent - 1) < ns


@given(st.sampled_from(NAMES), st.one_of(st.none(), st.text(max_size=8), st.floats(), st.integers(), st.booleans()))
def test_whatever_is_written_is_taken_or_refused_by_name(name: str, value: object) -> None:
    try:
        found = text.device({name: value}, "x.toml")
    except ConfigError as error:
        assert f"device.{name}" in str(error)
    else:
        kind = {"int": int, "float": (int, float), "bool": bool, "str": str}[text.KINDS[name]]
        assert isinstance(found[name], kind)


def test_a_device_suggests_the_field_that_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"`rate`: no such field of DeviceConfig .got 1.. Did you mean rate_bps\?"):
        Device(rate=1)
