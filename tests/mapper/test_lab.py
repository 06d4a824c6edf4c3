"""The mapper over a lab: real packets through kernel SRv6, one fault after the other, each named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab.labs import a_lab, wait_for_quiet
from typer.testing import CliRunner

import needs
from softmrc.cli import app
from softmrc.device import Device
from softmrc.engine import EvState
from softmrc.errors import ConfigError
from softmrc.fabric.denylist import Denylist, DenylistEntry
from softmrc.fabric.host import FabricHost
from softmrc.lab import Lab
from softmrc.ops.mapper import Mapper
from softmrc.ops.mapper.lab_fabric import LabFabric, lab_settings

pytestmark = [*needs.LAB, needs.BPF]
TEXT = """
[fabric]
planes = 2
hosts = 8
hosts_per_leaf = 4
spines = 2
host_link_bps = "50M"
fabric_link_bps = "50M"
[switch]
ecn = true
trim = true
"""
MAX_STEPS = 14  # half a second each

FAULTS = [
    ("p0.leaf0-spine1", "blackhole", "dead"),
    ("p1.leaf1-spine0", "down", "dead"),
    ("p1.leaf0-spine0", "blackhole", "dead"),
    ("p0.host3-leaf0", "blackhole", "dead"),
    ("p1.host6-leaf1", "down", "dead"),
    ("p1.spine1", "reboot", "dead"),
    ("p0.spine0", "blackhole", "dead"),
    ("p0.leaf1", "blackhole", "dead"),
    ("p1.leaf0", "reboot", "dead"),
    ("host5", "reboot", "dead"),
    ("p1.leaf1-spine0", "loss=1%", "lossy"),
    ("p0.leaf0-spine0", "loss=10%", "lossy"),
    ("p1.host1-leaf0", "loss=5%", "lossy"),
    ("p0.leaf1-spine1", "corrupt=3%", "corrupting"),
    ("p1.host7-leaf1", "corrupt=20%", "corrupting"),
    ("p0.leaf1-spine0", "slow=25%", "slow"),
    ("p1.leaf0-spine1", "slow=20%", "slow"),
    ("p1.host5-leaf1", "slow=25%", "slow"),
    ("p1.leaf0-spine1", "flap=60ms", "flapping"),
    ("p0.host2-leaf0", "flap=80ms", "flapping"),
]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab(TEXT) as made:
        wait_for_quiet(made)
        yield made


def verdict(lab: Lab, expected: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """What the mapper says, as soon as it says the expected twice in a row; or what it says in the end."""
    with LabFabric(lab) as fabric:
        mapper = Mapper(fabric, lab_settings(lab))
        right = 0
        for _ in range(MAX_STEPS):
            found = {(one.component.name, one.state.value) for one in mapper.step()}
            right = right + 1 if found == expected else 0
            if right == 2:
                break
    return found


@pytest.mark.slow
@pytest.mark.parametrize("target, mode, state", FAULTS, ids=lambda value: value)
def test_a_single_fault_is_named(lab: Lab, target: str, mode: str, state: str) -> None:
    lab.fail(target, mode)
    try:
        assert verdict(lab, {(target, state)}) == {(target, state)}
    finally:
        lab.heal()


def test_nothing_is_wrong_with_a_sound_lab(lab: Lab) -> None:
    assert verdict(lab, set()) == set()


def test_the_command_names_it_and_writes_a_denylist(lab: Lab, tmp_path: Path) -> None:
    lab.fail("p0.leaf0-spine1", "blackhole")
    written = tmp_path / "denylist.json"
    words = ["mapper", "lab", "--lab", lab.name, "--duration", "1s", "--json", "--output", str(written)]
    try:
        done = CliRunner().invoke(app, words)
    finally:
        lab.heal()
    assert done.exit_code == 3, done.output
    (found,) = json.loads(done.output)["findings"]
    assert (found["name"], found["kind"], found["state"]) == ("p0.leaf0-spine1", "link", "dead")
    assert found["hosts"] == [0, 1, 2, 3]
    assert Denylist.load(written).evs(lab.plan, 0, 7) == lab.plan.evs_over(lab.shape.leaf_up(0, 0, 1), 0, 7)


def test_a_node_that_is_given_a_denylist_keeps_off_it_from_the_first_packet(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "denylist.json"
    denied = lab.shape.leaf_up(1, 0, 0)
    Denylist(lab.name, (DenylistEntry("x", "direction", "dead", 1.0, ("p1.leaf0>spine0",)),)).save(file)
    monkeypatch.setenv("SOFTMRC_DENYLIST", str(file))
    with pytest.raises(ConfigError, match="SOFTMRC_HOST"), lab.inside("host0"):
        here = FabricHost(lab.description, 0)
        Device(here.planes, routes=here.paths, **here.settings())
    monkeypatch.setenv("SOFTMRC_FABRIC", str(tmp_path / "fabric.toml"))
    (tmp_path / "fabric.toml").write_text(lab.record.description)
    monkeypatch.setenv("SOFTMRC_HOST", "0")
    with lab.inside("host0"):
        here = FabricHost(lab.description, 0)
        ours = Device(here.planes, routes=here.paths, **here.settings())
    there = FabricHost(lab.description, 7)
    monkeypatch.delenv("SOFTMRC_DENYLIST")
    with lab.inside("host7"):
        theirs = Device(there.planes, routes=there.paths, **there.settings())
    with ours, theirs:
        pairs = [device.create_qp(device.create_cq()) for device in (ours, theirs)]
        peers = [ours.add_peer(pairs[1].reached_at), theirs.add_peer(pairs[0].reached_at)]
        for pair, peer in zip(pairs, peers, strict=True):
            pair.init(ev_profile=pair.device.profile_for(peer))
        pairs[0].rtr(peers[0], dest_qpn=pairs[1].qpn, first_psn=pairs[1].first_psn)
        pairs[1].rtr(peers[1], dest_qpn=pairs[0].qpn, first_psn=pairs[0].first_psn)
        for pair in pairs:
            pair.rts()
        found = [int(ev["value"]) for ev in pairs[0].evs() if EvState(int(ev["state"])) == EvState.DENIED]
        assert found == [lab.plan.ev_of(1, 0)]
        assert not any(EvState(int(ev["state"])) == EvState.DENIED for ev in pairs[1].evs())
        before = lab.packets()
        memory = theirs.register(bytearray(1 << 20), remote_write=True)
        source = ours.register(bytes(1 << 20))
        pairs[0].post_write(source, 0, 1 << 20, remote_va=memory.va, rkey=memory.rkey)
        assert len(pairs[0].send_cq.wait(20)) == 1
        after = lab.packets()
    assert after[denied] == before[denied]
    assert after[lab.shape.leaf_up(1, 0, 1)] > before[lab.shape.leaf_up(1, 0, 1)]
