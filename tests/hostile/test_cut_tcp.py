"""An on-path attacker ends the TCP connection of an authenticated one, or injects data. That decides nothing: neither
where packets are encrypted, nor on loopback, where they are not."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from liar import GOODBYE, REFUSAL, SESSION, credentials, eventually, frame, session

import parts
from softmrc import _core
from softmrc._core import HandshakeEvent, PeerState
from softmrc.connection import Connection, connect, listen
from softmrc.device import Device
from softmrc.errors import MrcError, RemoteError

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")]

LIMIT_S = 20.0
KINDS = {
    "encrypted": {"secret": "open sesame", "seal": "on"},
    "authenticated": {"secret": "open sesame", "seal": "off"},
}


class Relay:
    """A TCP relay under an attacker's control."""

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


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def relayed(kind: str = "") -> Iterator[tuple[Relay, Connection, Connection]]:
    with listen(memory=bytearray(100), **KINDS.get(kind, {})) as listener:
        relay = Relay(listener.port)
        with connect("127.0.0.1", relay.port, **KINDS.get(kind, {})) as mine, listener.accept(LIMIT_S) as theirs:
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
    "a false goodbye": lambda relay: relay.say(frame(SESSION, bytes(17))),
    "a goodbye of nobody": lambda relay: relay.say(session(GOODBYE)),
    "a refusal": lambda relay: relay.say(frame(REFUSAL, b"\0go away")),
}


@pytest.mark.parametrize("how", HOW)
def test_an_authenticated_connection_outlives_its_tcp(kind: str, how: str) -> None:
    with relayed(kind) as (relay, mine, theirs):
        HOW[how](relay)
        assert not eventually(lambda: has_left(mine) or has_left(theirs), 3.0), "asked again and again, and answering"
        mine.write(mine.remote[0], 0, b"again", imm=2)
        assert theirs.recv(LIMIT_S).imm == 2


def test_without_credentials_the_end_of_tcp_is_the_end() -> None:
    with relayed() as (relay, mine, theirs):
        relay.cut()
        assert eventually(lambda: has_left(mine) and has_left(theirs))


def test_who_is_cut_off_and_silent_has_left(kind: str) -> None:
    with relayed(kind) as (relay, mine, theirs):
        relay.cut()
        theirs.device.set_faults(0, black_hole=True)
        mine.device.set_faults(0, black_hole=True)
        assert eventually(lambda: has_left(mine), LIMIT_S)
        with pytest.raises(RemoteError, match="has left"):
            theirs.recv(LIMIT_S)


def test_a_goodbye_is_believed_at_once(kind: str) -> None:
    with relayed(kind) as (_, mine, theirs):
        mine.device.set_faults(0, black_hole=True)
        mine.close(0.0)
        with pytest.raises(MrcError):
            mine.check_alive()
        assert eventually(theirs.has_lost_peer)
        assert has_left(theirs)


def handshake() -> tuple[Any, Any]:
    """Both ends of one that is over."""
    connector, listener = (parts.Handshake(role, credentials("secret")) for role in (True, False))
    while not (connector.is_done and listener.is_done):
        for end, other in ((listener, connector), (connector, listener)):
            end.on_bytes(other.take_outgoing())
            while (event := end.next_event()) is not HandshakeEvent.NONE:
                if event is HandshakeEvent.IDENTIFIED:
                    end.allow()
                if event is (HandshakeEvent.OFFERED if end is listener else HandshakeEvent.IDENTIFIED):
                    end.offer(b"")
                elif event is HandshakeEvent.OFFERED:
                    end.ready(0, False)
                elif event is HandshakeEvent.READY:
                    end.finish(False)
    return connector, listener


def test_a_goodbye_is_of_one_handshake_and_of_one_side() -> None:
    """What was said in another, or comes back from where it went, is none; nor is what was cut or changed."""
    (connector, listener), (_, another) = handshake(), handshake()
    expected, cases = connector.goodbye_of_peer(), []
    true = listener.goodbye()
    for said in (true, connector.goodbye(), another.goodbye(), true[:-1], true[:-1] + bytes([true[-1] ^ 1])):
        cases += [(said, 3), (said, 0)]
    assert expected == true
    with Device(["127.0.0.1"]) as device, socket.create_server(("127.0.0.1", 0)) as server:
        for said, early in cases:
            with socket.create_connection(server.getsockname()) as there, server.accept()[0] as here:
                qp = device.create_qp(device.create_cq())
                qp.init()

                def state(qpn: int = qp.qpn) -> PeerState:
                    return device.native.peer_state(qpn)

                device.native.watch_bootstrap(qp.qpn, here.fileno(), expected, said[:early], [])
                assert state() is PeerState.PRESENT
                there.sendall(said[early:])
                there.shutdown(socket.SHUT_WR)
                assert eventually(lambda state=state: state() is not PeerState.PRESENT)
                assert (state() is PeerState.GONE) is (said == true)
                qp.destroy()
