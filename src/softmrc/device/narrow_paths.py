"""Which planes of a device lose full packets, as probes of peers found: to report, and to warn of each once.

Nothing else follows from it. Every connection begins with full packets and probes again, so one answer that was lost or
forged makes no later connection small.
"""

from __future__ import annotations

import threading
from ipaddress import IPv4Address, IPv6Address

FORGOTTEN_AFTER_S = 600.0  # as PMTU_RAISE_TIMER of RFC 8899


class NarrowPaths:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[int, IPv4Address | IPv6Address], tuple[int, float]] = {}  # bytes, and since when

    def note(self, plane: int, address: IPv4Address | IPv6Address, carried: int, now: float) -> bool:
        """The largest packets that get through to a peer, as it has just answered; 0: full ones do. What others
        answered long ago is forgotten. Whether it is news that the plane loses full packets."""
        with self._lock:
            mine = [key for key in self._known if key[0] == plane]
            for key in mine:
                if key[1] == address or now - self._known[key][1] > FORGOTTEN_AFTER_S:
                    del self._known[key]
            if carried:
                self._known[plane, address] = carried, now
            return bool(carried and not mine)

    def carried(self, plane: int) -> int:
        """To the peer to which the least gets through; 0: full packets do."""
        with self._lock:
            return min((size for (its, _), (size, _) in self._known.items() if its == plane), default=0)
