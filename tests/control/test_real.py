"""The same with real devices: what they answer is what the client expects."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from softmrc._support.units import ev_text, qpn_text
from softmrc.cli import app
from softmrc.collectives import DirectoryStore, Group
from softmrc.config import DeviceConfig
from softmrc.connection import Connection, connect, listen
from softmrc.errors import ConfigError, UsageError
from softmrc.ops import control
from softmrc.wire import EndpointRequest, EndpointResponse, read_pcapng


@pytest.fixture
def connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("SOFTMRC_CONTROL", raising=False)
    accepted: list[Any] = []
    with listen("127.0.0.1", 0, memory=bytearray(1 << 16), planes=["127.0.0.1", "127.0.0.2"]) as listener:
        server = threading.Thread(target=lambda: accepted.append(listener.accept(20)), daemon=True)
        server.start()
        with connect("127.0.0.1", listener.port, planes=["127.0.0.3", "127.0.0.4"]) as made:
            server.join(20)
            with accepted[0]:
                yield made


# spec: controller-batches
def test_a_real_device_is_asked_and_told(connection: Connection) -> None:
    connection.write(connection.remote[0], 0, bytes(60_000))
    ours = next(node for node in control.devices() if node.info()["planes"][0]["address"] == "127.0.0.3")
    with ours as node:
        assert node.info()["pid"] == os.getpid()
        (qp,) = node.queue_pairs()
        assert qp["qpn"] == connection.qp.qpn and qp["stats"]["bytes_sent"] == 60_000
        assert len(qp["evs"]) == len(connection.qp.evs())
        done = node.deny([0, 999], qpn=qp["qpn"])
        assert (done.done, [one.ev for one in done.failed]) == (1, [999])
        assert node.queue_pairs(qp["qpn"])[0]["evs"][0]["state"] == "denied"
        assert node.allow([0], qpn=qp["qpn"]).done == 1
        denied = next(event for event in node.events().events if event["type"] == "ev_state")
        assert f"queue pair {qpn_text(qp['qpn'])}: path {ev_text(qp['evs'][0]['value'])} on plane" in denied["text"]
        (answer,) = control.probe(node, qp["peer"]["number"], 0, [qp["evs"][1]["value"]], timeout_s=10)
        # Answers come in copies, of which one takes another plane and may be the first.
        assert answer.took_ns is not None and answer.arrival_plane in range(len(connection.device.local_planes))
        assert answer.service_ns is not None and 0 < answer.service_ns <= answer.took_ns, "a part of it"
        assert node.set_port(1, False)[1]["is_up"] is False
        assert node.set_port(1, True)[1]["is_admin_up"] is True
        with pytest.raises(UsageError, match="refuses port"):
            node.set_port(9, True)


def test_a_batch_of_probes_is_marked_as_told_and_all_are_answered(connection: Connection, tmp_path: Path) -> None:
    with control.DeviceClient(Path(connection.device.control)) as node:
        (qp,) = node.queue_pairs()
        evs = [50_000 + i for i in range(300)]
        file = tmp_path / "probes.pcapng"
        node.capture(str(file))
        found = control.probe(node, qp["peer"]["number"], 1, evs, timeout_s=20, dscp=34)
        assert node.capture(None)["packets"] >= 2 * len(evs)
        assert [one.ev for one in found] == evs and all(one.service_ns for one in found)
        node.set_port(1, False)
        (lost,) = control.probe(node, qp["peer"]["number"], 1, [7], timeout_s=0.1)
        assert not lost.asked
        with pytest.raises(UsageError, match=r"`dscp`: must be 0 to 63 .got 64"):
            control.probe(node, qp["peer"]["number"], 0, [7], dscp=64)
    frames = [record.parse() for record in read_pcapng(file.read_bytes())]
    asked = [frame.dscp for frame in frames if isinstance(frame.packet.body, EndpointRequest)]
    answered = {frame.dscp for frame in frames if isinstance(frame.packet.body, EndpointResponse)}
    assert asked.count(34) == len(evs) and 34 not in answered


def test_a_real_device_is_broken_and_captured_from_a_shell(connection: Connection, tmp_path: Path) -> None:
    def ctl(*words: str) -> Result:
        return CliRunner().invoke(app, ["ctl", *words, "--device", Path(connection.device.control).stem])

    assert ctl("faults").output.count("none") == 2
    shown = ctl("faults", "drop=0.25;1:black_hole").output
    assert "drop=0.25, black_hole" in shown
    connection.write(connection.remote[0], 0, bytes(60_000))
    assert ctl("faults", "").output.count("none") == 2
    assert "dorp" in str(ctl("faults", "dorp=1").exception)
    file = tmp_path / "taken.pcapng"
    assert "capturing" in ctl("capture", str(file)).output
    connection.write(connection.remote[0], 0, bytes(60_000))
    assert str(file) in ctl("capture", "--stop").output
    assert len(list(read_pcapng(file.read_bytes()))) > 0
    assert "no capture runs" in str(ctl("capture", "--stop").exception)
    assert isinstance(ctl("capture").exception, ConfigError)


def test_queue_pairs_of_a_group_have_peers_that_can_be_asked(tmp_path: Path) -> None:
    """Ranks are connected on first use, each by a separate lane."""
    store = DirectoryStore(tmp_path / "store")

    def join(rank: int) -> Group:
        return Group.join(store, rank, 2, planes=["127.0.0.1", "127.0.0.2"], device_config=DeviceConfig(lanes=2))

    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(join, range(2)))
        list(pool.map(lambda group: group.all_reduce(np.zeros(1 << 20, np.float32)).wait(), groups))
        with control.DeviceClient(Path(groups[0].device.control)) as node:
            pairs = [qp for qp in node.queue_pairs() if qp["state"] == "rts"]
            assert {qp["lane"] for qp in pairs} == {0, 1}
            for qp in pairs:
                there = groups[1].device.reached_at(qp["lane"])
                assert qp["peer"]["planes"] == [f"{plane.address}:{plane.port}" for plane in there]
                (answer,) = control.probe(node, qp["peer"]["number"], 1, [qp["evs"][1]["value"]], timeout_s=10)
                assert answer.took_ns is not None
            with pytest.raises(UsageError, match="the number of a peer"):
                control.probe(node, pairs[0]["peer"]["number"] + 1000, 0, [7])
        list(pool.map(Group.close, groups))


@contextlib.contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Files of this process grow to that size and no further."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_capture_that_found_no_room_says_so(connection: Connection, tmp_path: Path) -> None:
    with limited_files(1 << 20), control.DeviceClient(Path(connection.device.control)) as node:
        node.capture(str(tmp_path / "short.pcapng"))
        for _ in range(60):
            connection.write(connection.remote[0], 0, bytes(60_000))
        with pytest.raises(UsageError, match=r"short\.pcapng ends early: File too large"):
            node.capture(None)
        with pytest.raises(UsageError, match="no capture runs"):
            node.capture(None)
