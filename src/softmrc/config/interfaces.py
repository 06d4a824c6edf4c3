"""The links of this machine: which of them are fit to be planes, which are not and why, and what networks they are in.

Where nothing is said, planes are the best links there are: hardware that is up; else software that leads somewhere; and
bridges and the ends of containers' cables, which are someone else's plumbing, only where there is nothing better.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from softmrc import _core
from softmrc.errors import DeviceError

NET = Path("/sys/class/net")
ADDRESSES6 = Path("/proc/net/if_inet6")
MAX_PLANES = 16
IFF_LOOPBACK = 0x8
SIOCGIFNETMASK = 0x891B

HARDWARE, SOFTWARE, PLUMBING = "hardware", "software", "plumbing"
OF_CONTAINERS = ("veth", "docker", "br-", "virbr", "cni", "flannel", "cali", "lxc", "lxdbr", "podman", "vnet", "tap")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class NetworkInterface:
    """An interface with an address."""

    name: str
    kind: str  # hardware, software or plumbing
    why_not: str  # it cannot be a plane; empty: it can


class DetectedPlanes(NamedTuple):
    """Automatically chosen planes, and why these."""

    planes: tuple[str, ...]
    why: str


def all_links() -> list[NetworkInterface]:
    """Every interface that has an address, in the order of names; loopback is not among them."""
    names = sorted({link for link, _, _ in _core.local_addresses()})
    return [NetworkInterface(name, _kind(name), _why_not(name)) for name in names if not _is_loopback(name)]


def detect_planes() -> DetectedPlanes:
    """The default planes of a process whose peers are on other hosts."""
    links = all_links()
    fit = [link for link in links if not link.why_not]
    if not fit:
        seen = ", ".join(f"{link.name} ({link.why_not})" for link in links)
        rest = f"; there is {seen}" if seen else ""
        raise DeviceError(f"no interface but loopback is up and has an address: set SOFTMRC_PLANES{rest}")
    best = next(kind for kind in (HARDWARE, SOFTWARE, PLUMBING) if any(link.kind == kind for link in fit))
    taken = [link.name for link in fit if link.kind == best][:MAX_PLANES]
    left = [f"{link.name} ({link.why_not or link.kind})" for link in links if link.name not in taken]
    why = {HARDWARE: "hardware that is up", SOFTWARE: "links that are up", PLUMBING: "nothing better is up"}[best]
    return DetectedPlanes(tuple(taken), why + (f"; left out: {', '.join(left)}" if left else ""))


def _is_loopback(name: str) -> bool:
    try:
        return bool(int((NET / name / "flags").read_text(), 16) & IFF_LOOPBACK)
    except (OSError, ValueError):
        return False


def _why_not(name: str) -> str:
    try:
        return "" if (NET / name / "carrier").read_text().strip() == "1" else "no carrier"
    except OSError:
        return "down"  # such a link has no carrier to read


def _kind(name: str) -> str:
    if (NET / name / "device").exists():
        return HARDWARE
    return PLUMBING if (NET / name / "bridge").exists() or name.startswith(OF_CONTAINERS) else SOFTWARE


def network_of(address: Address, link: str) -> Network | None:
    """The network that this machine is in with this address; None where the kernel does not say."""
    try:
        prefix = _mask4(link) if address.version == 4 else _length6(address, link)
        return ipaddress.ip_network(f"{address}/{prefix}", strict=False)
    except (OSError, ValueError, StopIteration):
        return None


def _mask4(link: str) -> str:
    """Of the first address; others of the same interface are as a rule in the same network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, SIOCGIFNETMASK, struct.pack("16s24x", link.encode()))
    return socket.inet_ntoa(answer[20:24])


def _length6(address: Address, link: str) -> int:
    rows = (line.split() for line in ADDRESSES6.read_text().splitlines())
    return next(int(row[2], 16) for row in rows if row[0] == address.packed.hex() and row[5] == link)
