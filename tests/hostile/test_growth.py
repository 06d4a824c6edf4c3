"""Coming and going leaves nothing behind: descriptors, threads, memory regions, queues, peers, bytes.

A few hundred times here; SOFTMRC_CYCLES says how often otherwise.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from liar import LIMIT_S, Liar, answer_to, changed_plane, eventually, hello, honest, visit

from sanitizers import NOT_UNDER_SANITIZERS
from softmrc import _core
from softmrc.connection import Listener, connect, listen
from softmrc.device import Device, shutdown
from softmrc.errors import RemoteError

pytestmark = [pytest.mark.slow, NOT_UNDER_SANITIZERS]

CYCLES = int(os.environ.get("SOFTMRC_CYCLES", "300"))
FIRST_CYCLES = max(
    300, CYCLES // 5
)  # until all is there that is kept: peers for a while, an allocator's arenas for good
SECRET = "the right one" if _core.can_seal() else None
PAGE = resource.getpagesize()
SLACK_BYTES = 2 << 20  # what allocators keep, whatever the number of cycles
BYTES_A_CYCLE = 200


@dataclass(frozen=True)
class Holdings:
    """What a process and a device hold."""

    descriptors: int
    threads: int
    regions: int
    queues: int
    peers: int
    handshakes: tuple[int, int, int]


def holdings(device: Device) -> Holdings:
    return Holdings(
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=threading.active_count(),
        regions=len(device._regions),
        queues=device._native.cq_count,
        peers=device._native.peer_count,
        handshakes=_core.handshake_counts(),
    )


def settled(device: Device) -> Holdings:
    """After goodbyes: peers are answered for a few seconds after their last connection has gone; and a client that is
    refused has a second to hear why."""
    shutdown.wait()
    gc.collect()
    assert eventually(lambda: holdings(device).peers == 0 and holdings(device).handshakes == (0, 0, 0))
    return holdings(device)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def repeat(device: Device, cycle: Callable[[], None]) -> None:
    """The cycle many times; after the first ones, which fill what is kept on purpose, nothing grows."""
    for _ in range(FIRST_CYCLES):
        cycle()
    before, bytes_before = settled(device), resident_bytes()
    for _ in range(CYCLES):
        cycle()
    assert eventually(lambda: settled(device) == before), (settled(device), before)
    grown = resident_bytes() - bytes_before
    assert grown < SLACK_BYTES + CYCLES * BYTES_A_CYCLE, f"{grown:,} bytes more after {CYCLES} cycles"


def come_and_go(listener: Listener, device: Device) -> None:
    with (
        connect("127.0.0.1", listener.port, device=device, memory=bytearray(64), secret=SECRET) as peer,
        listener.accept(LIMIT_S) as other,
    ):
        peer.write(peer.remote[0], 0, b"hello", imm=1)
        other.write(other.remote[0], 0, b"hello", imm=2)
        assert other.recv(LIMIT_S).imm == 1 and peer.recv(LIMIT_S).imm == 2


def test_the_same_device_that_comes_and_goes() -> None:
    with (
        Device(["127.0.0.1"]) as near,
        Device(["127.0.0.1"]) as far,
        listen(device=far, memory=bytearray(64), secret=SECRET) as listener,
    ):
        repeat(near, lambda: come_and_go(listener, near))
        assert holdings(near).queues == 0


def test_another_device_each_time() -> None:
    """Each with other ports: another peer, as the listener sees it."""
    with Device(["127.0.0.1"]) as far, listen(device=far, memory=bytearray(64), secret=SECRET) as listener:

        def cycle() -> None:
            with Device(["127.0.0.1"], sockets_per_plane=1) as near:
                come_and_go(listener, near)
            near._native.cut_short()  # one at a time: goodbyes side by side are memory that comes and goes
            near._native.wait_until_over(shutdown.LONGEST_S)

        repeat(far, cycle)


def test_connects_that_fail_at_every_step() -> None:
    """With the wrong secret; with settings that do not match; at a listener that hangs up, or lies."""
    with (
        Device(["127.0.0.1"]) as near,
        Device(["127.0.0.1"]) as far,
        listen(device=far, memory=bytearray(64), secret=SECRET) as listener,
        listen(memory=bytearray(64), icrc=False) as other_kind,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):

        def hang_up() -> None:
            while True:
                try:
                    silent.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()

        def cycle() -> None:
            for port, secret in ((listener.port, "wrong"), (other_kind.port, None), (silent.getsockname()[1], None)):
                with pytest.raises(RemoteError):
                    connect("127.0.0.1", port, device=near, memory=bytearray(64), secret=secret)

        repeat(near, cycle)
        assert holdings(near).queues == 0 and not near._regions
        silent.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT_S)


def test_visitors_that_fail_at_every_step() -> None:
    """One that hangs up, one that talks nonsense, one that lies, and one that leaves when it has our offer."""
    with Device(["127.0.0.1"]) as far, listen(device=far, memory=bytearray(64)) as listener:

        def cycle() -> None:
            with visit(listener):
                pass
            with visit(listener) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert isinstance(answer_to(listener, changed_plane(address="224.0.0.1")), str)
            assert answer_to(listener, honest(), is_ready=False) == "hung up"

        repeat(far, cycle)
        assert eventually(lambda: listener.refused.count == 4 * (CYCLES + FIRST_CYCLES))
        assert len(listener.refused.reasons) == 16


@pytest.mark.skipif(SECRET is None, reason="built without libcrypto")
def test_clients_that_do_not_know_the_secret() -> None:
    """One says nothing, one proves nothing, one stops before it has proved that it is no replay."""
    with Device(["127.0.0.1"]) as far, listen(device=far, memory=bytearray(64), secret=SECRET) as listener:
        recorded = Liar(socket.socket(), SECRET).handshake.take_outgoing()

        def cycle() -> None:
            for words in (b"", hello(1, bytes(range(48))), recorded):
                with visit(listener) as sock:
                    sock.sendall(words)

        repeat(far, cycle)
        assert eventually(lambda: listener.refused.count == 3 * (CYCLES + FIRST_CYCLES))


def test_listeners_that_come_and_go() -> None:
    with Device(["127.0.0.1"]) as device:

        def cycle() -> None:
            with listen(device=device, memory=bytearray(64)):
                pass

        repeat(device, cycle)
