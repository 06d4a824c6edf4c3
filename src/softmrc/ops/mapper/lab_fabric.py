"""A lab to map: real packets through the kernel's SRv6, sent and caught by one process that has a socket in every host.

A packet is plain UDP to the carrier of its route, without a UDP checksum: the address changes in flight, and a
corrupted packet must come back to differ from a lost one. It ends with its own checksum, computed as the ICRC. Round
trips are from the sender's clock to the kernel's stamp on arrival.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from softmrc.errors import ConfigError
from softmrc.fabric.address import DOWNLINK_USID, T0_USID
from softmrc.fabric.config.linux import burst_bytes
from softmrc.ops.mapper.mapper import MapperSettings
from softmrc.ops.mapper.matrix import Outcome
from softmrc.wire.srv6 import MAX_USIDS, carrier

if TYPE_CHECKING:
    from softmrc.lab import Lab
    from softmrc.ops.mapper.mapper import ProbeSchedule
    from softmrc.ops.mapper.probes import ProbeBatch

HEADERS_BYTES = 48  # IPv6 and UDP
_HEAD = struct.Struct("!4sIQ")  # magic, number, when it was sent
_MAGIC = b"SMAP"
_NO_CHECK6_TX, _NO_CHECK6_RX, _TIMESTAMPNS = 101, 102, 35
_CONTROL_CLASS = 46 << 2
_LAST_ANSWERS_S = 0.25


class LabFabric:
    """A lab's fabric. Close it, or use it as a context."""

    def __init__(self, lab: Lab, port: int = 47910) -> None:
        if lab.description.addressing.plane_in != "block":
            raise ConfigError(
                "addressing.plane_in", lab.description.addressing.plane_in, 'must be "block", to be mapped'
            )
        self.shape = lab.shape
        self.port = port
        self._plan = lab.plan
        self._sockets = [self._open(lab, host) for host in range(lab.shape.hosts)]
        self._poll = select.poll()
        self._by_fd = {}
        for one in self._sockets:
            self._poll.register(one, select.POLLIN)
            self._by_fd[one.fileno()] = one
        self._addresses: dict[bytes, str] = {}
        self._start = time.monotonic()

    def _open(self, lab: Lab, host: int) -> socket.socket:
        made = lab.socket(host)
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        made.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
        made.setsockopt(socket.IPPROTO_UDP, _NO_CHECK6_TX, 1)
        made.setsockopt(socket.IPPROTO_UDP, _NO_CHECK6_RX, 1)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, _CONTROL_CLASS)
        made.bind(("::", self.port))
        return made

    def close(self) -> None:
        for one in self._sockets:
            one.close()

    def __enter__(self) -> LabFabric:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._start

    def readable(self, timeout_s: float) -> list[socket.socket]:
        """Sockets with packets to read, after that time at most."""
        return [self._by_fd[fd] for fd, _ in self._poll.poll(timeout_s * 1000)]

    def _carriers(self, batch: ProbeBatch) -> list[str]:
        """Where each packet is sent. The first leaf has no choice, so a route that is too long leaves it out."""
        s = self.shape
        downlink = DOWNLINK_USID + batch.destination % s.hosts_per_leaf
        leaf = T0_USID + batch.destination // s.hosts_per_leaf
        keys = np.column_stack([batch.plane, batch.switches, downlink, leaf]).astype(np.int32)
        found = []
        for key in keys:
            raw = key.tobytes()
            address = self._addresses.get(raw)
            if address is None:
                plane, *usids = (int(one) for one in key if one >= 0)
                usids = usids[len(usids) - MAX_USIDS :] if len(usids) > MAX_USIDS else usids
                address = self._addresses[raw] = str(carrier(self._plan.block(plane), usids))
            found.append(address)
        return found

    def send(self, flights: Sequence[ProbeSchedule], slot_s: float) -> list[Outcome]:
        first = np.cumsum([0, *(len(flight.batch) for flight in flights)])
        took = np.full(int(first[-1]), -1, dtype=np.int64)
        is_corrupt = np.zeros(int(first[-1]), dtype=bool)
        with _caught(self, took, is_corrupt) as drain:
            start = time.monotonic()
            for i, flight in enumerate(flights):
                self._send_one(flight, int(first[i]), start + i * slot_s, slot_s, drain)
            end = time.monotonic() + _LAST_ANSWERS_S
            while time.monotonic() < end:
                drain(max(0.0, min(0.05, end - time.monotonic())))
                if (took >= 0).all():
                    break
        return [Outcome(took[a:b], is_corrupt[a:b]) for a, b in pairwise(first.tolist())]

    def _send_one(self, flight: ProbeSchedule, first: int, start: float, slot_s: float, drain: _Drain) -> None:
        carriers, sources = self._carriers(flight.batch), flight.batch.source.tolist()
        padding = bytes(max(flight.bytes - HEADERS_BYTES - _HEAD.size - 4, 0))
        for i, (address, source) in enumerate(zip(carriers, sources, strict=True)):
            due = start + i * slot_s / len(sources)
            while (early := due - time.monotonic()) > 0:
                drain(early)
            body = _HEAD.pack(_MAGIC, first + i, time.time_ns()) + padding
            # A port without carrier raises an error; a packet that cannot leave counts as lost.
            with contextlib.suppress(OSError):
                self._sockets[source].sendto(body + zlib.crc32(body).to_bytes(4, "big"), (address, self.port))
            if i % 16 == 15:
                drain(0)


class _Drain:
    """Reads whatever has arrived, for so many seconds at most."""

    def __init__(self, fabric: LabFabric, took: np.ndarray, is_corrupt: np.ndarray) -> None:
        self._fabric, self._took, self._is_corrupt = fabric, took, is_corrupt
        self._since_ns = time.time_ns()

    def __call__(self, seconds: float) -> None:
        for one in self._fabric.readable(seconds):
            for _ in range(256):
                try:
                    data, ancillary, _, _ = one.recvmsg(65536, 64)
                except BlockingIOError:
                    break
                except OSError:
                    continue  # an error that some earlier packet caused
                self._note(data, ancillary)

    def _note(self, data: bytes, ancillary: list[tuple[int, int, bytes]]) -> None:
        if len(data) < _HEAD.size + 4:
            return
        magic, number, sent_ns = _HEAD.unpack_from(data)
        whole = zlib.crc32(data[:-4]) == int.from_bytes(data[-4:], "big")
        # The head of a broken packet may lie about whose it is; the flips of a cable are rarely there.
        if magic != _MAGIC or number >= len(self._took) or self._took[number] >= 0:
            return
        arrived_ns = time.time_ns()
        for level, kind, stamp in ancillary:
            if level == socket.SOL_SOCKET and kind == _TIMESTAMPNS:
                seconds, nanoseconds = struct.unpack("=qq", stamp)
                arrived_ns = seconds * 1_000_000_000 + nanoseconds
        if whole and sent_ns < self._since_ns:
            return  # of an earlier step, too late
        self._took[number] = max(arrived_ns - sent_ns, 0) if whole else 0
        self._is_corrupt[number] = not whole


@contextmanager
def _caught(fabric: LabFabric, took: np.ndarray, is_corrupt: np.ndarray) -> Iterator[_Drain]:
    """Nothing that arrived before counts."""
    _Drain(fabric, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool))(0)
    yield _Drain(fabric, took, is_corrupt)


def lab_settings(lab: Lab, lanes: int = 1) -> MapperSettings:
    """A slot is as long as a few thousand packets a second allow; the large packets are the lab's largest."""
    shape = lab.shape
    packets = 2 * shape.planes * (shape.hosts + shape.leaves * shape.spines)
    slot_s = max(0.02, packets / 8000)
    window = max(20, round(4 / slot_s))
    mtu = lab.description.lab.mtu
    burst = burst_bytes(lab.description)
    return MapperSettings(
        slot_s=slot_s,
        step_slots=max(1, round(0.5 / slot_s)),
        window_slots=window,
        large_every=12,
        large_bytes=mtu,
        train=-(-burst // mtu) + 8,
        burst_bytes=burst,
        lanes=lanes,
        floor=1e-4,
        focus_crossings=400,
    )
