"""The plugin over the SRv6 paths of a fabric: two hosts of a lab."""

from __future__ import annotations

from tests.lab.labs import NEEDS_BPF, NEEDS_ROOT, NEEDS_TOOLS, a_lab

from softmrc.fabric.numbering import Node, Tier

FABRIC = """
[fabric]
planes = 2
hosts = 4
hosts_per_leaf = 2
spines = 2
host_link_bps = "1G"
fabric_link_bps = "1G"
"""
pytestmark = [NEEDS_ROOT, NEEDS_TOOLS, NEEDS_BPF]


def test_messages_go_by_every_path_of_a_fabric(harness) -> None:
    with a_lab(FABRIC) as lab:
        before = lab.packets()
        with lab.inside("host0"):
            harness(
                11,
                2,
                "traffic",
                1,
                6,
                1,
                SOFTMRC_PLANES="",
                SOFTMRC_FABRIC=str(lab.record.file),
                SOFTMRC_HOST="0",
                HARNESS_OTHER_HOST="2",
                HARNESS_OTHER_NETNS=f"/run/netns/{lab.namespace(Node(Tier.HOST, 0, 2))}",
            )
        after = lab.packets()
        shape = lab.shape
        for plane in range(shape.planes):
            for spine in range(shape.spines):
                for link in (shape.leaf_up(plane, 0, spine), shape.leaf_down(plane, 1, spine)):
                    assert after[link] - before[link] > 100, "every path carries some of it"
