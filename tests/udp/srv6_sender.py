"""A device that sends along SRv6 paths to a socket which notes where packets were sent to; prints that as JSON.

Runs in a separate network namespace, where every address under the block is local.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import struct
import subprocess
import time

from softmrc import wire
from softmrc.config import EvFormat, EvMode, EvProfile
from softmrc.device import Device, PeerPlane
from softmrc.errors import ConfigError
from softmrc.wire import EvField

BLOCK = 0xFCBBBB00
HERE, THERE = "fcbb:bb00:1001::", ipaddress.IPv6Address("fcbb:bb00:1002::")


def neutral(spine: int) -> ipaddress.IPv6Address:
    """A carrier through this spine that sums up like the final address."""
    return wire.srv6.carrier(BLOCK, [0xFFFF - 0x200 - spine, 0x200 + spine, 0x1002])


def destinations(seen: socket.socket, wanted: int, limit_s: float = 5.0) -> set[str]:
    """Where packets went, until so many ways were seen or the time is up."""
    found: set[str] = set()
    until = time.monotonic() + limit_s
    while len(found) < wanted and time.monotonic() < until:
        try:
            _, control, _, _ = seen.recvmsg(65536, 256)
        except TimeoutError:
            continue
        for _, kind, data in control:
            if kind == socket.IPV6_PKTINFO:
                found.add(str(ipaddress.IPv6Address(struct.unpack_from("16s", data)[0])))
    return found


def send(seen: socket.socket, profile: EvProfile, replacement: bytes, refused: list[bytes]) -> dict[str, object]:
    with Device([HERE], srv6=True, spin_us=0.0, prove_addresses=False) as device:
        region = device.register(bytearray(1 << 16), remote_write=True)
        peer = device.add_peer([PeerPlane(THERE, seen.getsockname()[1])])
        qp = device.create_qp(device.create_cq())
        qp.init(ev_profile=profile)
        qp.rtr(peer, dest_qpn=0x77, first_psn=0)
        qp.rts(timeout=10)
        destinations(seen, 99, 0.2)  # what a device before this one sent last
        listed = {str(wire.path_of(value).destination) for value in qp.ev_values()}
        qp.post_write(region, 0, 1 << 16, remote_va=0, rkey=1)
        before = destinations(seen, len(listed))
        errors = []
        for value in refused:
            try:
                qp.replace_ev(0, value)
            except ConfigError as error:
                errors.append(str(error))
        old = str(wire.path_of(qp.ev_values()[0]).destination)
        qp.replace_ev(0, replacement)
        new = str(wire.path_of(qp.ev_values()[0]).destination)
        destinations(seen, 99, 0.2)
        after = destinations(seen, len(listed), 3.0)
    return {"listed": sorted(listed), "before": sorted(before), "old": old, "new": new, "after": sorted(after),
            "errors": errors}  # fmt: skip


def main() -> None:
    setup = ("link set lo up", f"-6 addr add {HERE}/128 dev lo nodad", "-6 route add local fcbb:bb00::/32 dev lo")
    for command in setup:
        subprocess.run(["ip", *command.split()], check=True, capture_output=True)
    seen = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    seen.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    seen.bind(("::", 0))
    seen.settimeout(0.05)
    explicit = EvProfile(
        mode=EvMode.EXPLICIT, format=EvFormat.SRV6, count=4, entries=tuple((neutral(i).packed, 0) for i in range(4))
    )
    # Only the spine varies, and its complement with it: so each value of the EV fills both fields the same way.
    fields = (EvField(32, BLOCK), EvField(16, mask=0xFFFF), EvField(16, mask=0xFFFF), EvField(16, 0x1002))
    evs = tuple((struct.pack(">HH", 0xFFFF - 0x300 - i, 0x300 + i), 0) for i in range(4))
    expanded = EvProfile(
        mode=EvMode.EXPLICIT, format=EvFormat.SRV6, count=4, widths=(32, 16, 16, 16), fields=fields, entries=evs
    )
    long = wire.ev_of_path(wire.Path.through(BLOCK, [1, 2, 3, 4, 5, 6, 7]))
    crooked = wire.srv6.carrier(BLOCK, [0x200, 0x1002]).packed
    print(json.dumps({
        "explicit": send(seen, explicit, neutral(9).packed, [long, crooked]),
        "expanded": send(seen, expanded, struct.pack(">HH", 0xFFFF - 0x309, 0x309), []),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
