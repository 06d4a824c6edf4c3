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

from collectives.ranks import PLANES, TIMEOUT_S
from softmrc import _core
from softmrc.collectives import DirectoryStore, Group, rendezvous
from softmrc.verbs import Device

EAGER, GRANT, INQUIRY, OFFER, ACCEPT, CREDIT, ERROR, BYE = range(8)
UINT8 = 8
HEADER = struct.Struct("=BBHIBBBBiQQQIIQII")
HONEST = {"has_payload": 0, "payload": 0, "number": 1, "kind": 0, "dtype": UINT8, "op": 0, "algorithm": 0, "root": -1}
HONEST |= {"count": 0, "shape": 0, "bytes": 0, "rkey": 0, "tag": 0, "consumed": 0, "taken": 0, "step": 0}
RING_BYTES = 256 * 1024


class Impostor:
    """Takes the native group's place at the meeting."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._at = 0
        self._kept: list[Any] = []
        self._ring = bytearray(RING_BYTES)
        self._ring_rkey = self._register(self._ring)

    def let_write(self, size: int) -> int:
        """The key to some memory of its own."""
        return self._register(bytearray(size))

    def _register(self, memory: bytearray) -> int:
        buffer, rkey = _core.Buffer(memory, True), secrets.randbits(31) | 1
        self._kept.append(buffer)
        self._device.add_region(rkey, 0, buffer, 0)
        return rkey

    def heard(self) -> list[int]:
        """The types of what it was told so far; no more than a ring holds is asked for in a test."""
        types, at = [], 0
        while (header := HEADER.unpack_from(self._ring, at)) and any(header):
            types.append(header[0])
            at += (HEADER.size + header[2] + 63) // 64 * 64
        return types

    # What a meeting asks of a group.
    def ring_rkey(self, strand: int, peer: int) -> int:
        return self._ring_rkey

    def domain(self, peer: int) -> int:
        return 0

    def keep(self, strands: int) -> None:
        pass

    def connect(self, strand: int, peer: int, message_qpn: int, bulk_qpn: int, remote_rkey: int) -> None:
        self._qpn, self._remote_rkey = message_qpn, remote_rkey
        for qpn in (message_qpn, bulk_qpn):
            self._device.post_receive(qpn, 0, 128)

    def start(self, unit: int) -> None:
        pass

    def say(self, message_type: int, payload: bytes = b"", **fields: int) -> None:
        """A message, honest but for the fields that are given."""
        assert fields.keys() <= HONEST.keys()
        data = HEADER.pack(message_type, *(HONEST | {"payload": len(payload)} | fields).values()) + payload
        source = _core.Buffer(data, False)
        self._kept.append(source)
        assert self._at + len(data) <= RING_BYTES, "too much for one ring"
        self._device.post_write(self._qpn, 0, source, 0, len(data), self._at, self._remote_rkey, 0, False)
        self._at += (len(data) + 63) // 64 * 64


@contextmanager
def group_with_impostor(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Group, Impostor]]:
    """Rank 0, which believes in its peer; and rank 1."""

    def make(device: Any, lanes: list[int], rank: int, *others: Any) -> Any:
        return Impostor(device) if rank == 1 else _core.CollectiveGroup(device, lanes, rank, *others)

    monkeypatch.setattr(rendezvous, "_core", SimpleNamespace(CollectiveGroup=make))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool, Device(PLANES) as device:
        store = DirectoryStore(folder)
        meeting = rendezvous.Meeting(store, 1, 2, device, "group", TIMEOUT_S, 1, True)
        impostor = pool.submit(meeting.meet, None)
        group = Group.join(store, 0, 2, planes=PLANES, timeout_s=TIMEOUT_S)
        try:
            yield group, impostor.result(TIMEOUT_S)
        finally:
            group.close(0)
