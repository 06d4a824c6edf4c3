"""Addresses and tables: for every pair and EV, walking the tables reaches the right NIC over the links it names."""

from __future__ import annotations

import random
from ipaddress import IPv6Address
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softmrc.errors import ConfigError
from softmrc.fabric import Addressing, AddressPlan, Node, RoutingTables, Shape, Tier, cable_name, link_name, walk
from softmrc.wire.srv6 import MAX_USIDS

SMALL = {
    "two tiers": Shape(planes=2, hosts=8, hosts_per_leaf=2, spines=3),
    "one host a leaf": Shape(planes=3, hosts=3, hosts_per_leaf=1, spines=1),
    "one leaf": Shape(planes=2, hosts=4, hosts_per_leaf=4, spines=2),
    "three tiers": Shape(planes=2, hosts=12, hosts_per_leaf=2, spines=2, pods=3, cores_per_spine=2),
    "lab": Shape(planes=4, hosts=8, hosts_per_leaf=2, spines=4),
}
MODES = {
    "block": Addressing(),
    "plane in every uSID": Addressing(plane_in="usid"),
    "strict": Addressing(route="strict"),
}
LARGEST = Shape(planes=8, hosts=131072, hosts_per_leaf=256, spines=256)
LARGE_TREE = Shape(planes=4, hosts=32768, hosts_per_leaf=64, spines=16, pods=16, cores_per_spine=64)


def ones_sum(address: IPv6Address) -> int:
    """The address's part in a UDP checksum."""
    words = np.frombuffer(address.packed, dtype=">u2")
    return int(words.sum(dtype=np.uint64)) % 0xFFFF


def check(tables: RoutingTables, source: int, destination: int, plane: int, path: int) -> None:
    """All the ways to write a path arrive at the right host, over the links that it names, and the links name it."""
    plan = tables.plan
    links = plan.links(source, destination, plane, path)
    outer = plan.path(source, destination, plane, path)
    assert (walk(tables, source, plane, outer).links, walk(tables, source, plane, outer).host) == (links, destination)
    if plan.addressing.plane_in == "block":
        carrier = plan.carrier(source, destination, plane, path)
        for address in (carrier, plan.adjacency_path(source, destination, plane, path)):
            found = walk(tables, source, plane, address)
            assert (found.links, found.host) == (links, destination)
        assert ones_sum(carrier) == ones_sum(plan.nic_address(destination, plane))
    ends = [plan.shape.ends(link) for link in links]
    assert ends[0][0] == Node(Tier.HOST, 0, source) and ends[-1][1] == Node(Tier.HOST, 0, destination)
    assert all(a[1] == b[0] for a, b in pairwise(ends))
    ev = plan.ev_of(plane, path)
    assert plan.place_of(ev) == (plane, path)
    for link in links:
        assert ev in plan.evs_over(link, source, destination)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SMALL)
def test_every_pair_and_every_path_of_a_small_fabric(name: str, mode: str) -> None:
    shape = SMALL[name]
    tables = RoutingTables(AddressPlan(shape, MODES[mode]))
    for source, destination in product(range(shape.hosts), repeat=2):
        if source == destination:
            continue
        for plane, path in product(range(shape.planes), range(shape.paths(source, destination))):
            check(tables, source, destination, plane, path)


@pytest.mark.parametrize("name", SMALL)
def test_links_name_exactly_the_evs_that_cross_them(name: str) -> None:
    shape = SMALL[name]
    plan = AddressPlan(shape)
    for source, destination in product(range(shape.hosts), repeat=2):
        if source == destination:
            continue
        crossing: dict[int, list[int]] = {}
        for ev in range(plan.evs(source, destination)):
            for link in plan.links(source, destination, *plan.place_of(ev)):
                crossing.setdefault(link, []).append(ev)
        for link in range(shape.planes * shape.links_per_plane):
            assert sorted(plan.evs_over(link, source, destination)) == crossing.get(link, [])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [LARGEST, LARGE_TREE], ids=["131072 hosts", "three tiers"])
def test_a_sample_of_a_large_fabric(shape: Shape) -> None:
    """Hosts under a few leaves, the first and the last among them, so that a few tables serve many walks."""
    rng = random.Random(7)
    leaves = [0, shape.leaves - 1, *rng.sample(range(shape.leaves), 4)]
    uplinks = [0, shape.paths(0, shape.hosts - 1) - 1, *rng.sample(range(shape.spines), 4)]
    for mode in MODES.values():
        tables = RoutingTables(AddressPlan(shape, mode))
        for _ in range(100):
            source, destination = (
                rng.choice(leaves) * shape.hosts_per_leaf + rng.randrange(shape.hosts_per_leaf) for _ in range(2)
            )
            if source == destination:
                continue
            path = min(rng.choice(uplinks), shape.paths(source, destination) - 1)
            check(tables, source, destination, rng.choice((0, shape.planes - 1)), path)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_fabric(data: st.DataObject) -> None:
    pods = data.draw(st.integers(0, 4))
    leaves = data.draw(st.integers(1, 4)) * max(pods, 1)
    per_leaf = data.draw(st.integers(1 if leaves > 1 else 2, 5))
    shape = Shape(
        planes=data.draw(st.integers(1, 8)),
        hosts=leaves * per_leaf,
        hosts_per_leaf=per_leaf,
        spines=data.draw(st.integers(1, 6)),
        pods=pods,
        cores_per_spine=data.draw(st.integers(1, 4)) if pods else 0,
    )
    tables = RoutingTables(AddressPlan(shape, data.draw(st.sampled_from(list(MODES.values())))))
    source = data.draw(st.integers(0, shape.hosts - 1))
    destination = data.draw(st.integers(0, shape.hosts - 1).filter(lambda host: host != source))
    plane = data.draw(st.integers(0, shape.planes - 1))
    check(tables, source, destination, plane, data.draw(st.integers(0, shape.paths(source, destination) - 1)))


@pytest.mark.parametrize("mode", [Addressing(), Addressing(plane_in="usid")], ids=["block", "usid"])
def test_paths_computed_from_a_template_are_the_ones_listed(mode: Addressing) -> None:
    plan, rng = AddressPlan(LARGEST, mode), random.Random(3)
    for _ in range(50):
        source, destination = rng.sample(range(LARGEST.hosts), 2)
        if LARGEST.leaf_of(source) == LARGEST.leaf_of(destination):
            continue
        plane, uplink = rng.randrange(8), rng.randrange(256)
        computed = plan.template(source, destination).destination(plane, uplink)
        assert computed == plan.path(source, destination, plane, uplink).destination


def test_addresses_are_unique_over_131072_hosts() -> None:
    plan = AddressPlan(LARGEST)
    nics = {plan.nic_address(host, plane) for host in range(0, LARGEST.hosts, 3) for plane in (0, 7)}
    assert len(nics) == 2 * len(range(0, LARGEST.hosts, 3))
    assert plan.path_address(131071, 7, 255) in plan.host_prefix(131071)
    assert plan.host_address(131071) in plan.host_prefix(131071)
    assert len({plan.path_address(5, *plan.place_of(ev)) for ev in range(2048)} | {plan.host_address(5)}) == 2049


def test_two_tiers_fit_one_carrier_and_a_strict_tree_needs_a_header() -> None:
    assert len(AddressPlan(LARGEST).path(0, 131071, 7, 255).usids) == MAX_USIDS
    assert AddressPlan(LARGEST).path(0, 131071, 7, 255).srh is None
    loose, strict = AddressPlan(LARGE_TREE), AddressPlan(LARGE_TREE, Addressing(route="strict"))
    assert loose.path(0, 32767, 0, 5).srh is None
    assert strict.path(0, 32767, 0, 5).srh is not None and len(strict.path(0, 32767, 0, 5).usids) == 8
    with pytest.raises(ConfigError, match=r"takes 8 uSIDs \(5 switches.*carrier holds 6"):
        AddressPlan(LARGE_TREE, Addressing(route="strict", srh=False))


def test_arrays_have_an_entry_for_each_ev() -> None:
    plan = AddressPlan(SMALL["lab"])
    carriers, inner = plan.carriers(0, 7), plan.path_addresses(0, 7)
    assert carriers.shape == inner.shape == (16, 16)
    for ev, plane in enumerate(plan.planes_of_evs(0, 7).tolist()):
        assert IPv6Address(bytes(carriers[ev])) == plan.carrier(0, 7, plane, ev // 4)
        assert IPv6Address(bytes(inner[ev])) == plan.path_address(7, plane, ev // 4)


def test_a_packet_for_nobody_is_dropped_where_it_is_not_known() -> None:
    plan = AddressPlan(SMALL["two tiers"])
    tables = RoutingTables(plan)
    lost = walk(tables, 0, 0, IPv6Address("fcbb:bb00:100:3ff::"))
    assert lost.host is None and "p0.leaf0 has no route" in lost.reason
    other_plane = walk(tables, 0, 0, plan.path(0, 7, 1, 0))
    assert other_plane.host is None
    assert "ends at p0.leaf0" in walk(tables, 0, 0, IPv6Address("fcbb:bb00:100::")).reason
    wrong_host = walk(tables, 0, 0, IPv6Address("fcbb:bb00:100:1001:103::"))
    assert wrong_host.host is None and "host1 is not" in wrong_host.reason


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"hosts": 9, "hosts_per_leaf": 2}, "multiple of hosts_per_leaf = 2"),
        ({"planes": 17}, "1 to 16"),
        ({"spines": 0}, "at least 1 above 4 leaves"),
        ({"cables_per_link": 0}, "1 to 1024"),
        ({"pods": 3}, "must divide the number of leaves, 4"),
        ({"pods": 2}, "at least 1 with three tiers"),
        ({"hosts": True}, "whole number"),
    ],
)
def test_impossible_shapes_are_refused_with_the_numbers(keys: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Shape(**keys)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"hosts": 2048, "hosts_per_leaf": 2}, "at most 512 leaves a plane, and makes 1024"),
        ({"pods": 4, "spines": 200, "cores_per_spine": 1}, "512 aggs .* makes 800"),
        ({"pods": 2, "spines": 64, "cores_per_spine": 32}, "1024 cores .* makes 2048"),
    ],
)
def test_more_switches_than_have_addresses_can_be_described_but_not_addressed(keys: dict[str, int], words: str) -> None:
    shape = Shape(**keys)
    with pytest.raises(ConfigError, match=words):
        AddressPlan(shape)


def test_impossible_addresses_are_refused() -> None:
    wide = Shape(planes=16, hosts=4, hosts_per_leaf=2)
    with pytest.raises(ConfigError, match="more than 8 planes; there are 16"):
        AddressPlan(wide, Addressing(plane_in="usid"))
    with pytest.raises(ConfigError, match="room for 16 planes"):
        AddressPlan(wide, Addressing(block="fcbb:bbfe::/32"))
    plan = AddressPlan(SMALL["two tiers"], Addressing(plane_in="usid"))
    with pytest.raises(ConfigError, match="checksum-neutral"):
        plan.carrier(0, 7, 0, 0)
    for place in ((0, 8, 0, 0), (0, 7, 2, 0), (0, 7, 0, 3), (0, 1, 0, 1)):
        with pytest.raises(ConfigError):
            plan.path(*place)


def test_names_lead_back_to_what_they_name() -> None:
    for shape in SMALL.values():
        for node in shape.nodes():
            assert shape.parse_node(shape.name_of(node)) == node
            for link in shape.downlinks(node) + shape.uplinks(node):
                assert shape.ends(link)[0] == node
                cable = shape.cable_of(link)
                assert shape.parse_cable(cable_name(shape, cable)) == cable
                assert link in shape.links_of(cable)
    shape = SMALL["lab"]
    assert link_name(shape, shape.leaf_up(2, 0, 1)) == "p2.leaf0>spine1"
    assert shape.parse_cable("leaf0-spine1", plane=3) == shape.parse_cable("p3.spine1-leaf0")
    for wrong in ("leaf0-leaf1", "leaf9-spine0", "p9.leaf0-spine0", "leaf0", "host0-leaf3", "core0-spine0"):
        with pytest.raises(ConfigError):
            shape.parse_cable(wrong)
