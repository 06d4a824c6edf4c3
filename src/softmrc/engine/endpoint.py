"""The protocol engine, one node of it: no sockets, no threads, no clock. Time is an argument, in picoseconds.

    in   handle_datagram · handle_timeout · post_write · post_receive · set_port
    out  poll_transmit · poll_completions · poll_events · poll_timeout

After any input, drain the outputs. `softmrc.engine.pair.Pair` does that for two endpoints with a network in between.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softmrc import _core
from softmrc._support.units import qpn_text
from softmrc.config import (
    CcProfile,
    EndpointConfig,
    EvProfile,
    InitAttributes,
    RtrAttributes,
    RtsAttributes,
    to_native,
)
from softmrc.errors import UsageError
from softmrc.wire.entropy import as_ev
from softmrc.wire.fields import as_integer

CompletionKind = _core.CompletionKind
CompletionStatus = _core.CompletionStatus
EventType = _core.EventType
EvState = _core.EvState
PostStatus = _core.PostStatus
MAX_RECEIVES: int = _core.MOST_RECEIVES  # that may wait on one queue pair
QpState = _core.QpState
RefusedPacket = _core.RefusedPacket
TrafficClass = _core.TrafficClass
Trim = _core.Trim

ALL_PORTS = 0xFFFF

COMPLETION = np.dtype(
    [
        ("wr_id", "<u8"),
        ("qpn", "<u4"),
        ("length", "<u4"),
        ("imm", "<u4"),
        ("status", "u1"),
        ("kind", "u1"),
        ("msn", "<u2"),
    ]
)
EVENT = np.dtype(
    [
        ("at_ps", "<i8"),
        ("value", "<u8"),
        ("qpn", "<u4"),
        ("psn", "<u4"),
        ("ev", "<u4"),
        ("code", "<u4"),
        ("type", "u1"),
        ("port", "u1"),
        ("side", "<u2"),
        ("took", "<u4"),
    ]
)
EV = np.dtype(
    [("value", "<u4"), ("port", "u1"), ("state", "u1"), ("drops", "<u4"), ("damping", "u1"), ("is_spare", "?")]
)


def ev_index(index: object) -> int:
    """Which EV of a queue pair a controller means."""
    return as_integer("ev", index, 0, 0xFFFF)


def ev_value(value: object) -> int | bytes:
    """What a controller wants an EV to be: a number, or bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        return as_ev("value", value)
    return as_integer("value", value, 0, 0xFFFFFFFF)


class MemoryRegion:
    """Memory that a peer may write to, or that writes are taken from. Without a buffer it is an address, no bytes."""

    def __init__(self, buffer: Any, length: int, va: int, rkey: int) -> None:
        self.buffer = _core.Buffer(buffer, True) if buffer is not None else None
        self.length = self.buffer.size if self.buffer is not None else length
        self.va = va
        self.rkey = rkey

    def __repr__(self) -> str:
        kind = "bytes" if self.buffer is not None else "bytes without backing"
        return f"<MemoryRegion {self.length:,} {kind} at va {self.va:#x}, rkey {self.rkey:#x}>"


class QueuePair:
    """One connection. Created in RESET; `init`, `rtr` and `rts` take it to where it can send."""

    def __init__(self, endpoint: Endpoint, qpn: int) -> None:
        self.endpoint = endpoint
        self.qpn = qpn
        self._native = endpoint._native

    def init(self, attributes: InitAttributes | None = None) -> None:
        self._native.modify_init(self.qpn, to_native(attributes or InitAttributes()))

    def rtr(self, now_ps: int, attributes: RtrAttributes) -> None:
        self._native.modify_rtr(now_ps, self.qpn, to_native(attributes))

    def rts(self, now_ps: int, attributes: RtsAttributes) -> None:
        self._native.modify_rts(now_ps, self.qpn, to_native(attributes))

    def error(self, now_ps: int) -> None:
        """Give up: everything posted is flushed."""
        self._native.modify_error(now_ps, self.qpn)

    def post_write(
        self,
        now_ps: int,
        length: int,
        *,
        remote_va: int,
        rkey: int,
        source: MemoryRegion | None = None,
        offset: int = 0,
        imm: int | None = None,
        wr_id: int = 0,
        signaled: bool = True,
    ) -> None:
        """Write `length` bytes of `source` to the peer's memory, with an immediate if one is given."""
        buffer = source.buffer if source is not None else None
        status = self._native.post_write(
            now_ps, self.qpn, wr_id, length, remote_va, rkey, buffer, offset, imm, signaled
        )
        self._check(status)

    def post_receive(self, wr_id: int = 0) -> None:
        """Allow one write-with-immediate to complete here."""
        self._check(self._native.post_receive(self.qpn, wr_id))

    def _check(self, status: Any) -> None:
        if status == PostStatus.OK:
            return
        reason = {
            PostStatus.WRONG_STATE: f"the queue pair is in {self.state.name}",
            PostStatus.QUEUE_FULL: f"its queue is full (max_send_wr, or {MAX_RECEIVES:,} receives)",
        }[status]
        raise UsageError(f"cannot post to queue pair {qpn_text(self.qpn)}: {reason}")

    @property
    def state(self) -> Any:
        return self._native.query_qp(self.qpn)["state"]

    def query(self) -> dict[str, Any]:
        """State, windows, sequence numbers and round-trip times, now."""
        return self._native.query_qp(self.qpn)

    def stats(self) -> dict[str, int]:
        return self._native.qp_stats(self.qpn)

    def evs(self) -> np.ndarray:
        """One record per entropy value; `state` is an `EvState`."""
        rows = self._native.query_evs(self.qpn)
        return np.array([(v, p, s.value, d, damping, spare) for v, p, s, d, damping, spare in rows], dtype=EV)

    def ev_values(self) -> list[bytes]:
        """What the network reads of each EV, as `wire.expand` gives it: 32 bytes, the first bit first."""
        return self._native.query_ev_values(self.qpn)

    def deny_ev(self, now_ps: int, index: int) -> None:
        """The controller's word: nothing takes this EV, not even an acknowledgement, until it is allowed again."""
        self._native.deny_ev(now_ps, self.qpn, ev_index(index))

    def allow_ev(self, now_ps: int, index: int) -> None:
        self._native.allow_ev(now_ps, self.qpn, ev_index(index))

    def replace_ev(self, now_ps: int, index: int, value: int | bytes) -> None:
        """Another path in this one's place, without its history; a DENIED one stays so. Bytes are expanded."""
        self._native.replace_ev(now_ps, self.qpn, ev_index(index), ev_value(value))

    def set_receive_window(self, mpr_units: int) -> None:
        """Offer another window; takes effect at the peer when dynamic MPR was agreed on."""
        self._native.set_receive_window(self.qpn, mpr_units)

    def set_receiver_penalty(self, penalty: int) -> None:
        """Ask the peer to shrink its congestion window (1 to 127), or to restore it (0)."""
        self._native.set_receiver_penalty(self.qpn, penalty)

    def destroy(self, now_ps: int) -> None:
        self._native.destroy_qp(now_ps, self.qpn)

    def __repr__(self) -> str:
        q = self.query()
        text = f"<QueuePair {qpn_text(self.qpn)} {q['state'].name}"
        if "dest_qpn" in q:
            text += (
                f" → {qpn_text(q['dest_qpn'])}: {q['messages']} messages, {q['packets_in_flight']} packets in flight, "
                f"window {q['window_bytes']:,} B"
            )
        return text + ">"


class Endpoint:
    """One node: its ports, its queue pairs, its memory."""

    def __init__(self, config: EndpointConfig | None = None, *, _native: _core.Endpoint | None = None) -> None:
        self._native = _native if _native is not None else _core.Endpoint(to_native(config or EndpointConfig()))
        self._regions: dict[int, MemoryRegion] = {}

    def add_ev_profile(self, profile: EvProfile | None = None) -> int:
        return self._native.add_ev_profile(to_native(profile or EvProfile()))

    def add_cc_profile(self, profile: CcProfile | None = None) -> int:
        return self._native.add_cc_profile(to_native(profile or CcProfile()))

    def create_cq(self) -> int:
        return self._native.create_cq()

    def destroy_cq(self, cq: int) -> None:
        self._native.destroy_cq(cq)

    def create_domain(self) -> int:
        """A new protection domain, for queue pairs and for the memory that their peers may write to."""
        return self._native.create_domain()

    def add_peer(self) -> int:
        return self._native.add_peer()

    def remove_peer(self, peer: int) -> bool:
        """It is forgotten when no queue pair goes there any more, and their last words have been said."""
        return self._native.remove_peer(peer)

    def register(self, buffer: Any = None, *, length: int = 0, va: int = 0, rkey: int, domain: int = 0) -> MemoryRegion:
        """Let peers of the queue pairs of `domain` write here under `rkey`: any writable contiguous buffer, or `length`
        bytes that do not exist."""
        region = MemoryRegion(buffer, length, va, rkey)
        if not self._native.add_region(rkey, va, region.length, region.buffer, domain):
            raise UsageError(f"cannot register {region!r}: the rkey is in use, or the range is empty or wraps")
        self._regions[rkey] = region
        return region

    def deregister(self, region: MemoryRegion) -> None:
        if not self._native.remove_region(region.rkey):
            raise UsageError(f"{region!r} is not registered")

    def create_qp(self, qpn: int) -> QueuePair:
        self._native.create_qp(qpn)
        return QueuePair(self, qpn)

    def handle_datagram(
        self,
        now_ps: int,
        data: bytes,
        *,
        peer: int,
        port: int = 0,
        entropy: int = 0,
        congestion: bool = False,
        trim: Any = Trim.NONE,
        has_icrc: bool = False,
    ) -> None:
        self._native.handle_datagram(now_ps, data, peer, port, entropy, congestion, trim, has_icrc)

    def begin_batch(self) -> None:
        """What is handed in from here to `end_batch` had been waiting side by side: none is judged before its end."""
        self._native.begin_batch()

    def end_batch(self, now_ps: int) -> None:
        self._native.end_batch(now_ps)

    def handle_held_up(self, now_ps: int) -> None:
        """What `poll_transmit` returned so far may have left only now: the driver did not have the processor."""
        self._native.handle_held_up(now_ps)

    def handle_timeout(self, now_ps: int) -> None:
        self._native.handle_timeout(now_ps)

    def poll_transmit(self, now_ps: int, free_ports: int = ALL_PORTS) -> tuple[bytes, int, int, int, Any] | None:
        """(bytes, peer, port, entropy, traffic class) of the next packet to send, or None."""
        return self._native.poll_transmit(now_ps, free_ports)

    def poll_timeout(self) -> int | None:
        return self._native.poll_timeout()

    def poll_completions(self, cq: int = 0, most: int = 1 << 20) -> np.ndarray:
        return np.frombuffer(self._native.poll_completions(cq, most), dtype=COMPLETION)

    def poll_events(self, most: int = 1 << 20) -> np.ndarray:
        return np.frombuffer(self._native.poll_events(most), dtype=EVENT)

    def set_port(self, now_ps: int, port: int, up: bool) -> None:
        self._native.set_port(now_ps, port, up)

    def probe(self, now_ps: int, peer: int, port: int, entropy: int, token: int) -> bool:
        """Ask the peer's node for a sign of life over one path; the answer is a `probe_answer` event with the token.
        False when there will be none: the port is down, or too many wait for it already."""
        return self._native.probe(now_ps, peer, port, entropy, token)

    def on_unreachable(self, now_ps: int, peer: int) -> None:
        """The network reports the peer's address as unreachable."""
        self._native.on_unreachable(now_ps, peer)

    def may_answer_at_length(self, now_ps: int, peer: int, size: int) -> bool:
        """Whether the driver may answer one of its requests with so many bytes."""
        return self._native.may_answer_at_length(now_ps, peer, size)

    def stats(self) -> dict[str, int]:
        return self._native.stats()
