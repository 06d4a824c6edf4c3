"""Groups that live as long as the run of tests, some of several lanes: joining costs more than most operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collectives.ranks import Ranks

SIZES = [(1, 1), (2, 1), (3, 1), (5, 1), (2, 3), (4, 3)]


@pytest.fixture(scope="session", params=SIZES, ids=lambda size: f"{size[0]} ranks, {size[1]} lanes")
def group(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    size, lanes = request.param
    made = Ranks(size, lanes=lanes)
    yield made
    made.close()
