"""The same seed gives the same trace at every optimisation level: the ordinary build and one without optimisation,
which `make test-nightly` builds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import programs

from .traces import RUNS

PLAIN = programs.ROOT / "build" / "plain" / "trace"


def trace(program: Path, words: str) -> str:
    done = subprocess.run([program, *words.split()], capture_output=True, text=True, timeout=900, check=True)
    return done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS.keys())
def test_the_trace_does_not_depend_on_optimisation(words: str) -> None:
    plain, optimised = trace(PLAIN, words), trace(programs.path("trace"), words)
    assert plain == optimised
    assert "32 of 32 flows" in plain


def test_another_seed_is_another_trace() -> None:
    """So that the comparison can fail."""
    first, second = (trace(programs.path("trace"), RUNS["mrc"].replace(" 7 ", f" {seed} ")) for seed in (7, 8))
    assert first != second
