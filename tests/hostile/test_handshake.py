"""What is said at a listener's door, by liars, strangers and listeners that are none, and what they learn."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from liar import (
    LIMIT_S,
    answer_to,
    changed_plane,
    close,
    heard,
    hello,
    honest,
    is_left_as_it_was,
    serves_an_honest_one,
    visit,
)

from softmrc import _core
from softmrc.connection import Connection, Listener, connect, listen
from softmrc.connection.offer import Offer
from softmrc.errors import RemoteError
from softmrc.handshake import CONNECTOR, VERSION, Inbox, Proof, framed
from softmrc.said import Nonsense
from softmrc.verbs import Device

SECRET = "the right one"


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    with listen(memory=bytearray(64)) as made:
        yield made


# A liar who knows the secret.


class Missing:
    """Stands for a field that is not there."""

    def __repr__(self) -> str:
        return "missing"


MISSING = Missing()
NUMBERS = {
    "qpn": (3, 0xFFFFFF),
    "first_psn": (0, 0xFFFFFF),
    "mtu": (512, 16384),
    "max_wimm": (1, 16384),
    "mpr": (8, 255),
}


def lies_about_a_number(least: int, most: int) -> list[Any]:
    return [
        *(least - 1, most + 1, -1, -(1 << 63), 1 << 64, 10**4000),
        *(True, False, 1.0, float(least), 1e308, float("nan"), float("inf")),
        *(str(least), "", None, [], {}, [least], {"n": least}, MISSING),
    ]


LIES: dict[str, dict[str, Any]] = {
    f"{key} {number}": honest(**{key: lie})
    for key, (least, most) in NUMBERS.items()
    for number, lie in enumerate(lies_about_a_number(least, most))
}
LIES |= {
    f"port {number}": changed_plane(port=lie, source_ports=[lie])
    for number, lie in enumerate(lies_about_a_number(1, 0xFFFF)[:-1])
}
LIES |= {
    f"source port {n}": changed_plane(source_ports=[9, lie])
    for n, lie in enumerate(lies_about_a_number(1, 0xFFFF)[:-1])
}
LIES |= {
    f"address {lie!r}": changed_plane(address=lie)
    for lie in (
        *("0.0.0.0", "0.1.2.3", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),  # of no one host
        *("10.0.0.1", "8.8.8.8", "::1", "::ffff:127.0.0.1", "fe80::1%lo"),  # not where our plane is
        *("localhost", "127.1", "127.0.0.1/8", " 127.0.0.1", "0x7f.0.0.1", "127.0.0.01", "", "1" * 10_000),
        *(2130706433, None, True, [], {}, ["127.0.0.1"], float("nan"), MISSING),
    )
}
LIES |= {
    f"source ports {name}": changed_plane(source_ports=lie)
    for name, lie in {
        "none": [],
        "too many": list(range(1, 258)),
        "not the one that is sent to": [10],
        "twice": [9, 9],
        "text": "9",
        "nothing": None,
        "lists": [[9]],
        "missing": MISSING,
    }.items()
}
LIES |= {
    f"planes {name}": honest(planes=lie)
    for name, lie in {
        "none": [],
        "two": [honest()["planes"][0], honest()["planes"][0] | {"address": "127.0.0.2"}],
        "one twice": honest()["planes"] * 2,
        "seventeen": [honest()["planes"][0] | {"address": f"127.0.0.{n}"} for n in range(1, 18)],
        "an object": {"0": honest()["planes"][0]},
        "text": "127.0.0.1",
        "lists": [["127.0.0.1", 9, [9]]],
        "numbers": [9],
        "missing": MISSING,
    }.items()
}
LIES |= {
    f"regions {name}": honest(regions=lie)
    for name, lie in {
        "too many": [[0, 64, 1]] * 1025,
        "without length": [[0, 0, 1]],
        "too long": [[0, (1 << 63) + 1, 1]],
        "beyond the end": [[(1 << 64) - 1, 2, 1]],
        "before the beginning": [[-1, 64, 1]],
        "wide key": [[0, 64, 1 << 32]],
        "negative key": [[0, 64, -1]],
        "two numbers": [[0, 64]],
        "four numbers": [[0, 64, 1, 1]],
        "true": [[0, True, 1]],
        "not a number": [[0, float("nan"), 1]],
        "text": [["0", "64", "1"]],
        "an object": {"va": 0},
        "nothing": None,
        "missing": MISSING,
    }.items()
}
LIES["port missing"] = changed_plane(port=MISSING)
LIES |= {f"port key {n}": honest(port_key=lie) for n, lie in enumerate(lies_about_a_number(0, (1 << 64) - 1)[:-1])}
SHARE = {"cipher": "AES_256_GCM", "share": "09" + "00" * 31}
SEALS = {
    "text": "on",
    "a number": 1,
    "true": True,
    "a list": [SHARE],
    "nothing in it": {},
    "no share": {"cipher": "AES_256_GCM"},
    "no cipher": {"share": SHARE["share"]},
    "another cipher": SHARE | {"cipher": "NULL"},
    "a cipher's number": SHARE | {"cipher": 0},
    "a short share": SHARE | {"share": "09"},
    "a long share": SHARE | {"share": "09" * 33},
    "a share that is no number": SHARE | {"share": "zz" * 32},
    "a share in capitals": SHARE | {"share": "AB" * 32},
    "a share of bytes": SHARE | {"share": list(range(32))},
    "of small order": SHARE | {"share": "00" * 32},
    "of small order, too": SHARE | {"share": "01" + "00" * 31},
}
LIES |= {f"seal {name}": honest(seal=lie) for name, lie in SEALS.items()}
LIES |= {f"icrc {lie!r}": honest(icrc=lie) for lie in (0, 1, "true", None, [], False, MISSING)}


def without_missing(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_missing(one) for key, one in value.items() if one is not MISSING}
    return [without_missing(one) for one in value] if isinstance(value, list) else value


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
    with pytest.raises(Nonsense, match=r"planes.*address"):
        Offer.parse(changed_plane(address=address))


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "127.0.0.1", "223.255.255.255", "::1", "fd00::2", "2001:db8::1", "fe80::1"]
)
def test_addresses_of_hosts(address: str) -> None:
    assert str(Offer.parse(changed_plane(address=address)).planes[0].address) == address


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
                proof, inbox = Proof("listener", None), Inbox()
                proof.hear(next_frame(sock, inbox))
                sock.sendall(framed(proof.hello()))
                next_frame(sock, inbox)
                sock.sendall(framed(proof.sealed("the listener offers", offer)))
                heard(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(LIMIT_S)


def next_frame(sock: socket.socket, inbox: Inbox) -> dict[str, Any]:
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
        framed(Proof(CONNECTOR, b"wrong").hello()),
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
            its = Proof("listener", b"another")
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
