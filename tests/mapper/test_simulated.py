"""The mapper over the simulator: faults drawn at random, each named; and the simulator's part of it by itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.sim.small import scenario
from typer.testing import CliRunner

from softmrc import _core
from softmrc.cli import app
from softmrc.errors import ConfigError, UsageError
from softmrc.fabric import Shape
from softmrc.ops.mapper import Components, Mapper, MapperSettings
from softmrc.ops.mapper.mapper import ProbeSchedule
from softmrc.ops.mapper.probes import Prober, usids_of
from softmrc.ops.mapper.simulated import SimulatedFabric
from softmrc.sim.native import network_config
from softmrc_bench.mapper import MapperTrials

SMALL = Shape(planes=2, hosts=16, hosts_per_leaf=4, spines=4)
RATE = SMALL.host_link_bps
LINK_DELAY_NS = 1000


@pytest.mark.slow
def test_faults_drawn_at_random_among_512_hosts_are_named() -> None:
    """The figures of `softmrc bench operate`, over fewer trials."""
    trials = MapperTrials()
    ran = [trials.run(seed) for seed in range(300, 306)]
    right, named = sum(one.right for one in ran), sum(len(one.named) for one in ran)
    planted = sum(len(one.planted) for one in ran)
    assert right >= 0.95 * named and right >= 0.95 * planted, [(one.planted, one.named) for one in ran]
    assert all(after <= 2 for one in ran for after in one.dead_named_after_s)
    assert max(one.bandwidth_share for one in ran) <= 0.001


def test_a_packet_takes_exactly_as_long_as_its_links() -> None:
    fabric = SimulatedFabric(SMALL)
    batch = Prober(Components(SMALL)).round(0).take(np.arange(40))
    (outcome,) = fabric.send([ProbeSchedule(batch, 1000)], 0.01)
    links = (batch.links >= 0).sum(axis=1)
    expected = links * (LINK_DELAY_NS + 1000 * 8e9 / RATE)
    assert np.abs(outcome.took_ns - expected).max() <= 1 and not outcome.is_corrupt.any()


@pytest.mark.parametrize("kind, value", [("black_hole", 0.0), ("down", 0.0), ("corrupt", 1.0), ("slow", 0.5)])
def test_a_fault_hits_the_packets_that_cross_it_and_no_others(kind: str, value: float) -> None:
    fabric = SimulatedFabric(SMALL)
    link = SMALL.leaf_up(1, 2, 3)
    fabric.break_links(kind, [link], 0.0, value)
    batch = Prober(Components(SMALL)).round(1)
    whole = SimulatedFabric(SMALL).send([ProbeSchedule(batch, 4200)], 0.05)[0]
    (outcome,) = fabric.send([ProbeSchedule(batch, 4200)], 0.05)
    crosses = (batch.links == link).any(axis=1)
    assert crosses.any()
    if kind in ("black_hole", "down"):
        assert ((outcome.took_ns < 0) == crosses).all()
    elif kind == "corrupt":
        assert (outcome.is_corrupt.astype(bool) == crosses).all() and (outcome.took_ns >= 0).all()
    else:
        assert ((outcome.took_ns > whole.took_ns + 100) == crosses).all()


def test_a_fault_may_come_while_the_fabric_is_being_mapped() -> None:
    fabric = SimulatedFabric(SMALL)
    mapper = Mapper(fabric, MapperSettings(step_slots=20, window_slots=60))
    assert mapper.step() == []
    fabric.break_links("black_hole", Components(SMALL).named("p0.spine2").links, fabric.now_s + 0.01)
    for _ in range(2):
        found = mapper.step()
    assert [one.key for one in found] == [("p0.spine2", "dead")]
    with pytest.raises(ConfigError, match="not before now"):
        fabric.break_links("black_hole", [0], 0.0)


def test_packets_of_a_mapper_that_name_no_way_are_refused_or_lost() -> None:
    fabric = SimulatedFabric(SMALL)
    network = fabric._network
    columns = [np.zeros(1, dtype=t) for t in (np.int64, np.uint32, np.uint32)]
    size = np.full(1, 128, dtype=np.uint32)

    def shoot(*usids: int, **other: np.ndarray) -> None:
        row = np.zeros((1, 6), dtype=np.uint16)
        row[0, : len(usids)] = usids
        at, host, plane = (
            other.get(name, column) for name, column in zip(("at", "host", "plane"), columns, strict=True)
        )
        network.add_shots(at, host, plane, other.get("bytes", size), row)

    for usids in ((0x1FF,), (0x100, 0x3FF), (0x100, 0x500), (0x100, 0x1004)):
        with pytest.raises(ConfigError, match="uSID"):
            shoot(*usids)
    for name, value in (("host", 16), ("plane", 2), ("bytes", 0)):
        with pytest.raises(ConfigError, match=name):
            shoot(0x100, 0x1000, **{name: np.full(1, value, dtype=np.uint32)})
    with pytest.raises(ConfigError, match="columns of one length"):
        network.add_shots(np.zeros(2, dtype=np.int64), *columns[1:], size, np.zeros((1, 6), dtype=np.uint16))
    shoot(0x101, 0x1000)  # another leaf's, so the host's own drops it
    shoot(0x100, 0x300, 0x300)  # a spine that is not next to itself
    shoot(0x100, 0x1000)
    with pytest.raises(UsageError, match="all are back or lost"):
        network.take_shots()
    assert not network.run(10**12, 1 << 40)
    took, _ = network.take_shots()
    assert [back >= 0 for back in np.frombuffer(took, dtype=np.int64)] == [False, False, True]


def shots(prober: Prober, number: int) -> tuple[np.ndarray, ...]:
    """A round as the simulator takes it, one packet every ten nanoseconds."""
    batch = prober.round(number)
    size = np.full(len(batch), 128, dtype=np.uint32)
    hosts, planes = batch.source.astype(np.uint32), batch.plane.astype(np.uint32)
    return np.arange(len(batch), dtype=np.int64) * 10_000, hosts, planes, size, usids_of(SMALL, batch)


def test_packets_of_a_mapper_and_of_the_hosts_share_the_links_and_all_arrive() -> None:
    network = _core.Network(network_config(scenario(), 1))
    flows = [np.array(column, dtype=np.uint32) for column in ([0, 5, 9], [5, 9, 0], [1 << 20] * 3)]
    none, rank = np.full(3, -1, dtype=np.int32), np.zeros(3, dtype=np.uint32)
    network.add_flows(*flows, np.zeros(3, dtype=np.int64), none, rank, np.full(3, -1, dtype=np.int64))
    network.add_shots(*shots(Prober(Components(SMALL)), 0))
    assert not network.run(10**12, 1 << 40)
    took = np.frombuffer(network.take_shots()[0], dtype=np.int64)
    assert (took > 0).all() and network.flows_completed == 3 and network.bytes_placed == 3 << 20


def test_where_switches_choose_the_way_nothing_can_be_surveyed() -> None:
    network = _core.Network(network_config(scenario(fabric={"forwarding": "ecmp"}), 1))
    with pytest.raises(ConfigError, match="srv6, for packets with routes"):
        network.add_shots(*shots(Prober(Components(SMALL)), 0))


def test_the_command_maps_a_fabric_that_it_breaks(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text("[fabric]\nplanes = 2\nhosts = 16\nhosts_per_leaf = 4\nspines = 4\n")
    words = ["mapper", "sim", str(file), "--break", "p0.leaf1-spine2=dead", "--break", "p1.host3>leaf0=loss:5%"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 3, done.output
    found = {(one["name"], one["state"]) for one in json.loads(done.output)["findings"]}
    assert found == {("p0.leaf1-spine2", "dead"), ("p1.host3>leaf0", "lossy")}
    shown = CliRunner().invoke(app, words)
    assert "2 components broken" in shown.output and "p0.leaf1-spine2" in shown.output and "host3" in shown.output
    for wrong in ("p0.leaf1-spine2=ded", "p0.leaf1-spine2", "p0.leaf1-spine9=dead", "p0.leaf1-spine2=loss"):
        refused = CliRunner().invoke(app, ["mapper", "sim", str(file), "--break", wrong])
        assert isinstance(refused.exception, ConfigError), wrong


def test_links_as_slow_as_a_labs_are_mapped_too(tmp_path: Path) -> None:
    file = tmp_path / "slow.toml"
    rates = 'host_link_bps = "20M"\nfabric_link_bps = "20M"\n'
    file.write_text("[fabric]\nplanes = 2\nhosts = 8\nhosts_per_leaf = 4\nspines = 2\n" + rates)
    done = CliRunner().invoke(app, ["mapper", "sim", str(file), "--break", "p1.leaf1-spine0=slow:25%", "--json"])
    assert done.exit_code == 3, done.output
    assert {(one["name"], one["state"]) for one in json.loads(done.output)["findings"]} == {("p1.leaf1-spine0", "slow")}
