"""Where nothing is wrong, nothing is refused: what a node asks is answered in copies, and late, and it knows both."""

from __future__ import annotations

from random import Random

import pytest

from softmrc.config import EndpointConfig, RtrAttributes, RtsAttributes
from softmrc.engine import Endpoint
from softmrc.engine.pair import Pair, PairConfig, ProcessConfig

SIZE = 1 << 18


def refused(endpoint: Endpoint) -> dict[str, int]:
    return {name: count for name, count in endpoint.stats().items() if name.startswith("refused") and count}


# spec: proof-of-address
@pytest.mark.parametrize("seed", range(40))
def test_a_healthy_exchange_has_no_refused_packets(seed: int) -> None:
    """However far, however busy; with keys for ports, and so nonces, or without."""
    draw = Random(f"healthy {seed}")
    planes = draw.choice([1, 2, 4, 8])
    process = ProcessConfig(hold_up=draw.choice([0.0, 0.01]), hold_up_us=draw.uniform(100, 5_000))
    net = Pair(
        planes,
        seed,
        network=PairConfig(one_way_delay_us=draw.choice([4.0, 400.0, 4_000.0, 15_000.0])),
        endpoint=EndpointConfig(proves_addresses=True, announces_ports=True, secret=seed + 1),
        processes=(process, process) if draw.random() < 0.7 else None,
    )
    keys = RtrAttributes(port_key=7, peer_port_key=7) if draw.random() < 0.7 else RtrAttributes()
    a, b = net.connect(rtr=keys, rts=RtsAttributes(timeout=19))
    source = net.a.register(bytearray(SIZE), rkey=1)
    target = net.b.register(bytearray(SIZE), rkey=2)
    for _ in range(3):
        a.post_write(net.now_ps, SIZE, remote_va=target.va, rkey=target.rkey, source=source)
    net.run_until_completions(0, 3, 20e6)
    assert net.a.poll_completions()["status"].tolist() == [0, 0, 0]
    net.run_us(100_000)
    a.destroy(net.now_ps)
    net.run_us(1_000)
    b.destroy(net.now_ps)
    net.run_us(5e6)
    assert [refused(side) for side in net.sides] == [{}, {}]
    assert all(side.stats()["endpoint_responses"] > planes for side in net.sides), "there were copies to know"
