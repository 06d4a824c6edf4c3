"""Round trips: no sample may be taken from an acknowledgement that answers another transmission."""

from __future__ import annotations

import pytest

from softmrc.config import EndpointConfig
from softmrc.pair import Pair

TRUE_RTT_US = 8.0


# spec: rtt-valid
@pytest.mark.parametrize("timestamps", [True, False])
def test_no_round_trip_is_shorter_than_the_network(timestamps: bool) -> None:
    """Packets held back past the verdict of loss are acknowledged soon after they were sent again; were that taken for
    the new copy's round trip, the base would fall below what the network can do."""
    pair = Pair(4, seed=3, endpoint=EndpointConfig(timestamps=timestamps))
    a, _ = pair.connect()
    remote = pair.b.register(length=1 << 26, rkey=1)
    pair.set_weather(reorder=0.05, reorder_delay_us=30.0)
    assert pair.pump(a, remote, count=100) == (100, 0, 0)
    assert a.stats()["loss_spurious"] > 10, "the weather is too fair to show anything"
    assert a.query()["base_rtt_us"] == pytest.approx(TRUE_RTT_US, abs=0.001)
