"""MRC over real sockets, in the manner of verbs.

    with Device(["10.0.0.1%eth0", "10.0.1.1%eth1"]) as device:
        region = device.register(bytearray(1 << 20))
        cq = device.create_cq()
        qp = device.create_qp(cq)
        qp.init()
        qp.rtr(peer, dest_qpn=…, first_psn=…)
        qp.rts()
        qp.post_write(region, 0, 4096, remote_va=…, rkey=…, wr_id=7)
        for completion in cq.wait(timeout_s=1):
            …

One native thread per open lane of a device moves the packets; nothing here runs per packet. A thread that waits for a
completion drives the lane while it waits. `softmrc.connection` does the exchange of numbers for you.
"""

from __future__ import annotations

from softmrc.device.completion import FOREVER_S, Completion, CompletionQueue, iterate
from softmrc.device.creation import MAX_SOCKETS
from softmrc.device.default_profiles import MAX_EVS
from softmrc.device.device import Device
from softmrc.device.diagnostics import Capture
from softmrc.device.event import Event
from softmrc.device.memory import ACCEPTED_MEMORY, MemoryRegion, ProtectionDomain, writable_memory
from softmrc.device.peer import Peer, PeerPlane, check_carrier, new_port_key, port_keys
from softmrc.device.queue_pair import QueuePair
from softmrc.engine import CompletionKind, CompletionStatus, EventType, PostStatus, QpState

__all__ = [
    "ACCEPTED_MEMORY",
    "FOREVER_S",
    "MAX_EVS",
    "MAX_SOCKETS",
    "Capture",
    "Completion",
    "CompletionKind",
    "CompletionQueue",
    "CompletionStatus",
    "Device",
    "Event",
    "EventType",
    "MemoryRegion",
    "Peer",
    "PeerPlane",
    "PostStatus",
    "ProtectionDomain",
    "QpState",
    "QueuePair",
    "check_carrier",
    "iterate",
    "new_port_key",
    "port_keys",
    "writable_memory",
]
