"""Every congestion controller there is, through the one face they share; what NSCC does is in test_nscc.py."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from tests.sim.small import scenario

import parts
from softmrc import _core
from softmrc.config import CcProfile, DeviceConfig, EndpointConfig, to_native
from softmrc.engine import Endpoint
from softmrc.engine.pair import Pair
from softmrc.errors import ConfigError

MTU = 4_200
RTT = 8_000_000  # ps
NAMES = _core.controllers()


def controller(name: str, **settings: Any) -> Any:
    return parts.Controller(to_native(CcProfile(algorithm=name, **settings)), MTU)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(5))
def test_no_facts_close_a_window(name: str, seed: int) -> None:
    """Whatever its inputs, a whole packet may be sent, and the window stays a number."""
    rng = Random(seed)
    one = controller(name, trimming=bool(seed % 2), window_bytes=MTU)
    now = 0
    for _ in range(3_000):
        now += rng.randrange(2_000_000)
        in_flight = rng.randrange(1 << 22)
        kind = rng.random()
        if kind < 0.9:
            delay = None if rng.random() < 0.1 else rng.randrange(100_000_000)
            penalty = rng.randrange(128) if rng.random() < 0.05 else 0
            one.on_ack(now, RTT, rng.randrange(1 << 16), rng.random() < 0.5, delay, in_flight, penalty, penalty == 0)
        elif kind < 0.93:
            one.on_trim(now, MTU, in_flight)
        elif kind < 0.97:
            one.on_loss(now, MTU, in_flight)
        else:
            one.on_loss_undone(MTU)
        for senders in (1, 7, 1_000):
            assert MTU <= one.window_of(senders) <= one.window < math.inf


@pytest.mark.parametrize("name", NAMES)
def test_the_delay_aimed_at_is_a_fraction_of_the_base_rtt_unless_it_is_set(name: str) -> None:
    assert controller(name, trimming=True).target(1_003) == 752, "three quarters, whole picoseconds"
    assert controller(name, trimming=False).target(1_003) == 1_003
    assert controller(name, target_delay_us=5.0).target(1_003) == 5_000_000


def test_a_fixed_window_is_fixed() -> None:
    one = controller("fixed_window", window_bytes=123_456)
    one.on_ack(1, RTT, 1 << 20, True, 1 << 40, 1 << 20, 127, False)
    one.on_trim(2, MTU, 0)
    one.on_loss(3, MTU, 0)
    one.on_loss_undone(MTU)
    assert one.window_of(1_000) == one.window == 123_456


@pytest.mark.parametrize("name", NAMES)
def test_a_device_chooses_by_name(name: str) -> None:
    profile = DeviceConfig(congestion_control=name, window_bytes=2_000_000).cc_profile()
    pair = Pair(2, cc_profile=profile)
    a, _ = pair.connect()
    start = profile.start_bytes * pair.planes if name == "queue_delay" else 2_000_000  # the others: with the largest
    assert a.query()["window_bytes"] == start
    assert scenario(transport={"congestion_control": name}).transport.congestion_control == name


def test_a_wrong_name_is_answered_with_those_that_exist() -> None:
    refusals = [
        (lambda: Endpoint(EndpointConfig()).add_cc_profile(CcProfile(algorithm="cubic")), "algorithm"),
        (lambda: scenario(transport={"congestion_control": "cubic"}), "transport.congestion_control"),
    ]
    for refused, field in refusals:
        with pytest.raises(ConfigError) as caught:
            refused()
        assert caught.value.field.endswith(field) and all(name in caught.value.problem for name in NAMES)


@pytest.mark.parametrize("rate_bps", [1_000_000_000, 40_000_000_000, 400_000_000_000])
@pytest.mark.parametrize("window_bytes", [1_000, 100_000, 2 << 20, 1 << 30])
def test_a_limit_on_the_window_never_asks_for_more_than_the_network_needs(rate_bps: int, window_bytes: int) -> None:
    profile = DeviceConfig(rate_bps=rate_bps, window_bytes=window_bytes).cc_profile()
    bdp = rate_bps / 8 * 2_000 / 1e6
    assert profile.max_window_bdp == min(max(window_bytes / bdp, 0.1), 1.5)
    assert profile.window_bytes == window_bytes
