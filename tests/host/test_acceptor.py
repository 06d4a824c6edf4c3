"""The side of a handshake that is called: who is dropped when there are too many, and what is left behind."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

import parts
from softmrc import _core
from softmrc._core import AcceptorEvent, DialCandidate, HandshakeEvent
from softmrc.errors import HandshakeError, MrcError

pytestmark = pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")
LIMIT_S = 20.0
OFFER = _core.Offer([_core.PeerPlane(bytes([127, 0, 0, 1]), 0, 4791, [4791])], 77, 0, 0, 4096, True, False, 64, 64, [])


class Listening:
    """An acceptor and the events that it had, by their numbers."""

    def __init__(
        self,
        at_once: int = 64,
        handshake_s: float = 10.0,
        credentials: _core.Credentials | None = None,
        connections: int = 1000,
    ) -> None:
        listening, self.port = _core.listen_at([bytes([127, 0, 0, 1])], 0, 0)
        self.native = _core.Acceptor(
            listening, credentials or _core.Credentials.none(), 256, at_once, connections, 1000, handshake_s
        )
        self.events: list[tuple[Any, ...]] = []

    def poll(self) -> None:
        self.events += self.native.poll()

    def of_kind(self, kind: AcceptorEvent) -> list[tuple[Any, ...]]:
        return [event for event in self.events if event[0] is kind]

    def next(self, kind: AcceptorEvent) -> int:
        """The number of the first that has come this far; it is waited for."""
        until = time.monotonic() + LIMIT_S
        while not (found := self.of_kind(kind)):
            assert time.monotonic() < until, self.events
            select.select([self.native], [], [], 0.05)
            self.poll()
        self.events.remove(found[0])
        return int(found[0][1])


class Calling:
    """A connector, and how far it has come."""

    def __init__(self, listening: Listening, credentials: _core.Credentials | None = None) -> None:
        way = DialCandidate(bytes([127, 0, 0, 1]), listening.port)
        self.native = _core.Connector([way], credentials or _core.Credentials.none())

    def until(self, wanted: HandshakeEvent, listening: Listening | None = None) -> None:
        until = time.monotonic() + LIMIT_S
        while (event := self.native.poll()) is not wanted:
            assert event is HandshakeEvent.NONE and time.monotonic() < until
            if listening is not None:
                listening.poll()
            time.sleep(0.001)

    def offer(self, listening: Listening) -> None:
        self.until(HandshakeEvent.IDENTIFIED, listening)
        self.native.allow()
        self.native.offer(OFFER)
        self.native.poll()

    def refusal(self, listening: Listening | None = None) -> HandshakeError:
        with pytest.raises(HandshakeError) as raised:
            self.until(HandshakeEvent.DONE, listening)
        return raised.value


def offered(listening: Listening) -> tuple[Calling, int]:
    """A connector that has made its offer, and its number at the acceptor."""
    calling = Calling(listening)
    calling.offer(listening)
    return calling, listening.next(AcceptorEvent.OFFERED)


@contextlib.contextmanager
def closing(*listening: Listening) -> Iterator[None]:
    try:
        yield
    finally:
        for one in listening:
            one.native.close()


@contextlib.contextmanager
def child_with_copies() -> Iterator[None]:
    """A forked child, which has every descriptor of now."""
    goes_on, ends = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ends)
        os.read(goes_on, 1)
        os._exit(0)
    try:
        yield
    finally:
        os.close(ends)
        os.close(goes_on)
        os.waitpid(child, 0)


def test_a_crowd_that_has_made_offers_at_one_acceptor_keeps_nobody_from_another() -> None:
    """There are too many already, and none of them is of the acceptor that it came to."""
    first, second = Listening(at_once=1), Listening(at_once=1)
    with closing(first, second):
        known, _ = offered(first)
        offered(second)
        assert _core.handshake_counts()[:2] == (0, 2)
        known.native.close()


def test_the_oldest_that_has_made_an_offer_is_dropped() -> None:
    listening = Listening(at_once=1)
    with closing(listening):
        old, number = offered(listening)
        assert offered(listening)[1] != number
        assert listening.next(AcceptorEvent.ENDED) == number
        assert old.refusal().busy


def test_a_connection_that_is_being_set_up_counts_as_one() -> None:
    listening = Listening(connections=1)
    with closing(listening):
        (first, number), second = offered(listening), Calling(listening)
        second.offer(listening)
        refusal = second.refusal(listening)
        assert refusal.busy and "too many connections" in str(refusal)
        first.native.close()
        assert listening.next(AcceptorEvent.ENDED) == number
        offered(listening)


def test_an_acceptor_is_woken_when_another_drops_its_client() -> None:
    """Both are of one process, each with a separate thread that sleeps until its descriptor is readable."""
    first, second = Listening(at_once=1), Listening(at_once=1)
    with closing(first, second), socket.create_connection(("127.0.0.1", first.port)):
        while not first.native.pending:
            first.poll()
        assert select.select([first.native], [], [], 0)[0] == []
        with socket.create_connection(("127.0.0.1", second.port)):
            while not second.native.pending:
                second.poll()
            assert select.select([first.native], [], [], LIMIT_S)[0]
            first.poll()
            assert len(first.of_kind(AcceptorEvent.REFUSED)) == 1
            assert select.select([first.native], [], [], 0)[0] == []


def test_a_complete_handshake_is_not_dropped() -> None:
    listening = Listening(at_once=1)
    with closing(listening):
        (ready, number), late = offered(listening), Calling(listening)
        listening.native.answer(number, OFFER)
        ready.until(HandshakeEvent.OFFERED)
        late.until(HandshakeEvent.IDENTIFIED, listening)
        ready.native.ready(4096, False)
        assert ready.native.poll() is HandshakeEvent.DONE and ready.native.is_done
        late.native.allow()
        late.native.offer(OFFER)
        late.native.poll()
        listening.next(AcceptorEvent.OFFERED)
        assert listening.next(AcceptorEvent.READY) == number
        listening.native.finish(number, False)
        assert listening.next(AcceptorEvent.FINISHED) == number
        assert listening.native.take(number) is not None


def test_a_crowd_that_is_faster_than_a_clients_answer_has_it_try_again() -> None:
    """It is the oldest then. What it had sent would have been looked at first."""
    listening = Listening(at_once=4)
    with closing(listening), contextlib.ExitStack() as crowd:
        slow = Calling(listening)
        slow.until(HandshakeEvent.IDENTIFIED, listening)
        for _ in range(4):
            crowd.enter_context(socket.create_connection(("127.0.0.1", listening.port)))
        listening.next(AcceptorEvent.REFUSED)
        slow.native.allow()
        slow.native.offer(OFFER)
        assert slow.refusal().busy


def test_nobody_is_late_whose_bytes_were_not_read_in_time() -> None:
    """More of them than are ready at a time, after a pause of the polling thread."""
    listening = Listening(at_once=200, handshake_s=3.0)  # which on a loaded machine they take to come so far
    with closing(listening):
        callings = [Calling(listening) for _ in range(70)]
        for calling in callings:
            calling.until(HandshakeEvent.IDENTIFIED, listening)
            calling.native.allow()
            calling.native.offer(OFFER)
            calling.native.poll()
        for _ in callings:
            listening.native.answer(listening.next(AcceptorEvent.OFFERED), OFFER)
        for calling in callings:
            calling.until(HandshakeEvent.OFFERED)
            calling.native.ready(4096, False)
            assert calling.native.poll() is HandshakeEvent.DONE and calling.native.is_done
        while listening.native.due_s():
            time.sleep(0.01)
        time.sleep(1.5)  # until the last of them would be late, too
        listening.poll()
        assert len(listening.of_kind(AcceptorEvent.READY)) == len(callings)


def test_an_identified_client_that_leaves_is_reported() -> None:
    """What was noted of it can go; it may have said nothing since."""
    ours, theirs = (_core.Credentials.of_key(os.urandom(32)) for _ in range(2))
    listening = Listening(handshake_s=0.3, credentials=ours)
    with closing(listening):
        calling = Calling(listening, theirs)
        calling.until(HandshakeEvent.IDENTIFIED, listening)
        calling.native.allow()
        calling.native.poll()
        number = listening.next(AcceptorEvent.IDENTIFIED)
        listening.native.allow(number)
        assert listening.next(AcceptorEvent.ENDED) == number
        assert listening.native.pending == 0


@pytest.mark.parametrize("kind", ["none", "secret", "key"])
def test_a_client_dropped_between_hello_and_confirm_may_retry(kind: str) -> None:
    """The listener's refusal has no session to go in where keys authenticate: its end is made by the confirmation."""
    ours, theirs = {
        "none": (_core.Credentials.none(),) * 2,
        "secret": (_core.Credentials.of_secret(b"the secret"),) * 2,
        "key": tuple(_core.Credentials.of_key(os.urandom(32)) for _ in range(2)),
    }[kind]
    listening = Listening(handshake_s=0.3, credentials=ours)
    with closing(listening):
        calling = Calling(listening, theirs)
        calling.until(HandshakeEvent.IDENTIFIED, listening)
        listening.next(AcceptorEvent.REFUSED)
        calling.native.allow()
        calling.native.offer(OFFER)
        assert calling.refusal().busy


def test_one_that_is_dropped_is_waited_for_no_longer_though_a_child_has_its_socket() -> None:
    """Or the acceptor would always be readable, and its thread never sleep."""
    listening = Listening(handshake_s=0.3)
    with closing(listening), socket.create_connection(("127.0.0.1", listening.port)) as silent:
        silent.settimeout(LIMIT_S)
        while listening.native.pending == 0:
            listening.poll()
        with child_with_copies():
            listening.next(AcceptorEvent.REFUSED)
            assert silent.recv(1000)  # you took too long
            silent.shutdown(socket.SHUT_RDWR)
            listening.poll()
            assert select.select([listening.native], [], [], 0.2)[0] == []


def test_a_connector_waits_no_longer_for_attempts_that_lost_though_a_child_has_their_sockets() -> None:
    listening = Listening()
    with closing(listening), socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as held:
        at = full.getsockname()
        held.enter_context(socket.create_connection(at))  # the queue of connections is full: no answer any more
        ways = [DialCandidate(bytes([127, 0, 0, 1]), port) for port in (at[1], listening.port)]
        native = _core.Connector(ways, _core.Credentials.none())
        native.poll()
        assert not native.is_connected
        while native.due_s():
            time.sleep(0.01)
        native.poll()
        with child_with_copies():
            until = time.monotonic() + LIMIT_S
            while not native.is_connected:
                assert time.monotonic() < until
                native.poll()
            while native.poll() is not HandshakeEvent.IDENTIFIED:
                listening.poll()
            native.close()
            full.shutdown(socket.SHUT_RDWR)  # the next SYN of the attempt that lost, a second later, is refused
            assert select.select([native], [], [], 2.5)[0] == []


def test_a_child_that_closes_its_copy_of_a_connector_leaves_the_parents() -> None:
    listening = Listening()
    with closing(listening):
        calling = Calling(listening)
        while not calling.native.is_connected:
            calling.native.poll()
        calling.native.poll()
        child = os.fork()
        if child == 0:
            calling.native.close_after_fork()
            os._exit(0)
        os.waitpid(child, 0)
        while not listening.native.pending:
            listening.poll()
        listening.poll()
        assert select.select([calling.native], [], [], LIMIT_S)[0]
        assert calling.native.poll() is HandshakeEvent.IDENTIFIED
        calling.native.close()


def test_a_connector_that_is_closed_says_so() -> None:
    """As its copy in a forked child is."""
    listening = Listening()
    with closing(listening):
        calling = Calling(listening)
        with pytest.raises(MrcError, match="closed"):
            calling.native.allow()
        calling.until(HandshakeEvent.IDENTIFIED, listening)
        calling.native.close()
        for ask in (calling.native.allow, calling.native.take, lambda: calling.native.ready(1, False)):
            with pytest.raises(MrcError, match="closed"):
                ask()


def test_a_listener_of_nccl_returns_though_refused_clients_come_without_end() -> None:
    """Each that is turned away is followed by another, before the listener is done with the first."""
    listener = parts.CommListener(b"s", b"", "the listener")

    def come_and_go(_who: str = "") -> None:
        with socket.create_connection(("127.0.0.1", listener.port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")

    refused: list[str] = []

    def log(who: str) -> None:
        refused.append(who)
        come_and_go()
        if len(refused) > 1000:
            raise AssertionError("it never returns")

    come_and_go()
    assert listener.poll() is None
    come_and_go()  # so that whenever one is turned away, the next is being received
    until = time.monotonic() + LIMIT_S
    while len(refused) < 10:
        assert time.monotonic() < until
        assert listener.poll(log) is None


def test_a_closed_acceptor_holds_no_descriptors() -> None:
    """Python may keep it for as long as an exception refers to it."""
    before = len(os.listdir("/proc/self/fd"))
    listening = Listening()
    assert len(os.listdir("/proc/self/fd")) > before
    listening.native.close()
    assert len(os.listdir("/proc/self/fd")) == before
    listening.native.close()
    assert not listening.native.poll() and listening.native.pending == 0
