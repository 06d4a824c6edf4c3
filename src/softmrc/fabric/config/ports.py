"""The ports of a node as every target sees them: name, address on the link, and who is at the other end."""

from __future__ import annotations

from dataclasses import dataclass

from softmrc.fabric.address import AddressPlan
from softmrc.fabric.shape import Node, Tier

LOWER, UPPER = "fe80::a", "fe80::b"  # of the end nearer to the hosts, and of the other


@dataclass(frozen=True)
class Port:
    """One end of a cable. `link` is the directed link that leaves here."""

    number: int
    name: str
    link: int
    plane: int
    neighbour: Node
    address: str
    next_hop: str
    mac: str
    next_mac: str
    rate_bps: int
    is_last_hop: bool


def mac_of(link: int) -> str:
    """A locally administered address for the port that a directed link leaves by."""
    return (0x02_6D << 32 | link).to_bytes(6, "big").hex(":")


def ports_of(plan: AddressPlan, node: Node) -> list[Port]:
    """All ports, in the order of their numbers: downlinks, then uplinks."""
    shape = plan.shape
    down, up = shape.downlinks(node), shape.uplinks(node)
    letter = "p" if node.tier is Tier.HOST else "u"
    names = [f"d{i}" for i in range(len(down))] + [f"{letter}{i}" for i in range(len(up))]
    found = []
    for number, (name, link) in enumerate(zip(names, down + up, strict=True)):
        _, neighbour = shape.ends(link)
        rising = neighbour.tier > node.tier
        rising_link, falling_link = shape.links_of(shape.cable_of(link))
        back = falling_link if link == rising_link else rising_link
        found.append(
            Port(
                number,
                name,
                link,
                shape.plane_of(link),
                neighbour,
                LOWER if rising else UPPER,
                UPPER if rising else LOWER,
                mac_of(link),
                mac_of(back),
                shape.rate_bps(link),
                neighbour.tier is Tier.HOST,
            )
        )
    return found


@dataclass(frozen=True)
class Thresholds:
    """Bytes in a queue at which something happens."""

    ecn_min: int
    ecn_max: int
    trim: int
    limit: int
