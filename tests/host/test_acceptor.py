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
        self, at_once: int = 64, handshake_s: float = 10.0, credentials: _core.Credentials | None = None
    ) -> None:
        listening, self.port = _core.listen_at([bytes([127, 0, 0, 1])], 0, 0)
        self.native = _core.Acceptor(
            listening, credentials or _core.Credentials.none(), 256, at_once, 1000, 1000, handshake_s
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

    def refusal(self) -> HandshakeError:
        with pytest.raises(HandshakeError) as raised:
            self.until(HandshakeEvent.DONE)
        return raised.value


@contextlib.contextmanager
def closing(*listening: Listening) -> Iterator[None]:
    try:
        yield
    finally:
        for one in listening:
            one.native.close()


def test_a_crowd_that_has_made_offers_at_one_acceptor_keeps_nobody_from_another() -> None:
    """There are too many already, and none of them is of the acceptor that it came to."""
    first, second = Listening(at_once=1), Listening(at_once=1)
    with closing(first, second):
        known, other = Calling(first), Calling(second)
        known.offer(first)
        first.next(AcceptorEvent.OFFERED)
        other.offer(second)
        second.next(AcceptorEvent.OFFERED)
        assert _core.handshake_counts()[:2] == (0, 2)
        known.native.close()


def test_the_oldest_that_has_made_an_offer_makes_room() -> None:
    listening = Listening(at_once=1)
    with closing(listening):
        old, new = Calling(listening), Calling(listening)
        old.offer(listening)
        number = listening.next(AcceptorEvent.OFFERED)
        new.offer(listening)
        assert listening.next(AcceptorEvent.OFFERED) != number
        assert listening.next(AcceptorEvent.ENDED) == number
        assert old.refusal().busy


def test_who_takes_itself_for_connected_is_not_dropped() -> None:
    listening = Listening(at_once=1)
    with closing(listening):
        ready, late = Calling(listening), Calling(listening)
        ready.offer(listening)
        number = listening.next(AcceptorEvent.OFFERED)
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


def test_nobody_is_late_whose_words_were_not_looked_at_in_time() -> None:
    """More of them than are ready at a time, after a pause of the polling thread."""
    listening = Listening(at_once=200, handshake_s=0.5)
    with closing(listening):
        callings = [Calling(listening) for _ in range(100)]
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


def test_it_is_told_when_one_ends_that_was_identified() -> None:
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
def test_who_is_dropped_between_the_hellos_and_its_confirmation_is_told_to_come_again(kind: str) -> None:
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
        goes_on, ends = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ends)
            os.read(goes_on, 1)
            os._exit(0)
        try:
            listening.next(AcceptorEvent.REFUSED)
            assert silent.recv(1000)  # you took too long
            silent.shutdown(socket.SHUT_RDWR)
            listening.poll()
            assert select.select([listening.native], [], [], 0.2)[0] == []
        finally:
            os.close(ends)
            os.close(goes_on)
            os.waitpid(child, 0)


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


def test_a_listener_of_nccl_returns_though_strangers_come_without_end() -> None:
    """Each that is turned away is followed by another, before the listener is done with the first."""
    listener = parts.CommListener(b"s", b"", "the listener")

    def come_and_go(_who: str = "") -> None:
        with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")

    refused: list[str] = []

    def told(who: str) -> None:
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
        assert listener.poll(told) is None
