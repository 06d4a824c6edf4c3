"""What docs/security.md says that an attacker can do, and where there is one, the setting that prevents it. A test that
fails here may be good news, and a line of that page to change."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from liar import LIMIT_S, Recorder, eventually

import packer
from collectives.ranks import ranks, values_of
from rig import FILL, QPN, RKEY, Rig
from softmrc import _core
from softmrc.collectives import CollectiveError, DirectoryStore, Group, store_rendezvous
from softmrc.collectives.store_rendezvous import StoreRendezvous
from softmrc.connection import Connection, connect, listen
from softmrc.engine import QpState
from softmrc.errors import RemoteError
from softmrc.wire import Frame, Opcode, Packet, Refused, Route

SECRET = "what both ends know"
HOST = "127.0.0.1"
SEALS = pytest.mark.parametrize("seal", ["auto", "on"])
NEEDS_LIBCRYPTO = pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")


@contextmanager
def connected(**settings: Any) -> Iterator[tuple[Connection, Connection, bytearray]]:
    memory = bytearray(1 << 16)
    with (
        listen(memory=memory, secret=SECRET, **settings) as listener,
        connect(HOST, listener.port, secret=SECRET, **settings) as mine,
        listener.accept(LIMIT_S) as theirs,
    ):
        yield mine, theirs, memory


# A writer of the store.


@pytest.mark.parametrize("forged", ["here", "verdict"])
def test_a_writer_of_the_store_lets_a_monitored_barrier_pass(forged: str) -> None:
    """Rank 0, to which rank 1 seems to be there; or rank 1, to which rank 0 seems to have seen all."""
    dist = pytest.importorskip("torch.distributed")
    from softmrc.torch.store_barrier import FINE, store_barrier

    rank = 0 if forged == "here" else 1
    with pytest.raises(RuntimeError, match="monitoredBarrier"):
        store_barrier(dist.HashStore(), "place", rank, 2, 0.01, False)
    store = dist.HashStore()
    store.set("place/1" if rank == 0 else "place/verdict", forged if rank == 0 else FINE.decode())
    store_barrier(store, "place", rank, 2, 0.01, False)


def test_a_writer_of_the_store_has_a_monitored_barrier_fail() -> None:
    dist = pytest.importorskip("torch.distributed")
    from softmrc.torch.store_barrier import store_barrier

    store = dist.HashStore()
    store.set("place/verdict", "Rank 7 failed")
    with pytest.raises(RuntimeError, match="Rank 7 failed"):
        store_barrier(store, "place", 1, 2, LIMIT_S, False)


def test_without_a_secret_a_writer_of_the_store_is_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOFTMRC_SECRET", raising=False)

    def live(rank: int) -> float:
        with Group.join(DirectoryStore(tmp_path), rank, 2, timeout_s=LIMIT_S) as group:
            values = np.full(10, rank + 1, np.float32)
            group.all_reduce(values).wait(LIMIT_S)
            return float(values[0])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(live, range(2))) == [3.0, 3.0]


@pytest.mark.parametrize("is_same_name", [True, False])
def test_a_rank_of_another_job_is_put_in_the_place_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same_name: bool
) -> None:
    """It has the same secret, size and name of its group, and is shown our nonce in its own store."""
    monkeypatch.setattr(store_rendezvous, "UNPROVED_S", 0.1)
    ours, theirs = DirectoryStore(tmp_path / "ours"), DirectoryStore(tmp_path / "theirs")
    victim = StoreRendezvous(ours, "group", 0, 2, LIMIT_S, SECRET.encode())
    victim.start()
    name = "group" if is_same_name else "another"
    other = StoreRendezvous(theirs, name, 1, 2, 0.2, SECRET.encode())
    theirs.set(f"softmrc/{name}/nonce", ours.get("softmrc/group/nonce"))
    with pytest.raises(CollectiveError):
        other.join("of another job")
    ours.set(victim.key("record", 1), theirs.get(other.key("record", 1)))
    if is_same_name:
        assert victim.join("ours") == ["ours", "of another job"]
    else:
        with pytest.raises(CollectiveError, match="rank 1 is refused"):
            victim.join("ours")


# A forger of packets that are not encrypted.


def test_a_write_with_a_guessed_packet_number_ends_a_connection() -> None:
    """Within the window, to a queue pair whose number is known; others are dropped."""
    rig = Rig(peer_first_psn=1000)
    for psn in (999, 1000 + (1 << 20)):
        rig.receive(packer.write(QPN, psn, b"forged", rkey=RKEY + 100, va=rig.va))
        assert rig.qp.state == QpState.RTS
    rig.receive(packer.write(QPN, 1000, b"forged", rkey=RKEY + 100, va=rig.va))
    assert rig.qp.state == QpState.ERROR and (rig.memory == FILL).all()


# A peer that knows the secret.


@NEEDS_LIBCRYPTO
def test_a_call_is_led_to_another_listener_that_has_the_same_secret() -> None:
    """That a key for each end prevents it: test_identity.py."""
    with listen(memory=bytearray(64), secret=SECRET) as meant, listen(memory=bytearray(64), secret=SECRET) as other:
        relay = Recorder(other.port)
        with connect(HOST, relay.port, secret=SECRET) as mine, other.accept(LIMIT_S) as theirs:
            mine.write(mine.remote[0], 0, b"x", imm=1)
            assert theirs.recv(LIMIT_S).imm == 1
        relay.stop()
        assert meant.refused.count == 0


def test_a_rank_changes_the_result() -> None:
    with ranks(3) as group:

        def reduce(one: Any) -> Any:
            values = np.full(1000, 1e6 if one.rank == 2 else 1.0, np.float32)
            one.all_reduce(values).wait()
            return values

        for found in values_of(group(reduce)):
            assert (found == 1e6 + 2).all()


# An attacker on the path.


@NEEDS_LIBCRYPTO
def test_who_drops_every_packet_ends_a_connection_by_silence() -> None:
    with connected(seal="on", timeout=12, retry_linear=2, retry_exponential=1) as (mine, theirs, memory):
        mine.write(mine.remote[0], 0, b"before")
        mine.device.set_faults(black_hole=True)
        theirs.device.set_faults(black_hole=True)
        with pytest.raises(RemoteError, match="stopped answering"):
            mine.write(mine.remote[0], 0, b"after!")
        assert memory[:6] == b"before"


@NEEDS_LIBCRYPTO
def test_who_delays_reorders_and_marks_packets_does_no_more_than_that() -> None:
    data = bytes(n % 251 for n in range(1 << 16))
    with connected(seal="on", mtu=1024) as (mine, theirs, memory):
        for device in (mine.device, theirs.device):
            device.set_faults(delay_us=20_000, reorder=0.3, reorder_delay_us=5_000, mark=0.5)
        mine.write(mine.remote[0], 0, data, imm=1)
        assert theirs.recv(LIMIT_S).imm == 1 and memory == data
        assert sum(theirs.device.stats()[f"refused_{why}"] for why in ("forged", "unsealed", "malformed")) == 0


# A process on this machine.

PEER = """
import sys, time
from softmrc.connection import connect
connection = connect("127.0.0.1", int(sys.argv[1]), secret=sys.argv[2], seal=sys.argv[3])
print("connected", flush=True)
time.sleep(600)
"""


@pytest.mark.process
@NEEDS_LIBCRYPTO
@SEALS
def test_who_takes_over_the_port_of_a_dead_process_is_answered_as_if_it_were_that_one(seal: str) -> None:
    """Unless packets are encrypted on loopback, too."""
    with listen(memory=bytearray(64), secret=SECRET, seal=seal) as listener:
        command = [sys.executable, "-c", PEER, str(listener.port), SECRET, seal]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        with listener.accept(LIMIT_S) as victim, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            assert process.stdout is not None and process.stdout.readline() == "connected\n"
            plane, to = victim.peer.planes[0], victim.device.ports_of(0)[0][0]
            process.send_signal(signal.SIGKILL)
            process.communicate()
            sock.bind((HOST, plane.port))
            sock.settimeout(0.05)
            local = victim.device.local_planes[0].address
            probe = Packet("endpoint_request", psn=77, op="ev_probe", timestamp=1)
            datagram = bytes(Frame(probe, Route(local, local, plane.port, to)))[14 + 20 + 8 :]

            def answers() -> list[Packet]:
                sock.sendto(datagram, (HOST, to))
                found = []
                with suppress(TimeoutError):
                    while True:
                        with suppress(Refused):  # encrypted, for a holder of the keys
                            found.append(Packet.parse(sock.recv(1 << 16)[:-4]))
                return [one for one in found if one.opcode is Opcode.ENDPOINT_RESPONSE]

            if seal == "auto":
                assert eventually(lambda: bool(answers()))
            else:
                assert eventually(lambda: not answers() and victim.device.stats()["refused_unsealed"] > 3)


def packets_on_loopback(sock: socket.socket, end: bytes) -> Iterator[bytes]:
    """Up to one that holds `end`."""
    until = time.monotonic() + LIMIT_S
    while end not in (raw := sock.recv(1 << 17)):
        assert time.monotonic() < until
        yield raw


@NEEDS_LIBCRYPTO
@SEALS
def test_root_reads_packets_on_loopback_where_they_are_not_encrypted(seal: str) -> None:
    """That it forges them is in test_spoofed.py."""
    try:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    except PermissionError:
        pytest.skip("raw sockets are not allowed here")
    end = secrets.token_bytes(32)
    with sock, connected(seal=seal) as (mine, theirs, _), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
        sock.bind(("lo", 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        sock.settimeout(LIMIT_S)
        port, rkey = theirs.device.ports_of(0)[0][0], mine.remote[0].rkey
        mine.write(mine.remote[0], 0, b"to be read by nobody else", imm=1)
        assert theirs.recv(LIMIT_S).imm == 1
        last.sendto(end, (HOST, 9))
        seen = [raw for raw in packets_on_loopback(sock, end) if raw[36:38] == port.to_bytes(2, "big")]
    assert any(b"to be read by nobody else" in raw for raw in seen) is (seal == "auto")
    assert any(rkey.to_bytes(4, "big") in raw for raw in seen), "headers are not encrypted"
