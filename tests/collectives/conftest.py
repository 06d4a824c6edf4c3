"""Groups that live as long as the run of tests, some of several lanes: joining costs more than most operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collectives.ranks import Ranks
from softmrc.collectives.shm import SHARED_MEMORY

WIRE, MEMORY = "off", "on"
SIZES = [(1, 1, WIRE), (2, 1, WIRE), (3, 1, WIRE), (5, 1, WIRE), (2, 3, WIRE), (4, 3, WIRE), (4, 2, MEMORY)]


def name(size: tuple[int, int, str]) -> str:
    return f"{size[0]} ranks, {size[1]} lanes" + (", through memory" if size[2] == MEMORY else "")


@pytest.fixture(scope="session", params=SIZES, ids=name)
def group(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    size, lanes, memory = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SHARED_MEMORY, memory)
        made = Ranks(size, lanes=lanes)
    yield made
    made.close()
