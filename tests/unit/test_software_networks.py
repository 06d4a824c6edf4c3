"""Where endpoints are processes: what the two settings for that change, under a clock that we move."""

from __future__ import annotations

import pytest

from softmrc.config import CcProfile, RtsAttributes
from softmrc.pair import Pair, PairConfig

JITTER_US = 60.0


def condemned(profile: CcProfile, seed: int) -> int:
    """EVs withdrawn while paths differ by much more than a round trip and nothing is lost."""
    pair = Pair(4, seed, network=PairConfig(carry_payload=False), cc_profile=profile)
    a, _ = pair.connect()
    target = pair.b.register(length=64 << 20, rkey=1)
    pair.set_weather(path_jitter_us=JITTER_US)
    completed, _, _ = pair.pump(a, target, count=256)
    assert completed == 256
    return a.stats()["evs_demoted"]


@pytest.mark.parametrize("seed", range(3))
def test_paths_that_overtake_each_other_are_not_condemned(seed: int) -> None:
    assert condemned(CcProfile(), seed) > 0, "the jitter is too tame to show anything"
    assert condemned(CcProfile(min_base_rtt_us=100.0, min_reorder_window_us=200.0), seed) == 0


def test_a_short_round_trip_counts_as_the_least_one() -> None:
    pair = Pair(4, cc_profile=CcProfile(rate_bps=10_000_000_000, base_rtt_us=250.0, min_base_rtt_us=250.0))
    a, _ = pair.connect()
    target = pair.b.register(bytearray(1 << 20), rkey=1)
    source = pair.a.register(bytearray(1 << 20), rkey=1)
    pair.pump(a, target, source=source, length=1 << 16, count=16)
    query = a.query()
    assert query["base_rtt_us"] == 250.0 > query["smoothed_rtt_us"]
    assert query["window_bytes"] == int(1.5 * 10e9 / 8 * 250e-6)


def test_a_dead_plane_is_still_left() -> None:
    pair = Pair(4, cc_profile=CcProfile(min_base_rtt_us=250.0, min_reorder_window_us=1_000.0))
    a, _ = pair.connect(rts=RtsAttributes(timeout=14))
    target = pair.b.register(bytearray(8 << 20), rkey=1)
    source = pair.a.register(bytearray(8 << 20), rkey=1)
    pair.set_plane(1, False, silently=True)
    completed, failed, _ = pair.pump(a, target, source=source, count=64, limit_us=200_000)
    assert (completed, failed) == (64, 0)
    assert a.stats()["timeouts"] == 0
