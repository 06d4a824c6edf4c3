"""Whether peers are waited for while they can still answer."""

from __future__ import annotations

import ipaddress
from types import SimpleNamespace
from typing import Any

from softmrc.config import DeviceConfig
from softmrc.connection import path_check
from softmrc.device.peer import PeerPlane
from softmrc.errors import LONGEST_SAYING, RemoteError


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
    assert len(list(path_check.pauses([pair], patience_s=60.0))) == 3
    assert path_check.reached(pair) == {0, 1}


def test_none_is_waited_for_without_end() -> None:
    pair: Any = Pair(looks=1 << 30)
    for _ in path_check.pauses([pair], patience_s=0.0):
        pass
    assert not path_check.reached(pair)


def words_of(up: list[bool], **config: Any) -> str:
    """Of a peer that has fallen silent, with the longest names that planes may have."""
    here = [f"fd00:1111:2222:3333:4444:5555:6666:{plane:04x}%mlx5_bond_{plane:04x}" for plane in range(len(up))]
    there = [PeerPlane(ipaddress.ip_address(name.partition("%")[0]), 4791, (4791,)) for name in here]
    rows = [{"is_up": one} for one in up]
    device: Any = SimpleNamespace(local_planes=here, planes=lambda: rows, config=DeviceConfig(**config))
    whose = f"write 123456 failed: peer {there[0].address}"
    return str(RemoteError(f"{whose} stopped answering: {path_check.tried(device, there)}"))


def test_an_outage_of_many_planes_is_told_whole() -> None:
    words = words_of([True] * 8)
    assert len(words) <= LONGEST_SAYING and words.endswith(" and 6 more")
    assert "borne for 69.1 s" in words and "(`retry_exponential` of DeviceConfig (8), also in SOFTMRC_CONFIG" in words


def test_planes_that_are_down_here_are_not_named_as_silent() -> None:
    words = words_of([False, True, False, True])
    assert [plane for plane in range(4) if f"plane {plane} (" in words] == [1, 3] and "more;" not in words
    assert "no plane of this side is up" in words_of([False, False])


def test_silence_that_is_borne_for_ever_is_called_so() -> None:
    assert "silence is borne without end, or less" in words_of([True], retry_exponential=25)
