"""MRC over a lab: one queue pair for each pair of hosts, sprayed over every SRv6 path between them.

Every host is a device in its own namespace, all in this process; a path is a checksum-neutral carrier, and
an EV is its number.
"""

from __future__ import annotations

import threading
import time

from softmrc.device import Device, MemoryRegion, QueuePair
from softmrc.engine import QpState
from softmrc.errors import InternalError
from softmrc.fabric import Node, Tier
from softmrc.fabric.host import FabricHost
from softmrc.lab import Lab
from softmrc_bench.traffic import permutation

PORT = 4791
MESSAGE = 64 << 10
DEPTH = 16


class Mrc:
    """Traffic of queue pairs, counted by what each receiver has placed in memory. Completions come in order, and would
    tell of a failure as a pause and a burst."""

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
        here = FabricHost(self._lab.description, host, trims=self._lab.record.acts)
        with self._lab.inside(Node(Tier.HOST, 0, host)):
            return Device(here.planes, routes=here.paths, **here.settings(port=PORT))

    def _connect(self, source: int, destination: int) -> None:
        ends, peers = {}, {}
        for host, other in ((source, destination), (destination, source)):
            device = self._devices[host]
            peers[host] = device.add_peer(self._devices[other].reached_at(0))
            ends[host] = device.create_qp(device.create_cq())
            ends[host].init(ev_profile=device.profile_for(peers[host]))
        for host, other in ((source, destination), (destination, source)):
            ends[host].rtr(peers[host], dest_qpn=ends[other].qpn, first_psn=ends[other].first_psn)
        for qp in ends.values():
            qp.rts()
        self._senders[source] = ends[source]
        self._receivers.append((destination, ends[destination]))
        target = self._devices[destination].register(bytearray(MESSAGE), remote_write=True)
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
        if not self._ending.is_set():
            return self._errors + self._failed()
        return self._errors

    def _failed(self) -> int:
        return sum(qp.state == QpState.ERROR for qp in self._senders.values())

    def assumed_bad(self) -> int:
        """EVs withdrawn so far, over all senders."""
        return sum(int(qp.stats()["evs_demoted"]) for qp in self._senders.values())

    def stop(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(timeout=2)
        self._errors += self._failed()  # a closed device has no queue pairs left to ask
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
    """All hosts send to the last one: EVs withdrawn, packets that switches trimmed, and queue pair errors."""
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
