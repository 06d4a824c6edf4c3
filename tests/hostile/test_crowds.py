"""What crowds of clients cost a listener, and clients that take their time; and whom they keep out."""

from __future__ import annotations

import errno
import gc
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from liar import (
    HELLO,
    LIMIT_S,
    Liar,
    eventually,
    heard,
    honest,
    is_left_as_it_was,
    pending,
    serves_an_honest_one,
    visit,
)

import needs
from sanitizers import NOT_UNDER_SANITIZERS
from softmrc import _core
from softmrc.config import DeviceConfig
from softmrc.connection import Listener, connect, listen
from softmrc.connection import acceptor as acceptor_module
from softmrc.connection.acceptor import MAX_WAITING
from softmrc.device import Device
from softmrc.errors import DeviceError, HandshakeError, RemoteError

SECRET = "the right one" if _core.can_seal() else None
HOST = "127.0.0.1"
MAX_PENDING, MAX_PER_ADDRESS = DeviceConfig().max_pending, DeviceConfig().max_pending_per_address


def counts() -> tuple[int, int, int]:
    """Of this process: handshakes that are not authenticated, those that are, and accepted connections."""
    return _core.handshake_counts()


@pytest.fixture(autouse=True)
def _nobody_else() -> Iterator[None]:
    """All limits are of the process."""
    gc.collect()
    assert eventually(lambda: counts() == (0, 0, 0))
    yield
    gc.collect()
    assert eventually(lambda: counts() == (0, 0, 0))


class Dropping:
    """An acceptor that drops a client with an offer in favour of another, before the listener has looked at it."""

    def __init__(self, native: _core.Acceptor) -> None:
        self._native = native

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def exporter(self, number: int) -> bytes | None:
        self._native.refuse(number, "made room for others", "too many connect at once; try again", True)
        return self._native.exporter(number)


@pytest.mark.skipif(SECRET is None, reason="built without libcrypto")
def test_nothing_is_made_of_an_offer_whose_keys_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or there would be a queue pair without keys, to a peer whose packets are to be encrypted."""
    made: list[Any] = []
    monkeypatch.setattr(acceptor_module, "Connection", lambda *about, **more: made.append((about, more)))
    with listen(memory=bytearray(64), secret=SECRET) as listener, visit(listener) as sock:
        monkeypatch.setattr(listener._acceptor, "_native", Dropping(listener._acceptor._native))
        liar = Liar(sock, SECRET)
        liar.greet()
        with pytest.raises(HandshakeError, match="too many connect at once"):
            liar.offer(honest())
        assert eventually(lambda: listener.refused.count == 1)
        assert not made


def test_a_dripping_client_is_dropped_and_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for the whole handshake: a client cannot extend it by sending a little now and then."""
    monkeypatch.setattr(acceptor_module, "HANDSHAKE_S", 2.0)
    with listen(memory=bytearray(64)) as listener, visit(listener) as sock:
        assert eventually(lambda: pending(listener) == 1)
        is_out = threading.Event()
        dripped = bytearray()

        def drip() -> None:
            for byte in (500).to_bytes(4, "big") + b" " * 500:
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
        assert (b"too long" in told or told == b"") and len(dripped) < 500
        assert any("did not finish the handshake in time" in reason for reason in listener.refused.reasons)


@contextmanager
def silent_clients(listener: Listener, count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 500:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 500), hard))
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(visit(listener))
        yield


def from_elsewhere(stack: ExitStack, listener: Listener, source: str) -> socket.socket:
    sock = stack.enter_context(socket.socket())
    sock.bind((source, 0))
    sock.settimeout(LIMIT_S)
    sock.connect((HOST, listener.port))
    return sock


def test_a_thousand_silent_clients_keep_nobody_out() -> None:
    before = threading.active_count()
    with listen(memory=bytearray(64)) as listener, silent_clients(listener, 1000):
        assert threading.active_count() == before + 1
        assert serves_an_honest_one(listener)
        assert counts()[0] == pending(listener) <= MAX_PER_ADDRESS
        assert listener.refused.count >= 1000 - MAX_PER_ADDRESS
        assert "too many had not finished" in listener.refused.reasons[-1] and len(listener.refused.reasons) <= 16


needs_secret = pytest.mark.skipif(SECRET is None, reason="built without libcrypto")


@needs_secret
@pytest.mark.parametrize("at", ["0.0.0.0", pytest.param("::", marks=needs.IPV6)])
def test_one_address_does_not_take_the_place_of_others(at: str) -> None:
    """Who came first, from elsewhere, is still there after a crowd."""
    with listen(at, secret=SECRET, memory=bytearray(64), planes=[HOST]) as listener, ExitStack() as stack:
        first = from_elsewhere(stack, listener, "127.0.0.5")
        with silent_clients(listener, 3 * MAX_PER_ADDRESS):
            first.sendall(Liar(first, SECRET).handshake.take_outgoing())
            assert first.recv(1 << 16)[4] == HELLO


@needs_secret
def test_there_is_a_bound_for_all_addresses_together() -> None:
    with listen("0.0.0.0", secret=SECRET, memory=bytearray(64), planes=[HOST]) as listener, ExitStack() as stack:
        for number in range(2 * MAX_PENDING):
            from_elsewhere(stack, listener, f"127.0.{number % 8}.7")
        assert serves_an_honest_one(listener, secret=SECRET)
        assert pending(listener) <= MAX_PENDING


@needs_secret
def test_the_bounds_are_of_a_process_and_not_of_a_listener() -> None:
    """Also the one for each address; and each listener still serves who comes."""
    with ExitStack() as stack:
        limits = {"max_pending": 12, "max_pending_per_address": 4, "planes": [HOST], "secret": SECRET}
        listeners = [stack.enter_context(listen("0.0.0.0", memory=bytearray(64), **limits)) for _ in range(3)]
        for number in range(5):
            for listener in listeners:
                for _ in range(3):
                    from_elsewhere(stack, listener, f"127.0.{number}.7")
        assert eventually(lambda: counts()[0] == sum(map(pending, listeners)) == 12)
        for listener in listeners:
            assert serves_an_honest_one(listener, secret=SECRET)
        for _ in range(2):
            for listener in listeners:
                from_elsewhere(stack, listener, "127.0.9.7")
        assert eventually(lambda: counts()[0] == 12)
        assert eventually(lambda: sum(one.refused.count for one in listeners) >= 45 - 12 + 3)


@contextmanager
def offering_clients(listener: Listener, count: int, secret: str | None = None) -> Iterator[None]:
    """They know the secret, make an offer, and never say that they are ready."""
    with ExitStack() as stack:
        for _ in range(count):
            liar = Liar(stack.enter_context(visit(listener)), secret)
            liar.greet()
            liar.offer(honest())
        yield


@pytest.mark.parametrize("secret", [None, pytest.param(SECRET, marks=needs_secret)])
def test_clients_that_offer_and_fall_silent_keep_nobody_out(secret: str | None) -> None:
    """Not even of their own address, in the ten seconds that they have."""
    with listen(memory=bytearray(64), secret=secret) as listener:
        with offering_clients(listener, MAX_PER_ADDRESS + 16, secret), silent_clients(listener, 100):
            for _ in range(3):
                assert serves_an_honest_one(listener, secret=secret)
            assert pending(listener) <= 2 * MAX_PER_ADDRESS
            assert counts()[1] <= MAX_PER_ADDRESS and len(listener._acceptor._pending) <= MAX_PER_ADDRESS
        assert is_left_as_it_was(listener)


def test_clients_that_fall_silent_at_one_listener_keep_nobody_from_another() -> None:
    """A listener leaves what others know of to them, and serves who comes to it all the same."""
    with (
        listen(memory=bytearray(64), max_pending_per_address=4) as crowded,
        listen(memory=bytearray(64), max_pending_per_address=4) as other,
        offering_clients(crowded, 6),
        offering_clients(other, 2),
    ):
        for listener in (other, crowded):
            assert serves_an_honest_one(listener)
        assert counts()[1] <= 4 + 1
        assert is_left_as_it_was(other) or pending(other) == 1


def test_who_has_made_an_offer_is_not_kept_out_by_a_crowd_that_has_not() -> None:
    with listen(memory=bytearray(64)) as listener, visit(listener) as sock:
        liar = Liar(sock)
        liar.greet()
        liar.offer(honest())
        with silent_clients(listener, 3 * MAX_PER_ADDRESS):
            liar.be_ready()
            listener.accept(LIMIT_S).close(0.0)


def test_who_is_ready_stays_though_it_is_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its word lies in the listener's socket, unread, when another comes for whom there is no room."""
    is_held, may_go = threading.Event(), threading.Event()
    poll = acceptor_module.Acceptor._poll

    def held_once(acceptor: acceptor_module.Acceptor) -> None:
        if not is_held.is_set():
            is_held.set()
            may_go.wait(LIMIT_S)
        poll(acceptor)

    with listen(memory=bytearray(64), max_pending_per_address=2) as listener, ExitStack() as stack:
        liars = []
        for number in range(4):
            liars.append(Liar(stack.enter_context(visit(listener))))
            liars[-1].greet()
            if number < 2:
                liars[-1].offer(honest())
        monkeypatch.setattr(acceptor_module.Acceptor, "_poll", held_once)
        for liar in liars[2:]:
            liar.handshake.offer(b"")
            liar.send()
            assert is_held.wait(LIMIT_S)
        for liar in liars[:2]:
            liar.be_ready()
        may_go.set()
        for _ in range(2):
            listener.accept(LIMIT_S).close(0.0)
        assert eventually(lambda: listener.refused.count == 2)
        assert all("makes no sense" in reason for reason in listener.refused.reasons)


def test_all_of_a_busy_host_that_connects_at_once_get_in() -> None:
    """More than the limit, at every step: they receive "try again", and do."""
    count = 2 * MAX_PER_ADDRESS + 32
    assert count > MAX_WAITING
    ends: list[Any] = []
    with Device([HOST]) as device, listen(memory=bytearray(64)) as listener:
        together = threading.Barrier(count)

        def call() -> None:
            together.wait(LIMIT_S)
            try:
                connect(HOST, listener.port, device=device, timeout_s=60).close(0.0)
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


# Connections.


def why_refused(attempt: Callable[[float], object]) -> str:
    """The words alone: the exception would keep what the attempt made."""
    why = ""
    for timeout_s in (0.3, 3.0, 30.0, 300.0):  # as long as the machine takes to hear why at all
        with pytest.raises(RemoteError) as ended:
            attempt(timeout_s)
        why = str(ended.value)
        if "timed out" not in why and "in time" not in why:
            break
    return why


def test_connections_that_nobody_accepts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor_module, "MAX_WAITING", 2)
    with Device([HOST]) as device, listen(memory=bytearray(64)) as listener:
        for _ in range(2):
            connect(HOST, listener.port, device=device).close()
        why = why_refused(lambda seconds: connect(HOST, listener.port, device=device, timeout_s=seconds))
        assert "too many wait to be accepted" in why
        gc.collect()  # the exception and its frames keep each other
        assert device._native.cq_count == 0
        late = threading.Timer(0.2, lambda: listener.accept(LIMIT_S).close())
        late.start()
        connect(HOST, listener.port, device=device, timeout_s=LIMIT_S).close()
        late.join()
    assert MAX_WAITING > 2


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
def test_accepted_connections_are_bounded_until_they_are_closed(limit: str) -> None:
    """In all listeners of a process together. A further client receives "try again", and does."""
    settings: dict[str, Any] = {limit: 3}
    with Device([HOST]) as device, ExitStack() as stack:
        first, second = (stack.enter_context(listen(memory=bytearray(64), **settings)) for _ in range(2))
        accepted = []
        for listener in (first, second, first):
            stack.enter_context(connect(HOST, listener.port, device=device))
            accepted.append(stack.enter_context(listener.accept(LIMIT_S)))
        assert counts() == (0, 0, 3)
        for listener in (first, second):
            why = why_refused(lambda seconds, at=listener.port: connect(HOST, at, device=device, timeout_s=seconds))
            assert "refused: there are too many connections to this process; try again" in why
            refused = listener.refused
            assert refused.told_to_come_again == refused.count >= 1 and "too many connections" in refused.reasons[-1]
        late = threading.Timer(0.2, accepted[0].close)
        late.start()
        stack.enter_context(connect(HOST, second.port, device=device, timeout_s=LIMIT_S))
        late.join()
        assert eventually(lambda: counts()[2] == 3)


@needs_secret
def test_connections_of_one_address_do_not_take_the_place_of_others() -> None:
    settings: dict[str, Any] = {"max_connections_per_address": 1, "planes": [HOST], "secret": SECRET}
    with listen("0.0.0.0", memory=bytearray(64), **settings) as listener, ExitStack() as stack:
        for number in range(3):
            liar = Liar(from_elsewhere(stack, listener, f"127.0.0.{number + 5}"), SECRET)
            liar.greet()
            liar.offer(honest(planes=[honest()["planes"][0] | {"address": f"127.0.0.{number + 5}"}]))
            liar.be_ready()
            stack.enter_context(listener.accept(LIMIT_S))
        assert counts() == (0, 0, 3)


# Shortages.

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
def test_where_descriptors_run_out_the_oldest_client_goes() -> None:
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


def test_a_client_is_asked_to_retry_while_a_queue_pair_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
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
