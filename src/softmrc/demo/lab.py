"""The demo over a lab: every rank is a host of a kernel SRv6 fabric, and a spine reboots under it.

Gloo has the same fabric: its connections keep to one path, through the spine that reboots, as a flow that ECMP has
hashed there would.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from softmrc.demo.ranks import DemoRanks
from softmrc.demo.script import Director, ScriptedFault
from softmrc.demo.story import RANKS
from softmrc.fabric import Node, Tier
from softmrc.fabric.host import FILE, NUMBER
from softmrc.lab import Lab, kernel

PLANES = 2
TEXT = """\
[fabric]
planes = 2
hosts = 4
hosts_per_leaf = 1
spines = 2
host_link_bps = "200M"
fabric_link_bps = "200M"
"""
STEPS = 60
SCRIPT = (
    ScriptedFault("spine 0 of plane 0 reboots", 10, 30, plane=0),
    ScriptedFault("leaf 0 to spine 1 of plane 1 black-holed", 36, 50, plane=1),
)
ACTS = {SCRIPT[0].label: ("p0.spine0", "reboot"), SCRIPT[1].label: ("p1.leaf0-spine1", "blackhole")}
LONGEST_S = 6.0  # a job that stands still must not keep its fault for ever
GLOO_PLANE, GLOO_PATH = 0, 0  # through spine 0 of plane 0


class LabDirector(Director):
    """Breaks the lab instead of the devices."""

    def __init__(self, lab: Lab, script: tuple[ScriptedFault, ...]) -> None:
        super().__init__(script, PLANES, lambda rank, what: None)
        self._lab = lab
        self._since: dict[ScriptedFault, float] = {}

    def _begin(self, fault: ScriptedFault, now: float) -> None:
        self._since[fault] = now
        self._lab.fail(*ACTS[fault.label])

    def _end(self, fault: ScriptedFault) -> None:
        self._lab.heal(ACTS[fault.label][0])

    def tick(self, now: float) -> list[tuple[ScriptedFault, bool]]:
        return [self._stop(fault) for fault in list(self.active) if now - self._since[fault] > LONGEST_S]


@contextmanager
def ranks_in_lab() -> Iterator[tuple[Lab, DemoRanks]]:
    """A lab, and a rank in each of its hosts; both are gone afterwards."""
    with Lab.up(TEXT, f"demo{os.getpid()}") as lab:
        for host in range(RANKS):
            _give_gloo_a_path(lab, host)
        prefixes = [_inside(lab, host) for host in range(RANKS)]
        with DemoRanks(RANKS, {"GLOO_SOCKET_IFNAME": "gloo0"}, prefixes) as ranks:
            yield lab, ranks


def _inside(lab: Lab, host: int) -> list[str]:
    where = ["ip", "netns", "exec", lab.namespace(Node(Tier.HOST, 0, host))]
    return [*where, "env", f"{FILE}={lab.record.file}", f"{NUMBER}={host}"]


def _give_gloo_a_path(lab: Lab, host: int) -> None:
    """An address for TCP on an interface of its own, and routes to the others' by one path of one plane."""
    plan = lab.plan
    own = plan.path_address(host, GLOO_PLANE, GLOO_PATH)
    lines = [
        "link add gloo0 type veth peer name gloo1",  # not every kernel has dummies
        "link set gloo0 addrgenmode none",
        "link set gloo1 addrgenmode none",
        "link set gloo1 up",
        f"address add {own}/128 dev gloo0 nodad",
        "link set gloo0 up",
    ]
    for other in range(RANKS):
        if other != host:
            there = plan.path_address(other, GLOO_PLANE, GLOO_PATH)
            segments = plan.path(host, other, GLOO_PLANE, GLOO_PATH).destination
            way = f"encap seg6 mode encap.red segs {segments} via fe80::b dev p{GLOO_PLANE} src {own}"
            lines.append(f"route replace {there}/128 {way}")
    node = Node(Tier.HOST, 0, host)
    with lab.inside(node):
        kernel.batch("ip", lines, lab.shape.name_of(node))
