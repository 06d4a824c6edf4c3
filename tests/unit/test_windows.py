"""A window that changes while data flows: what was promised is kept, whatever is lost meanwhile."""

from __future__ import annotations

import random

import pytest

from softmrc.config import CcProfile, EvProfile, RtrAttributes, RtsAttributes
from softmrc.engine.pair import Pair

WIDE = CcProfile(algorithm="fixed_window", window_bytes=1 << 30)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("loss", [0.0, 0.02])
# spec: mpr-dynamic
def test_a_shrinking_window_refuses_nothing_that_it_offered(seed: int, loss: float) -> None:
    rng = random.Random(seed)
    pair = Pair(2, seed=seed, ev_profile=EvProfile(count=16), cc_profile=WIDE)
    pair.set_faults(loss=loss)
    a, b = pair.connect(mtu=512, rtr=RtrAttributes(dynamic_mpr=True, mpr_dest=64), rts=RtsAttributes(mpr=64))
    pair.b.register(length=1 << 30, rkey=1)
    for _ in range(24):
        a.post_write(pair.now_ps, 1 << 20, remote_va=0, rkey=1)
    for _ in range(40):
        pair.run_us(rng.uniform(1, 20))
        b.set_receive_window(rng.choice([8, 8, 9, 64, 255]))
    pair.run_until_completions(0, 24, 1e6)
    assert len(pair.a.poll_completions()) == 24
    assert b.stats()["packets_out_of_window"] == 0 and b.stats()["nacks_sent"] == 0
