"""Links, addresses and routes of a network namespace, by rtnetlink: works where iproute2 is not installed."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address

from softmrc.errors import DeviceError

_NEWLINK, _NEWADDR, _NEWROUTE, _NEWQDISC, _DELQDISC = 16, 20, 24, 36, 37
_REQUEST, _ACK, _REPLACE, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x100, 0x200, 0x400
_ERROR = 2
_UP = 1  # IFF_UP
_ROOT = 0xFFFFFFFF  # TC_H_ROOT
_ETHERNET = 1  # TC_LINKLAYER_ETHERNET: the kernel then needs no rate table
_BURST, _QUEUE = 65_536, 262_144  # bytes


def attribute(kind: int, value: bytes | str | int) -> bytes:
    """One `rtattr`: a string ends with a zero byte, an integer has 32 bits."""
    if isinstance(value, str):
        value = value.encode() + b"\0"
    elif isinstance(value, int):
        value = struct.pack("=I", value)
    padding = b"\0" * (-len(value) % 4)
    return struct.pack("=HH", len(value) + 4, kind) + value + padding


def _link_head(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, change)


class Netlink:
    """A socket to the kernel. It stays in the namespace in which the calling thread was when it was opened."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)  # NETLINK_ROUTE

    def close(self) -> None:
        self._socket.close()

    def _request(self, what: str, kind: int, body: bytes, flags: int = 0) -> None:
        header = struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | _ACK | flags, 1, 0)
        self._socket.send(header + body)
        answer = self._socket.recv(1 << 16)
        code = struct.unpack_from("=i", answer, 16)[0]
        if struct.unpack_from("=H", answer, 4)[0] == _ERROR and code:
            raise DeviceError(-code, f"the kernel refuses to {what}: {os.strerror(-code)}")

    def index(self, name: str) -> int:
        """Of an interface in this namespace."""
        body = _link_head() + attribute(3, name)
        self._socket.send(struct.pack("=IHHII", 16 + len(body), 18, _REQUEST, 1, 0) + body)  # RTM_GETLINK
        answer = self._socket.recv(1 << 16)
        if struct.unpack_from("=H", answer, 4)[0] == _ERROR:
            raise DeviceError(f"there is no interface {name}")
        return int(struct.unpack_from("=i", answer, 20)[0])

    def add_link(self, name: str, kind: str, data: bytes = b"", mtu: int = 1500) -> None:
        about = attribute(1, kind) + (attribute(2, data) if data else b"")
        body = _link_head() + attribute(3, name) + attribute(4, mtu) + attribute(18, about)
        self._request(f"add {kind} {name}", _NEWLINK, body, _CREATE | _EXCLUSIVE)

    def add_veth(self, name: str, peer: str, namespace: int, mtu: int = 1500) -> None:
        """A pair of interfaces, the peer in the namespace of this descriptor."""
        other = _link_head() + attribute(3, peer) + attribute(4, mtu) + attribute(28, namespace)
        self.add_link(name, "veth", attribute(1, other), mtu)

    def attach(self, name: str, bridge: str) -> None:
        body = _link_head(self.index(name)) + attribute(10, self.index(bridge))
        self._request(f"attach {name} to {bridge}", _NEWLINK, body)

    def set_up(self, name: str, is_up: bool = True) -> None:
        body = _link_head(self.index(name), _UP if is_up else 0, _UP)
        self._request(f"set {name} {'up' if is_up else 'down'}", _NEWLINK, body)

    def add_address(self, name: str, address: str, prefix: int) -> None:
        raw = IPv4Address(address).packed
        body = struct.pack("=BBBBi", socket.AF_INET, prefix, 0, 0, self.index(name))
        body += attribute(1, raw) + attribute(2, raw)
        self._request(f"add {address}/{prefix}", _NEWADDR, body, _CREATE | _EXCLUSIVE)

    def set_route(self, to: str, source: str, hops: Sequence[tuple[str, str]]) -> None:
        """A route to one address over several next hops: (interface, gateway). The kernel picks one by flow (ECMP).
        Without any hop the address is unreachable."""
        unicast, unreachable, static, table = 1, 7, 4, 254
        kind = unicast if hops else unreachable
        body = struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 0, 0, table, static, 0, kind, 0)
        body += attribute(1, IPv4Address(to).packed)
        if hops:
            entries = b""
            for name, gateway in hops:
                via = attribute(5, IPv4Address(gateway).packed)
                entries += struct.pack("=HBBi", 8 + len(via), 0, 0, self.index(name)) + via
            body += attribute(7, IPv4Address(source).packed) + attribute(9, entries)
        self._request(f"route {to}", _NEWROUTE, body, _CREATE | _REPLACE)

    def limit_rate(self, name: str, bits_per_s: int) -> None:
        """A token bucket on what the interface sends; 0 removes it."""
        head = struct.pack("=BxxxiIII", socket.AF_UNSPEC, self.index(name), 0, _ROOT, 0)
        if not bits_per_s:
            self._request(f"remove the rate limit of {name}", _DELQDISC, head)
            return
        rate = struct.pack("=BBHhHI", 0, _ETHERNET, 0, -1, 0, bits_per_s // 8)
        parameters = rate + bytes(12) + struct.pack("=III", _QUEUE, 0, 0)
        options = attribute(1, parameters) + attribute(6, _BURST)
        body = head + attribute(1, "tbf") + attribute(2, options)
        self._request(f"limit the rate of {name}", _NEWQDISC, body, _CREATE | _REPLACE)
