"""A host of a fabric: which paths lead from it, and how a process learns that it runs there."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from softmrc.connection.connector import Connector
from softmrc.connection.waiting import BlockingWait, run_blocking
from softmrc.errors import ConfigError
from softmrc.fabric import parse
from softmrc.fabric.host import FILE, NUMBER, FabricHost

TEXT = 'name = "small"\n[fabric]\nplanes = 2\nhosts = 4\nhosts_per_leaf = 2\nspines = 3\nhost_link_bps = "20M"\n'
HERE = FabricHost(parse(TEXT, "small"), 1)


def test_a_peers_address_gives_the_carriers_to_it() -> None:
    plan = HERE.plan
    assert HERE.paths(1, plan.nic_address(3, 1)) == tuple(plan.carrier(1, 3, 1, path) for path in range(3))
    assert len(HERE.paths(0, plan.nic_address(0, 0))) == 1, "under the same leaf there is one way"


def test_an_address_that_is_no_hosts_is_refused() -> None:
    for address in (HERE.plan.nic_address(3, 0), HERE.plan.nic_address(1, 1), HERE.plan.host_address(3)):
        with pytest.raises(ConfigError, match="the address of a host in plane 1 of small"):
            HERE.paths(1, address)


def test_names_of_hosts_are_addresses_and_everything_else_is_left() -> None:
    assert HERE.resolve("host3") == str(HERE.plan.host_address(3))
    assert HERE.resolve("10.0.0.1") == "10.0.0.1"
    with pytest.raises(ConfigError, match="host0 to host3"):
        HERE.resolve("host4")


def test_the_environment_says_where_a_process_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small.toml"
    file.write_text(TEXT)
    monkeypatch.delenv(FILE, raising=False)
    monkeypatch.setenv(NUMBER, "2")
    assert FabricHost.from_environment() is None
    monkeypatch.setenv(FILE, str(file))
    found = FabricHost.from_environment()
    assert found is not None and (found.host, found.planes) == (2, ["p0", "p1"])
    for number, allowed in (("x", "the number of a host"), ("4", "0 to 3")):
        monkeypatch.setenv(NUMBER, number)
        with pytest.raises(ConfigError, match=allowed):
            FabricHost.from_environment()
    monkeypatch.setenv(FILE, str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="no such file"):
        FabricHost.from_environment()


def test_slow_links_get_patient_settings_and_what_is_given_wins() -> None:
    assert HERE.settings()["base_rtt_us"] == 10_000.0 and HERE.settings()["rate_bps"] == 40_000_000
    assert HERE.settings(base_rtt_us=5.0)["base_rtt_us"] == 5.0
    fast = FabricHost(parse(TEXT.replace("20M", "100G"), "small"), 0)
    assert "base_rtt_us" not in fast.settings() and fast.settings()["srv6"]


def test_without_a_secret_no_path_of_the_fabric_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where another name of the listener is on loopback."""
    (tmp_path / "small.toml").write_text(TEXT)
    monkeypatch.setenv(FILE, str(tmp_path / "small.toml"))
    monkeypatch.setenv(NUMBER, "1")
    for secret, leaves in ((None, False), (b"of the fabric", True)):
        caller = Connector("127.0.0.1,host2", 4711, None, secret, None, ["127.0.0.1"], 1.0, {})
        ways = run_blocking(caller._ways(BlockingWait()))
        assert any(not ip_address(way.address).is_loopback for way in ways) is leaves
