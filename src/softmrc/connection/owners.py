"""Whose an address and port is, among the peers that a device is connected to.

Packets are told apart by where they come from. A peer that offered what is another's would be given its packets, so
what is owned is refused, unless the owner has left: a process that starts again may have its old ports. The very same
planes are the same node, which may connect as often as it likes.
"""

from __future__ import annotations

import ipaddress
import threading
import weakref
from dataclasses import dataclass

from softmrc.connection.offer import End
from softmrc.engine import QpState
from softmrc.errors import UsageError
from softmrc.handshake import Channel, Refusal
from softmrc.verbs import Device, QueuePair


@dataclass(frozen=True, eq=False)
class Claim:
    """What one connection's peer says is its own."""

    ends: frozenset[End]
    channel: Channel
    qp: QueuePair

    def is_live(self) -> bool:
        try:
            return not self.channel.is_closed_by_peer() and self.qp.state != QpState.ERROR
        except UsageError:  # the queue pair, or its device, is gone
            return False


class Owners:
    """Of one device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_end: dict[End, list[Claim]] = {}

    def add(self, claim: Claim) -> None:
        with self._lock:
            for end in claim.ends:
                for other in self._by_end.get(end, ()):
                    if other.ends != claim.ends and other.is_live():
                        address, port = ipaddress.ip_address(end[0]), end[1]
                        both = f"{address} port {port}, which is another peer's"
                        raise Refusal(f"offers {both}", f"you offer {both}")
            for end in claim.ends:
                self._by_end.setdefault(end, []).append(claim)

    def remove(self, claim: Claim) -> None:
        with self._lock:
            for end in claim.ends:
                claims = self._by_end.get(end, [])
                if claim in claims:
                    claims.remove(claim)
                if not claims:
                    self._by_end.pop(end, None)


_owners: weakref.WeakKeyDictionary[Device, Owners] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def owners_of(device: Device) -> Owners:
    with _lock:
        return _owners.setdefault(device, Owners())
