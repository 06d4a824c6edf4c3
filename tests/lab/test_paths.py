"""Packets in a lab go where their addresses say: every link's counter is the witness."""

from __future__ import annotations

import subprocess

import pytest
from tests.lab.labs import SMALL, a_lab, bound, drain, wait_for_quiet

import needs
from softmrc.fabric import AddressPlan, Tier, link_name
from softmrc.fabric.config.linux import text
from softmrc.lab import Lab

pytestmark = needs.LAB
COUNT = 4


def moved(lab: Lab, before: dict[int, int]) -> dict[str, int]:
    after = lab.packets()
    return {link_name(lab.shape, link): after[link] - before[link] for link in after if after[link] != before[link]}


def prove(lab: Lab, source: int, destination: int, ways: tuple[str, ...]) -> None:
    """Send a few packets on each EV, each way of writing it, and look at all counters."""
    plan: AddressPlan = lab.plan
    with bound(lab, source) as sender, bound(lab, destination) as receiver:
        for ev in range(plan.evs(source, destination)):
            plane, path = plan.place_of(ev)
            for way in ways:
                inner = way == "path_address"
                place = (destination, plane, path) if inner else (source, destination, plane, path)
                before = lab.packets()
                for i in range(COUNT):
                    sender.sendto(f"{way} {ev} {i}".encode(), (str(getattr(plan, way)(*place)), 4791))
                got = drain(receiver, least=COUNT)
                assert got == [f"{way} {ev} {i}".encode() for i in range(COUNT)]
                links = plan.links(source, destination, plane, path)
                assert moved(lab, before) == {link_name(lab.shape, link): COUNT for link in links}


@pytest.mark.parametrize(("source", "destination"), [(0, 3), (3, 0), (1, 2), (0, 1)])
def test_each_ev_uses_exactly_its_links(plain: Lab, source: int, destination: int) -> None:
    prove(plain, source, destination, ("carrier", "path_address"))


def test_adjacencies_lead_over_the_same_links(plain: Lab) -> None:
    plan = plain.plan
    with bound(plain, 0) as sender:
        for ev in range(plan.evs(0, 3)):
            plane, path = plan.place_of(ev)
            before = plain.packets()
            sender.sendto(b"x", (str(plan.adjacency_path(0, 3, plane, path)), 4791))
            drain(sender)
            assert moved(plain, before) == {link_name(plain.shape, link): 1 for link in plan.links(0, 3, plane, path)}


def test_what_nobody_knows_is_dropped_at_the_first_switch(plain: Lab) -> None:
    before = plain.packets()
    with bound(plain, 0) as sender:
        sender.sendto(b"x", ("fcbb:bb00:100:3ff::", 4791))
        drain(sender)
    assert moved(plain, before) == {"p0.host0>leaf0": 1}


@pytest.mark.parametrize(
    "extra",
    ["", '[addressing]\nplane_in = "usid"\n', '[addressing]\nroute = "strict"\n'],
    ids=["loose", "plane in every uSID", "strict, with an SRH"],
)
def test_three_tiers(extra: str) -> None:
    shape = SMALL.replace("hosts_per_leaf = 2", "hosts_per_leaf = 1\npods = 2\ncores_per_spine = 2")
    with a_lab(shape + extra) as lab:
        wait_for_quiet(lab)
        neutral = lab.description.addressing.plane_in == "block"
        prove(lab, 0, 3, ("carrier", "path_address") if neutral else ("path_address",))
        prove(lab, 0, 1, ("path_address",))


def test_the_linux_target_can_be_run_again_on_a_lab(plain: Lab) -> None:
    for node in plain.shape.nodes():
        if (node.index == 0 and node.plane == 0) or node.tier is Tier.HOST:
            script = text(plain.description, plain.plan, node)
            with plain.inside(node):
                done = subprocess.run(["sh"], input=script, capture_output=True, text=True, timeout=30, check=False)
            assert (done.returncode, done.stderr) == (0, "")
    wait_for_quiet(plain)
    prove(plain, 0, 3, ("carrier",))
