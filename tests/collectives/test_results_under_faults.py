"""Whatever the network does, results are the same bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from collectives.ranks import Ranks, ranks, values_of
from softmrc.collectives import Group

COUNTS = [5, 9_001, 400_000]


def everything(group: Ranks) -> list[list[bytes]]:
    """Random numbers through every way of reducing and moving, on every rank."""

    def run(rank: Group) -> list[bytes]:
        found = []
        for count in COUNTS:
            random = np.random.default_rng([rank.rank, count])
            array = random.standard_normal(count).astype(np.float32)
            part = np.empty(count, np.float32)
            whole = np.empty(count * group.size, np.float32)
            summed = array.copy()
            works = [
                rank.all_reduce(summed),
                rank.all_gather(array, whole),
                rank.reduce_scatter([array] * group.size, part),
                rank.broadcast(array, 1),
            ]
            for work in works:
                work.wait()
            found += [a.tobytes() for a in (summed, whole, part, array)]
        return found

    return values_of(group(run))


WEATHER: dict[str, Callable[[Ranks], None]] = {
    "loss": lambda group: each(group, drop=0.02),
    "disorder": lambda group: each(group, reorder=0.2, duplicate=0.05),
    "damage": lambda group: each(group, corrupt=0.02),
    "a plane that drops everything": lambda group: group.groups[0].device.set_faults(1, black_hole=True),
    "a plane out of service": lambda group: group.groups[1].device.set_port(0, False),
}


def each(group: Ranks, **faults: float) -> None:
    for rank in group.groups:
        rank.device.set_faults(**faults)


@pytest.mark.parametrize(("size", "lanes"), [(2, 1), (3, 1), (3, 3)])
def test_results_do_not_depend_on_the_weather(size: int, lanes: int) -> None:
    with ranks(size, lanes=lanes) as fair:
        expected = everything(fair)
    for name, begin in WEATHER.items():
        with ranks(size, lanes=lanes) as faulty:
            begin(faulty)
            got = everything(faulty)
            for rank in faulty.groups:
                rank.device.set_faults()
        assert got == expected, name


def test_a_plane_dies_in_the_middle_and_comes_back() -> None:
    with ranks(2) as two:
        array = np.random.default_rng(1).standard_normal(1_000_000).astype(np.float32)

        def run(rank: Group) -> list[bytes]:
            found = []
            for turn in range(12):
                if rank.rank == 0 and turn in (3, 7):
                    rank.device.set_faults(1, black_hole=turn == 3)
                mine = array * (rank.rank + 1)
                work = rank.all_reduce(mine)
                work.wait()
                found.append(mine.tobytes())
            return found

        results = values_of(two(run))
        assert {result for row in results for result in row} == {(array + array * 2).tobytes()}
