"""Which links are planes by default."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from softmrc.config import interfaces
from softmrc.errors import DeviceError

# name: flags, carrier (None: down, nothing to read), what else is in its folder
LINKS: dict[str, tuple[str, str | None, str]] = {
    "lo": ("0x9", "1", ""),
    "eth0": ("0x1003", "1", "device"),
    "eth1": ("0x1003", "1", "device"),
    "eth2": ("0x1003", "0", "device"),
    "eth3": ("0x1002", None, "device"),
    "bond9": ("0x1003", "1", ""),
    "docker0": ("0x1003", "1", "bridge"),
    "vethab12": ("0x1003", "1", ""),
    "mybridge": ("0x1003", "1", "bridge"),
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def build(*names: str) -> None:
        for name in names:
            flags, carrier, more = LINKS[name]
            (tmp_path / name).mkdir()
            (tmp_path / name / "flags").write_text(flags)
            if carrier is not None:
                (tmp_path / name / "carrier").write_text(carrier)
            if more:
                (tmp_path / name / more).mkdir()
        monkeypatch.setattr(interfaces, "NET", tmp_path)
        monkeypatch.setattr(interfaces._core, "local_addresses", lambda: [(name, b"", 1500) for name in names])

    return build


def test_hardware_that_is_up_goes_first_and_the_rest_is_accounted_for(machine) -> None:
    machine(*LINKS)
    found = interfaces.detect_planes()
    assert found.planes == ("eth0", "eth1") and found.why.startswith("hardware that is up")
    for name, reason in (("eth2", "no carrier"), ("eth3", "down"), ("docker0", "plumbing"), ("bond9", "software")):
        assert f"{name} ({reason})" in found.why
    assert "lo (" not in found.why


def test_bridges_and_containers_cables_are_taken_only_where_nothing_else_is(machine) -> None:
    machine("lo", "bond9", "docker0", "vethab12", "mybridge", "eth2")
    assert interfaces.detect_planes().planes == ("bond9",)


def test_in_a_container_its_only_link_will_do(machine) -> None:
    machine("lo", "docker0")
    assert interfaces.detect_planes().planes == ("docker0",) and "nothing better" in interfaces.detect_planes().why


def test_where_there_is_none_what_there_is_is_named(machine) -> None:
    machine("lo", "eth2", "eth3")
    with pytest.raises(DeviceError, match=r"SOFTMRC_PLANES; there is eth2 \(no carrier\), eth3 \(down\)"):
        interfaces.detect_planes()


def test_the_network_of_an_address() -> None:
    assert str(interfaces.network_of(ipaddress.ip_address("127.0.0.1"), "lo")) == "127.0.0.0/8"
    assert interfaces.network_of(ipaddress.ip_address("127.0.0.1"), "nosuch0") is None
    assert interfaces.network_of(ipaddress.ip_address("fd00::77"), "lo") is None
