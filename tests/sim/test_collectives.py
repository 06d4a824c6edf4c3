"""The collectives that are shipped, on simulated hosts: what they leave behind, how long they take, and what breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softmrc import _core, sim
from softmrc.collectives.block import CollectiveKind
from softmrc.errors import ConfigError
from softmrc_bench.simulated import all_reduce_us

from .small import scenario

ROOT = Path(__file__).parents[2]
DATA = 64 << 20  # bytes of all ranks from which on none are carried


def call(**keys: Any) -> dict[str, Any]:
    return {"kind": "collective", **keys}


@pytest.mark.parametrize("hosts", [2, 3, 7, 16])
@pytest.mark.parametrize("size", [0, 1344, 8 * 1344, 336_000])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_every_rank_has_the_result(collective: str, size: int, hosts: int) -> None:
    """The run stops if a rank's memory is not what the sum, or the parts, of all ranks' samples must be."""
    result = sim.run(scenario(workload=call(collective=collective, hosts=hosts, bytes=size, order="random", repeats=2)))
    assert result.verdict
    assert np.isfinite(result.call_us).all() and len(result.call_us) == 2


@pytest.mark.parametrize("hosts", [4, 12, 15])
@pytest.mark.parametrize("algorithm", ["gathered", "doubling", "rounds", "ring", "grid"])
def test_every_algorithm_gives_the_result(algorithm: str, hosts: int) -> None:
    for size in (1344, 336_000):
        result = sim.run(scenario(workload=call(hosts=hosts, bytes=size, order="random", algorithm=algorithm)))
        assert result.verdict and np.isfinite(result.call_us).all()


def test_an_algorithm_that_cannot_is_refused() -> None:
    for keys in ({"algorithm": "grid", "hosts": 13}, {"algorithm": "grid", "collective": "all_gather"}):
        with pytest.raises(ConfigError, match="algorithm"):
            sim.run(scenario(workload=call(bytes=4 * 13 * 16, **keys)))


def test_a_barrier_lets_nobody_go_before_the_last_has_come() -> None:
    late = 300.0
    early = call(collective="barrier", hosts=8)
    result = sim.run(scenario(workload=[early, {**early, "start_us": late}]))
    assert result.verdict and len(result.call_us) == 2


@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_a_large_all_reduce_sends_no_byte_too_many(ranks: int) -> None:
    """What every rank must receive is known: its parts of others, once each way."""
    size = 4 << 20
    result = sim.run(scenario(workload=call(hosts=ranks, bytes=size)))
    assert result.counters["bytes_placed"] == 2 * (ranks - 1) * size
    assert 0.5 < result.ideal_us[0] / result.call_us[0] <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "size"), [(64, 16 << 20), (96, 16 << 20)])
def test_many_ranks_use_their_links(ranks: int, size: int) -> None:
    """Where a ring has too many steps, and each round waits for the slowest of the one before."""
    took_us, ideal_us = all_reduce_us(ranks, size)
    assert ideal_us / took_us > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 8, 16, 24])
@pytest.mark.parametrize("size", [1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20])
def test_what_is_chosen_is_near_the_best(ranks: int, size: int) -> None:
    """Messages cost most where the model was made, and next to nothing here, so the direct way, which has the most of
    them, is left out; of the others it chooses well all the same."""
    model = _core.collective_times(CollectiveKind.ALL_REDUCE, ranks, size)
    tried = {name for name, time in model.items() if time < 8 * min(model.values())} - {"direct"}
    took_us = {name: all_reduce_us(ranks, size, name)[0] for name in tried}
    assert took_us[min(model, key=model.__getitem__)] < 1.5 * min(took_us.values()), took_us


def test_data_or_none_the_trace_is_the_same() -> None:
    """What is carried decides nothing about when: with and without, around the size from which on nothing is."""
    carried, counted = (
        sim.run(scenario(workload=call(hosts=16, bytes=size))) for size in (DATA // 16, DATA // 16 + 4 * 64)
    )
    assert carried.verdict and counted.verdict
    assert carried.call_us[0] == pytest.approx(counted.call_us[0], rel=0.02)


def test_repeats_come_one_after_the_other_with_pauses() -> None:
    result = sim.run(scenario(workload=call(bytes=64_000, repeats=3, pause_us=50.0)))
    assert result.verdict and len(result.step_us) == 3
    assert (result.step_us[1:] > 50.0).all()


@pytest.mark.parametrize("kind", ["black_hole", "down", "loss", "corrupt"])
def test_faults_delay_and_break_nothing(kind: str) -> None:
    """All bytes, once, in spite of everything that one plane does to them."""
    event = {"kind": kind, "plane": 1, "at_us": 40.0, "for_us": 300.0}
    event |= {"value": 0.05} if kind in ("loss", "corrupt") else {}
    broken = sim.run(scenario(workload=call(bytes=2 << 20, repeats=2), faults={"events": [event]}))
    assert broken.verdict and broken.unsent_packets == 0
    assert broken.counters["bytes_placed"] == 2 * 2 * 15 * (2 << 20)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="a multiple of 64"):
        sim.run(scenario(workload=call(collective="all_gather", bytes=100)))
    with pytest.raises(ConfigError, match="with RoCE, which has no collectives"):
        scenario(workload=call(), transport={"kind": "roce"})


@pytest.mark.parametrize("file", ["16-8KiB.toml", "16-64MiB.toml"])
def test_scenarios_of_sixteen_ranks(file: str) -> None:
    changes = {} if "8KiB" in file else {"workload.bytes": 4 << 20}
    results = sim.run_all(sim.load(ROOT / "scenarios" / "all-reduce" / file).with_keys(changes))
    assert all(result.verdict for result in results)
    healthy, *others = (float(np.max(result.call_us)) for result in results)
    assert healthy <= min(others)
