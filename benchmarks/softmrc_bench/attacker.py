"""An attacker on the path sees every packet between two devices, and may inject, change, cut, replay and delay them.

Two devices of this process that take the attacker for their peer: what either sends comes here first. What it does is
drawn from a seed; when, threads decide. Writes and what is done to them go on at the same time; then the writes rest
and the attacker does not, so that whatever it places stays to be seen.
"""

from __future__ import annotations

import ipaddress
import json
import random
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from softmrc import _core
from softmrc._core import Cipher, SealKeys
from softmrc.device import Device, PeerPlane, QueuePair
from softmrc.errors import UsageError

HOST = "127.0.0.1"
REGION = 1 << 18
TRIMMED_TOS = 12 << 2
REMEMBERED = 4096  # packets that it can replay
BYTE = 256
LIMIT_S = 30.0


@dataclass
class AttackResult:
    """What an attack came to."""

    mutated: int = 0  # packets that the attacker sent which no device had, or had sent then
    forwarded: int = 0
    rounds: int = 0
    placed_bytes: int = 0  # that differ from what was written
    wrong_completions: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    is_alive: bool = True  # both ends still work


class Wire:
    """What lies between the devices. Each direction has a socket that the sender takes for its peer."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._ends: dict[socket.socket, tuple[socket.socket, Any]] = {}  # by where it came in: where it leaves, to whom
        self._ears: list[socket.socket] = []
        for _ in range(2):
            ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            ear.bind((HOST, 0))
            ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            ear.setblocking(False)
            self._ears.append(ear)
        self.is_hostile = False
        self._seen: deque[tuple[socket.socket, bytes]] = deque(maxlen=REMEMBERED)
        self._held: list[tuple[socket.socket, bytes]] = []
        self.found = AttackResult()
        self.copies = 2  # changed ones of each packet that passes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attacker", daemon=True)

    def place(self, end: int) -> list[PeerPlane]:
        """The addresses that device `end` (0 or 1) has of the other one."""
        port = self._ears[end].getsockname()[1]
        return [PeerPlane(ipaddress.ip_address(HOST), port, (port,))]

    def start(self, ports: tuple[int, int]) -> None:
        """Between devices that receive at these ports."""
        first, second = self._ears
        self._ends = {first: (second, (HOST, ports[1])), second: (first, (HOST, ports[0]))}
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for ear in self._ears:
            ear.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for ear in select.select(self._ears, [], [], 0.01)[0]:
                for _ in range(64):
                    try:
                        packet = ear.recv(65536)
                    except BlockingIOError:
                        break
                    self._pass_on(ear, packet)
            while self._held:
                self._send(*self._held.pop())

    def _pass_on(self, ear: socket.socket, packet: bytes) -> None:
        self._seen.append((ear, packet))
        for _ in range(self.copies):
            self.mutate()
        if self._random.random() < 0.02 and len(self._held) < 16:
            self._held.append((ear, packet))  # later, and behind others
            return
        self._send(ear, packet)
        self.found.forwarded += 1

    def _send(self, ear: socket.socket, packet: bytes, tos: int = 0) -> None:
        way, to = self._ends[ear]
        try:
            if tos:
                way.sendmsg([packet], [(socket.IPPROTO_IP, socket.IP_TOS, tos.to_bytes(4, "little"))], 0, to)
            else:
                way.sendto(packet, to)
        except OSError:
            pass  # the buffer is full, and drops it as a network would

    def mutate(self) -> None:
        """Send something that is not what a device sent just now, made of what has passed."""
        if not self._seen or not self.is_hostile:
            return
        ear, packet = self._random.choice(self._seen)
        name = self._random.choice(list(KINDS))
        changed = KINDS[name](self._random, packet, self._random.choice(self._seen)[1])
        tos = TRIMMED_TOS if name == "trimmed" or self._random.random() < 0.1 else 0
        if name == "reflected":
            ear = self._ends[ear][0]
        self._send(ear, changed, tos)
        self.found.mutated += 1
        self.found.kinds[name] = self.found.kinds.get(name, 0) + 1

    def rest_and_attack(self, packets: int) -> None:
        """So many more, from this thread, while the devices have nothing to say."""
        for number in range(packets):
            self.mutate()
            if number % 32 == 31:
                time.sleep(0.0002)  # sockets have small buffers, and what they drop is no attack


Mutation = Callable[[random.Random, bytes, bytes], bytes]


def _flipped(draw: random.Random, packet: bytes, _: bytes) -> bytes:
    """One to four bits, mostly of headers."""
    changed = bytearray(packet)
    most = len(packet) if draw.random() < 0.3 else min(72, len(packet))
    for _bit in range(draw.randint(1, 4)):
        changed[draw.randrange(most)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _rewritten(draw: random.Random, packet: bytes, _: bytes) -> bytes:
    changed = bytearray(packet)
    at = draw.randrange(min(72, len(packet)))
    size = draw.randint(1, 8)
    changed[at : at + size] = draw.randbytes(len(changed[at : at + size]))
    return bytes(changed)


def _renumbered(draw: random.Random, packet: bytes, _: bytes) -> bytes:
    """As if it were another packet: the number under which it was encrypted, or its PSN."""
    changed = bytearray(packet)
    at = draw.choice((9, 10, 11, *range(32, 52)))
    if at < len(changed):
        changed[at] = (changed[at] + draw.randint(1, 255)) % BYTE
    return bytes(changed)


def _plain(draw: random.Random, packet: bytes, _: bytes) -> bytes:
    """As if packets were not encrypted here."""
    return packet[:1] + bytes([packet[1] & 0xF0]) + packet[2:]


def _cut(draw: random.Random, packet: bytes, _: bytes) -> bytes:
    return packet[: draw.randrange(len(packet))]


def _trimmed(draw: random.Random, packet: bytes, _: bytes) -> bytes:
    """As a switch would, but of what has arrived already, or a little changed."""
    left = bytearray(packet[: draw.choice((52, 56, 60))])
    if draw.random() < 0.7:
        left[draw.randrange(len(left))] ^= 1 << draw.randrange(8)
    return bytes(left)


def _extended(draw: random.Random, packet: bytes, _: bytes) -> bytes:
    return packet + draw.randbytes(draw.choice((1, 4, 16, 64)))


def _spliced(draw: random.Random, packet: bytes, other: bytes) -> bytes:
    """The headers of one, and the rest of another."""
    at = draw.choice((12, 32, 36, 48, 52, 56))
    return packet[:at] + other[at:]


def _as_it_was(_: random.Random, packet: bytes, __: bytes) -> bytes:
    return packet


def _random_bytes(draw: random.Random, _: bytes, __: bytes) -> bytes:
    return draw.randbytes(draw.randint(1, 200))


KINDS: dict[str, Mutation] = {
    "flipped": _flipped,
    "rewritten": _rewritten,
    "renumbered": _renumbered,
    "plain": _plain,
    "cut": _cut,
    "trimmed": _trimmed,
    "extended": _extended,
    "spliced": _spliced,
    "replayed": _as_it_was,
    "reflected": _as_it_was,
    "random": _random_bytes,
}


class Target:
    """Two devices with the wire between them; one writes to the other."""

    def __init__(self, seed: int, cipher: Cipher | None = None, is_sealed: bool = True, **settings: Any) -> None:
        self._random = random.Random(seed)
        self.wire = Wire(seed + 1)
        given = {"trimming": True, "sockets_per_plane": 1, "lanes": 1, "mtu": 1024, **settings}
        self.devices = Device([HOST], **given), Device([HOST], **given)
        secrets_ = self._random.randbytes(32), self._random.randbytes(32)
        kind = _core.faster_cipher() if cipher is None else cipher
        keys = SealKeys(kind, *secrets_), SealKeys(kind, *reversed(secrets_))
        self.qps = tuple(device.create_qp(device.create_cq(), device.create_cq()) for device in self.devices)
        self.memory = bytearray(REGION)
        self.expected = bytearray(REGION)
        self.region = self.devices[1].register(self.memory, remote_write=True)
        ports = tuple(device.ports_of(0)[0][0] for device in self.devices)
        self.wire.start((ports[0], ports[1]))
        for end, (device, qp) in enumerate(zip(self.devices, self.qps, strict=True)):
            seal = keys[end] if is_sealed else None
            self._connect(device, qp, self.qps[1 - end], self.wire.place(end), seal)
        self.wire.is_hostile = True  # before that an end without keys takes packets for plain ones, and counts them so
        self.source = bytearray(REGION)
        self.registered = self.devices[0].register(self.source)
        self._imms = 0

    def _connect(
        self, device: Device, qp: QueuePair, other: QueuePair, place: list[PeerPlane], keys: SealKeys | None
    ) -> None:
        peer = device.add_peer(place)
        qp.init()
        qp.rtr(peer, dest_qpn=other.qpn, first_psn=other.first_psn, seal=keys)
        qp.rts()
        qp.post_recv(count=1024)

    def round(self, writes: int) -> None:
        """Writes of fresh bytes, some with an immediate; each completion is compared with its request."""
        found, draw = self.wire.found, self._random
        self.source[:] = draw.randbytes(REGION)
        imms = []
        for number in range(writes):
            size = draw.choice((1, 3, 64, 1000, 5000, 16_000))
            size_each = REGION // writes  # a separate part each: those under way have no order
            at = number * size_each + draw.randrange(size_each - size)
            self.expected[at : at + size] = self.source[at : at + size]
            imm = None
            if draw.random() < 0.5:
                self._imms += 1
                imm = self._imms
                imms.append(imm)
            self.qps[0].post_write(
                self.registered, at, size, remote_va=self.region.va + at, rkey=self.region.rkey, wr_id=number, imm=imm
            )
        sent = self._drain(self.qps[0].send_cq, writes)
        found.wrong_completions += abs(writes - len(sent)) + sum(not one.ok for one in sent)
        found.wrong_completions += [one.wr_id for one in sent if one.ok] != list(range(writes))
        heard = self._drain(self.qps[1].recv_cq, len(imms))
        found.wrong_completions += [one.imm for one in heard if one.ok] != imms
        self.qps[1].post_recv(count=len(heard))
        found.rounds += 1

    def compare(self) -> None:
        found = self.wire.found
        if self.memory != self.expected:
            found.placed_bytes += sum(a != b for a, b in zip(self.memory, self.expected, strict=True))
        extra = [len(queue.poll()) for qp in self.qps for queue in (qp.send_cq, qp.recv_cq)]
        found.wrong_completions += sum(extra)

    def _drain(self, queue: Any, count: int) -> list[Any]:
        taken: list[Any] = []
        until = time.monotonic() + LIMIT_S
        while len(taken) < count and (left := until - time.monotonic()) > 0:
            taken += queue.wait(left)
        return taken

    def close(self) -> AttackResult:
        found = self.wire.found
        found.is_alive = all(qp.state.name == "RTS" for qp in self.qps)
        for device in self.devices:
            for name, count in device.stats().items():
                if name.startswith("refused_"):
                    found.refused[name] = found.refused.get(name, 0) + count
        self.wire.close()
        for device in self.devices:
            device.close()
        return found


def attack(
    packets: int, seed: int = 1, cipher: Cipher | None = None, is_sealed: bool = True, **settings: Any
) -> AttackResult:
    """At least so many packets of the attacker's."""
    target = Target(seed, cipher, is_sealed, **settings)
    try:
        while target.wire.found.mutated < packets:
            target.round(writes=16)
            target.wire.rest_and_attack(min(2000, packets // 4 + 1))
            target.compare()
            if target.wire.found.wrong_completions:
                break
        target.round(writes=4)
        time.sleep(0.05)
        target.compare()
    except UsageError:
        pass  # a queue pair has ended, which the last look tells
    finally:
        found = target.close()
    return found


def main(packets: int, seed: int) -> None:
    found = attack(packets, seed)
    print(json.dumps(asdict(found)))
    if found.placed_bytes or found.wrong_completions or not found.is_alive:
        sys.exit(1)


if __name__ == "__main__":
    main(*(int(word) for word in (*sys.argv[1:], "10000", "1")[:2]))
