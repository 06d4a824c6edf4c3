"""Four ranks that all tests of this folder share, in each process of the test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.torch.world import World


class Shared:
    """The ranks, made when first wanted, and again after a test has broken them."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._world: World | None = None

    def world(self) -> World:
        if self._world is not None and self._world.is_broken:
            self.stop()
        if self._world is None:
            self._world = World(4, self._folders.mktemp("world"))
        return self._world

    def stop(self) -> None:
        if self._world is not None:
            self._world.stop()
        self._world = None


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    made = Shared(tmp_path_factory)
    yield made
    made.stop()


@pytest.fixture
def world(shared: Shared) -> World:
    return shared.world()
