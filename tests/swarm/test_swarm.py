"""The swarm as tests: a fixed range of seeds in chunks that spread over workers, and every seed that failed once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .draw import STEERED
from .swarm import run_guarded, run_seeds

CHUNK = 50
SEEDS = int(os.environ.get("SOFTMRC_SWARM_SEEDS", "4000"))

KNOWN = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize("first", [*range(0, SEEDS, CHUNK), *range(STEERED, STEERED + SEEDS // 8, CHUNK)])
def test_seeds(first: int) -> None:
    _, failures = run_seeds(range(first, first + CHUNK))
    assert not failures, "\n" + "\n".join(failures)


@pytest.mark.parametrize("seed", KNOWN)
def test_seed_that_failed_once(seed: int) -> None:
    run_guarded(seed)
