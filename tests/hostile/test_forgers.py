"""The swarm of forgers: a fixed range of seeds, in chunks that spread over workers."""

from __future__ import annotations

import os

import pytest
from tests.hostile.swarm import failures

CHUNK = 25
SEEDS = int(os.environ.get("SOFTMRC_FORGER_SEEDS", "300"))


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
# spec: bad-input
def test_forgers(first: int) -> None:
    found = failures(first, first + CHUNK)
    assert not found, "\n" + "\n".join(found)
