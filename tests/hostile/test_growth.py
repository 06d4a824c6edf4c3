"""Coming and going leaves nothing behind: descriptors, threads, memory regions, queues, peers, bytes.

Connections, groups and the NCCL plugin; connections that are made, and handshakes that fail. Two hundred of each, and
10,000 in the nightly tests.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from bootstraps import Plugin
from liar import (
    LIMIT_S,
    REFUSAL,
    Liar,
    answer_to,
    changed_plane,
    eventually,
    frame,
    heard,
    hello,
    honest,
    visit,
)

from asking import Client
from sanitizers import NOT_UNDER_SANITIZERS
from softmrc import _core
from softmrc.collectives import CollectiveError, Group, store_rendezvous
from softmrc.collectives.store_rendezvous import StoreRendezvous
from softmrc.connection import Listener, connect, listen
from softmrc.device import Device, shutdown
from softmrc.errors import HandshakeError, RemoteError

pytestmark = [
    NOT_UNDER_SANITIZERS,
    pytest.mark.parametrize("cycles", [100, pytest.param(10_000, marks=pytest.mark.nightly)]),
]
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
        regions=len(device._regions) + device._native.region_count,
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


def first(cycles: int) -> int:
    """So many until all is there that is kept: peers for a while, an allocator's arenas for good."""
    return max(100, cycles // 5)


def check_memory(grown: int, cycles: int) -> None:
    print(f"{cycles:,} cycles: {grown / 1024:,.0f} KiB more")
    assert grown < SLACK_BYTES + cycles * BYTES_A_CYCLE, f"{grown:,} bytes more after {cycles} cycles"


def repeat(device: Device, cycle: Callable[[], None], cycles: int) -> None:
    """The cycle many times; after the first ones, which fill what is kept on purpose, nothing grows."""
    for _ in range(first(cycles)):
        cycle()
    before, bytes_before = settled(device), resident_bytes()
    for _ in range(cycles):
        cycle()
    assert eventually(lambda: settled(device) == before), (settled(device), before)
    print(f"{before}")
    check_memory(resident_bytes() - bytes_before, cycles)


def come_and_go(listener: Listener, device: Device) -> None:
    with (
        connect("127.0.0.1", listener.port, device=device, memory=bytearray(64), secret=SECRET) as peer,
        listener.accept(LIMIT_S) as other,
    ):
        peer.write(peer.remote[0], 0, b"hello", imm=1)
        other.write(other.remote[0], 0, b"hello", imm=2)
        assert other.recv(LIMIT_S).imm == 1 and peer.recv(LIMIT_S).imm == 2


def test_the_same_device_that_comes_and_goes(cycles: int) -> None:
    with (
        Device(["127.0.0.1"]) as near,
        Device(["127.0.0.1"]) as far,
        listen(device=far, memory=bytearray(64), secret=SECRET) as listener,
    ):
        repeat(near, lambda: come_and_go(listener, near), cycles)
        assert holdings(near).queues == 0


def test_another_device_each_time(cycles: int) -> None:
    """Each with other ports: another peer, as the listener sees it."""
    with Device(["127.0.0.1"]) as far, listen(device=far, memory=bytearray(64), secret=SECRET) as listener:

        def cycle() -> None:
            with Device(["127.0.0.1"], sockets_per_plane=1) as near:
                come_and_go(listener, near)
            near._native.cut_short()  # one at a time: goodbyes side by side are memory that comes and goes
            near._native.wait_until_over(shutdown.LONGEST_S)

        repeat(far, cycle, cycles)


def test_connects_that_fail_at_every_step(cycles: int) -> None:
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

        repeat(near, cycle, cycles)
        assert holdings(near).queues == 0 and not near._regions
        silent.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT_S)


def test_visitors_that_fail_at_every_step(cycles: int) -> None:
    """One that hangs up, one that talks nonsense, one that lies, and one that leaves when it has our offer."""
    with Device(["127.0.0.1"]) as far, listen(device=far, memory=bytearray(64)) as listener:

        def cycle() -> None:
            with visit(listener):
                pass
            with visit(listener) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert isinstance(answer_to(listener, changed_plane(address="224.0.0.1")), str)
            assert answer_to(listener, honest(), is_ready=False) == "hung up"

        repeat(far, cycle, cycles)
        assert eventually(lambda: listener.refused.count == 4 * (cycles + first(cycles)))
        assert len(listener.refused.reasons) == 16


@pytest.mark.skipif(SECRET is None, reason="built without libcrypto")
def test_clients_that_do_not_know_the_secret(cycles: int) -> None:
    """One says nothing, one proves nothing, one stops before it has proved that it is no replay."""
    with Device(["127.0.0.1"]) as far, listen(device=far, memory=bytearray(64), secret=SECRET) as listener:
        recorded = Liar(socket.socket(), SECRET).handshake.take_outgoing()

        def cycle() -> None:
            for words in (b"", hello(1, bytes(range(48))), recorded):
                with visit(listener) as sock:
                    sock.sendall(words)

        repeat(far, cycle, cycles)
        assert eventually(lambda: listener.refused.count == 3 * (cycles + first(cycles)))


def test_listeners_that_come_and_go(cycles: int) -> None:
    with Device(["127.0.0.1"]) as device:

        def cycle() -> None:
            with listen(device=device, memory=bytearray(64)):
                pass

        repeat(device, cycle, cycles)


# Groups.


class MemoryStore:
    """Of the ranks of one process; one that is false has a record of rank 1 as soon as there is a nonce."""

    def __init__(self, false: str | None = None) -> None:
        self._values: dict[str, bytes] = {}
        self._false, self._changed = false, threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            if self._false is not None and key.endswith("/nonce"):
                nonce = value.decode().split()[-1]
                self._values[f"softmrc/group/record/{nonce}/1"] = self._record(f"softmrc/group/record/{nonce}/1")
            self._changed.notify_all()

    def _record(self, key: str) -> bytes:
        """Of a peer that does not know the secret, or of a rank whose text makes no sense."""
        text = f"{StoreRendezvous.VERSION} 0123456789abcdef +{self._false}"
        secret = b"another" if self._false == "another secret" else str(SECRET).encode()
        writer = StoreRendezvous(None, "group", 1, 2, LIMIT_S, secret)
        return f"proof:{writer._mac(secret, key, text)} {text}".encode()

    def get(self, key: str) -> bytes:
        with self._changed:
            return self._values[key]

    def check(self, keys: list[str]) -> bool:
        with self._changed:
            return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.check(keys), timeout.total_seconds()):
                raise TimeoutError("not set in time")


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Device]]:
    """Of two ranks; a record that does not count is refused at once."""
    for name in ("UNPROVED_S", "OLDER_UNPROVED_S", "LINGER_S"):
        monkeypatch.setattr(store_rendezvous, name, 0.0)
    if SECRET is not None:
        monkeypatch.setenv("SOFTMRC_SECRET", SECRET)
    with Device(["127.0.0.1"]) as one, Device(["127.0.0.1"]) as two:
        yield [one, two]


def test_groups_that_come_and_go(cycles: int, devices: list[Device]) -> None:
    def live(store: MemoryStore, rank: int) -> None:
        with Group.join(store, rank, 2, device=devices[rank], timeout_s=LIMIT_S) as group:
            group.barrier().wait(LIMIT_S)

    with ThreadPoolExecutor(2) as ranks:

        def cycle() -> None:
            store = MemoryStore()
            for one in [ranks.submit(live, store, rank) for rank in range(2)]:
                one.result(LIMIT_S)

        repeat(devices[0], cycle, cycles)
    assert eventually(lambda: holdings(devices[1]).queues == holdings(devices[1]).peers == 0)


@pytest.mark.skipif(SECRET is None, reason="built without libcrypto")
def test_groups_that_do_not_form(cycles: int, devices: list[Device]) -> None:
    """Rank 1 does not come; it has another secret; it has the right one, and says nothing that makes sense."""

    def cycle() -> None:
        for false, why in (
            (None, "did not join"),
            ("another secret", "is refused"),
            ("nonsense", "nonsense|no record"),
        ):
            with pytest.raises(CollectiveError, match=f"rank 1.*({why})"):
                Group.join(MemoryStore(false), 0, 2, device=devices[0], timeout_s=LIMIT_S if false else 0.001)

    repeat(devices[0], cycle, cycles)


# The NCCL plugin.


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Plugin]:
    with ExitStack() as stack:
        yield Plugin(stack, tmp_path, XDG_RUNTIME_DIR=str(tmp_path))


def repeat_in(plugin: Plugin, folder: Path, cycle: Callable[[int], None], cycles: int) -> None:
    """As `repeat`, in the plugin's process, which has a device for what it sends itself, too."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(path)) for path in sorted((folder / "softmrc").glob("*.sock"))]
        assert clients

        def queues_and_peers() -> list[tuple[int, int]]:
            found = [client.ask("stats") for client in clients]
            return [(one["queue_pairs"], one["peers"]) for one in found]

        def settled() -> tuple[int, int]:
            assert eventually(lambda: all(peers == 0 for _, peers in queues_and_peers())), queues_and_peers()
            return plugin.held()[:2]

        cycle(first(cycles))
        before, queues, kib = settled(), queues_and_peers(), plugin.held()[2]
        cycle(cycles)
        assert eventually(lambda: settled() == before and queues_and_peers() == queues), (settled(), before)
        print(f"{before} descriptors and threads, {queues} queue pairs and peers")
        check_memory((plugin.held()[2] - kib) << 10, cycles)


@pytest.mark.skipif(SECRET is None, reason="built without libcrypto")
def test_connections_of_nccl_that_come_and_go(cycles: int, plugin: Plugin, tmp_path: Path) -> None:
    def cycle(count: int) -> None:
        assert plugin.serves(times=count)

    repeat_in(plugin, tmp_path, cycle, cycles)


@pytest.mark.skipif(SECRET is None, reason="built without libcrypto")
def test_handshakes_with_nccl_that_fail(cycles: int, plugin: Plugin, tmp_path: Path) -> None:
    """With another secret; half-way; with a false offer; and of its own connector, at a listener that refuses it."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def refuse() -> None:
            with suppress(OSError):
                while True:
                    with other.accept()[0] as sock:
                        sock.sendall(frame(REFUSAL, b"\0no"))
                        heard(sock)

        def cycle(count: int) -> None:
            for _ in range(count):
                for words in (b"", hello(1, bytes(range(48)))):
                    with socket.create_connection(("127.0.0.1", plugin.port), LIMIT_S) as sock:
                        sock.sendall(words)
                with socket.create_connection(("127.0.0.1", plugin.port), LIMIT_S) as sock:
                    liar = Liar(sock, plugin.credentials())
                    liar.greet()
                    with pytest.raises(HandshakeError, match="makes no sense"):
                        liar.offer(plugin.offer({"qpn": 0}))
                assert "refused: no" in plugin.call(other.getsockname()[1])

        thread = threading.Thread(target=refuse)
        thread.start()
        repeat_in(plugin, tmp_path, cycle, cycles)
        other.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT_S)
