"""What a listener says to malicious and unauthenticated peers, and a connector to what is no listener."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from liar import (
    CONFIRM,
    HELLO,
    LIMIT_S,
    NONE,
    OF_KEY,
    OF_SECRET,
    READY,
    REFUSAL,
    SESSION,
    Liar,
    Recorder,
    answer_to,
    changed_plane,
    close,
    credentials,
    encoded,
    eventually,
    frame,
    frames,
    heard,
    hello,
    honest,
    is_left_as_it_was,
    pending,
    serves_an_honest_one,
    session,
    visit,
)
from lies import CUT, LIES, NUMBERS, TRUE

import needs
import parts
from softmrc import _core
from softmrc._core import Credentials, HandshakeEvent
from softmrc.connection import Connection, Listener, connect, identity, listen
from softmrc.connection.identity import KNOWN
from softmrc.connection.offer import Offer
from softmrc.device import Device
from softmrc.errors import HandshakeError, RemoteError

SECRET = "the right one"
HOST = "127.0.0.1"
MAX_READ = 4096  # bytes of one that is not authenticated


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    with listen(memory=bytearray(64)) as made:
        yield made


# A malicious peer that knows the secret.


def test_an_honest_offer_is_accepted(listener: Listener) -> None:
    """Else the others would be refused for the wrong reason."""
    for offer in (honest(), honest(more=b"of an application"), honest(regions=[])):
        answer = answer_to(listener, offer)
        assert isinstance(answer, Connection)
        answer.close()


@pytest.mark.parametrize("offer", LIES.values(), ids=LIES)
def test_every_lie_in_every_field(listener: Listener, offer: dict[str, Any]) -> None:
    """It receives an error message, nothing is made of its offer, and the next one is served."""
    before = listener.refused.count
    answer = answer_to(listener, offer)
    assert isinstance(answer, str) and answer.startswith("refused: ") and len(answer) < 1000
    assert listener.refused.count == before + 1
    assert is_left_as_it_was(listener)


def test_offers_that_end_too_soon(listener: Listener) -> None:
    for offer in CUT:
        answer = answer_to(listener, offer)
        assert isinstance(answer, str) and "your offer makes no sense: " in answer
    assert is_left_as_it_was(listener)


@pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")
def test_an_offer_without_encryption_to_a_listener_that_encrypts() -> None:
    with listen(memory=bytearray(64), secret=SECRET, seal="on") as listener:
        answer = answer_to(listener, honest(), secret=SECRET)
        assert isinstance(answer, str) and "set seal alike" in answer
        answer = answer_to(listener, honest(encrypted=1, cipher=2), secret=SECRET)
        assert isinstance(answer, str) and "cipher" in answer
        assert is_left_as_it_was(listener)
        assert serves_an_honest_one(listener, secret=SECRET, seal="on")


def test_after_all_the_lies_an_honest_one_is_served(listener: Listener) -> None:
    assert serves_an_honest_one(listener)


@pytest.mark.parametrize("mtu", [1, 511, 16385, 0xFFFFFFFF])
def test_ready_for_packets_of_no_size(listener: Listener, mtu: int) -> None:
    with visit(listener) as sock:
        liar = Liar(sock)
        liar.greet()
        liar.offer(honest())
        liar.be_ready(mtu, waits=True)
        with pytest.raises(HandshakeError, match="refused: you are ready for what makes no sense"):
            liar.is_told_that_the_listener_is_ready()
    assert is_left_as_it_was(listener)


NO_HOSTS = [
    *("0.0.0.0", "0.1.2.3", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "ff02::1", "ff0e::1", "::ffff:10.0.0.1", "::10.0.0.1", "::ffff:0:a00:1", "64:ff9b::a00:1"),
    *("2002:a00:1::1", "2001:0:a00:1::"),
]


@pytest.mark.parametrize("address", NO_HOSTS)
def test_addresses_of_no_single_host(address: str) -> None:
    with pytest.raises(HandshakeError, match=r"planes.*address"):
        Offer.parse(encoded(changed_plane(address=address)))


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "127.0.0.1", "223.255.255.255", "::1", "fd00::2", "2001:db8::1", "fe80::1"]
)
def test_addresses_of_hosts(address: str) -> None:
    assert str(Offer.parse(encoded(changed_plane(address=address))).planes[0].address) == address


@needs.IPV6
@pytest.mark.parametrize("address", ["2001:db8::1", "fe80::1", "127.0.0.1", "::ffff:127.0.0.1"])
def test_a_plane_on_loopback_is_so_at_both_ends(address: str) -> None:
    with listen("::1") as listener:
        answer = answer_to(listener, changed_plane(address=address), host="::1")
        assert isinstance(answer, str), answer
        true = answer_to(listener, changed_plane(address="::1"), host="::1")
        assert isinstance(true, Connection)
        true.close()


def number(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


PLANES = st.lists(
    st.fixed_dictionaries(
        {
            "address": st.just("127.0.0.1") | st.ip_addresses().map(str),
            "port": st.just(9) | number(16),
            "source_ports": st.just([9]) | st.lists(number(16), max_size=3),
        },
        optional={"family": number(8), "port_count": number(16)},
    ),
    max_size=2,
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "planes": PLANES,
        "regions": st.lists(st.tuples(number(64), number(64), number(32)), max_size=2),
        **{key: st.integers(least, most) | number(bits) for key, (least, most, bits) in NUMBERS.items()},
        **{key: number(8) for key in ("copies", "qp_count", "plane_count")},
        "region_count": number(16),
        "more": st.binary(max_size=64),
    },
)
# Bytes at random, and the true ones with some of them changed.
PATCHES = st.lists(st.tuples(st.integers(0, len(TRUE) - 1), st.binary(min_size=1, max_size=8)), max_size=4)


def patched(patches: list[tuple[int, bytes]]) -> bytes:
    offer = TRUE
    for at, what in patches:
        offer = offer[:at] + what + offer[at + len(what) :]
    return offer


@given(CHANGES.map(lambda changes: encoded(honest(**changes))) | PATCHES.map(patched) | st.binary(max_size=256))
@example(b"")
@example(b"\xff" * 4096)
@settings(max_examples=200, deadline=None)
def test_any_offer(listener: Listener, offer: bytes) -> None:
    """It may be accepted, where the change did no harm; then what was offered is what is believed."""
    answer = answer_to(listener, offer)
    try:
        if isinstance(answer, Connection):
            read = Offer.parse(offer)
            assert answer.remote == read.regions and answer.peer.planes == read.planes
        else:
            assert answer.startswith("refused: ")
    finally:
        close(answer)


def ends(connection: Connection) -> dict[str, Any]:
    """Where the peer of a connection is, as an offer says it."""
    plane = connection.peer.planes[0]
    return {"address": str(plane.address), "port": plane.port, "source_ports": list(plane.source_ports)}


def test_what_another_peer_owns_is_not_given_away() -> None:
    """A socket of another peer's, as the place to send to or as one of many: it would get that peer's packets."""
    with (
        listen(memory=bytearray(64)) as listener,
        connect("127.0.0.1", listener.port) as victim,
        listener.accept(LIMIT_S) as other,
    ):
        owned = ends(other)
        for port in owned["source_ports"]:
            for lie in ({"port": port, "source_ports": [port]}, {"port": 9, "source_ports": [9, port]}):
                answer = answer_to(listener, changed_plane(**lie))
                assert isinstance(answer, str) and "no other peer's" in answer
        victim.write(victim.remote[0], 0, b"hello", imm=1)
        assert other.recv(LIMIT_S).imm == 1
        victim.close()
        mine = answer_to(listener, changed_plane(**owned | {"source_ports": owned["source_ports"][:1]}))
        assert isinstance(mine, Connection), "who has left owns nothing"
        mine.close()


def test_the_same_node_may_come_twice() -> None:
    with (
        Device(["127.0.0.1"]) as device,
        listen(memory=bytearray(64)) as listener,
        connect("127.0.0.1", listener.port, device=device),
        listener.accept(LIMIT_S),
    ):
        assert serves_an_honest_one(listener, device=device)


def test_a_device_is_not_its_own_peer() -> None:
    with Device(["127.0.0.1"]) as device, listen(device=device, memory=bytearray(64)) as listener:
        for port in device.ports_of(0)[0]:
            answer = answer_to(listener, changed_plane(port=port, source_ports=[port]))
            assert isinstance(answer, str) and "own address and port" in answer
        with pytest.raises(RemoteError, match="does not connect to itself"):
            connect("127.0.0.1", listener.port, device=device)
        assert serves_an_honest_one(listener)


@contextmanager
def lying_listener(offer: dict[str, Any]) -> Iterator[int]:
    """One that knows that there is no secret, and offers this."""
    with socket.create_server((HOST, 0)) as server:

        def serve() -> None:
            with suppress(OSError), server.accept()[0] as sock:
                liar = Liar(sock, is_connector=False)
                liar.receive(HandshakeEvent.IDENTIFIED)
                liar.handshake.allow()
                liar.receive(HandshakeEvent.OFFERED)
                liar.handshake.offer(encoded(offer))
                liar.send()
                heard(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(LIMIT_S)


def test_a_lying_listener_could_be_honest() -> None:
    """Else the next test would pass for the wrong reason: it is not refused, but it does not answer by UDP."""
    with (
        Device([HOST]) as device,
        lying_listener(honest()) as port,
        pytest.raises(RemoteError, match="answers TCP, and"),
    ):
        connect(HOST, port, device=device, timeout_s=0.5)


@pytest.mark.parametrize("name", ["qpn 0", "address 224.0.0.1", "source ports none", "regions too many", "icrc 2"])
def test_a_listener_may_lie_as_well(name: str) -> None:
    with Device([HOST]) as device, lying_listener(LIES[name]) as port:
        with pytest.raises(RemoteError, match="offer that makes no sense"):
            connect(HOST, port, device=device, memory=bytearray(64))
        assert not device._regions and device._native.cq_count == 0


# An unauthenticated host.

KINDS = st.sampled_from([HELLO, CONFIRM, SESSION, REFUSAL]) | number(8)
HELLOS = st.builds(
    hello,
    number(8) | st.just(NONE),
    st.binary(max_size=100),
    st.just(_core.HANDSHAKE_VERSION) | number(16),
    st.just(_core.WIRE_VERSION) | number(16),
    st.just(b"SMRC") | st.binary(min_size=4, max_size=4),
)
FRAMES = HELLOS | st.builds(frame, KINDS, st.binary(max_size=64)) | st.just(frame(CONFIRM))
SESSIONS = st.lists(st.builds(session, st.integers(0, 6), st.binary(max_size=64) | st.just(TRUE)), max_size=3)


@given(
    st.binary(max_size=64)
    | st.lists(FRAMES, max_size=3).map(b"".join)
    | SESSIONS.map(lambda said: hello() + frame(CONFIRM) + b"".join(said))
)
@example(struct.pack(">I", 0))
@example(struct.pack(">I", 513) + b"H" * 513)
@example(frame(HELLO, b"H" * 511))
@example(hello() + frame(CONFIRM) + struct.pack(">I", (1 << 18) + 1))
@example(hello() + frame(CONFIRM) + session(READY, bytes(4)))
@example(frame(REFUSAL, b"\0[/x]\x1b[2J"))
@example(frame(REFUSAL))
@example(b"\xff\xff\xff\xff")
@example(b"GET / HTTP/1.1\r\n\r\n")
@settings(max_examples=200, deadline=None)
def test_any_first_bytes(listener: Listener, data: bytes) -> None:
    before = listener.refused.count
    with visit(listener) as sock:
        with suppress(OSError):  # it may hang up before it has heard all
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        heard(sock)
    assert eventually(lambda: listener.refused.count == before + 1)
    assert listener.refused.reasons[-1].isprintable()


def message() -> bytes:
    """That proves nothing: a key, and a tag of nothing."""
    return secrets.token_bytes(32 + 16)


@contextmanager
def accepted_by(listener: Listener, sock: socket.socket) -> Iterator[socket.socket]:
    """The listener's end of a connection to it, which stays open when the listener has closed it."""
    found: list[socket.socket] = []

    def is_found() -> bool:
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    one = socket.socket(fileno=os.dup(int(name)))
                    with suppress(OSError):
                        if one.getpeername() == sock.getsockname():
                            found.append(one)
                            return True
                    one.close()
        return False

    assert eventually(is_found)
    with found[0]:
        yield found[0]


def flood(sock: socket.socket) -> int:
    """As much as TCP takes at once; how much that was."""
    sock.setblocking(False)
    sent = 0
    with suppress(OSError):
        while sent < 1 << 20:
            sent += sock.send(b"\0" * 4096)
    return sent


FLOODS = {
    "a frame of a megabyte": lambda: struct.pack(">I", 1 << 20),
    "a frame that is not too long": lambda: struct.pack(">I", 512),
    "a refusal": lambda: frame(REFUSAL),
    "after a hello that proves nothing": lambda: hello(OF_SECRET, message()),
}
AFTER_HELLO = {
    "a frame of a megabyte": lambda: struct.pack(">I", 1 << 20),
    "a confirmation that is none": lambda: frame(CONFIRM, bytes(16)),
    "half a frame": lambda: struct.pack(">I", 512),
}


@pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")
@pytest.mark.parametrize("name", [*FLOODS, *(f"{name} after a hello" for name in AFTER_HELLO)])
def test_little_is_read_of_one_that_is_not_authenticated(name: str) -> None:
    with listen(memory=bytearray(64), secret=SECRET) as listener, visit(listener) as sock:
        sent = 0
        with accepted_by(listener, sock) as its:
            words = FLOODS[name]() if name in FLOODS else AFTER_HELLO[name.removesuffix(" after a hello")]()
            if name not in FLOODS:
                first = Liar(sock, SECRET).handshake.take_outgoing()
                sock.sendall(first)
                assert sock.recv(1 << 16)[4] == HELLO
                sent += len(first)
            sock.sendall(words)
            sent += len(words) + flood(sock)
            assert sent > 1 << 16
            assert eventually(lambda: not pending(listener))
            unread = 0
            its.setblocking(False)
            while unread < sent - MAX_READ:
                with suppress(BlockingIOError):
                    unread += len(its.recv(1 << 16))
            assert unread <= sent - len(words)
        assert serves_an_honest_one(listener, secret=SECRET)


# A listener that is none.


class Keys:
    """Folders with keys of two that know each other, and of one that is unknown to both."""

    def __init__(self, folder: Path) -> None:
        self.mine, self.theirs, self.other = (identity.make(folder / name) for name in ("mine", "theirs", "other"))
        (folder / "mine" / KNOWN).write_text(f"{HOST} {self.theirs.public.hex()}\n")
        (folder / "theirs" / KNOWN).write_text(f"me {self.mine.public.hex()}\n")


FAKES = [
    *("silent", "its own hello", "nothing proved", "another secret"),
    *("another key", "no credentials", "the other kind"),
]


def hello_to(first: bytes, own: Credentials) -> bytes:
    """What a listener with these credentials answers; to a connector of its own where it does not believe this one."""
    for heard_first in (first, parts.Handshake(True, own).take_outgoing()):
        listener = parts.Handshake(False, own)
        with suppress(HandshakeError):
            listener.on_bytes(heard_first)
            return bytes(listener.take_outgoing())
    raise AssertionError


@pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")
@pytest.mark.parametrize("uses_key", [False, True], ids=["secret", "key"])
@pytest.mark.parametrize("kind", FAKES)
def test_a_fake_listener_is_handed_nothing(tmp_path: Path, kind: str, uses_key: bool) -> None:
    said: list[bytes] = []
    keys = Keys(tmp_path)
    own: dict[str, Any] = {"identity": keys.mine.folder} if uses_key else {"secret": SECRET}
    fakes = {
        "nothing proved": lambda _: hello(OF_KEY, secrets.token_bytes(96)) if uses_key else hello(OF_SECRET, message()),
        "its own hello": lambda first: first,
        "another secret": lambda first: hello_to(first, Credentials.of_secret(b"wrong")),
        "another key": lambda first: hello_to(first, keys.other.credentials),
        "no credentials": lambda _: hello(),
        "the other kind": lambda first: hello_to(first, credentials(SECRET) if uses_key else keys.theirs.credentials),
    }

    def fake(server: socket.socket) -> None:
        with server.accept()[0] as sock:
            said.append(sock.recv(1 << 16))
            if kind in fakes:
                sock.sendall(fakes[kind](said[0]))
            said.append(heard(sock))

    with Device([HOST]) as device, socket.create_server((HOST, 0)) as server:
        thread = threading.Thread(target=fake, args=(server,))
        thread.start()
        with pytest.raises(RemoteError) as refusal:
            connect(*server.getsockname(), device=device, memory=bytearray(64), timeout_s=0.5, **own)
        thread.join(LIMIT_S)
        first, *more = frames(b"".join(said))
        assert first[4] == HELLO and all(one[4] == REFUSAL for one in more)
        shown = b"".join(said)
        assert keys.mine.public not in shown and not device._regions and device._native.cq_count == 0
        assert ("did not finish the handshake in time" in str(refusal.value)) is (kind == "silent"), refusal.value


# Replay.


@pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")
@pytest.mark.parametrize("uses_key", [False, True], ids=["secret", "key"])
def test_a_recorded_session_is_worth_nothing_on_the_same_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses_key: bool
) -> None:
    keys = Keys(tmp_path)
    mine, theirs = ({"identity": one.folder} if uses_key else {"secret": SECRET} for one in (keys.mine, keys.theirs))
    with Device([HOST]) as device, listen(device=device, memory=bytearray(64), **theirs) as listener:
        recorder = Recorder(listener.port)
        with connect(HOST, recorder.port, **mine) as peer, listener.accept(LIMIT_S) as other:
            peer.write(peer.remote[0], 0, b"hello", imm=1)
            assert other.recv(LIMIT_S).imm == 1
        recorder.stop()
        kinds = [bytes(one[4:5]) for one in frames(recorder.said["connector"])]
        assert kinds == [b"H", b"C", b"S", b"S", b"S"], "a hello, a confirmation, an offer, ready, goodbye"
        first = frames(recorder.said["connector"])[0]
        monkeypatch.setattr(listener._acceptor, "_offer", lambda *_: pytest.fail("it is offered something"))
        for said in (first, recorder.said["connector"]):
            with visit(listener) as sock:
                sock.sendall(said)
                sock.shutdown(socket.SHUT_WR)
                answers = frames(heard(sock))
            assert answers[0][4] == HELLO and len(answers) == 1 + (said is not first), "a hello, and a refusal"
        assert eventually(lambda: listener.refused.count == 2)
        assert "does not" in listener.refused.reasons[1]
        with pytest.raises(TimeoutError):
            listener.accept(0)
    with socket.create_server((HOST, 0)) as server:

        def replay() -> None:
            with server.accept()[0] as sock, suppress(OSError):
                sock.sendall(recorder.said["listener"])
                heard(sock)

        thread = threading.Thread(target=replay)
        thread.start()
        with pytest.raises(RemoteError, match=r"does not know the secret|sent no usable key"):
            connect(*server.getsockname(), memory=bytearray(64), **mine)
        thread.join(LIMIT_S)
