"""A listener that the system refuses something for a moment: it turns one visitor away, and serves the next."""

from __future__ import annotations

import errno
import gc
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from liar import LIMIT_S, Liar, eventually, heard, hello, honest, serves_an_honest_one, visit

from interrupting import is_interrupted
from softmrc import _core
from softmrc.connection import Listener, listen
from softmrc.connection import acceptor as reception_module
from softmrc.connection.handshake import FrameReader, HandshakeError
from softmrc.connection.keys import KeyShare
from softmrc.device import Device
from softmrc.errors import DeviceError

PLANES = ["127.0.0.1", "127.0.0.2"]
MAX_DESCRIPTORS = 40  # that a listener with a device of its own may need


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def only(free: int) -> Iterator[None]:
    """This process may open so many descriptors more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        with open(os.devnull) as source:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, source.fileno() + MAX_DESCRIPTORS + 64), hard))
            with suppress(OSError):
                while True:
                    held.append(os.dup(source.fileno()))
            for _ in range(free):
                os.close(held.pop())
            yield
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("owns_device", [False, True])
def test_a_listener_without_descriptors_is_opened_whole_or_not_at_all(owns_device: bool) -> None:
    with Device(PLANES) as device:

        def whole() -> int:
            given: dict[str, Any] = {"planes": PLANES} if owns_device else {"device": device}
            with listen("127.0.0.1", memory=bytearray(64), **given) as one:
                return len(one._acceptor._sockets)

        assert whole() == 2  # what Python opens once is open
        assert eventually(lambda: device._native.cq_count == 0)
        gc.collect()
        before, refusals = descriptors(), 0
        for free in range(MAX_DESCRIPTORS):
            with only(free):
                try:
                    doors = whole()
                except DeviceError as error:
                    assert error.errno == errno.EMFILE and "\n" not in str(error)
                    refusals += 1
                else:
                    assert doors == 2
            assert device._native.cq_count == 0 and not device._regions
            gc.collect()
            assert eventually(lambda: descriptors() <= before), f"{descriptors() - before} lost with {free} left"
        assert 3 < refusals < MAX_DESCRIPTORS
        assert whole() == 2


def test_a_listener_without_a_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Device(PLANES) as device:
        with monkeypatch.context() as patched, pytest.raises(DeviceError, match="thread") as caught:
            patched.setattr(reception_module.threading.Thread, "start", refused)
            listen("127.0.0.1", device=device, memory=bytearray(64))
        assert caught.value.errno == errno.EAGAIN
        assert device._native.cq_count == 0 and not device._regions


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_signal_while_a_listeners_thread_starts_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Python may leave the start of a thread that runs, or will in a moment."""
    failures: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda failure: failures.append(failure.exc_value))
    with Device(PLANES) as device:

        def whole() -> None:
            opened.append(listen("127.0.0.1", device=device, memory=bytearray(64)))

        def closed() -> None:
            while opened:
                opened.pop().close()

        def is_clean() -> bool:
            threads = [one for one in threading.enumerate() if one.name == "softmrc-listener" and one.is_alive()]
            return not threads and descriptors() <= before and not device._native.cq_count and not device._regions

        opened: list[Listener] = []
        whole()
        closed()
        assert eventually(lambda: device._native.cq_count == 0)
        gc.collect()
        before, step, is_over = descriptors(), 0, False
        while not is_over:
            step += 1
            is_over = not is_interrupted(step, whole, threading.__file__, error=error)
            closed()
            assert eventually(is_clean), f"step {step}"
            whole()
            closed()
        assert step > 10 and not failures
        with listen("127.0.0.1", device=device, memory=bytearray(64)) as one:
            assert serves_an_honest_one(one, planes=["127.0.0.3", "127.0.0.4"])


def test_a_signal_as_a_listeners_thread_has_started_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    with Device(PLANES) as device:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(reception_module.threading.Thread, "start", interrupted)
            listen("127.0.0.1", device=device, memory=bytearray(64))
        names = [one.name for one in threading.enumerate() if one.is_alive()]
        assert "softmrc-listener" not in names
        assert device._native.cq_count == 0 and not device._regions


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
        assert len(one._acceptor._sockets) == 2
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
        selector = listener._acceptor._selector
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


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the kernel refuses the next messages of TCP with."""
    left: list[int] = []
    send = socket.socket.send

    def sometimes(sock: socket.socket, *data: Any) -> int:
        if left:
            raise OSError(left.pop(), "so it was told to")
        return send(sock, *data)

    monkeypatch.setattr(socket.socket, "send", sometimes)
    return left


NO_ROOM = [errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM]


def test_a_refusal_is_heard_though_there_was_no_room_for_it(failures: list[int]) -> None:
    with listen(memory=bytearray(64)) as listener, visit(listener) as sock:
        failures += NO_ROOM
        sock.sendall(hello(sealed=True))
        said = FrameReader()
        said.add(heard(sock))
        with pytest.raises(HandshakeError, match="refused: one side uses a secret and the other does not"):
            said.next()
        assert not failures and listener.refused.count == 1
        assert eventually(lambda: not listener._acceptor._pending)
        assert serves_an_honest_one(listener)


def test_the_last_word_of_a_handshake_is_heard_though_there_was_no_room_for_it(failures: list[int]) -> None:
    """The connector asks for smaller packets and waits until it is told that they are."""
    with listen(memory=bytearray(64)) as listener, visit(listener) as sock:
        liar = Liar(sock)
        liar.greet()
        liar.offer(honest(mtu=4096))
        failures += NO_ROOM
        liar.be_ready(mtu=1024)
        assert liar.is_told_that_the_listener_is_ready()
        assert not failures
        with listener.accept(LIMIT_S) as accepted:
            assert accepted._payload == 1024


@pytest.mark.skipif(not _core.can_seal(), reason="built without sealing")
def test_a_goodbye_that_comes_with_the_last_word_is_heard() -> None:
    """TCP may hand both over at once."""
    with listen(memory=bytearray(64), secret="open sesame", seal="on") as listener, visit(listener) as sock:
        liar = Liar(sock, b"open sesame")
        liar.greet()
        liar.offer(honest(seal=KeyShare().to_wire()))
        liar.be_ready_and_leave()
        with listener.accept(LIMIT_S) as accepted:
            native, qpn = accepted.device.native, accepted.qp.qpn
            assert eventually(lambda: native.peer_state(qpn) is not _core.PeerState.PRESENT)
            assert accepted.has_lost_peer(), "known at once, without asking the peer"
