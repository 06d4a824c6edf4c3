"""Crowds at a listener's door, and visitors that take their time: what they cost, and whom they keep out."""

from __future__ import annotations

import errno
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from liar import (
    LIMIT_S,
    Liar,
    heard,
    hello,
    honest,
    is_left_as_it_was,
    serves_an_honest_one,
    visit,
)

from sanitizers import NOT_UNDER_SANITIZERS
from softmrc.connection import Listener, connect, listen
from softmrc.connection import reception as reception_module
from softmrc.connection.reception import MOST_FROM_ONE_ADDRESS, MOST_UNFINISHED, MOST_WAITING
from softmrc.errors import DeviceError, RemoteError
from softmrc.verbs import Device

SECRET = "the right one"


def test_a_dripping_visitor_is_shown_out_and_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for the whole handshake: nobody stays by sending a little now and then."""
    monkeypatch.setattr(reception_module, "HANDSHAKE_S", 0.6)
    with listen(memory=bytearray(64)) as listener, visit(listener) as sock:
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
        assert len(listener._reception._visitors) <= MOST_FROM_ONE_ADDRESS
        assert listener.refused.count >= 1000 - MOST_FROM_ONE_ADDRESS
        assert "made room for others" in listener.refused.reasons[-1] and len(listener.refused.reasons) <= 16


def test_one_address_does_not_take_the_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who came first, from elsewhere, is still there after a crowd."""
    with listen("0.0.0.0", secret=SECRET, memory=bytearray(64), planes=["127.0.0.1"]) as listener:
        first = socket.socket()
        with first:
            first.bind(("127.0.0.5", 0))
            first.connect(("127.0.0.1", listener.port))
            with silent_visitors(listener, 3 * MOST_FROM_ONE_ADDRESS):
                first.sendall(hello())
                first.settimeout(LIMIT_S)
                assert b"nonce" in first.recv(1 << 16)


def test_there_is_a_bound_for_all_addresses_together() -> None:
    with listen("0.0.0.0", secret=SECRET, memory=bytearray(64), planes=["127.0.0.1"]) as listener, ExitStack() as stack:
        for number in range(2 * MOST_UNFINISHED):
            sock = stack.enter_context(socket.socket())
            sock.bind((f"127.0.{number % 8}.7", 0))
            sock.connect(("127.0.0.1", listener.port))
        assert serves_an_honest_one(listener, secret=SECRET)
        assert len(listener._reception._visitors) <= MOST_UNFINISHED


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
        with offering_visitors(listener, MOST_FROM_ONE_ADDRESS + 16, secret), silent_visitors(listener, 100):
            for _ in range(3):
                assert serves_an_honest_one(listener, secret=secret)
            assert len(listener._reception._visitors) <= 2 * MOST_FROM_ONE_ADDRESS
            made = [one for one in listener._reception._visitors.values() if one.connection is not None]
            assert len(made) <= MOST_FROM_ONE_ADDRESS
        assert is_left_as_it_was(listener)


def test_who_has_made_an_offer_is_not_kept_out_by_a_crowd_that_has_not() -> None:
    with listen(memory=bytearray(64)) as listener, visit(listener) as sock:
        liar = Liar(sock)
        liar.greet()
        liar.offer(honest())
        with silent_visitors(listener, 3 * MOST_FROM_ONE_ADDRESS):
            liar.be_ready()
            listener.accept(LIMIT_S).close(0.0)


def test_who_is_ready_stays_though_it_is_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its word lies in the listener's socket, unread, when another comes for whom there is no room."""
    monkeypatch.setattr(reception_module, "MOST_FROM_ONE_ADDRESS", 2)
    attend = reception_module.Visitor.attend
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
        monkeypatch.setattr(reception_module.Visitor, "attend", attend_late)
        last.offer(honest())
        for _ in range(2):
            listener.accept(LIMIT_S).close(0.0)
        assert listener.refused.count == 0


def test_all_of_a_busy_host_that_connects_at_once_get_in() -> None:
    """More than there is room for, at every step: they are told to come again, and do."""
    count = 2 * MOST_FROM_ONE_ADDRESS + 32
    assert count > MOST_WAITING
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


def test_connections_that_nobody_accepts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception_module, "MOST_WAITING", 2)
    with Device(["127.0.0.1"]) as device, listen(memory=bytearray(64)) as listener:
        for _ in range(2):
            connect("127.0.0.1", listener.port, device=device).close()
        with pytest.raises(RemoteError, match="too many wait to be accepted"):
            connect("127.0.0.1", listener.port, device=device, timeout_s=0.3)
        assert device._native.cq_count == 0
        late = threading.Timer(0.2, lambda: listener.accept(LIMIT_S).close())
        late.start()
        connect("127.0.0.1", listener.port, device=device, timeout_s=LIMIT_S).close()
        late.join()
    assert MOST_WAITING > 2


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


@pytest.mark.parametrize("errors", [[errno.EMFILE] * 2, [errno.ENOMEM, errno.ENFILE]])
def test_a_shortage_that_all_doors_find_at_once_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, errors: list[int]
) -> None:
    """A listener on several planes has a socket on each."""
    is_held, both_wait, accept = threading.Event(), threading.Event(), socket.socket.accept
    failures: list[int] = []

    def sometimes(sock: socket.socket) -> Any:
        if not is_held.is_set():
            is_held.set()
            both_wait.wait(LIMIT_S)
            raise ConnectionAbortedError
        if failures:
            raise OSError(failures.pop(), "so it was told to")
        return accept(sock)

    with Device(["127.0.0.1", "127.0.0.2"]) as device, listen("127.0.0.1", device=device, memory=bytearray(64)) as one:
        assert len(one._reception._sockets) == 2
        monkeypatch.setattr(socket.socket, "accept", sometimes)
        with visit(one), ExitStack() as stack:
            assert is_held.wait(LIMIT_S)
            stack.enter_context(visit(one, "127.0.0.2"))
            failures += errors
            both_wait.set()
            assert serves_an_honest_one(one, planes=["127.0.0.3", "127.0.0.4"])
            assert not failures
        assert serves_an_honest_one(one, planes=["127.0.0.3", "127.0.0.4"])


@pytest.mark.parametrize("name", ["register", "modify"])
def test_a_visitor_that_cannot_be_watched_ends_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with listen(memory=bytearray(64)) as listener:
        selector = listener._reception._selector
        watch, failures = getattr(selector, name), [errno.ENOMEM, errno.ENOSPC]

        def sometimes(*arguments: Any) -> Any:
            if failures:
                raise OSError(failures.pop(), "so it was told to")
            return watch(*arguments)

        monkeypatch.setattr(selector, name, sometimes)
        for _ in range(2):
            with visit(listener) as sock:
                sock.sendall(hello(sealed=False))
                heard(sock)
        assert not failures, listener.refused
        assert serves_an_honest_one(listener)
        assert listener.refused.count == 2


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
