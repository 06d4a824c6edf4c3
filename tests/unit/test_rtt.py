"""Round trips: no sample may be taken from an acknowledgement that answers another transmission."""

from __future__ import annotations

import pytest

from softmrc.config import CcProfile, EndpointConfig
from softmrc.engine.pair import Pair, PairConfig

TRUE_RTT_US = 8.0


# spec: rtt-valid
@pytest.mark.parametrize("timestamps", [True, False])
def test_no_round_trip_is_shorter_than_the_network(timestamps: bool) -> None:
    """Packets held back past the verdict of loss are acknowledged soon after their retransmission; were that taken for
    the new copy's round trip, the base would fall below what the network can do."""
    pair = Pair(4, seed=3, endpoint=EndpointConfig(timestamps=timestamps))
    a, _ = pair.connect()
    remote = pair.b.register(length=1 << 26, rkey=1)
    pair.set_faults(reorder=0.05, reorder_delay_us=30.0)
    assert pair.pump(a, remote, count=100) == (100, 0, 0)
    assert a.stats()["loss_spurious"] > 10, "the faults are too few to show anything"
    assert a.query()["base_rtt_us"] == pytest.approx(TRUE_RTT_US, abs=0.001)


def test_what_is_lost_at_the_end_is_asked_about_by_when_answers_come_not_by_a_floor() -> None:
    """A device takes no round trip for shorter than 2 ms. Answers that come after 30 us are missed long before that."""
    pair = Pair(
        4,
        seed=3,
        network=PairConfig(one_way_delay_us=15.0, port_rate_bps=20_000_000_000),
        cc_profile=CcProfile(base_rtt_us=2000.0, min_base_rtt_us=2000.0, min_reorder_window_us=2000.0),
    )
    a, _ = pair.connect()
    remote = pair.b.register(length=1 << 20, rkey=1)
    assert pair.pump(a, remote, length=1 << 16, count=200) == (200, 0, 0)
    pair.set_faults(loss=1.0)
    a.post_write(pair.now_ps, 4096, remote_va=0, rkey=1)
    pair.run_us(50.0)
    pair.set_faults(loss=0.0)
    start = pair.now_us
    pair.run_until_completions(0, 1, limit_us=10_000.0)
    assert len(pair.a.poll_completions(0)) == 1
    assert pair.now_us - start < 700.0
    assert pair.now_us - start > 100.0, "answers are waited for"
