"""A listener's door: what liars, strangers and listeners that are none say there and learn; what crowds and visitors
that take their time cost, and whom they keep out."""

from __future__ import annotations

import errno
import gc
import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from liar import (
    LIMIT_S,
    Liar,
    answer_to,
    changed_plane,
    close,
    eventually,
    heard,
    hello,
    honest,
    is_left_as_it_was,
    serves_an_honest_one,
    visit,
)
from lies import LIES, NUMBERS, SEALS, without_missing

import needs
from sanitizers import NOT_UNDER_SANITIZERS
from softmrc import _core
from softmrc.connection import Connection, Listener, connect, listen
from softmrc.connection import acceptor as reception_module
from softmrc.connection.acceptor import MAX_FROM_ONE_ADDRESS, MAX_UNFINISHED, MAX_WAITING
from softmrc.connection.handshake import CONNECTOR, VERSION, Authenticator, FrameReader, framed
from softmrc.connection.offer import Offer
from softmrc.connection.validate import ProtocolError
from softmrc.device import Device
from softmrc.errors import DeviceError, RemoteError

SECRET = "the right one"


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    with listen(memory=bytearray(64)) as made:
        yield made


# A liar who knows the secret.


def test_an_honest_offer_is_accepted(listener: Listener) -> None:
    """Else the others would be refused for the wrong reason."""
    answer = answer_to(listener, honest())
    assert isinstance(answer, Connection)
    answer.close()


@pytest.mark.parametrize("offer", LIES.values(), ids=LIES)
def test_every_lie_in_every_field(listener: Listener, offer: dict[str, Any]) -> None:
    """It is told so in words, nothing is made of it, and the next one is served."""
    before = listener.refused.count
    answer = answer_to(listener, without_missing(offer))
    assert isinstance(answer, str) and answer.startswith("refused: ") and len(answer) < 1000
    assert listener.refused.count == before + 1
    assert is_left_as_it_was(listener)


@pytest.mark.skipif(not _core.can_seal(), reason="built without sealing")
@pytest.mark.parametrize("seal", [*SEALS.values(), None], ids=[*SEALS, "none"])
def test_every_lie_about_the_seal_of_a_sealed_listener(seal: Any) -> None:
    """Who knows the secret and has no share to give is told so, and an honest one is served."""
    with listen(memory=bytearray(64), secret=SECRET, seal="on") as listener:
        answer = answer_to(listener, honest(seal=seal), secret=SECRET.encode())
        assert isinstance(answer, str) and answer.startswith("refused: ") and "seal" in answer
        assert is_left_as_it_was(listener)
        assert serves_an_honest_one(listener, secret=SECRET, seal="on")


def test_after_all_the_lies_an_honest_one_is_served(listener: Listener) -> None:
    assert serves_an_honest_one(listener)


NO_HOSTS = [
    *("0.0.0.0", "0.1.2.3", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "ff02::1", "ff0e::1", "::ffff:10.0.0.1", "::10.0.0.1", "::ffff:0:a00:1", "64:ff9b::a00:1"),
    *("2002:a00:1::1", "2001:0:a00:1::", "fe80::1%lo", "10.0.0.1%lo"),
]


@pytest.mark.parametrize("address", NO_HOSTS)
def test_addresses_of_no_single_host(address: str) -> None:
    with pytest.raises(ProtocolError, match=r"planes.*address"):
        Offer.parse(changed_plane(address=address))


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "127.0.0.1", "223.255.255.255", "::1", "fd00::2", "2001:db8::1", "fe80::1"]
)
def test_addresses_of_hosts(address: str) -> None:
    assert str(Offer.parse(changed_plane(address=address)).planes[0].address) == address


@needs.IPV6
@pytest.mark.parametrize("address", ["2001:db8::1", "fe80::1", "127.0.0.1", "::ffff:127.0.0.1"])
def test_a_plane_on_loopback_is_so_at_both_ends(address: str) -> None:
    with listen("::1") as listener:
        answer = answer_to(listener, changed_plane(address=address), host="::1")
        assert isinstance(answer, str), answer
        true = answer_to(listener, changed_plane(address="::1"), host="::1")
        assert isinstance(true, Connection)
        true.close()


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
ANY_NUMBER = st.integers() | st.floats() | st.sampled_from([-1, 0, 1 << 16, 1 << 24, 1 << 32, 1 << 64, float("inf")])
PLANES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "address": st.just("127.0.0.1") | st.ip_addresses().map(str) | JUNK,
            "port": st.just(9) | ANY_NUMBER | JUNK,
            "source_ports": st.just([9]) | st.lists(ANY_NUMBER | JUNK, max_size=3) | JUNK,
        },
    ),
    max_size=2,
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "planes": PLANES | JUNK,
        **{key: ANY_NUMBER | JUNK for key in NUMBERS},
        "icrc": JUNK,
        "regions": st.lists(st.lists(ANY_NUMBER, max_size=4), max_size=2) | JUNK,
    },
)


@given(CHANGES)
@example({"qpn": float("inf")})
@example({"planes": [{"address": "127.0.0.1", "port": 1 << 20, "source_ports": []}]})
@settings(max_examples=150, deadline=None)
def test_any_offer(listener: Listener, changes: dict[str, Any]) -> None:
    """It may be accepted, where the change did no harm; then what was offered is what is believed."""
    offer = honest(**changes)
    answer = answer_to(listener, offer)
    try:
        if isinstance(answer, Connection):
            assert [[r.va, r.length, r.rkey] for r in answer.remote] == offer["regions"]
            assert answer.peer.planes[0].port == offer["planes"][0]["port"]
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
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError), server.accept()[0] as sock:
                proof, inbox = Authenticator("listener", None), FrameReader()
                proof.hear(next_frame(sock, inbox))
                sock.sendall(framed(proof.hello()))
                next_frame(sock, inbox)
                sock.sendall(framed(proof.sealed("the listener offers", offer)))
                heard(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(LIMIT_S)


def next_frame(sock: socket.socket, inbox: FrameReader) -> dict[str, Any]:
    sock.settimeout(LIMIT_S)
    while (frame := inbox.next()) is None:
        inbox.add(sock.recv(1 << 16) or b"\xff\xff\xff\xff")
    return frame


@pytest.mark.parametrize("name", ["qpn 0", "address '224.0.0.1'", "source ports none", "regions too many", "icrc 1"])
def test_a_listener_may_lie_as_well(name: str) -> None:
    with Device(["127.0.0.1"]) as device, lying_listener(without_missing(LIES[name])) as port:
        with pytest.raises(RemoteError, match="offer that makes no sense"):
            connect("127.0.0.1", port, device=device, memory=bytearray(64))
        assert not device._regions and device._native.cq_count == 0


# A stranger.

HELLOS = st.fixed_dictionaries(
    {},
    optional={
        "softmrc": st.just(VERSION) | JUNK,
        "nonce": st.text(min_size=64, max_size=64) | st.just("0" * 64) | JUNK,
        "sealed": st.booleans() | JUNK,
        "error": JUNK,
    },
)
NESTED = b"[" * 900


@given(
    st.binary(max_size=64)
    | HELLOS.map(lambda frame: framed(frame))
    | JUNK.map(lambda value: len(data := json.dumps(value).encode()).to_bytes(4, "big") + data)
)
@example(len(NESTED).to_bytes(4, "big") + NESTED)
@example(framed({"softmrc": VERSION, "nonce": "0" * 64, "sealed": False}) + b"\0\0\xff\xff" + b"[" * 0xFFFF)
@example(framed({"error": "[/x]"}))
@example(b"\xff\xff\xff\xff")
@settings(max_examples=150, deadline=None)
def test_any_greeting(listener: Listener, data: bytes) -> None:
    before = listener.refused.count
    with visit(listener) as sock:
        with suppress(OSError):  # it may hang up before it has heard all
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        told = heard(sock)
    assert b"planes" not in told and b"regions" not in told
    assert listener.refused.count == before + 1


@pytest.mark.parametrize(
    "offer",
    [
        framed({"body": json.dumps(honest()), "seal": "0" * 64}),
        framed({"body": json.dumps(honest()), "seal": ""}),
        framed({"body": json.dumps(honest()), "seal": "é\ud800"}),
        framed({"body": json.dumps(honest())}),
        framed({"body": honest(), "seal": None}),
        framed(honest()),
        framed(Authenticator(CONNECTOR, b"wrong").hello()),
        framed({}),
    ],
    ids=range(8),  # nonces are drawn, and would name the tests anew in every process
)
def test_a_stranger_is_handed_nothing(offer: bytes) -> None:
    """A nonce, a proof and a word are all that it hears; no device is touched for it."""
    with listen(memory=bytearray(64), secret=SECRET) as listener:
        with visit(listener) as sock:
            sock.sendall(hello() + offer)
            told = heard(sock)
        assert told.count(b'"nonce"') == 1
        for word in (b"planes", b"regions", b"qpn", str(listener.regions[0].rkey).encode(), b"body"):
            assert word not in told
        assert listener.refused.count == 1 and is_left_as_it_was(listener)
        assert serves_an_honest_one(listener, secret=SECRET)


# A listener that is none.


@pytest.mark.parametrize(
    "kind", ["silent", "without a proof", "wrong proof", "the connector's own nonce", "another secret"]
)
def test_a_fake_listener_is_handed_nothing(kind: str) -> None:
    said: list[bytes] = []

    def fake(server: socket.socket) -> None:
        with server.accept()[0] as sock:
            first = sock.recv(1 << 16)
            said.append(first)
            its = Authenticator("listener", b"another")
            its.hear(json.loads(first[4:]))
            answers = {
                "without a proof": hello(),
                "wrong proof": hello(proof="0" * 64),
                "the connector's own nonce": hello(nonce=json.loads(first[4:])["nonce"], proof="0" * 64),
                "another secret": framed(its.hello()),
            }
            if kind in answers:
                sock.sendall(answers[kind])
                said.append(heard(sock))
            else:
                time.sleep(0.5)

    with Device(["127.0.0.1"]) as device, socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=fake, args=(server,))
        thread.start()
        with pytest.raises(RemoteError, match=r"does not know the secret|in time"):
            connect(*server.getsockname(), device=device, memory=bytearray(64), secret=SECRET, timeout_s=0.3)
        thread.join(LIMIT_S)
        assert set(json.loads(said[0][4:])) == {"softmrc", "nonce", "sealed"}
        assert b"body" not in b"".join(said) and not device._regions and device._native.cq_count == 0


# Replay.


class Recorder:
    """Passes a session on between a connector and a listener, and keeps what each side said."""

    def __init__(self, port: int) -> None:
        self.said: dict[str, bytes] = {"connector": b"", "listener": b""}
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._to = port
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._server, self._server.accept()[0] as near, socket.create_connection(("127.0.0.1", self._to)) as far:
            back = threading.Thread(target=self._pass_on, args=("listener", far, near))
            back.start()
            self._pass_on("connector", near, far)
            back.join(LIMIT_S)

    def _pass_on(self, who: str, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.said[who] += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def stop(self) -> None:
        self._thread.join(LIMIT_S)


def test_a_recorded_session_is_worth_nothing_on_the_same_ports() -> None:
    memory = bytearray(64)
    with Device(["127.0.0.1"]) as device, listen(device=device, memory=memory, secret=SECRET) as listener:
        recorder = Recorder(listener.port)
        with connect("127.0.0.1", recorder.port, secret=SECRET) as peer, listener.accept(LIMIT_S) as other:
            peer.write(peer.remote[0], 0, b"hello", imm=1)
            assert other.recv(LIMIT_S).imm == 1
        recorder.stop()
        assert b"regions" in recorder.said["connector"] and b"regions" in recorder.said["listener"]
        with visit(listener) as sock:
            sock.sendall(recorder.said["connector"])
            assert b"regions" not in heard(sock)
        assert listener.refused.count == 1 and "does not know the secret" in listener.refused.reasons[0]
        with pytest.raises(TimeoutError):
            listener.accept(0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def replay() -> None:
            with server.accept()[0] as sock, suppress(OSError):
                sock.sendall(recorder.said["listener"])
                heard(sock)

        thread = threading.Thread(target=replay)
        thread.start()
        with pytest.raises(RemoteError, match="does not know the secret"):
            connect(*server.getsockname(), secret=SECRET, memory=bytearray(64))
        thread.join(LIMIT_S)


# Crowds, and visitors that take their time.


def test_a_dripping_visitor_is_shown_out_and_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for the whole handshake: nobody stays by sending a little now and then."""
    monkeypatch.setattr(reception_module, "HANDSHAKE_S", 0.6)
    with listen(memory=bytearray(64)) as listener, visit(listener) as sock:
        assert eventually(lambda: len(listener._acceptor._pending) == 1)
        listener._acceptor.handshake_s = LIMIT_S  # for who comes later
        is_out = threading.Event()
        dripped = bytearray()

        def drip() -> None:
            for byte in (1000).to_bytes(4, "big") + b" " * 900:
                try:
                    sock.send(bytes([byte]))
                except OSError:
                    break
                dripped.append(byte)
                if is_out.wait(0.02):
                    break

        thread = threading.Thread(target=drip)
        thread.start()
        assert serves_an_honest_one(listener)
        told = heard(sock)
        is_out.set()
        thread.join(LIMIT_S)
        assert (b"too long" in told or told == b"") and len(dripped) < 900
        assert any("did not finish the handshake in time" in reason for reason in listener.refused.reasons)


@contextmanager
def silent_visitors(listener: Listener, count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 500:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 500), hard))
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(visit(listener))
        yield


def test_a_thousand_silent_visitors_keep_nobody_out() -> None:
    before = threading.active_count()
    with listen(memory=bytearray(64)) as listener, silent_visitors(listener, 1000):
        assert threading.active_count() == before + 1
        assert serves_an_honest_one(listener)
        assert len(listener._acceptor._pending) <= MAX_FROM_ONE_ADDRESS
        assert listener.refused.count >= 1000 - MAX_FROM_ONE_ADDRESS
        assert "made room for others" in listener.refused.reasons[-1] and len(listener.refused.reasons) <= 16


def test_one_address_does_not_take_the_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who came first, from elsewhere, is still there after a crowd."""
    with listen("0.0.0.0", secret=SECRET, memory=bytearray(64), planes=["127.0.0.1"]) as listener:
        first = socket.socket()
        with first:
            first.bind(("127.0.0.5", 0))
            first.connect(("127.0.0.1", listener.port))
            with silent_visitors(listener, 3 * MAX_FROM_ONE_ADDRESS):
                first.sendall(hello())
                first.settimeout(LIMIT_S)
                assert b"nonce" in first.recv(1 << 16)


def test_there_is_a_bound_for_all_addresses_together() -> None:
    with listen("0.0.0.0", secret=SECRET, memory=bytearray(64), planes=["127.0.0.1"]) as listener, ExitStack() as stack:
        for number in range(2 * MAX_UNFINISHED):
            sock = stack.enter_context(socket.socket())
            sock.bind((f"127.0.{number % 8}.7", 0))
            sock.connect(("127.0.0.1", listener.port))
        assert serves_an_honest_one(listener, secret=SECRET)
        assert len(listener._acceptor._pending) <= MAX_UNFINISHED


@contextmanager
def offering_visitors(listener: Listener, count: int, secret: str | None = None) -> Iterator[None]:
    """They know the secret, make an offer, and never say that they are ready."""
    with ExitStack() as stack:
        for _ in range(count):
            liar = Liar(stack.enter_context(visit(listener)), secret and secret.encode())
            liar.greet()
            liar.offer(honest())
        yield


@pytest.mark.parametrize("secret", [None, SECRET])
def test_visitors_that_offer_and_fall_silent_keep_nobody_out(secret: str | None) -> None:
    """Not even of their own address, in the ten seconds that they have."""
    with listen(memory=bytearray(64), secret=secret) as listener:
        with offering_visitors(listener, MAX_FROM_ONE_ADDRESS + 16, secret), silent_visitors(listener, 100):
            for _ in range(3):
                assert serves_an_honest_one(listener, secret=secret)
            assert len(listener._acceptor._pending) <= 2 * MAX_FROM_ONE_ADDRESS
            made = [one for one in listener._acceptor._pending.values() if one.connection is not None]
            assert len(made) <= MAX_FROM_ONE_ADDRESS
        assert is_left_as_it_was(listener)


def test_who_has_made_an_offer_is_not_kept_out_by_a_crowd_that_has_not() -> None:
    with listen(memory=bytearray(64)) as listener, visit(listener) as sock:
        liar = Liar(sock)
        liar.greet()
        liar.offer(honest())
        with silent_visitors(listener, 3 * MAX_FROM_ONE_ADDRESS):
            liar.be_ready()
            listener.accept(LIMIT_S).close(0.0)


def test_who_is_ready_stays_though_it_is_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its word lies in the listener's socket, unread, when another comes for whom there is no room."""
    monkeypatch.setattr(reception_module, "MAX_FROM_ONE_ADDRESS", 2)
    attend = reception_module.PendingHandshake.attend
    unheard: list[Liar] = []

    def attend_late(visitor: Any) -> None:
        while unheard:
            unheard.pop().be_ready()
        attend(visitor)

    with listen(memory=bytearray(64)) as listener, ExitStack() as stack:
        for _ in range(2):
            liar = Liar(stack.enter_context(visit(listener)))
            liar.greet()
            liar.offer(honest())
            unheard.append(liar)
        last = Liar(stack.enter_context(visit(listener)))
        last.greet()
        monkeypatch.setattr(reception_module.PendingHandshake, "attend", attend_late)
        last.offer(honest())
        for _ in range(2):
            listener.accept(LIMIT_S).close(0.0)
        assert listener.refused.count == 0


def test_all_of_a_busy_host_that_connects_at_once_get_in() -> None:
    """More than there is room for, at every step: they are told to come again, and do."""
    count = 2 * MAX_FROM_ONE_ADDRESS + 32
    assert count > MAX_WAITING
    ends: list[Any] = []
    with Device(["127.0.0.1"]) as device, listen(memory=bytearray(64)) as listener:
        together = threading.Barrier(count)

        def call() -> None:
            together.wait(LIMIT_S)
            try:
                connect("127.0.0.1", listener.port, device=device, timeout_s=60).close(0.0)
                ends.append("connected")
            except Exception as error:
                ends.append(error)

        threads = [threading.Thread(target=call) for _ in range(count)]
        for thread in threads:
            thread.start()
        for _ in range(count):
            listener.accept(60).close(0.0)
        for thread in threads:
            thread.join(60)
        assert ends == ["connected"] * count


def why_refused(attempt: Callable[[], object]) -> str:
    """The words alone: the exception would keep what the attempt made."""
    with pytest.raises(RemoteError) as ended:
        attempt()
    return str(ended.value)


def test_connections_that_nobody_accepts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception_module, "MAX_WAITING", 2)
    with Device(["127.0.0.1"]) as device, listen(memory=bytearray(64)) as listener:
        for _ in range(2):
            connect("127.0.0.1", listener.port, device=device).close()
        for timeout_s in (0.3, 3.0, 30.0, 300.0):  # as long as the machine takes to hear why at all
            why = why_refused(
                lambda seconds=timeout_s: connect("127.0.0.1", listener.port, device=device, timeout_s=seconds)
            )
            if "timed out" not in why:
                break
        assert "too many wait to be accepted" in why
        gc.collect()  # the exception and its frames keep each other
        assert device._native.cq_count == 0
        late = threading.Timer(0.2, lambda: listener.accept(LIMIT_S).close())
        late.start()
        connect("127.0.0.1", listener.port, device=device, timeout_s=LIMIT_S).close()
        late.join()
    assert MAX_WAITING > 2


FEW_DESCRIPTORS = """
import os, resource, sys
from softmrc.connection import listen

with listen(memory=bytearray(64)) as listener:
    open_now = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 8, open_now + 8))
    print(listener.port, flush=True)
    connection = listener.accept(60)
    print(connection.recv(60).imm, flush=True)
"""


# A real process: it is the limit of a process that runs out.
@pytest.mark.process
@NOT_UNDER_SANITIZERS
def test_where_descriptors_run_out_the_oldest_visitor_goes() -> None:
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", FEW_DESCRIPTORS], stdout=subprocess.PIPE, text=True)
        )
        assert process.stdout is not None
        port = int(process.stdout.readline())
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT_S))
        with connect("127.0.0.1", port) as peer:
            peer.write(peer.remote[0], 0, b"x", imm=7)
        assert process.stdout.readline() == "7\n"


def test_who_comes_while_a_queue_pair_cannot_be_made_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is left of the tries that came to nothing."""
    with Device(["127.0.0.1"]) as device, listen(device=device, memory=bytearray(64)) as listener:
        queues, create_qp, failures = device._native.cq_count, device.create_qp, [errno.EMFILE, errno.ENOMEM]

        def sometimes(*arguments: Any, **more: Any) -> Any:
            if failures:
                raise DeviceError(failures.pop(), "cannot make a lane's descriptors")
            return create_qp(*arguments, **more)

        monkeypatch.setattr(device, "create_qp", sometimes)
        with connect("127.0.0.1", listener.port, timeout_s=LIMIT_S) as peer, listener.accept(LIMIT_S) as other:
            assert (
                listener.refused.count == listener.refused.told_to_come_again == 2
                and device._native.cq_count == queues + 2
            )
            peer.write(peer.remote[0], 0, b"x", imm=7)
            assert other.recv(LIMIT_S).imm == 7
        failures.append(errno.EPERM)
        with pytest.raises(RemoteError, match="something went wrong at this side"):
            connect("127.0.0.1", listener.port, timeout_s=LIMIT_S)
        assert (listener.refused.count, listener.refused.told_to_come_again) == (3, 2)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("fd00::1:0:0:0:1", "fd00::1:0:0:0:2", True),
        ("fd00::1:0:0:0:1", "fd00::2:0:0:0:1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%lo", "fe80::2", True),
    ],
)
def test_visitors_are_counted_by_where_they_come_from(one: str, other: str, is_same: bool) -> None:
    assert (reception_module._origin(one) == reception_module._origin(other)) is is_same
