"""MRC over a lab: one queue pair for each pair of hosts, sprayed over every SRv6 path between them.

Every host is a device of its own in its own namespace, all in this process; a path is a checksum-neutral carrier, and
an EV is its number. Kept apart because it needs the driver for UDP sockets (`softmrc.verbs`): without it, `traffic.mrc`
says so and nothing here is imported.
"""

from __future__ import annotations

import threading
import time

from softmrc.bench.traffic import permutation
from softmrc.engine import QpState
from softmrc.errors import InternalError
from softmrc.fabric import Node, Tier
from softmrc.lab import Lab
from softmrc.verbs import Device, MemoryRegion, Peer, PeerPlane, QueuePair

PORT = 4791
MTU = 4096
MESSAGE = 64 << 10
DEPTH = 16
# A packet of 4 KiB takes 1.7 ms on a link of 20 Mbit/s, a path has four of them, and eight drivers share a machine's few
# cores with every switch.
BASE_RTT_US = 10_000.0
REORDER_US = 15_000.0
# Two packets in the kernel: the next path is chosen when a port really has room, and acknowledgements hardly wait.
SEND_BUFFER_BYTES = 8 << 10


class Mrc:
    """Traffic of queue pairs, counted by what each receiver has placed in memory. Completions would tell of a failure as a
    pause and a burst, since they come in order."""

    def __init__(self, lab: Lab, pairs: dict[int, int] | None = None) -> None:
        self._lab = lab
        self._pairs = pairs or permutation(lab.shape.hosts, lab.shape.hosts_per_leaf)
        self._devices = [self._device(host) for host in range(lab.shape.hosts)]
        self._senders: dict[int, QueuePair] = {}
        self._receivers: list[tuple[int, QueuePair]] = []
        self._regions: list[MemoryRegion] = []
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors = 0

    def _device(self, host: int) -> Device:
        shape = self._lab.shape
        with self._lab.inside(Node(Tier.HOST, 0, host)):
            return Device(
                [f"p{plane}" for plane in range(shape.planes)], port=PORT, srv6=True, mtu=MTU, quantum=1, gso=False,
                trimming=self._lab.record.acts and self._lab.description.switch.trim, spin_us=0.0,
                sockets_per_plane=1, send_buffer_bytes=SEND_BUFFER_BYTES,
                rate_bps=shape.planes * shape.host_link_bps, base_rtt_us=BASE_RTT_US,
                reorder_us=REORDER_US, sack_threshold_bytes=4096,
            )  # fmt: skip

    def _peer(self, source: int, destination: int) -> Peer:
        plan = self._lab.plan
        planes = []
        for plane in range(self._lab.shape.planes):
            paths = range(self._lab.shape.paths(source, destination))
            carriers = tuple(plan.carrier(source, destination, plane, path) for path in paths)
            ports = self._devices[destination].source_ports[plane]
            planes.append(PeerPlane(plan.nic_address(destination, plane), PORT, ports, paths=carriers))
        return self._devices[source].add_peer(planes)

    def _connect(self, source: int, destination: int) -> None:
        paths = self._lab.shape.paths(source, destination)
        ends = {}
        for host in (source, destination):
            device = self._devices[host]
            qp = device.create_qp(device.create_cq())
            qp.init(ev_profile=device.path_profile(paths))
            ends[host] = qp
        there, here = self._peer(source, destination), self._peer(destination, source)
        ends[destination].rtr(here, dest_qpn=ends[source].qpn, first_psn=ends[source].first_psn, mtu=MTU)
        ends[source].rtr(there, dest_qpn=ends[destination].qpn, first_psn=ends[destination].first_psn, mtu=MTU)
        for qp in ends.values():
            qp.rts()
        self._senders[source] = ends[source]
        self._receivers.append((destination, ends[destination]))
        target = self._devices[destination].register(bytearray(MESSAGE))
        memory = self._devices[source].register(bytearray(MESSAGE))
        self._regions += [target, memory]
        thread = threading.Thread(target=self._send, args=(source, memory, target), daemon=True)
        self._threads.append(thread)

    def _send(self, source: int, memory: MemoryRegion, target: MemoryRegion) -> None:
        qp = self._senders[source]
        for _ in range(DEPTH):
            qp.post_write(memory, 0, MESSAGE, remote_va=target.va, rkey=target.rkey)
        while not self._ending.is_set():
            for completion in qp.send_cq.wait(0.2):
                if not completion.ok:
                    self._errors += 1
                    return
                qp.post_write(memory, 0, MESSAGE, remote_va=target.va, rkey=target.rkey)

    def start(self) -> None:
        for source, destination in self._pairs.items():
            self._connect(source, destination)
        for thread in self._threads:
            thread.start()

    def received_bytes(self) -> list[int]:
        received = [0] * self._lab.shape.hosts
        for host, qp in self._receivers:
            received[host] += int(qp.stats()["bytes_placed"])
        return received

    def errors(self) -> int:
        states = [qp.state for qp in self._senders.values()]
        return self._errors + sum(state == QpState.ERROR for state in states)

    def assumed_bad(self) -> int:
        """EVs condemned so far, over all senders."""
        return sum(int(qp.stats()["evs_demoted"]) for qp in self._senders.values())

    def stop(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(timeout=2)
        for device in self._devices:
            device.close()


def spread(lab: Lab, before: dict[int, int], after: dict[int, int]) -> float:
    """Bytes over the busiest of the leaves' uplinks, over their mean: how evenly paths were used. Bytes, because a SACK
    is a packet too, and acknowledgements keep to one path a plane."""
    shape = lab.shape
    counts = [
        after[link] - before[link]
        for plane in range(shape.planes)
        for leaf in range(shape.leaves)
        for link in (shape.leaf_up(plane, leaf, uplink) for uplink in range(shape.spines))
    ]
    mean = sum(counts) / len(counts)
    if not mean:
        raise InternalError("no packet crossed the fabric")
    return max(counts) / mean


def bytes_by_link(lab: Lab) -> dict[int, int]:
    return {state.link: state.bytes for state in lab.ports()}


def measure_spread(lab: Lab, seconds: float) -> float:
    """How evenly a permutation's packets use the paths."""
    traffic = Mrc(lab)
    try:
        traffic.start()
        time.sleep(1)
        before = bytes_by_link(lab)
        time.sleep(seconds)
        return round(spread(lab, before, bytes_by_link(lab)), 3)
    finally:
        traffic.stop()


def measure_incast(lab: Lab, seconds: float) -> tuple[int, int, int]:
    """All hosts send to the last one: EVs condemned, packets that switches trimmed, and queue pair errors."""
    last = lab.shape.hosts - 1
    trimmed = sum(state.counts.trimmed for state in lab.ports())
    traffic = Mrc(lab, dict.fromkeys(range(last), last))
    try:
        traffic.start()
        time.sleep(seconds)
        trimmed = sum(state.counts.trimmed for state in lab.ports()) - trimmed
        return traffic.assumed_bad(), trimmed, traffic.errors()
    finally:
        traffic.stop()
