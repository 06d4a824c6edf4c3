"""One endpoint on the bench: a queue pair ready to send and receive, fed with packets made by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import packer
from packer import Parsed
from softmrc.config import (
    CcProfile,
    EndpointConfig,
    EvProfile,
    InitAttributes,
    RtrAttributes,
    RtsAttributes,
)
from softmrc.engine import ALL_PORTS, Endpoint, EventType, RefusedPacket, Trim

US = 1_000_000
QPN, PEER_QPN = 0x40, 0x80
RKEY = 0x77
FILL = 0xA5
GUARD = 256


class Rig:
    """Side effects of every call are drained at once into `sent`, and the clock moves only by hand."""

    def __init__(
        self,
        *,
        ports: int = 1,
        mtu: int = 1024,
        first_psn: int = 0,
        peer_first_psn: int = 0,
        memory: int = 1 << 16,
        va: int = 0x1000,
        endpoint: dict[str, Any] | None = None,
        evs: dict[str, Any] | None = None,
        cc: dict[str, Any] | None = None,
        rtr: dict[str, Any] | None = None,
        rts: dict[str, Any] | None = None,
    ) -> None:
        self.now = 0
        self.va = va
        self.mtu = mtu
        self.endpoint = Endpoint(EndpointConfig(ports=ports, **(endpoint or {})))
        self.endpoint.add_ev_profile(EvProfile(**{"count": 4 * ports, **(evs or {})}))
        self.endpoint.add_cc_profile(CcProfile(**{"algorithm": "fixed_window", **(cc or {})}))
        self.send_cq, self.recv_cq = self.endpoint.create_cq(), self.endpoint.create_cq()
        self.peer = self.endpoint.add_peer()
        self.whole = np.full(memory + 2 * GUARD, FILL, dtype=np.uint8)
        self.memory = self.whole[GUARD : GUARD + memory]
        self.endpoint.register(self.memory, va=va, rkey=RKEY)
        self.source_bytes = np.random.default_rng(1).integers(0, 256, 1 << 20, dtype=np.uint8)
        self.source = self.endpoint.register(self.source_bytes, rkey=RKEY + 1)
        self.qp = self.endpoint.create_qp(QPN)
        self.qp.init(InitAttributes(send_cq=self.send_cq, recv_cq=self.recv_cq))
        base = RtrAttributes(peer=self.peer, dest_qpn=PEER_QPN, first_psn=peer_first_psn, mtu=mtu)
        self.qp.rtr(self.now, dataclasses.replace(base, **(rtr or {})))
        self.qp.rts(self.now, dataclasses.replace(RtsAttributes(first_psn=first_psn), **(rts or {})))
        self.classes: list[Any] = []
        self.routes: list[tuple[int, int]] = []  # (port, entropy) of each packet sent
        self.sent_at: list[int] = []

    def another_qp(self, qpn: int) -> Any:
        """A second queue pair to the same peer, ready to send."""
        qp = self.endpoint.create_qp(qpn)
        qp.init(InitAttributes(send_cq=self.send_cq, recv_cq=self.recv_cq))
        qp.rtr(self.now, RtrAttributes(peer=self.peer, dest_qpn=PEER_QPN + qpn, mtu=self.mtu))
        qp.rts(self.now, RtsAttributes())
        return qp

    # In.
    def receive(self, raw: bytes, *, peer: int | None = None, port: int = 0, entropy: int = 0, ce: bool = False,
                trim: Any = Trim.NONE) -> list[Parsed]:  # fmt: skip
        """A packet arrives; what the endpoint says to that."""
        self.endpoint.handle_datagram(
            self.now,
            raw,
            peer=self.peer if peer is None else peer,
            port=port,
            entropy=entropy,
            congestion=ce,
            trim=trim,
        )
        return self.drain()

    def post(self, length: int, **more: Any) -> list[Parsed]:
        self.qp.post_write(self.now, length, remote_va=0, rkey=1, source=self.source, **more)
        return self.drain()

    def advance(self, us: float) -> list[Parsed]:
        """The clock moves on, through every timer on the way."""
        until = self.now + int(us * US)
        sent: list[Parsed] = []
        while (due := self.endpoint.poll_timeout()) is not None and due <= until:
            self.now = max(self.now, due)
            self.endpoint.handle_timeout(self.now)
            sent += self.drain()
        self.now = until
        return sent + self.drain()

    # Out.
    def drain(self, free_ports: int = ALL_PORTS) -> list[Parsed]:
        sent = []
        while (transmit := self.endpoint.poll_transmit(self.now, free_ports)) is not None:
            raw, _, port, entropy, traffic_class = transmit
            self.classes.append(traffic_class)
            self.routes.append((port, entropy))
            self.sent_at.append(self.now)
            sent.append(packer.parse(raw))
        return sent

    def sends(self) -> np.ndarray:
        return self.endpoint.poll_completions(self.send_cq)

    def receives(self) -> np.ndarray:
        return self.endpoint.poll_completions(self.recv_cq)

    def refusals(self) -> list[RefusedPacket]:
        """Why packets were refused since last asked."""
        events = self.endpoint.poll_events()
        return [RefusedPacket(int(e["code"])) for e in events if e["type"] == EventType.packet_refused.value]

    def stats(self) -> dict[str, int]:
        return {**self.endpoint.stats(), **self.qp.stats()}

    def check_guards(self) -> None:
        assert (self.whole[:GUARD] == FILL).all() and (self.whole[-GUARD:] == FILL).all(), "a write outside the region"

    def untouched(self) -> bool:
        return bool((self.whole == FILL).all())


def data(packets: list[Parsed]) -> list[Parsed]:
    return [p for p in packets if packer.FIRST <= p.opcode <= packer.ONLY_IMM]


def only(packets: list[Parsed], opcode: int) -> list[Parsed]:
    return [p for p in packets if p.opcode == opcode]
