"""The swarm as tests: a fixed range of seeds in chunks that spread over workers, and every seed that failed once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .draw import BARE, LINKED, STEERED
from .edges import EDGED
from .swarm import guarded, play_each, run_seed

CHUNK = 50
SEEDS = int(os.environ.get("SOFTMRC_SWARM_SEEDS", "400"))

KNOWN = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


FIRSTS = [
    first + at
    for first, share in ((0, 1), (STEERED, 8), (LINKED, 8), (BARE, 8), (EDGED, 8))
    for at in range(0, SEEDS // share, CHUNK)
]


@pytest.mark.parametrize("first", FIRSTS)
def test_seeds(first: int) -> None:
    failures = [found for found in play_each(range(first, first + CHUNK)) if isinstance(found, str)]
    assert not failures, "\n" + "\n".join(failures)


# In ps, of which 63 bits count 106 days. What has not happened yet is taken to have happened 2**61 before the
# beginning, so on day 80 the time since then is longer than that.
LATE = {"day 80": 2**63 - 2**61 + 10**9, "day 106": 2**63 - 300 * 10**12}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("first", range(0, max(SEEDS // 16, 1), CHUNK))
def test_seeds_on_clocks_that_have_run_for_long(first: int, late: str) -> None:
    for seed in range(first, first + CHUNK):
        with guarded(f"seed {seed} from {late} on"):
            run_seed(seed, starts_at_us=LATE[late] / 1e6)


@pytest.mark.parametrize("seed", KNOWN)
def test_seed_that_failed_once(seed: int) -> None:
    (found,) = play_each([seed])
    assert not isinstance(found, str), found


# In simulated time, where no plane works both ways. Each message once searched for a reverse path: 58 s and 850 s.
MAX_US = {923344: 2_000_000, 7005839: 3_000_000}


@pytest.mark.parametrize("seed", MAX_US)
def test_the_way_back_is_found_once_and_not_once_a_message(seed: int) -> None:
    assert run_seed(seed).simulated_us < MAX_US[seed]
