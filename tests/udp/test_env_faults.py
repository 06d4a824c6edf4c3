"""SOFTMRC_FAULTS, which breaks the planes of every device, and of healthy ones: those refuse nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from loopback import drain, eventually, pair

from softmrc.collectives import DirectoryStore, Group
from softmrc.connection import connect, listen
from softmrc.device import Device, EventType, QueuePair, creation
from softmrc.errors import ConfigError

TWO = ("127.0.0.1", "127.0.0.2")
SIZE = 1 << 20


def write(a: QueuePair, b: QueuePair) -> bool:
    """Whether a megabyte arrives as it was sent."""
    sent, landing = bytearray(np.random.default_rng(1).bytes(SIZE)), bytearray(SIZE)
    target = b.device.register(landing, remote_write=True)
    a.post_write(a.device.register(sent), 0, SIZE, remote_va=target.va, rkey=target.rkey)
    return [one.ok for one in drain(a.send_cq, 1)] == [True] and landing == sent


def swallowed(device: Device) -> list[int]:
    return [device.fault_stats(plane)["swallowed"] for plane in range(2)]


def test_every_device_has_the_weather_that_the_environment_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMRC_FAULTS", "1:black_hole")
    with pair(TWO) as (a, b):
        assert write(a, b), "by the plane that is left"
        assert swallowed(a.device)[0] == 0 and swallowed(a.device)[1] > 0


def test_a_group_has_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOFTMRC_FAULTS", "drop=0.05")
    with Group.join(DirectoryStore(str(tmp_path)), 0, 1, planes=TWO) as group:
        assert [group.device._native.faults(plane).drop for plane in range(2)] == [0.05, 0.05]


def test_a_file_is_read_again_when_it_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "weather"
    monkeypatch.setenv("SOFTMRC_FAULTS", f"@{file}")
    with Device(TWO) as device:

        def holes() -> list[bool]:
            return [device._native.faults(plane).black_hole for plane in range(2)]

        assert holes() == [False, False], "there is no file yet"
        for text, want in (("1:black_hole", [False, True]), ("", [False, False]), ("black_hole", [True, True])):
            file.write_text(text)
            assert eventually(lambda want=want: holes() == want), text
        file.write_text("what is this")
        assert eventually(lambda: holes() == [True, True]), "what makes no sense changes nothing"
        file.unlink()
        assert eventually(lambda: holes() == [False, False])


@pytest.mark.parametrize("text", ["dorp=0.1", "2:black_hole", "drop=2", "drop", "@", "-1:drop=0.1"])
def test_what_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SOFTMRC_FAULTS", text)
    with pytest.raises(ConfigError, match=r"`SOFTMRC_FAULTS`: must be (0 to 1 for|.*black_hole)") as told:
        Device(TWO)
    assert text in str(told.value)


def test_it_is_said_aloud_and_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    creation.warn_of_faults.cache_clear()
    monkeypatch.setenv("SOFTMRC_FAULTS", "delay_us=3")
    for _ in range(2):
        Device(TWO).close()
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1 and "SOFTMRC_FAULTS" in said[0] and "delay_us=3" in said[0]


# spec: proof-of-address
def test_healthy_devices_refuse_nothing() -> None:
    """Verbs without keys for ports, and connections, with; while they are open, and when the other end has closed."""

    def nothing(device: Device) -> bool:
        events = [str(one) for one in device.poll_events() if one.type == EventType.packet_refused]
        return (
            events,
            {name: count for name, count in device.stats().items() if name.startswith("refused") and count},
        ) == ([], {})

    for _ in range(3):
        with pair() as (a, b):
            assert write(a, b) and write(b, a)
            assert nothing(a.device) and nothing(b.device)
            a.device.close()
            assert nothing(b.device)
        planes = [f"127.0.0.{n}" for n in range(1, 5)]
        with listen("127.0.0.1", 0, memory=bytearray(SIZE), planes=planes) as listener:
            with connect("127.0.0.1", listener.port, planes=planes) as near:
                far = listener.accept()
                near.write(near.remote[0], 0, b"x" * SIZE, imm=1)
                far.recv()
                assert nothing(near.device)
            assert nothing(far.device)
