"""Rings and send queues of two ranks that are full at the same moment, on a network in memory."""

from __future__ import annotations

import numpy as np
import pytest

from softmrc import _core
from softmrc.collectives.block import CollectiveKind
from softmrc.config import CcProfile, EndpointConfig, EvProfile, to_native

PS_PER_US = 1_000_000
SENDS, GATHERS, SMALL = 32, 16, 4096


@pytest.mark.parametrize("most", [40, 47, 48])
@pytest.mark.parametrize("delay_us", [5.0, 500.0])
def test_credit_does_not_wait_behind_messages_that_wait_for_the_other_ones(most: int, delay_us: float) -> None:
    """With a queue of 47 it is full with the message that fills the ring: both owe credit then, and both wait."""
    weather = _core.MeshConfig()
    weather.seed, weather.ports, weather.one_way_delay_us, weather.carry_payload = 1, 1, delay_us, True
    mesh = _core.Mesh(weather, [to_native(EndpointConfig(ports=1, seed=rank)) for rank in range(2)])
    settings = _core.RanksConfig()
    settings.seed, settings.max_send_wr, settings.unit = 1, most, 8 * 4096
    ranks = _core.Ranks(mesh, settings, to_native(EvProfile(count=4)), to_native(CcProfile()))
    groups = [ranks.group(rank) for rank in range(2)]
    for rank in range(2):
        ranks.join(rank)

    def run_until_ended(works: list) -> None:
        until = mesh.now_ps + 40_000_000 * PS_PER_US
        while not all(work.has_ended for work in works) and mesh.now_ps < until:
            mesh.run(mesh.now_ps + 2_000 * PS_PER_US)

    run_until_ended([group.issue(int(CollectiveKind.BARRIER), 0, 0, 1.0, -1, [], [], 30.0) for group in groups])
    mesh.run(mesh.now_ps + 20_000 * PS_PER_US)
    memory, works = [], []
    for rank, group in enumerate(groups):
        for tag in range(SENDS):
            memory.append(np.zeros(SMALL, np.uint8))
            works.append(group.send(memory[-1].ctypes.data, SMALL, 0, 1 - rank, tag, 30.0))
        for _ in range(GATHERS):
            memory += [np.zeros(2 * SMALL, np.uint8), np.zeros(4 * SMALL, np.uint8)]
            at, to = memory[-2].ctypes.data, memory[-1].ctypes.data
            blocks = [(to, 2 * SMALL), (to + 2 * SMALL, 2 * SMALL)]
            works.append(group.issue(int(CollectiveKind.ALL_GATHER), 0, 0, 1.0, -1, [(at, 2 * SMALL)], blocks, 30.0))
    run_until_ended(works)
    assert [work.error for work in works if work.error] == [] and all(work.has_ended for work in works)
