"""A listener that the system refuses something for a moment: it turns one client away, and serves the next."""

from __future__ import annotations

import errno
import gc
import os
import socket
import threading
import time
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from bootstraps import only
from liar import LIMIT_S, Liar, eventually, honest, pending, plane, serves_an_honest_one, visit

from interrupting import is_interrupted
from softmrc import _core
from softmrc.connection import Listener, listen
from softmrc.connection import acceptor as acceptor_module
from softmrc.device import Device, shutdown
from softmrc.errors import DeviceError, UsageError

PLANES = ["127.0.0.1", "127.0.0.2"]
MAX_DESCRIPTORS = 40  # that a listener with a device of its own may need


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def listening_sockets(listener: Listener) -> list[int]:
    """Their descriptors; without opening anything."""
    found = []
    for fd in range(1024):
        with suppress(OSError):
            one = socket.socket(fileno=fd)
            try:
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and one.getsockname()[1] == listener.port:
                    found.append(fd)
            finally:
                one.detach()
    return found


@pytest.mark.parametrize("owns_device", [False, True])
def test_a_listener_without_descriptors_is_opened_whole_or_not_at_all(owns_device: bool) -> None:
    with Device(PLANES) as device:

        def whole() -> int:
            given: dict[str, Any] = {"planes": PLANES} if owns_device else {"device": device}
            with listen("127.0.0.1", memory=bytearray(64), **given) as one:
                return len(listening_sockets(one))

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
            patched.setattr(acceptor_module.threading.Thread, "start", refused)
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
            patched.setattr(acceptor_module.threading.Thread, "start", interrupted)
            listen("127.0.0.1", device=device, memory=bytearray(64))
        names = [one.name for one in threading.enumerate() if one.is_alive()]
        assert "softmrc-listener" not in names
        assert device._native.cq_count == 0 and not device._regions


@pytest.mark.parametrize("held", [0, 1], ids=["nobody to drop", "somebody to drop"])
def test_a_listener_that_cannot_accept_serves_when_it_can_again(held: int) -> None:
    """Without a pending client whose descriptor it could take it pauses `accept` at both of its sockets."""
    with (
        Device(PLANES) as device,
        listen("127.0.0.1", device=device, memory=bytearray(64)) as one,
        ExitStack() as stack,
    ):
        for _ in range(held):
            stack.enter_context(visit(one))
        assert eventually(lambda: pending(one) == held)
        gc.collect()
        shutdown.wait()  # of devices that let go of their descriptors by and by
        clients = [stack.enter_context(socket.socket()) for _ in range(4)]
        with only(0):
            for number, client in enumerate(clients):
                client.settimeout(LIMIT_S)
                client.connect((PLANES[number % 2], one.port))
            time.sleep(0.5)
            assert pending(one) <= held
        for client in clients if not held else ():  # the others made room for each other
            liar = Liar(client)
            liar.greet()
            assert liar.offer(honest(planes=[plane(address=at) for at in ("127.0.0.3", "127.0.0.4")]))
        assert serves_an_honest_one(one, planes=["127.0.0.3", "127.0.0.4"])


@pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")
def test_a_goodbye_that_comes_with_the_last_word_is_heard() -> None:
    """TCP may hand both over at once."""
    with listen(memory=bytearray(64), secret="open sesame", seal="on") as listener, visit(listener) as sock:
        liar = Liar(sock, "open sesame")
        liar.greet()
        liar.offer(honest(encrypted=1))
        liar.be_ready_and_leave()
        with listener.accept(LIMIT_S) as accepted:
            native, qpn = accepted.device.native, accepted.qp.qpn
            assert eventually(lambda: native.peer_state(qpn) is not _core.PeerState.PRESENT)
            assert accepted.has_lost_peer(), "known at once, without asking the peer"


def test_a_listening_socket_that_has_failed_for_good_ends_the_listener() -> None:
    with listen() as listener:
        for fd in listening_sockets(listener):
            one = socket.socket(fileno=fd)
            one.shutdown(socket.SHUT_RDWR)
            one.detach()
        with pytest.raises(UsageError, match="the listener is closed: cannot accept connections: Invalid argument"):
            listener.accept(LIMIT_S)
        assert listener.refused.count == 0
