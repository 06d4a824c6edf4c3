"""FRRouting, 10.3 or newer: locator, static SIDs and static routes.

Two things FRR's static SIDs cannot say: a uA in the block itself (they follow the node's uSID, so each uA here is
`block:NODE:e000`, and a path names both), and the range of first uSIDs of checksum-neutral carriers. Paths in an outer
header, which name switches, need neither.
"""

from __future__ import annotations

from softmrc.fabric.address import AddressPlan
from softmrc.fabric.config.ports import ports_of
from softmrc.fabric.description import Description
from softmrc.fabric.routes import Action, table_of
from softmrc.fabric.shape import Node, Tier

LOCATOR = "MRC"


def text(description: Description, plan: AddressPlan, node: Node) -> str:
    """The frr.conf of a node."""
    name = plan.shape.name_of(node)
    lines = ["frr version 10.3", f"hostname {name.replace('.', '-')}", "log syslog informational", "!"]
    body = _host(plan, node) if node.tier is Tier.HOST else _switch(plan, node)
    return "\n".join([f"! {name} of fabric {description.name}", *lines, *body, "end"]) + "\n"


def _interfaces(plan: AddressPlan, node: Node) -> list[str]:
    lines = []
    for port in ports_of(plan, node):
        to = plan.shape.name_of(port.neighbour)
        lines += [f"interface {port.name}", f" description to {to}", f" ipv6 address {port.address}/64", "exit", "!"]
    return lines


def _srv6(locators: list[tuple[str, str]], sids: list[str]) -> list[str]:
    lines = ["segment-routing", " srv6", "  locators"]
    for name, prefix in locators:
        lines += [
            f"   locator {name}",
            f"    prefix {prefix} block-len 32 node-len 16 func-bits 16",
            "    behavior usid",
            "    format usid-f3216",
            "   exit",
            "   !",
        ]
    lines += ["  exit", "  !", "  static-sids", *(f"   {sid}" for sid in sids)]
    return [*lines, "  exit", "  !", " exit", "exit", "!"]


def _switch(plan: AddressPlan, node: Node) -> list[str]:
    plane, own = node.plane, plan.usid(node)
    names = {port.link: port for port in ports_of(plan, node)}
    sids = [f"sid {plan.prefix(plane, own)} locator {LOCATOR} behavior uN"]
    routes = []
    for entry in table_of(plan, node).entries:
        if entry.link is None:
            continue
        port = names[entry.link]
        if entry.action is Action.UA:
            function = int(entry.prefix.network_address) >> 80 & 0xFFFF
            sid = plan.prefix(plane, own, function)
            sids.append(f"sid {sid} locator {LOCATOR} behavior uA interface {port.name} nexthop {port.next_hop}")
        else:
            routes.append(f"ipv6 route {entry.prefix} {port.next_hop} {port.name}")
    block = plan.block(plane)
    routes.append(f"ipv6 route {block >> 16:x}:{block & 0xFFFF:x}::/32 blackhole")
    locator = str(plan.prefix(plane, own))
    return [*_interfaces(plan, node), *routes, "!", *_srv6([(LOCATOR, locator)], sids)]


def _host(plan: AddressPlan, node: Node) -> list[str]:
    """A host takes the header off at block:DOWNLINK:LEAF::/64, which in FRR's eyes is a function of its downlink."""
    locators, sids, routes = [], [], []
    for port in ports_of(plan, node):
        plane = port.plane
        leaf = Node(Tier.T0, plane, plan.shape.leaf_of(node.index))
        usid = plan.downlink_usid(node.index, plane)
        name = f"{LOCATOR}{plane}"
        locators.append((name, str(plan.prefix(plane, usid))))
        sids.append(f"sid {plan.prefix(plane, usid, plan.usid(leaf))} locator {name} behavior uDT6 vrf default")
        block, bits = plan.block(plane), 32 if plan.addressing.plane_in == "block" else 35
        first = f"{plane << 13:x}:" if bits == 35 and plane else ""
        routes.append(f"ipv6 route {block >> 16:x}:{block & 0xFFFF:x}:{first}:/{bits} {port.next_hop} {port.name}")
    own = ["interface lo", f" ipv6 address {plan.host_address(node.index)}/128", "exit", "!"]
    return [*own, *_interfaces(plan, node), *routes, "!", *_srv6(locators, sids)]
