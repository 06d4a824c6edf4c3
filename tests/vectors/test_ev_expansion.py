"""The expansions that the specification's reference program prints, against ours."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from softmrc import wire
from softmrc.wire import EvField

PROFILES: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "ev_expansion.toml").read_text())["profile"]


def fields_of(profile: dict[str, Any]) -> list[EvField]:
    return [EvField(*numbers) for numbers in profile["fields"]]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p["name"])
# spec: ev-expansion
def test_every_reference_expansion(profile: dict[str, Any]) -> None:
    for ev, expanded in profile["expansions"]:
        value = wire.expand(bytes.fromhex(ev), fields_of(profile), profile["widths"])
        assert value == bytes.fromhex(expanded).ljust(32, b"\0"), f"EV {ev} became {value.hex()}"


@pytest.mark.parametrize("profile", [p for p in PROFILES if p["mode"] == "GENERATED"], ids=lambda p: p["name"])
def test_generated_evs_spell_values_within_bounds(profile: dict[str, Any]) -> None:
    """The bounds are those of the bits under the mask, as the reference draws them."""
    for ev, _ in profile["expansions"]:
        digits = f"{int(ev, 16):0{len(ev) * 4}b}".ljust(256, "0")
        for f in fields_of(profile):
            spelt, digits = int("0" + digits[: f.bits], 2), digits[f.bits :]
            assert f.min <= spelt <= f.max
