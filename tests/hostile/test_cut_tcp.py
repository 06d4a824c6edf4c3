"""Somebody on the wire ends the TCP connection of a sealed one, or says something on it. That decides nothing."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from liar import eventually

from softmrc import _core
from softmrc._core import PeerState
from softmrc.connection import Connection, connect, listen
from softmrc.connection.handshake import CONNECTOR, LISTENER, Authenticator, framed
from softmrc.device import Device
from softmrc.errors import MrcError, RemoteError

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not _core.can_seal(), reason="built without sealing")]

LIMIT_S = 20.0
SECRET = {"secret": "open sesame", "seal": "on"}


class Relay:
    """A wire of TCP that somebody owns."""

    def __init__(self, port: int) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self._to = port
        self.port: int = self._door.getsockname()[1]
        self.ends: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        here = self._door.accept()[0]
        there = socket.create_connection(("127.0.0.1", self._to))
        self.ends = [here, there]
        for one, other in ((here, there), (there, here)):
            threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(1 << 16):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self) -> None:
        for end in self.ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.shutdown(socket.SHUT_RDWR)
            end.close()

    def say(self, words: bytes) -> None:
        for end in self.ends:
            end.sendall(words)

    def close(self) -> None:
        self._door.close()
        for end in self.ends:
            end.close()


@contextmanager
def relayed() -> Iterator[tuple[Relay, Connection, Connection]]:
    with listen(memory=bytearray(100), **SECRET) as listener:
        relay = Relay(listener.port)
        with connect("127.0.0.1", relay.port, **SECRET) as mine, listener.accept(LIMIT_S) as theirs:
            mine.write(mine.remote[0], 0, b"hello", imm=1)
            assert theirs.recv(LIMIT_S).imm == 1
            yield relay, mine, theirs
        relay.close()


def has_left(connection: Connection) -> bool:
    try:
        connection.check_alive()
    except RemoteError as error:
        assert "has left" in str(error)
        return True
    return False


HOW = {
    "reset": Relay.cut,
    "a byte": lambda relay: relay.say(b"!"),
    "nonsense": lambda relay: relay.say(b"\xff" * 100),
    "a false goodbye": lambda relay: relay.say(framed({"body": "{}", "seal": "0" * 64})),
    "a refusal": lambda relay: relay.say(framed({"error": "go away"})),
}


@pytest.mark.parametrize("how", HOW)
def test_a_sealed_connection_outlives_its_tcp(how: str) -> None:
    with relayed() as (relay, mine, theirs):
        HOW[how](relay)
        assert not eventually(lambda: has_left(mine) or has_left(theirs), 3.0), "asked again and again, and answering"
        mine.write(mine.remote[0], 0, b"again", imm=2)
        assert theirs.recv(LIMIT_S).imm == 2


def test_who_is_cut_off_and_silent_has_left() -> None:
    with relayed() as (relay, mine, theirs):
        relay.cut()
        theirs.device.set_faults(0, black_hole=True)
        mine.device.set_faults(0, black_hole=True)
        assert eventually(lambda: has_left(mine), LIMIT_S)
        with pytest.raises(RemoteError, match="has left"):
            theirs.recv(LIMIT_S)


def test_a_goodbye_is_believed_at_once() -> None:
    with relayed() as (_, mine, theirs):
        mine.device.set_faults(0, black_hole=True)
        mine.close(0.0)
        with pytest.raises(MrcError):
            mine.check_alive()
        assert eventually(theirs.has_lost_peer)
        assert has_left(theirs)


def test_a_goodbye_is_of_one_handshake_and_of_one_side() -> None:
    """What was said in another, or comes back from where it went, is none."""
    ends = {role: Authenticator(role, b"secret") for role in (CONNECTOR, LISTENER)}
    ends[LISTENER].hear(ends[CONNECTOR].hello())
    ends[CONNECTOR].hear(ends[LISTENER].hello())
    another = Authenticator(LISTENER, b"secret")
    another.hear(ends[CONNECTOR].hello())
    expected = framed(ends[CONNECTOR].goodbye_of_peer())
    with Device(["127.0.0.1"]) as device, socket.create_server(("127.0.0.1", 0)) as server:
        for who, is_believed in ((ends[LISTENER], True), (ends[CONNECTOR], False), (another, False)):
            with socket.create_connection(server.getsockname()) as there, server.accept()[0] as here:
                qp = device.create_qp(device.create_cq())
                qp.init()

                def state(qpn: int = qp.qpn) -> PeerState:
                    return device.native.peer_state(qpn)

                said = framed(who.goodbye())
                device.native.watch_bootstrap(qp.qpn, here.fileno(), expected, said[:3], [])
                assert state() is PeerState.PRESENT
                there.sendall(said[3:])
                assert eventually(lambda state=state: state() is not PeerState.PRESENT)
                assert (state() is PeerState.GONE) is is_believed
                qp.destroy()
