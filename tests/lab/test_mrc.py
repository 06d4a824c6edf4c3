"""Queue pairs over a lab's SRv6 paths: they spray evenly, and they live through what breaks."""

from __future__ import annotations

import importlib.util
import time

import pytest
from tests.lab.labs import NEEDS_BPF, NEEDS_ROOT, NEEDS_TOOLS

from softmrc.lab import Lab

HAS_DRIVER = importlib.util.find_spec("softmrc.verbs") is not None
pytestmark = [
    NEEDS_ROOT,
    NEEDS_TOOLS,
    NEEDS_BPF,
    pytest.mark.skipif(not HAS_DRIVER, reason="there is no driver for UDP sockets in this version"),
]


def wait_for_progress(traffic: object, hosts: range, least: int, patience_s: float = 10.0) -> None:
    """Until every one of these hosts has received so much more."""
    start = traffic.received_bytes()  # type: ignore[attr-defined]
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        now = traffic.received_bytes()  # type: ignore[attr-defined]
        if all(now[host] - start[host] >= least for host in hosts):
            return
        time.sleep(0.02)
    pytest.fail(f"a host received less than {least} bytes in {patience_s} s")


def test_paths_are_used_evenly(acting: Lab) -> None:
    from softmrc.bench.mrc_traffic import measure_spread

    assert measure_spread(acting, 2.0) < 1.2


@pytest.mark.parametrize(
    ("target", "mode"),
    [
        ("p0.leaf0-spine1", "blackhole"),
        ("p0.leaf0-spine1", "down"),
        ("p1.spine0", "reboot"),
        ("p1.host0-leaf0", "down"),
    ],
)
def test_writes_go_on_through_a_failure_and_its_repair(acting: Lab, target: str, mode: str) -> None:
    from softmrc.bench.mrc_traffic import Mrc

    traffic, hosts = Mrc(acting), range(acting.shape.hosts)
    try:
        traffic.start()
        wait_for_progress(traffic, hosts, 200_000)
        acting.fail(target, mode)
        wait_for_progress(traffic, hosts, 400_000)
        acting.heal()
        wait_for_progress(traffic, hosts, 400_000)
        assert traffic.errors() == 0
    finally:
        acting.heal()
        traffic.stop()
