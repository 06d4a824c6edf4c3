"""Whether peers are waited for while they can still answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from softmrc import reach


class Pair:
    """A queue pair whose planes come up one look after the other."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.device: Any = SimpleNamespace(local_planes=[0, 1], planes=self.planes)

    def planes(self) -> list[dict[str, bool]]:
        self.looks -= 1
        return [{"is_up": self.looks <= 0}] * 2

    def query(self) -> dict[str, int]:
        return {"data_ports": 3 if self.looks <= 0 else 0}


def test_links_that_are_still_coming_up_are_waited_for() -> None:
    pair: Any = Pair(looks=4)
    assert len(list(reach.pauses([pair], patience_s=60.0))) == 3
    assert reach.reached(pair) == {0, 1}


def test_none_is_waited_for_without_end() -> None:
    pair: Any = Pair(looks=1 << 30)
    for _ in reach.pauses([pair], patience_s=0.0):
        pass
    assert not reach.reached(pair)
