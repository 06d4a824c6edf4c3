"""The plugin over the SRv6 paths of a fabric: two hosts of a lab."""

from __future__ import annotations

from pathlib import Path

from tests.lab.labs import a_lab, wait_for_quiet

import needs
from softmrc.fabric.denylist import Denylist, DenylistEntry
from softmrc.fabric.numbering import Node, Tier
from softmrc.lab import Lab

FABRIC = """
[fabric]
planes = 2
hosts = 4
hosts_per_leaf = 2
spines = 2
host_link_bps = "1G"
fabric_link_bps = "1G"
"""
pytestmark = [*needs.LAB, needs.BPF]


def carried(harness, lab: Lab, **more: str) -> dict[int, int]:
    """By each link, while messages go from host 0 to host 2 and back."""
    before = lab.packets()
    with lab.inside("host0"):
        more |= {"SOFTMRC_PLANES": "", "SOFTMRC_FABRIC": str(lab.record.file), "SOFTMRC_HOST": "0"}
        other = f"/run/netns/{lab.namespace(Node(Tier.HOST, 0, 2))}"
        harness(11, 2, "traffic", 1, 6, 1, HARNESS_OTHER_HOST="2", HARNESS_OTHER_NETNS=other, **more)
    return {link: now - before[link] for link, now in lab.packets().items()}


def test_what_a_denylist_names_is_never_used(harness, tmp_path: Path) -> None:
    denylist = tmp_path / "denylist.json"
    names = ("p1.leaf0>spine0", "p1.spine0>leaf0")
    Denylist("lab", (DenylistEntry("p1.leaf0-spine0", "link", "lossy", 0.1, names),)).save(denylist)
    with a_lab(FABRIC) as lab:
        wait_for_quiet(lab)
        packets = carried(harness, lab, SOFTMRC_DENYLIST=str(denylist))
        shape = lab.shape
        for plane in range(shape.planes):
            for spine in range(shape.spines):
                for link in (shape.leaf_up(plane, 0, spine), shape.leaf_down(plane, 0, spine)):
                    if (plane, spine) == (1, 0):
                        assert packets[link] < 10, "the kernel may say a word, but nobody else"
                    else:
                        assert packets[link] > 100


def test_messages_go_by_every_path_of_a_fabric(harness) -> None:
    with a_lab(FABRIC) as lab:
        packets, shape = carried(harness, lab), lab.shape
        for plane in range(shape.planes):
            for spine in range(shape.spines):
                for link in (shape.leaf_up(plane, 0, spine), shape.leaf_down(plane, 1, spine)):
                    assert packets[link] > 100, "every path carries some of it"
