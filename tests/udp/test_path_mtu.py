"""Paths that carry less than the links at their ends: found out when two sides meet, and said."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from loopback import drain, eventually, pair

import needs
from collectives.ranks import ranks, values_of
from softmrc.cli.ctl import _planes
from softmrc.cli.ping import PlaneStatus
from softmrc.collectives import Group
from softmrc.collectives.shm import SHARED_MEMORY
from softmrc.connection import Connection, connect, connect_async, listen, path_mtu
from softmrc.connection.path_mtu import MtuDiscovery
from softmrc.device import Device
from softmrc.engine import QpState
from softmrc.errors import RemoteError
from softmrc.ops import control
from softmrc_bench.veth import run

TWO = ("127.0.0.1", "127.0.0.2")
SIZE = 1 << 18


@contextmanager
def met(planes: tuple[str, ...], *broken: tuple[int, int]) -> Iterator[tuple[Connection, Connection]]:
    """Connector and listener, where planes of the former lose packets above a size."""
    with Device(planes) as here, Device(planes) as there:
        for plane, mtu in broken:
            here.set_faults(plane, mtu=mtu)
        with (
            listen("127.0.0.1", 0, memory=bytearray(SIZE), device=there) as listener,
            connect("127.0.0.1", listener.port, memory=bytearray(SIZE), device=here) as near,
            listener.accept() as far,
        ):
            yield near, far


@pytest.mark.parametrize("mtu, payload", [(9000, 8192), (1500, 1408), (1420, 1280), (1280, 1152)])
def test_packets_are_as_large_as_the_path_carries(mtu: int, payload: int, caplog: pytest.LogCaptureFixture) -> None:
    with met(TWO, (0, mtu), (1, mtu)) as (near, far):
        assert (near._payload, far._payload) == (payload, payload)
        near.write(near.remote[0], 0, bytearray(SIZE), imm=7)
        far.write(far.remote[0], 0, bytearray(SIZE), imm=8)
        assert (far.recv(timeout_s=10).imm, near.recv(timeout_s=10).imm) == (7, 8)
        assert all(0 < row["path_mtu"] <= mtu for row in near.device.planes())
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 2 and "plane 1 (lo, MTU 65,536): packets of 16," in said[1]
    assert "do not reach 127.0.0.2; using 1," in said[1] or mtu == 9000


def test_one_narrow_plane_is_named_and_the_others_carry_full_packets(caplog: pytest.LogCaptureFixture) -> None:
    with met(("127.0.0.1", "127.0.0.2", "127.0.0.3"), (1, 1500)) as (near, far):
        assert near._payload == far._payload == near.device.mtu
        near.write(near.remote[0], 0, bytearray(SIZE), imm=7)
        assert far.recv(timeout_s=10).imm == 7
        mtus = [row["path_mtu"] for row in near.device.planes()]
        assert mtus[0] == mtus[2] == 0 < mtus[1] <= 1500
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1 and "plane 1" in said[0] and "the other planes carry on" in said[0]


@pytest.mark.parametrize("broken", [(), ((1, 1500),)], ids=["whole", "broken"])
def test_loopback_is_asked_only_where_a_size_is_lost_on_purpose(
    broken: tuple[tuple[int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, look = [], MtuDiscovery._look

    def noted(survey: MtuDiscovery) -> None:
        asked.append(survey)
        look(survey)

    monkeypatch.setattr(MtuDiscovery, "_look", noted)
    with met(TWO, *broken):
        assert bool(asked) == bool(broken)


def test_ping_and_ctl_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    with met(TWO, (1, 1500)) as (near, _):
        carried = [PlaneStatus.of(near, plane) for plane in range(2)]
        assert [one.is_narrow for one in carried] == [False, True]
        assert carried[1].path_mtu <= 1500 < carried[1].full
        with control.find_device(Path(near.device.control).stem) as node:
            _planes(node, as_json=False, is_stream=False)
            rows = node.stats()["planes"]
    assert [(row["interface"], row["path_mtu"] > 0) for row in rows] == [("lo", False), ("lo", True)]
    assert "lo" in (shown := capsys.readouterr().out) and "path 1,4" in shown


def test_the_time_of_a_connector_bounds_all_that_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handshake gets through by TCP, and nothing by UDP."""
    ends: list[float] = []
    pauses = MtuDiscovery.pauses

    def noted(self: MtuDiscovery, **more: float) -> Iterator[float]:
        ends.append(more["until"])
        return pauses(self, **more)

    monkeypatch.setattr(MtuDiscovery, "pauses", noted)
    began = time.monotonic()
    words = r"answers TCP, and was never reached: .*; `timeout_s` left [012]\.\d s for an answer"
    with Device(TWO) as here, listen("127.0.0.1", 0, planes=TWO) as listener:
        here.set_faults(black_hole=True)
        with pytest.raises(RemoteError, match=words):
            connect("127.0.0.1", listener.port, device=here, timeout_s=2.0)
    assert len(ends) == 1 and 2.0 <= ends[0] - began < 60.0


@pytest.mark.parametrize("is_async", [False, True])
def test_a_connector_with_little_time_blames_what_is_lost_and_not_tcp(
    is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is over as it asks which sizes get through."""
    monkeypatch.setattr(path_mtu, "FIRST_ROUND_S", 60.0)
    monkeypatch.setattr(path_mtu, "LONGEST_ROUND_S", 60.0)
    words = r"answers TCP, and was never reached: .*; `timeout_s` left [01]\.\d s for an answer"
    with Device(TWO) as here, listen("127.0.0.1", 0, planes=TWO) as listener:
        here.set_faults(black_hole=True, mtu=1500)
        with pytest.raises(RemoteError, match=words):
            if is_async:
                asyncio.run(connect_async("127.0.0.1", listener.port, device=here, timeout_s=1.5))
            else:
                connect("127.0.0.1", listener.port, device=here, timeout_s=1.5)


def test_sizes_are_lost_and_smaller_ones_pass() -> None:
    with pair(TWO) as (a, b):
        a.device.set_faults(0, mtu=1500)
        target = b.device.register(bytearray(SIZE), remote_write=True)
        a.post_write(a.device.register(bytearray(1024)), 0, 1024, remote_va=target.va, rkey=target.rkey)
        assert [one.ok for one in drain(a.send_cq, 1)] == [True]
        assert a.device._native.faults(0).mtu == 1500


@pytest.mark.parametrize("faults, mtu", [("mtu=1500", 1408), ("1:mtu=1500", 0)])
def test_a_group_agrees_on_what_gets_through(faults: str, mtu: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMRC_FAULTS", faults)
    monkeypatch.setenv(SHARED_MEMORY, "off")

    def run(rank: Group) -> tuple[float, int]:
        array = np.full(100_000, rank.rank + 1, np.float32)
        rank.all_reduce(array).wait()
        return float(array.min()), rank._meeting.mtu

    with ranks(3) as group:
        full = group.groups[0].device.mtu
        assert values_of(group(run)) == [(6.0, mtu or full)] * 3


def test_who_stops_answering_to_full_packets_only_is_told_apart() -> None:
    """The path carries less from one moment to the next, and only in this direction would anybody notice."""
    impatient = {"timeout": 10, "retry_linear": 3, "retry_exponential": 2}
    advice = "look at the MTU of the path, and start again"
    words = rf"stopped answering: {advice}: packets of 16,\d+ bytes are lost on plane 0, and"
    with (
        Device(TWO, **impatient) as here,
        Device(TWO, **impatient) as there,
        listen("127.0.0.1", 0, memory=bytearray(SIZE), device=there) as listener,
        connect("127.0.0.1", listener.port, device=here) as near,
        listener.accept(),
    ):
        here.set_faults(mtu=1500)
        with pytest.raises(RemoteError, match=words):
            near.write(near.remote[0], 0, bytearray(SIZE))


@pytest.mark.parametrize("way", ["write", "write_async", "check_alive"])
def test_nobody_else_waits_while_a_silent_peer_is_asked(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the event loop."""
    asked, loops, ask = [], [], MtuDiscovery.lost_now

    def noted(survey: MtuDiscovery) -> str:
        asked.append(True)
        with contextlib.suppress(RuntimeError):
            loops.append(asyncio.get_running_loop())
        return ask(survey)

    monkeypatch.setattr(MtuDiscovery, "lost_now", noted)
    impatient = {"timeout": 10, "retry_linear": 3, "retry_exponential": 2}
    with Device(TWO, **impatient) as here, Device(TWO, **impatient) as there, ExitStack() as stack:
        listener = stack.enter_context(listen("127.0.0.1", 0, memory=bytearray(SIZE), device=there))
        near = stack.enter_context(connect("127.0.0.1", listener.port, device=here))
        stack.enter_context(listener.accept())
        for plane in range(2):
            here.set_faults(plane, black_hole=True)
        if way == "check_alive":
            near.post(near.remote[0], 0, bytearray(SIZE))
            assert eventually(lambda: near.qp.state == QpState.ERROR)
        with pytest.raises(RemoteError, match="stopped answering"):
            if way == "write":
                near.write(near.remote[0], 0, bytearray(SIZE))
            elif way == "write_async":
                asyncio.run(near.write_async(near.remote[0], 0, bytearray(SIZE)))
            else:
                near.check_alive()
        assert (asked, loops) == ([True], [])


@contextmanager
def hosts(mtu: int, between: int) -> Iterator[tuple[str, str]]:
    """Two namespaces whose links carry `mtu`, and a bridge in a third that carries less and says nothing."""
    names = [f"mrcmtu{os.getpid()}{one}" for one in "abm"]
    try:
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        middle = names[2]
        run("ip", "-n", middle, "link", "add", "name", "bridge0", "type", "bridge")
        for side, name in enumerate(names[:2]):
            run("ip", "-n", name, "link", "add", "eth1", "type", "veth", "peer", "name", f"to{side}", "netns", middle)
            run("ip", "-n", name, "addr", "add", f"10.78.0.{side + 1}/24", "dev", "eth1")
            run("ip", "-n", name, "link", "set", "eth1", "mtu", str(mtu), "up")
            run("ip", "-n", middle, "link", "set", f"to{side}", "mtu", str(between), "master", "bridge0", "up")
        run("ip", "-n", middle, "link", "set", "bridge0", "mtu", str(between), "up")
        yield names[0], names[1]
    finally:
        for name in names:
            run("ip", "netns", "del", name, check=False)


@needs.in_namespaces
def test_a_bridge_that_drops_full_packets_costs_no_job(tmp_path: Path) -> None:
    """Both hosts have jumbo frames, and what is between them has not."""
    job = f"""if True:
        import sys, torch, torch.distributed as dist, softmrc.torch
        dist.init_process_group("mrc", init_method="file://{tmp_path}/store", rank=int(sys.argv[1]), world_size=2)
        tensor = torch.ones(1 << 20)
        dist.all_reduce(tensor)
        assert tensor.eq(2).all()
        dist.destroy_process_group()
    """
    with hosts(9000, 1500) as names:
        environment = {**os.environ, "SOFTMRC_PLANES": "eth1"}
        ranks = [
            subprocess.Popen(
                ["ip", "netns", "exec", name, sys.executable, "-c", job, str(rank)],
                env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            for rank, name in enumerate(names)
        ]  # fmt: skip
        said = []
        for rank in ranks:
            try:
                said.append(rank.communicate(timeout=120)[0])
            finally:
                rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    for words, peer in zip(said, ("10.78.0.2", "10.78.0.1"), strict=True):
        assert "plane 0 (eth1, MTU 9,000): packets of 8," in words and f"do not reach {peer}; using 1," in words
