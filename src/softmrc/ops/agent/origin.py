"""The identity of a client for rate limits: the user, on the same machine, and otherwise the address.

A process may have any number of connections, ports and loopback addresses; it is one user's.
"""

from __future__ import annotations

import ipaddress
import socket
import struct

SOCK_DIAG_BY_FAMILY = 20
REQUEST = 1  # NLM_F_REQUEST
ANSWER_S = 1.0
STATE_AT, UID_AT = 16 + 1, 16 + 64  # in a netlink message with an inet_diag_msg
ESTABLISHED = 1
Place = tuple[str, int | None]


def user_of(near: Place, far: Place) -> int | None:
    """Whose socket has these ends; None where the kernel does not say. Of a socket that no process holds any more, as
    one in TIME_WAIT, it says 0, which is root's: only one that is established counts."""
    try:
        address = ipaddress.ip_address(near[0])
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        ends = [ipaddress.ip_address(one).packed.ljust(16, b"\0") for one in (near[0], far[0])]
        number = (
            struct.pack("!HH", near[1], far[1]) + ends[0] + ends[1] + struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
        )
        asked = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + number
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 4) as kernel:  # NETLINK_SOCK_DIAG
            kernel.settimeout(ANSWER_S)
            kernel.send(struct.pack("=IHHII", 16 + len(asked), SOCK_DIAG_BY_FAMILY, REQUEST, 1, 0) + asked)
            answer = kernel.recv(4096)
        if struct.unpack_from("=IH", answer)[1] != SOCK_DIAG_BY_FAMILY or answer[STATE_AT] != ESTABLISHED:
            return None
        return int(struct.unpack_from("=I", answer, UID_AT)[0])
    except (OSError, ValueError, struct.error, IndexError):
        return None


def origin_of(client: Place | None, server: Place | None) -> str:
    """By whom requests of a connection are counted."""
    if client is None:
        return ""
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except ValueError:
        return client[0]
    if address.is_loopback:
        user = None if server is None else user_of(client, server)
        return "this machine" if user is None else f"user {user}"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.IPv6Network((address, 64), strict=False))  # one host has all of its addresses
    return str(address)
