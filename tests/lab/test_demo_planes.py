"""The demo's planes: what the kernel carries while each fault lasts, and that nothing is left of them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from softmrc.demo import namespaces
from softmrc.demo.planes import FAULTS, SLOW_BPS, Planes, _of_tcp, _on_plane
from softmrc.demo.ranks import DemoRanks
from softmrc.demo.script import ScriptedFault
from softmrc.errors import DeviceError

WHY_NOT = namespaces.why_not()
pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(WHY_NOT), reason=f"needs network namespaces: {WHY_NOT}")]
NO_RANKS: DemoRanks = None  # type: ignore[assignment]  # namespaces are broken without them
PORT = 4791
LONG_S, SHORT_S = 5.0, 0.1  # until a packet that can come has come; that one waits for a packet that cannot


@pytest.fixture(scope="module")
def planes() -> Iterator[Planes]:
    with Planes(4) as up:
        for plane in range(4):
            for rank in range(1, 4):
                assert arrives(up, _on_plane(0, plane), rank, _on_plane(rank, plane), LONG_S)
        yield up


def arrives(planes: Planes, source: str, rank: int, address: str, wait_s: float, size: int = 8000) -> bool:
    """Whether a packet of rank 0 reaches another rank in time; it is retransmitted until then."""
    with planes._hosts[0].inside():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with planes._hosts[rank].inside():
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, receiver:
        sender.bind((source, 0))
        receiver.bind((address, PORT))
        receiver.settimeout(SHORT_S / 2)
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            try:
                sender.sendto(bytes(size), (address, PORT))
                return len(receiver.recv(1 << 16)) == size
            except OSError:  # unreachable, or nothing came
                continue
    return False


@pytest.mark.parametrize("fault", FAULTS, ids=[one.label for one in FAULTS])
def test_what_a_fault_breaks(planes: Planes, fault: ScriptedFault) -> None:
    if fault not in planes.faults:
        pytest.skip("this kernel has no token bucket filter")
    rank = fault.rank or 1
    planes.break_it(NO_RANKS, fault, True)
    try:
        for plane in range(4):
            is_dead = plane in fault.planes and fault.kind != "slow"
            pair = _on_plane(0, plane), rank, _on_plane(rank, plane)
            assert arrives(planes, *pair, SHORT_S if is_dead else LONG_S) != is_dead
        if fault.rank is not None:
            assert arrives(planes, _of_tcp(0), rank, _of_tcp(rank), LONG_S), "TCP's routes leave out the link"
    finally:
        planes.break_it(NO_RANKS, fault, False)
    for plane in range(4):
        assert arrives(planes, _on_plane(0, plane), rank, _on_plane(rank, plane), LONG_S)
    assert arrives(planes, _of_tcp(0), rank, _of_tcp(rank), LONG_S)


def test_counters_see_what_passes(planes: Planes) -> None:
    with planes.sampled() as sampler:
        while not sampler._samples:
            time.sleep(0.01)
        assert arrives(planes, _on_plane(0, 3), 2, _on_plane(2, 3), LONG_S)
        count = len(sampler._samples)
        while len(sampler._samples) < count + 2:
            time.sleep(0.01)
        found = sampler.result()
    assert found.given[-1][3] >= 8000 and found.delivered[-1][3] >= 8000
    assert found.given.shape == (len(found.at_s), 4)


def test_a_rank_on_its_own_has_only_its_planes(planes: Planes) -> None:
    place = planes.places()[1]
    with place.inside():
        names = {name for _, name in socket.if_nameindex()}
    assert names >= {"lo", "plane0", "plane1", "plane2", "plane3", "tcp"} and "eth0" not in names
    assert place.env["SOFTMRC_PLANES"] == "10.77.0.2,10.77.1.2,10.77.2.2,10.77.3.2"


def test_nothing_is_left() -> None:
    def links() -> set[str]:
        return {name for _, name in socket.if_nameindex()}

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = links(), files(), Path("/proc/thread-self/ns/net").readlink()
    with Planes(2, planes=2) as up, up.sampled():
        assert files() > before[1]
    assert (links(), files(), Path("/proc/thread-self/ns/net").readlink()) == before


def test_what_the_kernel_refuses_is_said(planes: Planes) -> None:
    netlink = planes._hosts[0].netlink
    with pytest.raises(DeviceError, match="no interface nosuch"):
        netlink.set_up("nosuch")
    with pytest.raises(DeviceError, match="refuses to add bridge plane0: File exists"):
        netlink.add_link("plane0", "bridge")


def test_a_kernel_without_the_token_bucket_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Planes, plane: int, bits_per_s: int) -> None:
        raise DeviceError(f"no rate limit of {SLOW_BPS}")

    monkeypatch.setattr(Planes, "_slow", refuse)
    with Planes(2, planes=2) as up:
        assert [one.kind for one in up.faults] == ["silent", "down", "flap", "silent"]
