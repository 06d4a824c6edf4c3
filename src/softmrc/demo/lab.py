"""The demo over a lab: every rank is a host of a kernel SRv6 fabric, and a spine reboots under it.

Gloo has the same fabric: its connections keep to one path, through the spine that reboots, as a flow that ECMP has
hashed there would.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from softmrc.demo.ranks import DemoRanks, RankPlace
from softmrc.demo.script import ScriptedFault
from softmrc.fabric import Node, Tier
from softmrc.fabric.host import FILE, NUMBER
from softmrc.lab import Lab, kernel

TEXT = """\
[fabric]
planes = 2
hosts = {ranks}
hosts_per_leaf = 1
spines = 2
host_link_bps = "200M"
fabric_link_bps = "200M"
"""
GLOO_PLANE, GLOO_PATH = 0, 0  # through spine 0 of plane 0


class LabFabric:
    planes = 2
    steps = 48
    breaks_tcp = True
    text = "2 planes × (4 + 2 switches) of kernel SRv6, links of 200 Mb/s; the kernel breaks them for both jobs"
    tcp_text = (
        "TCP keeps to one path, through spine 0 of plane 0, as a flow does that ECMP hashed there. MRC uses every path."
    )
    faults = (
        ScriptedFault("spine 0 of plane 0 reboots", "p0.spine0 reboot", (0,)),
        ScriptedFault("leaf 0 to spine 1 of plane 1 black-holed", "p1.leaf0-spine1 blackhole", (1,)),
    )

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def __enter__(self) -> LabFabric:
        self._lab = Lab.up(TEXT.format(ranks=self._ranks), f"demo{os.getpid()}")
        try:
            for host in range(self._ranks):
                _give_gloo_a_path(self._lab, host, self._ranks)
        except BaseException:
            self._lab.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lab.down()

    def places(self) -> list[RankPlace]:
        return [
            RankPlace(
                {FILE: str(self._lab.record.file), NUMBER: str(host), "GLOO_SOCKET_IFNAME": "gloo0"},
                partial(self._lab.inside, Node(Tier.HOST, 0, host)),
            )
            for host in range(self._ranks)
        ]

    def break_it(self, ranks: DemoRanks, fault: ScriptedFault, is_broken: bool) -> None:
        target, mode = fault.kind.split()
        if is_broken:
            self._lab.fail(target, mode)
        else:
            self._lab.heal(target)

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """The switches of a plane are several, so no counter of one says what the plane carries."""
        yield None


def _give_gloo_a_path(lab: Lab, host: int, ranks: int) -> None:
    """An address for TCP on a separate interface, and routes to the others' by one path of one plane."""
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
    for other in range(ranks):
        if other != host:
            there = plan.path_address(other, GLOO_PLANE, GLOO_PATH)
            segments = plan.path(host, other, GLOO_PLANE, GLOO_PATH).destination
            hop = f"encap seg6 mode encap.red segs {segments} via fe80::b dev p{GLOO_PLANE} src {own}"
            lines.append(f"route replace {there}/128 {hop}")
    node = Node(Tier.HOST, 0, host)
    with lab.inside(node):
        kernel.batch("ip", lines, lab.shape.name_of(node))
