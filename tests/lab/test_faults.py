"""Failures: each stops exactly what it should, and healing brings everything back."""

from __future__ import annotations

import re
import time

import pytest
from tests.lab.labs import bound, drain
from typer.testing import CliRunner

import needs
from softmrc.cli import app
from softmrc.errors import ConfigError, UsageError
from softmrc.lab import Lab, faults, kernel
from softmrc.lab import state as record

pytestmark = needs.LAB
SOURCE, DESTINATION = 0, 3


def alive(lab: Lab, source: int = SOURCE, destination: int = DESTINATION) -> set[int]:
    """The EVs over which a packet arrives."""
    plan = lab.plan
    with bound(lab, source) as sender, bound(lab, destination) as receiver:
        for ev in range(plan.evs(source, destination)):
            try:
                sender.sendto(str(ev).encode(), (str(plan.carrier(source, destination, *plan.place_of(ev))), 4791))
            except OSError:
                continue  # the port has no carrier, and reports it
        return {int(data) for data in drain(receiver, settle_s=0.1)}


def becomes(lab: Lab, expected: set[int]) -> bool:
    """Whether these EVs, and no others, get through soon: a cable takes its time to bite and to come back."""
    return any(alive(lab) == expected for _ in range(20))


def crossing(lab: Lab, cable: str) -> set[int]:
    up, down = lab.shape.links_of(lab.shape.parse_cable(cable))
    return {ev for link in (up, down) for ev in lab.plan.evs_over(link, SOURCE, DESTINATION)}


@pytest.fixture(params=["plain", pytest.param("acting", marks=needs.BPF)])
def lab(request: pytest.FixtureRequest) -> Lab:
    found: Lab = request.getfixturevalue(request.param)
    assert becomes(found, set(range(4)))
    return found


@pytest.mark.parametrize("mode", ["down", "blackhole", "loss=100%"])
@pytest.mark.parametrize("cable", ["p0.leaf0-spine1", "p1.leaf1-spine0", "p1.host0-leaf0", "p0.host3-leaf1"])
def test_a_cable(lab: Lab, cable: str, mode: str) -> None:
    assert lab.fail(cable, mode) == cable
    assert becomes(lab, set(range(4)) - crossing(lab, cable))
    assert lab.heal(cable) == [cable]
    assert becomes(lab, set(range(4)))


@pytest.mark.parametrize("target, mode", [("leaf0-spine1", "down"), ("spine1", "reboot"), ("host0", "reboot")])
def test_what_befalls_a_target_if_nobody_says(lab: Lab, target: str, mode: str) -> None:
    done = CliRunner().invoke(app, ["lab", "fail", target, "--lab", lab.name, "--duration", "1ms"])
    assert done.exit_code == 0 and f"{target}: {mode}, back in 0.001 s" in done.output
    assert becomes(lab, set(range(4)))


@pytest.mark.parametrize("mode", ["reboot", "blackhole"])
def test_a_switch(lab: Lab, mode: str) -> None:
    assert lab.fail("spine1", mode, plane=1) == "p1.spine1"
    assert becomes(lab, set(range(4)) - {lab.plan.ev_of(1, 1)})
    lab.fail("p0.leaf1", mode)
    assert becomes(lab, {lab.plan.ev_of(1, 0)})
    assert lab.heal() == ["p1.spine1", "p0.leaf1"]
    assert becomes(lab, set(range(4)))


def test_two_failures_of_one_cable_need_both_to_be_healed(lab: Lab) -> None:
    lab.fail("p0.leaf0-spine1", "down")
    lab.fail("p0.spine1", "reboot")
    lab.heal("p0.spine1")
    assert becomes(lab, set(range(4)) - {lab.plan.ev_of(0, 1)})
    lab.heal()
    assert becomes(lab, set(range(4)))


def test_a_partial_loss_loses_some(lab: Lab) -> None:
    lab.fail("p0.leaf0-spine0", "loss=30%")
    plan = lab.plan
    with bound(lab, SOURCE) as sender, bound(lab, DESTINATION) as receiver:
        for i in range(300):
            sender.sendto(str(i).encode(), (str(plan.carrier(SOURCE, DESTINATION, 0, 0)), 4791))
        got = len(drain(receiver))
    lab.heal()
    assert 150 < got < 260


def rates_bps(lab: Lab, target: str) -> set[int]:
    """What both ends of a cable are shaped to, as the kernel says."""
    found = set()
    for node, port in faults._ends(lab, lab.shape.parse_cable(target)):
        with kernel.inside(lab.namespace(node)):
            done = kernel.run(["tc", "qdisc", "show", "dev", port.port.name])
            done.stdout += kernel.run(["tc", "class", "show", "dev", port.port.name]).stdout
        shown = done.stdout.replace("\n", " ")
        words = re.findall(r"(?:tbf 1: root|class htb 1:1 root).*?\brate (\d+)([KM]?)bit", shown)
        found |= {int(number) * {"": 1, "K": 10**3, "M": 10**6}[unit] for number, unit in words}
    return found


def test_a_slow_cable_has_a_share_of_its_rate_until_it_is_healed(lab: Lab) -> None:
    (full,) = rates_bps(lab, "p0.leaf0-spine1")
    lab.fail("p0.leaf0-spine1", "slow=25%")
    assert rates_bps(lab, "p0.leaf0-spine1") == {full // 4}
    assert becomes(lab, set(range(4)))
    lab.heal()
    assert rates_bps(lab, "p0.leaf0-spine1") == {full}
    with pytest.raises(ConfigError, match="above 0%"):
        lab.fail("leaf0-spine1", "slow=0%")


def test_a_flapping_cable_comes_and_goes(plain: Lab) -> None:
    plain.fail("p0.leaf0-spine1", "flap=30ms")
    pid, started = record.the_one(plain.name).flappers["p0.leaf0-spine1"]
    assert record.is_alive(pid, started)
    link = plain.shape.leaf_up(0, 0, 1)
    seen = set()
    for _ in range(300):
        seen.add(next(state.is_up for state in plain.ports() if state.link == link))
        if len(seen) == 2:
            break
        time.sleep(0.01)
    assert seen == {True, False}
    plain.heal()
    assert not record.is_alive(pid, started)
    assert becomes(plain, set(range(4)))


def test_what_cannot_be_broken_or_healed_is_refused(plain: Lab) -> None:
    for target, mode, words in (
        ("leaf0-spine1", "reboot", "down, blackhole, loss=1%, corrupt=1%, slow=25% or flap=50ms, for a cable"),
        ("leaf0-spine1", "loss=200%", "a share"),
        ("leaf0-spine1", "flap=1", "a duration"),
        ("leaf0", "down", "reboot or blackhole, for a node"),
        ("leaf0-leaf1", "down", "a cable between them"),
        ("lef0", "reboot", "2 × leaf"),
    ):
        with pytest.raises(ConfigError, match=words):
            plain.fail(target, mode)
    with pytest.raises(UsageError, match=r"p0\.leaf0-spine0 is not broken; nothing is"):
        plain.heal("leaf0-spine0")
