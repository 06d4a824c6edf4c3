"""Queue pairs over a lab's SRv6 paths: they spray evenly, and they live through what breaks."""

from __future__ import annotations

import threading
import time

import pytest

import needs
from softmrc.connection import connect, listen
from softmrc.device import Device
from softmrc.fabric.host import FabricHost
from softmrc.lab import Lab

pytestmark = [*needs.LAB, needs.BPF]


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
    from softmrc_bench.mrc_traffic import measure_spread

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
    from softmrc_bench.mrc_traffic import Mrc

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
    assert traffic.errors() == 0, "its count outlives its devices"


def device_of(lab: Lab, host: int) -> Device:
    here = FabricHost(lab.description, host)
    return Device(here.planes, routes=here.paths, **here.settings())


def test_connect_uses_every_path(acting: Lab) -> None:
    """The easy way between two hosts: TCP for the handshake, then writes over each SRv6 path."""
    last = acting.shape.hosts - 1
    memory, ready, done = bytearray(1 << 16), threading.Event(), threading.Event()
    address = str(acting.plan.host_address(last))

    def serve() -> None:
        with (
            acting.inside(f"host{last}"),
            device_of(acting, last) as device,
            listen(address, 7000, memory=memory, secret="of the lab", device=device) as listener,
        ):
            ready.set()
            with listener.accept(10) as connection:
                connection.recv(10)
                done.wait(10)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    assert ready.wait(10)
    with acting.inside("host0"), device_of(acting, 0) as device:
        before = acting.packets()
        with connect(address, 7000, secret="of the lab", device=device) as connection:
            paths = acting.plan.evs(0, last)
            assert len(connection.qp.evs()) == paths > acting.shape.planes
            for number in range(20):
                connection.write(connection.remote[0], 0, bytes([number]) * (1 << 16))
            connection.write(connection.remote[0], 0, b"done", imm=1)
            done.set()
        server.join(10)
    assert memory[:4] == b"done" and memory[4:] == bytes([19]) * ((1 << 16) - 4)
    after = acting.packets()
    used = {link for link in after if after[link] > before[link]}
    assert used >= {link for ev in range(paths) for link in acting.plan.links(0, last, *acting.plan.place_of(ev))}
