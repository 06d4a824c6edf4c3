"""Configurations: complete, the same every time, and as far as tools here can tell, right."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

import needs
from softmrc.errors import ConfigError, DeviceError
from softmrc.fabric import AddressPlan, Description, Node, Shape, Tier, parse, table_of
from softmrc.fabric.config import TARGETS, files, write
from softmrc.fabric.config.linux import MAX_ENCAP_ROUTES
from softmrc.fabric.config.ports import ports_of
from softmrc.fabric.config.queues import thresholds

SWITCH = "[switch]\necn = true\ntrim = true\n"
TWO = parse("name = 'two'\n[fabric]\nplanes = 2\nhosts = 4\nhosts_per_leaf = 2\nspines = 2\n" + SWITCH)
THREE = parse(
    "[fabric]\nplanes = 1\nhosts = 4\nhosts_per_leaf = 1\nspines = 2\npods = 2\ncores_per_spine = 2\n", "three"
)
IN_USID = parse("[fabric]\nplanes = 2\nhosts = 4\nhosts_per_leaf = 2\nspines = 2\n[addressing]\nplane_in = 'usid'\n")
ALL = [TWO, THREE, IN_USID]
# What FRR learnt after the version that Debian 12 has; everything else must be understood by that one too.
NEWER_THAN_FRR_8 = re.compile(r"^\s*(prefix .* func-bits 16|behavior usid|format usid-f3216|static-sids|sid .*)$")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("description", ALL, ids=["two tiers", "three tiers", "plane in every uSID"])
def test_one_file_a_node_and_the_same_bytes_every_time(description: Description, target: str) -> None:
    once, again = dict(files(description, target)), dict(files(description, target))
    assert once == again
    nodes = {description.fabric.name_of(node) for node in description.fabric.nodes()}
    assert {name.rpartition(".")[0] for name in once} == nodes
    assert all(text.endswith("\n") for text in once.values())


def test_files_are_written_and_refusals_say_why(tmp_path: Path) -> None:
    assert write(TWO, "linux", tmp_path / "new" / "folder") == 12
    assert (tmp_path / "new" / "folder" / "p1.spine0.sh").read_text().startswith("#!/bin/sh\n")
    with pytest.raises(ConfigError, match="one of linux, frr, sonic"):
        write(TWO, "ios", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match="cannot write to"):
        write(TWO, "linux", tmp_path / "file")


@pytest.mark.parametrize("description", ALL, ids=["two tiers", "three tiers", "plane in every uSID"])
def test_every_entry_of_a_table_is_in_every_target(description: Description) -> None:
    plan = AddressPlan(description.fabric, description.addressing)
    texts = {target: dict(files(description, target)) for target in TARGETS}
    for node in description.fabric.nodes():
        if node.tier is Tier.HOST:
            continue
        name = description.fabric.name_of(node)
        sonic = json.loads(texts["sonic"][f"{name}.json"])
        for entry in table_of(plan, node).entries:
            assert f"route replace {entry.prefix} " in texts["linux"][f"{name}.sh"]
            if entry.action.value == "forward":
                assert f"ipv6 route {entry.prefix} " in texts["frr"][f"{name}.conf"]
                assert f"default|{entry.prefix}" in sonic["STATIC_ROUTE"]


def test_ports_of_two_ends_fit_each_other() -> None:
    for description in ALL:
        plan = AddressPlan(description.fabric, description.addressing)
        ports = {p.link: (node, p) for node in description.fabric.nodes() for p in ports_of(plan, node)}
        assert len(ports) == 2 * description.fabric.cables
        assert len({p.mac for _, p in ports.values()}) == len(ports)
        for link, (_, port) in ports.items():
            up, down = plan.shape.links_of(plan.shape.cable_of(link))
            _, far = ports[down if link == up else up]
            assert (port.address, port.mac) == (far.next_hop, far.next_mac)


def test_thresholds_follow_rate_and_round_trip_or_the_file() -> None:
    plan = AddressPlan(TWO.fabric)
    fabric_port = ports_of(plan, Node(Tier.T0, 0, 0))[2]
    last_hop = ports_of(plan, Node(Tier.T0, 0, 0))[0]
    at = thresholds(TWO, fabric_port)
    assert (at.ecn_min, at.ecn_max, at.trim, at.limit) == (20_000, 80_000, 100_000, 400_000)  # 100G × 8 µs = 100 kB
    assert thresholds(TWO, last_hop).trim == 150_000
    given = parse("[fabric]\nhosts = 8\n[switch]\ntrim_bytes = 5\nqueue_bytes = 7\n")
    assert (thresholds(given, fabric_port).trim, thresholds(given, fabric_port).limit) == (5, 7)


def test_a_host_with_too_many_paths_is_told_to_compute_them() -> None:
    large = Description(fabric=Shape(planes=8, hosts=4096, hosts_per_leaf=16, spines=64))
    plan = AddressPlan(large.fabric)
    from softmrc.fabric.config import linux

    text = linux.text(large, plan, Node(Tier.HOST, 0, 0))
    assert "compute them from the template" in text and "encap.red" not in text
    assert sum(plan.evs(0, other) for other in range(1, 4096)) > MAX_ENCAP_ROUTES


def test_sonic_marks_inside_the_fabric_only_and_trims_everywhere() -> None:
    tables = json.loads(dict(files(TWO, "sonic"))["p0.leaf0.json"])
    assert set(tables["QUEUE"]) == {"Ethernet2|3", "Ethernet3|3"}  # the uplinks
    assert tables["SWITCH_TRIMMING"]["GLOBAL"]["dscp_value"] == "12"
    assert {q["profile"] for q in tables["BUFFER_QUEUE"].values()} == {"MRC_last_hop", "MRC_fabric"}
    assert tables["SRV6_MY_SIDS"]["MRC|fcbb:bb00:100::/48"] == {"action": "uN", "decap_dscp_mode": "pipe"}
    assert tables["STATIC_ROUTE"]["default|fcbb:bb00::/32"] == {"blackhole": "true"}
    assert tables["DEVICE_NEIGHBOR"]["Ethernet2"] == {"name": "p0.spine0", "port": "Ethernet0"}


@needs.tools("vtysh")
@pytest.mark.parametrize("description", ALL, ids=["two tiers", "three tiers", "plane in every uSID"])
def test_frr_understands_what_its_version_can(description: Description, tmp_path: Path) -> None:
    """Debian 12 has FRR 8.4, which knows no static SIDs: what it refuses must be those lines and no others."""
    for name, text in files(description, "frr"):
        (tmp_path / name).write_text(text)
        done = subprocess.run(
            ["vtysh", "-C", "-f", str(tmp_path / name)], capture_output=True, text=True, timeout=30, check=False
        )
        refused = re.findall(r"line (\d+): % (.*)", done.stdout + done.stderr)
        for number, reason in refused:
            line = text.splitlines()[int(number) - 1]
            assert NEWER_THAN_FRR_8.match(line), f"{name}:{number}: {line}: {reason}"
