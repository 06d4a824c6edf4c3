"""A rank whose device is honest and whose words are not: it joins like any other, then says what a test tells it to."""

from __future__ import annotations

import secrets
import struct
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import parts
from collectives.ranks import PLANES, TIMEOUT_S
from softmrc import _core
from softmrc.collectives import DirectoryStore, Group, rendezvous
from softmrc.collectives.store_rendezvous import StoreRendezvous
from softmrc.device import Device, QueuePair, port_keys

EAGER, _, _, OFFER, ACCEPT, CREDIT, ERROR, BYE = range(8)
UINT8 = 8
HEADER = struct.Struct("=BBHIBBBBiQQQIIQII")
HONEST = {"has_payload": 0, "payload": 0, "number": 1, "kind": 0, "dtype": UINT8, "op": 0, "algorithm": 0, "root": -1}
HONEST |= {"count": 0, "shape": 0, "bytes": 0, "rkey": 0, "tag": 0, "consumed": 0, "taken": 0, "step": 0}
RING_BYTES = 256 * 1024


class Impostor:
    """Takes the native group's place at the meeting, of two, as rank 1."""

    channels = 1

    def __init__(self, device: Device) -> None:
        self._python, self._device = device, device._native
        self._at = 0
        self._kept: list[Any] = []
        self._ring = bytearray(RING_BYTES)
        self._ring_rkey = self._register(self._ring)
        self._first_qpn = secrets.randbelow(1 << 23) + 16

    def let_write(self, size: int) -> int:
        """The key to some of its memory."""
        return self._register(bytearray(size))

    def _register(self, memory: bytearray) -> int:
        buffer, rkey = _core.Buffer(memory, True), secrets.randbits(31) | 1
        self._kept.append(buffer)
        self._device.add_region(rkey, 0, buffer, 0)
        return rkey

    def heard(self) -> list[int]:
        """The types of the messages so far; a test needs no more than a ring holds."""
        types, at = [], 0
        while (header := HEADER.unpack_from(self._ring, at)) and any(header):
            types.append(header[0])
            at += (HEADER.size + header[2] + 63) // 64 * 64
        return types

    # What a meeting asks of a group.
    def reserve(self) -> list[tuple[int, int, int]]:
        return [(self._first_qpn, 1, self._ring_rkey)]

    def set_params(self, key: tuple[int, int], receiving: Any, sending: Any) -> None:
        self._key = key

    def set_peer(self, peer: int, at: list[int], kept: list[tuple[int, int, int]], *others: Any) -> None:
        """Both queue pairs are made at once, by numbers that the other end works out for itself."""
        (self._planes,) = self._python.expected
        node, (first_qpn, stride, first_rkey) = self._python.add_peer(self._planes), kept[0]
        self._qpn, self._remote_rkey = self._first_qpn, first_rkey + 1
        cq = self._python.create_cq()
        for use in range(2):
            qpn = self._first_qpn + use
            self._device.create_qp(qpn)
            pair = QueuePair(self._python, qpn, cq, cq, self._python.domain)
            pair.init()
            keys = port_keys(self._number(2, 1, 0), self._number(2, 0, 1))
            psn = self._number(use, 0, 1) & 0xFFFFFF
            pair.rtr(node, dest_qpn=first_qpn + stride * (2 + use), first_psn=psn, **keys)
            pair.rts(first_psn=self._number(use, 1, 0) & 0xFFFFFF)
            pair.post_recv(count=128)

    def _number(self, use: int, sender: int, receiver: int) -> int:
        return parts.sip_hash(*self._key, (use << 56 | sender << 24 | receiver).to_bytes(8, "little"))

    def start(self, unit: int, side_by_side: int) -> None:
        pass

    def connect_now(self, channel: int, peer: int, patience_s: float) -> bool:
        return False

    def domain(self, peer: int) -> int:
        return 0

    def pairs(self, peer: int) -> list[tuple[int, int]]:
        return [(self._first_qpn, self._first_qpn + 1)]

    def say(self, message_type: int, payload: bytes = b"", **fields: int) -> None:
        """A message, honest but for the fields that are given."""
        assert fields.keys() <= HONEST.keys()
        data = HEADER.pack(message_type, *(HONEST | {"payload": len(payload)} | fields).values()) + payload
        source = _core.Buffer(data, False)
        self._kept.append(source)
        assert self._at + len(data) <= RING_BYTES, "too much for one ring"
        self._device.post_write(self._qpn, 0, source, 0, len(data), self._at, self._remote_rkey, 0, False)
        self._at += (len(data) + 63) // 64 * 64


class Watched(Device):
    """Shows the addresses that it has of a peer."""

    expected: tuple[Any, ...] = ()

    def expect_peer(self, lane: int, planes: Any) -> Any:
        self.expected = (*self.expected, planes)
        return super().expect_peer(lane, planes)


@contextmanager
def group_with_impostor(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Group, Impostor]]:
    """Rank 0, which believes in its peer; and rank 1."""

    def make(native: Any, homes: list[Any], rank: int, *others: Any) -> Any:
        return Impostor(device) if rank == 1 else _core.CollectiveGroup(native, homes, rank, *others)

    pretended = SimpleNamespace(CollectiveGroup=make, packets_a_train=_core.packets_a_train)
    monkeypatch.setattr(rendezvous, "_core", pretended)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool, Watched(PLANES, lanes=1) as device:
        store = DirectoryStore(folder)
        meets = StoreRendezvous(store, "group", 1, 2, TIMEOUT_S)
        meeting = rendezvous.GroupJoin(meets, 1, 2, device, TIMEOUT_S, 1, True)
        impostor = pool.submit(meeting.meet, None)
        group = Group.join(store, 0, 2, planes=PLANES, timeout_s=TIMEOUT_S)
        try:
            yield group, impostor.result(TIMEOUT_S)
        finally:
            group.close(0)
