"""A Linux switch or host: kernel SRv6 with compressed segments, static routes, shaped ports.

A file is a shell script that can be run again: everything is `replace`. What belongs to a port stands together, because
a port that went down has lost its routes and gets them back from just those lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from softmrc.fabric.address import AddressPlan
from softmrc.fabric.config.ports import Port, ports_of
from softmrc.fabric.config.queues import thresholds
from softmrc.fabric.description import Description
from softmrc.fabric.routes import Action, table_of
from softmrc.fabric.shape import Node, Tier
from softmrc.wire.srv6 import Path

ANCHOR = "sr0"  # segment routes need a device that is not lo, where they would be accepted and drop everything
MAX_ENCAP_ROUTES = 8192
CONTROL_CLASS, DATA_CLASS = "1:10", "1:20"
HOST_QUEUE_BYTES = 8 << 20  # longer than any socket's buffer, so that a sender is made to wait and loses nothing
FRAME_OVERHEAD_BYTES = 24  # preamble, FCS and gap, which a shaper has to pay for


@dataclass
class LinuxPort:
    """The lines of one port: for `ip -batch` and for `tc -batch`."""

    port: Port
    ip: list[str] = field(default_factory=list)
    tc: list[str] = field(default_factory=list)


@dataclass
class LinuxNode:
    """A node's configuration in parts, so that a lab can apply and heal them one by one."""

    name: str
    node: Node
    is_switch: bool
    sysctls: list[tuple[str, str]] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    ports: list[LinuxPort] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ip_lines(self) -> list[str]:
        return self.first + [line for port in self.ports for line in port.ip]

    @property
    def tc_lines(self) -> list[str]:
        return [line for port in self.ports for line in port.tc]


def configure(description: Description, plan: AddressPlan, node: Node, with_encap: bool = True) -> LinuxNode:
    """The configuration of this node; for a quick look without routes into outer headers, nearly all of a host's."""
    is_switch = node.tier is not Tier.HOST
    found = LinuxNode(plan.shape.name_of(node), node, is_switch)
    for port in ports_of(plan, node):
        found.ports.append(LinuxPort(port, _link_lines(description, port), _tc_lines(description, port, is_switch)))
    names = [p.port.name for p in found.ports]
    found.sysctls = [("net/ipv6/conf/all/seg6_enabled", "1"), ("net/ipv6/conf/default/accept_dad", "0")]
    found.sysctls += [(f"net/ipv6/conf/{name}/seg6_enabled", "1") for name in names]
    found.sysctls += [(f"net/ipv6/conf/{name}/router_solicitations", "0") for name in names]
    if is_switch:
        found.sysctls.append(("net/ipv6/conf/all/forwarding", "1"))
        _switch_lines(plan, found)
    else:
        # Without this a send into a port without carrier succeeds and is lost.
        found.sysctls += [(f"net/ipv6/conf/{name}/ignore_routes_with_linkdown", "1") for name in names]
        _host_lines(plan, found)
        if with_encap:
            _encap_lines(description, plan, found)
    return found


def _link_lines(description: Description, port: Port) -> list[str]:
    return [
        f"link set {port.name} address {port.mac} mtu {description.lab.mtu} addrgenmode none up",
        f"address replace {port.address}/64 dev {port.name} nodad",
        f"neighbour replace {port.next_hop} lladdr {port.next_mac} dev {port.name} nud permanent",
    ]


def burst_bytes(description: Description) -> int:
    """How much a link lets pass at once, whatever its rate."""
    return max(5000, 2 * description.lab.mtu)


def _tc_lines(description: Description, port: Port, is_switch: bool) -> list[str]:
    """A shaper; where packets are trimmed, with a lane in front for headers and control, at hosts too."""
    rate = f"{port.rate_bps}bit"
    burst = burst_bytes(description)
    limit = thresholds(description, port).limit if is_switch else HOST_QUEUE_BYTES
    shaper = f"qdisc replace dev {port.name} root handle 1: stab overhead {FRAME_OVERHEAD_BYTES} linklayer ethernet"
    if not description.switch.trim:
        return [f"{shaper} tbf rate {rate} burst {burst} limit {limit}"]
    lane = f"class replace dev {port.name} parent 1:1 classid"
    both = f"ceil {rate} burst {burst} cburst {burst} quantum {2 * description.lab.mtu}"
    return [
        f"{shaper} htb default 20",
        f"class replace dev {port.name} parent 1: classid 1:1 htb rate {rate} burst {burst} cburst {burst}",
        f"{lane} {CONTROL_CLASS} htb prio 0 rate {port.rate_bps // 2}bit {both}",
        f"{lane} {DATA_CLASS} htb prio 1 rate {port.rate_bps // 2}bit {both}",
        f"qdisc replace dev {port.name} parent {CONTROL_CLASS} bfifo limit {limit}",
        f"qdisc replace dev {port.name} parent {DATA_CLASS} bfifo limit {limit}",
    ]


def slow_lines(description: Description, port: Port, is_switch: bool, share: float) -> list[str]:
    """The lines that give a port that is up a share of its rate, or all of it again; its queues stay."""
    full = _tc_lines(description, port, is_switch)
    rate = f"{max(round(port.rate_bps * share), 8000)}bit"
    if not description.switch.trim:
        return [line.replace(f"rate {port.rate_bps}bit", f"rate {rate}") for line in full]
    half = f"{max(round(port.rate_bps * share) // 2, 8000)}bit"
    return [
        line.replace(f"{port.rate_bps}bit", rate).replace(f"{port.rate_bps // 2}bit", half)
        for line in full
        if line.startswith("class ")
    ]


def _switch_lines(plan: AddressPlan, found: LinuxNode) -> None:
    block = plan.block(found.node.plane)
    everything = f"{block >> 16:x}:{block & 0xFFFF:x}::/32"
    found.first = ["link set lo up", f"link set {ANCHOR} up", f"route replace blackhole {everything}"]
    by_link = {port.port.link: port for port in found.ports}
    for entry in table_of(plan, found.node).entries:
        local = f"route replace {entry.prefix} encap seg6local action"
        if entry.link is None:
            found.first.append(f"{local} End flavors next-csid dev {ANCHOR}")
            continue
        port = by_link[entry.link]
        out = port.port
        if entry.action is Action.UA:
            port.ip.append(f"{local} End.X nh6 {out.next_hop} oif {out.name} flavors next-csid dev {ANCHOR}")
        else:
            port.ip.append(f"route replace {entry.prefix} via {out.next_hop} dev {out.name}")


def _host_lines(plan: AddressPlan, found: LinuxNode) -> None:
    host = found.node.index
    found.first = [
        "link set lo up",
        f"address replace {plan.host_address(host)}/128 dev lo nodad",
        f"route replace local {plan.host_prefix(host)} dev lo",
    ]
    for port in found.ports:
        out, plane = port.port, port.port.plane
        nic = plan.nic_address(host, plane)
        function = plan.prefix(plane, *_nic_usids(plan, host, plane), plan.decap_usid(plane))
        port.ip += [
            f"address replace {nic}/128 dev {out.name} nodad",
            f"route replace local {nic}/64 dev lo",
            f"route replace {function} encap seg6local action End.DT6 table local dev {out.name} table local",
            f"route replace {_reach_of(plan, plane)} via {out.next_hop} dev {out.name} src {nic}",
        ]


def _nic_usids(plan: AddressPlan, host: int, plane: int) -> tuple[int, int]:
    leaf = Node(Tier.T0, plane, plan.shape.leaf_of(host))
    return plan.downlink_usid(host, plane), plan.usid(leaf)


def _reach_of(plan: AddressPlan, plane: int) -> str:
    """Everything that leaves by this plane's port: its block, or the plane's bits at the head of the first uSID."""
    block = plan.block(plane)
    head = f"{block >> 16:x}:{block & 0xFFFF:x}:"
    if plan.addressing.plane_in == "block":
        return f"{head}:/32"
    return f"{head}{plane << 13:x}::/35"


def _encap_lines(description: Description, plan: AddressPlan, found: LinuxNode) -> None:
    """One route for each destination and path, unless they are too many for a table."""
    host = found.node.index
    if not description.lab.encap:
        found.notes.append("No routes into outer headers: lab.encap is false.")
        return
    count = sum(plan.evs(host, other) for other in range(plan.shape.hosts) if other != host)
    if count > MAX_ENCAP_ROUTES:
        found.notes.append(f"No routes into outer headers: {count:,} paths leave here; compute them from the template.")
        return
    for port in found.ports:
        out, plane = port.port, port.port.plane
        for other in range(plan.shape.hosts):
            if other == host:
                continue
            for path in range(plan.shape.paths(host, other)):
                target = plan.path_address(other, plane, path)
                segments = _segments(plan.path(host, other, plane, path))
                along = f"encap seg6 mode encap.red segs {segments} via {out.next_hop} dev {out.name}"
                port.ip.append(f"route replace {target}/128 {along} src {plan.host_address(host)}")
                if path == 0:
                    # For what is not MRC, a handshake for one: the first plane whose port is up.
                    own = plan.host_address(other)
                    port.ip.append(
                        f"route replace {own}/128 {along} src {plan.host_address(host)} metric {1024 + plane}"
                    )


def _segments(path: Path) -> str:
    """The segments in the order of travel, as iproute2 wants them."""
    rest = reversed(path.srh.segments) if path.srh else []
    return ",".join(str(segment) for segment in (path.destination, *rest))


def text(description: Description, plan: AddressPlan, node: Node) -> str:
    """The script of a node."""
    found = configure(description, plan, node)
    ports = " ".join(p.port.name for p in found.ports)
    lines = ["#!/bin/sh", f"# {found.name} of fabric {description.name}. Ports: {ports}.", "# May be run again."]
    lines += [f"# {note}" for note in found.notes]
    lines.append("set -e")
    if found.is_switch:
        lines.append(f"[ -d /proc/sys/net/ipv6/conf/{ANCHOR} ] || ip link add {ANCHOR} type ifb")
    lines += [f"echo {value} > /proc/sys/{key}" for key, value in found.sysctls]
    if not found.is_switch and description.lab.checksums:
        lines += [f"ethtool -K {p.port.name} tx off tx-udp-segmentation off > /dev/null" for p in found.ports]
    lines += ["ip -6 -batch - <<'END'", *found.ip_lines, "END", "tc -batch - <<'END'", *found.tc_lines, "END"]
    return "\n".join(lines) + "\n"
