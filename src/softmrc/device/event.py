"""What a device tells that belongs to no work request."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from softmrc._support.units import ev_text, qpn_text
from softmrc.engine import EVENT, EventType, EvState, QpState, RefusedPacket


class Event(NamedTuple):
    """Something worth telling that belongs to no work request. What the numbers mean depends on `type`."""

    type: EventType
    qpn: int
    plane: int
    ev: int
    psn: int
    code: int
    value: int
    at_ps: int

    def __str__(self) -> str:
        """The same in words."""
        words = {
            EventType.qp_state: lambda: f"queue pair {qpn_text(self.qpn)} is {QpState(self.code).name}",
            EventType.ev_state: lambda: f"path {ev_text(self.ev)} of plane {self.plane} is {EvState(self.code).name}",
            EventType.port_state: lambda: f"plane {self.plane} is {'up' if self.code else 'down'}",
            EventType.peer_ports: lambda: f"peer {self.code} can use planes {_planes_in(self.value)}",
            EventType.probe_answer: lambda: (
                f"path {ev_text(self.ev)} answered on plane {self.plane} in {self.value / 1e6:,.0f} µs"
            ),
            EventType.packet_refused: lambda: f"a packet was refused: {_words(RefusedPacket(self.code).name)}",
        }.get(self.type, lambda: _words(self.type.name))()
        return f"{self.at_ps / 1e12:.6f} s: {words}"


def _words(name: str) -> str:
    return name.lower().replace("_", " ")


def _planes_in(mask: int) -> str:
    return ", ".join(str(plane) for plane in range(mask.bit_length()) if mask >> plane & 1) or "none"


def events_of(records: bytes) -> list[Event]:
    """Of records of the core."""
    return [
        Event(EventType(kind), qpn, port, ev, psn, code, value, at_ps)
        for at_ps, value, qpn, psn, ev, code, kind, port, _, _ in np.frombuffer(records, dtype=EVENT).tolist()
    ]
