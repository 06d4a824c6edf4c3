"""Stories of a program that plays NCCL."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from nccl.story import Story, begin

Harness = Callable[..., str]
Play = Callable[..., Story]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Begin a story."""
    return functools.partial(begin, tmp_path)


@pytest.fixture
def harness(play: Play) -> Harness:
    """Run a story to its good end."""

    def run(version: int, processes: int, story: str, *numbers: int, **more: str) -> str:
        code, said, wrong = play(version, processes, story, *numbers, **more).end()
        assert code == 0 and "all holds" in said, f"{story}: {code} {said}{wrong}"
        return said

    return run
