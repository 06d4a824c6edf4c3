"""Planes that are real links, between two network namespaces made for the test. Needs root."""

from __future__ import annotations

from typing import Any

import pytest

import needs
from softmrc.errors import DeviceError
from softmrc_bench import failover
from softmrc_bench.black_hole import BlackHole
from softmrc_bench.veth import link_of, veth_planes

pytestmark = needs.NAMESPACES


def trials(holes: int, downs: int) -> dict[str, Any]:
    with veth_planes(4, rate_mbps=200) as lab:
        try:
            BlackHole([(lab.names[0], link_of(0, 0))]).close()
        except DeviceError as error:
            pytest.skip(f"no switchable black hole here: {error}")
        return lab.inside(0, "softmrc_bench.failover", *lab.names, str(holes), "0", str(downs), "0")


def test_black_holes_and_dead_links_cost_no_byte_and_no_connection() -> None:
    found = trials(holes=3, downs=3)
    assert found["qp_state"] == "RTS"
    assert found["corrupt_bytes"] == 0


def test_recovery_is_found_where_it_is() -> None:
    before, after = [1000] * 100, [0] * 7 + [750] * 93
    assert failover.recovery_ms(before + after, 100) == pytest.approx(5.0, abs=1.0)
    assert failover.recovery_ms(before + [600] * 100, 100) is None
