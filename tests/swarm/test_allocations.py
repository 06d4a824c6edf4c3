"""Nothing is allocated per packet: rings double while a connection warms up, and then it is quiet.

The same work is done twice over. The second half may double a ring or two, since chance decides how wide a window gets,
but it must not depend on how many packets there are.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from softmrc import _core
from softmrc.config import CcProfile, EvProfile, RtrAttributes, RtsAttributes
from softmrc.engine.pair import Pair, PairConfig
from softmrc_bench import _native
from softmrc_bench.allocations import allocations, are_counted


@pytest.fixture
def counted() -> None:
    if not are_counted():
        pytest.skip("the core was linked with its own operator new")


CALM: dict[str, Any] = {}
LOSSY = {"loss": 0.01, "duplicate": 0.01}
TRIMMING = {"trim": 0.05, "mark": 0.1}
SHAKEN = {"reorder": 0.2, "reorder_delay_us": 20.0}


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("encode", [True, False], ids=["bytes", "structs"])
@pytest.mark.parametrize("weather", [CALM, LOSSY, TRIMMING, SHAKEN], ids=["calm", "lossy", "trimming", "shaken"])
@pytest.mark.parametrize("algorithm", ["nscc", "fixed_window"], ids=["nscc", "fixed"])
def test_steady_traffic_allocates_nothing(encode: bool, weather: dict[str, float], algorithm: Any) -> None:
    pair = Pair(
        4,
        seed=2,
        network=PairConfig(encode=encode),
        ev_profile=EvProfile(count=64, spares=16),
        cc_profile=CcProfile(algorithm=algorithm),
    )
    a, _ = pair.connect(rtr=RtrAttributes(mpr_dest=64), rts=RtsAttributes(mpr=64))
    remote = pair.b.register(bytearray(1 << 20), rkey=1)
    source = pair.a.register(bytearray(1 << 20), rkey=2)
    pair.set_faults(**weather)
    rounds = 40
    pair.pump(a, remote, source=source, length=100_000, count=10 * rounds)
    counts, packets = [], pair.packets_delivered
    for _ in range(2):
        before, _ = allocations()
        assert pair.pump(a, remote, source=source, length=100_000, count=10 * rounds) == (10 * rounds, 0, 0)
        counts.append(allocations()[0] - before)
    packets = pair.packets_delivered - packets
    assert packets > 10_000
    # Chance may widen a window, and double its rings, once more; a hundredth of the packets would be per packet.
    assert counts[1] <= 64, f"{counts[1]} allocations for about {packets // 2} packets; the half before had {counts[0]}"


@pytest.mark.usefixtures("counted")
def test_a_black_hole_and_a_revival_allocate_nothing_the_second_time() -> None:
    pair = Pair(4, seed=2, ev_profile=EvProfile(count=64, spares=16))
    a, _ = pair.connect()
    remote = pair.b.register(bytearray(1 << 20), rkey=1)

    def episode() -> int:
        before, _ = allocations()
        for silently in (True, False):
            pair.set_plane(1, False, silently=silently)
            assert pair.pump(a, remote, length=1 << 18, count=40)[0] == 40
            pair.set_plane(1, True, silently=silently)
            assert pair.pump(a, remote, length=1 << 18, count=40)[0] == 40
            pair.run_us(20_000)
        return allocations()[0] - before

    episode()
    episode()
    assert episode() <= 64


@pytest.mark.usefixtures("counted")
def test_what_the_core_allocates_is_counted_and_given_back() -> None:
    """So that the tests above can fail."""

    def life() -> tuple[int, int, int]:
        """How often a pair allocates, how much it holds, and how much of that is left when it is gone."""
        count, held = allocations()
        pairs = [Pair(2, seed) for seed in range(10)]
        for pair in pairs:
            pair.connect()
        most, most_held = allocations()
        del pair
        pairs.clear()
        gc.collect()
        return most - count, most_held - held, allocations()[1] - held

    life()  # tables of the binding grow to their size
    count, held, left = life()
    assert count > 10 * 10 and held > 10 * 1000
    assert left == 0


@pytest.mark.usefixtures("counted")
def test_only_what_is_loaded_can_be_watched(tmp_path: Path) -> None:
    assert _native.watch_allocations(str(tmp_path / "nothing.so")) == 0
    assert _native.watch_allocations(_core.__file__) > 0
