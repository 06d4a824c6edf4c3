"""A flood from a peer's own address and port.

    python -m softmrc_bench.spoofed_flood RATE KIND QPN SOURCE:PORT>HOST:PORT…

A host that can write a peer's address on its packets gets past the first check, and no further. Needs the right to
open raw sockets; loopback only.
"""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from typing import TYPE_CHECKING, Any

from softmrc.engine import EvState
from softmrc.wire import Frame, Packet, Route, Sum
from softmrc_bench import flood
from softmrc_bench.figures import Sampled

if TYPE_CHECKING:
    from softmrc_bench.udp import Flow

ETHERNET = 14
PAYLOAD = 1024
TRIMMED_DSCP = 12
KINDS = ("data", "probe", "trimmed")
IP_AND_UDP, CLEAR, NUMBERS = 28, 32, 1 << 20

Ways = list[tuple[tuple[str, int], tuple[str, int]]]  # from where, to where


def forged(kind: str, qpn: int, source: tuple[str, int], to: tuple[str, int], count: int = 64) -> list[bytes]:
    """IP packets: data that fails its ICRC, probes that do not, headers that a switch seems to have trimmed, and data
    that seems to be encrypted, under the right key's name and with a number that is new."""
    rng = random.Random(1)
    route = Route(source[0], to[0], source[1], to[1])
    made = []
    for _ in range(count):
        psn = rng.getrandbits(24)
        where: dict[str, Any] = {"va": rng.getrandbits(20), "rkey": rng.getrandbits(32)}
        if kind == "probe":
            made.append(bytes(Frame(Packet("endpoint_request", psn=psn & 0xFFFF), route)))
        elif kind == "trimmed":
            packet = Packet("write_first", dqp=qpn, psn=psn, dmalen=1 << 20, trimmed=True, **where)
            made.append(bytes(Frame(packet, route, dscp=TRIMMED_DSCP)))
        elif kind == "sealed":
            packet = Packet("write_only", dqp=qpn, psn=psn, payload=rng.randbytes(PAYLOAD), **where)
            frame = bytearray(bytes(Frame(packet, route, udp_checksum=Sum.ABSENT)))
            frame[ETHERNET + IP_AND_UDP + 1] |= 1
            number = NUMBERS + rng.getrandbits(40)
            key = qpn.to_bytes(3, "big") + b"\0" + number.to_bytes(8, "big")
            at = ETHERNET + IP_AND_UDP + CLEAR
            frame[at : at + len(key)] = key
            made.append(bytes(frame))
        else:
            packet = Packet("write_only", dqp=qpn, psn=psn, payload=rng.randbytes(PAYLOAD), **where)
            made.append(bytes(Frame(packet, route, udp_checksum=Sum.ABSENT))[:-4] + rng.randbytes(4))
    return [frame[ETHERNET:] for frame in made]


def raw_socket(host: str) -> socket.socket:
    """One that takes whole IP packets; `PermissionError` where that is not allowed."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    sock.connect((host, 0))
    return sock


def flood_spoofed(kind: str, qpn: int, ways: Ways, per_s: int = flood.PER_S) -> contextlib.AbstractContextManager[None]:
    """Packets of this kind from these peers' addresses, from another process, until the context ends."""
    return flood.running(__name__, per_s, kind, qpn, *(f"{a[0]}:{a[1]}>{b[0]}:{b[1]}" for a, b in ways))


def ways_of(flow: Flow) -> Ways:
    """From each plane of the sender to the same one of the receiver."""
    planes = zip(flow.connection.qp.reached_at, flow.connection.peer.planes, strict=True)
    return [((str(mine.address), mine.port), (str(theirs.address), theirs.port)) for mine, theirs in planes]


def measure(flow: Flow, rounds: int, seconds: float, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    """Goodput under each kind of forged packets over goodput under the same at an unrelated socket; the worst kind."""
    try:
        raw_socket("127.0.0.1").close()
    except PermissionError as error:
        refused = f"not measured: raw sockets, {error.strerror}"
        return {"flood_spoofed_ratio": None, "flood_spoofed_condemned": None, "flood_spoofed_refused": refused}
    ways, qp = ways_of(flow), flow.connection.qp
    qpn = qp.query()["dest_qpn"]
    ratios: dict[str, float] = {}
    condemned = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bystander:
        bystander.bind(("127.0.0.1", 0))
        elsewhere = [(source, bystander.getsockname()) for source, _ in ways]
        for kind in kinds:
            rows = []
            for _ in range(rounds):
                with flood_spoofed(kind, qpn, elsewhere):
                    fair = flow.gbps(seconds)
                with flood_spoofed(kind, qpn, ways):
                    rows.append(flow.gbps(seconds) / fair)
                    condemned = max(condemned, int((qp.evs()["state"] == EvState.ASSUMED_BAD.value).sum()))
            ratios[kind] = Sampled(rows)
    return {
        "flood_spoofed_ratio": min(ratios.values()),
        "flood_spoofed_ratios": ratios,
        "flood_spoofed_condemned": condemned,
    }


def main() -> None:
    per_s, kind, qpn = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    ways = [tuple(map(flood.end_of, way.split(">"))) for way in sys.argv[4:]]
    sockets = [raw_socket(to[0]) for _, to in ways]
    # A socket takes every so manieth packet, which is why those of the ways alternate.
    by_way = [forged(kind, qpn, source, to) for source, to in ways]
    flood.send(sockets, [packet for row in zip(*by_way, strict=True) for packet in row], per_s)


if __name__ == "__main__":
    main()
