"""Forged datagrams at a steady rate: `python -m softmrc.bench.flood RATE HOST:PORT…`, until it is ended.

The payloads look like MRC packets with random contents; the senders are nobody's peers. Loopback only.
"""

from __future__ import annotations

import ipaddress
import random
import socket
import sys

from softmrc import _core
from softmrc.errors import ConfigError

LONGEST_S = 600.0


def main() -> None:
    rate = int(sys.argv[1])
    targets = [(host, int(port)) for host, port in (text.rsplit(":", 1) for text in sys.argv[2:])]
    if not all(ipaddress.ip_address(host).is_loopback for host, _ in targets):
        raise ConfigError("targets", targets, "loopback addresses")
    rng = random.Random(1)
    forged = [bytes([rng.choice((0xC6, 0xCA, 0xDC, 0xD1, 0xD8))]) + rng.randbytes(127) for _ in range(64)]
    sockets = []
    for target in targets:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect(target)
        sockets.append(sock)
    print("flooding", flush=True)
    _core.yardstick_flood([sock.fileno() for sock in sockets], forged, rate, LONGEST_S)


if __name__ == "__main__":
    main()
