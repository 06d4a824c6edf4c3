"""A minute of random faults, and a few seconds of them for every run."""

from __future__ import annotations

import pytest

from softmrc_bench.soak import soak

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [1, 2])
def test_a_short_soak(seed: int) -> None:
    report = soak(4.0, seed)
    assert report.ok, str(report)
    assert report.writes > 100 and report.faults > 3


@pytest.mark.slow
def test_a_minute_of_soak() -> None:
    report = soak(60.0, seed=3)
    assert report.ok, str(report)
    assert report.grown_bytes < 64 << 20, str(report)
