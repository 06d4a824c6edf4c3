"""Strangers at a listener's door: whatever they send, accept() says that it was they who went wrong, and goes on."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from softmrc import connection as connection_module
from softmrc.connection import Connection, Listener, connect, listen
from softmrc.errors import RemoteError
from softmrc.handshake import Channel


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    with listen(memory=bytearray(64)) as made:
        yield made


def accepted(listener: Listener) -> tuple[threading.Thread, list[Any]]:
    """A thread that accepts once, and what came of it."""
    found: list[Any] = []

    def accept() -> None:
        try:
            found.append(listener.accept(20))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=accept)
    thread.start()
    return thread, found


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def answer_to(listener: Listener, data: bytes) -> Any:
    """What accept() made of these bytes."""
    thread, found = accepted(listener)
    with socket.create_connection(("127.0.0.1", listener.port), 20) as sock:
        with suppress(OSError):  # it may hang up before it has heard all
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        thread.join()
    return found[0]


NESTED = b"[" * 100_000
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
HELLOS = st.fixed_dictionaries(
    {},
    optional={
        "softmrc": st.just(1) | JUNK,
        "nonce": st.text(min_size=64, max_size=64) | JUNK,
        "sealed": st.booleans() | JUNK,
    },
)


@given(
    st.binary(max_size=64)
    | HELLOS.map(lambda frame: framed(json.dumps(frame).encode()))
    | JUNK.map(lambda value: framed(json.dumps(value).encode()))
)
@example(framed(NESTED))
@example(framed(b'{"softmrc":1' + b"0" * 10_000 + b"}"))
@example(b"\xff\xff\xff\xff")
@settings(max_examples=150, deadline=None)
def test_any_greeting(listener: Listener, data: bytes) -> None:
    assert isinstance(answer_to(listener, data), RemoteError)


def offer_to(listener: Listener, body: str, seal: str | None = None) -> Any:
    """The answer to a sealed offer."""
    thread, found = accepted(listener)
    with socket.create_connection(("127.0.0.1", listener.port), 20) as sock:
        channel = Channel(sock, "connector", None)
        channel.hello()
        true_seal = channel._seal("connector", (channel.nonce, channel.peer_nonce), body)
        channel.send({"body": body, "seal": true_seal if seal is None else seal})
        with suppress(RemoteError):
            channel.receive_sealed()
            channel.send_sealed({"ready": True})
        thread.join()
    if isinstance(found[0], Connection):
        found[0].close()
    return found[0]


HONEST: dict[str, Any] = {
    "planes": [{"address": "127.0.0.1", "port": 9, "source_ports": [9]}],
    "qpn": 17,
    "first_psn": 5,
    "mtu": 1024,
    "icrc": True,
    "max_wimm": 8,
    "mpr": 8,
    "regions": [[0, 64, 1]],
}
NUMBERS = st.integers() | st.floats() | st.sampled_from([-1, 0, 1 << 16, 1 << 24, 1 << 32, 1 << 64, float("inf")])
PLANES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "address": st.just("127.0.0.1") | JUNK,
            "port": NUMBERS | JUNK,
            "source_ports": st.lists(NUMBERS | JUNK, max_size=3) | JUNK,
        },
    ),
    max_size=2,
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "planes": PLANES | JUNK,
        **{key: NUMBERS | JUNK for key in ("qpn", "first_psn", "mtu", "max_wimm", "mpr")},
        "icrc": JUNK,
        "regions": st.lists(st.lists(NUMBERS, max_size=4), max_size=2) | JUNK,
    },
)


def test_an_honest_offer_is_accepted(listener: Listener) -> None:
    """Else the others would be refused for the wrong reason."""
    offer = HONEST | {"icrc": listener.device.config.icrc}
    assert isinstance(offer_to(listener, json.dumps(offer)), Connection)


@given(CHANGES)
@example({"qpn": float("inf")})
@example({"qpn": 1 << 64})
@example({"first_psn": -1})
@example({"planes": [{"address": "127.0.0.1", "port": 1 << 20, "source_ports": []}]})
@settings(max_examples=150, deadline=None)
def test_any_offer(listener: Listener, changes: dict[str, Any]) -> None:
    """It may be accepted, where the change did no harm."""
    offer = HONEST | {"icrc": listener.device.config.icrc} | changes
    assert isinstance(offer_to(listener, json.dumps(offer)), Connection | RemoteError)


@pytest.mark.parametrize("body", ["", "[]", "{", "[" * 100_000, '"\ud800"', "\ud800"])
def test_an_offer_that_is_none(listener: Listener, body: str) -> None:
    assert isinstance(offer_to(listener, body), RemoteError)


@pytest.mark.parametrize("seal", ["", "é", "\ud800", "0" * 64])
def test_a_seal_that_is_none(listener: Listener, seal: str) -> None:
    answer = offer_to(listener, json.dumps(HONEST), seal)
    assert isinstance(answer, RemoteError) and "does not know the secret" in str(answer)


def test_a_stranger_who_takes_a_byte_at_a_time(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for the whole handshake: nobody keeps others waiting by sending a little now and then."""
    monkeypatch.setattr(connection_module, "HANDSHAKE_S", 0.5)
    thread, found = accepted(listener)
    with socket.create_connection(("127.0.0.1", listener.port), 20) as sock:
        sock.sendall((1000).to_bytes(4, "big"))
        for _ in range(100):
            if found:
                break
            time.sleep(0.1)
            try:
                sock.sendall(b" ")
            except OSError:
                break
        assert found, "still listening to the same stranger"
    thread.join()
    assert isinstance(found[0], RemoteError) and "in time" in str(found[0])


def test_the_next_one_is_served(listener: Listener) -> None:
    assert isinstance(answer_to(listener, framed(NESTED)), RemoteError)
    thread, found = accepted(listener)
    with connect("127.0.0.1", listener.port) as peer:
        thread.join()
        with found[0] as other:
            peer.write(peer.remote[0], 0, b"hello", imm=1)
            assert other.recv(10).imm == 1
