"""Groups that live as long as the run of tests, one for every size: joining costs more than most operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collectives.ranks import Ranks


@pytest.fixture(scope="session", params=[1, 2, 3, 4, 5])
def group(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    made = Ranks(request.param)
    yield made
    made.close()
