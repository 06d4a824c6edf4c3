"""The swarm as tests: a fixed range of seeds in chunks that spread over workers, and every seed that failed once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .draw import BARE, LINKED, STEERED
from .swarm import run_guarded, run_seeds

CHUNK = 50
SEEDS = int(os.environ.get("SOFTMRC_SWARM_SEEDS", "400"))

KNOWN = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


FIRSTS = [
    first + at
    for first, share in ((0, 1), (STEERED, 8), (LINKED, 8), (BARE, 8))
    for at in range(0, SEEDS // share, CHUNK)
]


@pytest.mark.parametrize("first", FIRSTS)
def test_seeds(first: int) -> None:
    failures = run_seeds(range(first, first + CHUNK))
    assert not failures, "\n" + "\n".join(failures)


@pytest.mark.parametrize("seed", KNOWN)
def test_seed_that_failed_once(seed: int) -> None:
    run_guarded(seed)
