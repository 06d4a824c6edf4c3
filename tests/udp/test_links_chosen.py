"""What a device says of its links, and what a bench says where it can make none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from softmrc.config import DeviceConfig, planes
from softmrc.device import Device
from softmrc.errors import DeviceError
from softmrc_bench import links


@pytest.fixture
def nics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(planes, "LINKS", tmp_path)
    return tmp_path


def add(nics: Path, name: str, speed: str | None, *, is_hardware: bool = True) -> None:
    (nics / name).mkdir()
    if is_hardware:
        (nics / name / "device").mkdir()
    if speed is not None:
        (nics / name / "speed").write_text(speed)


@pytest.mark.parametrize(
    ("speed", "is_hardware", "bps"),
    [
        ("25000\n", True, 25_000_000_000),
        ("-1\n", True, 0),  # no cable, or a virtual machine's NIC
        ("", True, 0),
        (None, True, 0),
        ("10000\n", False, 0),  # what veth says of itself
    ],
)
def test_the_kernel_is_believed_of_hardware_only(nics: Path, speed: str | None, is_hardware: bool, bps: int) -> None:
    add(nics, "eth7", speed, is_hardware=is_hardware)
    assert planes.speed_of("eth7") == bps
    assert planes.speed_of("eth8") == 0


def test_a_device_shows_the_speeds_that_are_known(nics: Path) -> None:
    add(nics, "lo", "25000")
    with Device(["127.0.0.1", "127.0.0.2"]) as device:
        assert "127.0.0.1 (25G), 127.0.0.2 (25G)" in repr(device)
        assert device._profiles.cc_profile().rate_bps == 50_000_000_000
        device.set_port(1, False)
        assert "127.0.0.2 (25G, down)" in repr(device)
    assert DeviceConfig(rate_bps=1_000_000_000).cc_profile([25_000_000_000]).rate_bps == 1_000_000_000
    assert DeviceConfig().cc_profile([25_000_000_000, 0]).rate_bps == 40_000_000_000, "one of them is not known"


def test_where_there_are_no_namespaces_the_bench_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise DeviceError("network namespaces need root")

    monkeypatch.setattr(links, "veth_planes", refuse)
    found = links.measure(quick=True)
    assert found == {"defaults_1g_ms": None, "links": None, "links_refused": "network namespaces need root"}
