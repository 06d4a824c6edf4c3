"""Limits of handshakes and connections, and which handshake is dropped: without sockets, two acceptors at a time."""

from __future__ import annotations

import parts

HERE, THERE = 1, 2  # acceptors


def test_the_oldest_of_all_acceptors_is_dropped_and_never_the_newest() -> None:
    book, limits = parts.Admission(), parts.AcceptorLimits(pending=2)
    for second, (acceptor, number) in enumerate([(THERE, 7), (HERE, 5), (HERE, 6)]):
        book.begin(acceptor, number, f"origin {number}", second)
    assert book.surplus(HERE, 6, limits) == (THERE, 7)
    book.end(THERE, 7)
    assert book.surplus(HERE, 6, limits) is None
    assert book.surplus(HERE, 6, parts.AcceptorLimits(pending=0)) == (HERE, 5)
    book.end(HERE, 5)
    assert book.surplus(HERE, 6, parts.AcceptorLimits(pending=0)) is None, "there is nobody else"


def test_a_crowd_of_one_address_drops_its_own() -> None:
    book, limits = parts.Admission(), parts.AcceptorLimits(pending_per_address=1)
    book.begin(HERE, 1, "other", 0)
    book.begin(HERE, 2, "crowd", 1)
    book.begin(THERE, 3, "crowd", 2)
    assert book.surplus(THERE, 3, limits) == (HERE, 2)
    assert book.surplus(HERE, 1, limits) is None


def test_an_authenticated_handshake_competes_with_those_of_its_acceptor_that_are() -> None:
    book, limits = parts.Admission(), parts.AcceptorLimits(pending=1)
    for number, acceptor in ((1, HERE), (2, THERE), (3, HERE), (4, HERE)):
        book.begin(acceptor, number, "origin", 0)
    for number, acceptor in ((1, HERE), (2, THERE)):
        assert book.authenticate(acceptor, number, limits, number)
    assert book.surplus(THERE, 2, limits) is None, "the other one is another acceptor's"
    assert book.authenticate(HERE, 3, limits, 3)
    assert book.surplus(HERE, 3, limits) == (HERE, 1)
    book.complete(HERE, 1)
    assert book.surplus(HERE, 3, limits) is None
    assert book.oldest(HERE, True) == (HERE, 3) and book.oldest(THERE, True) == (THERE, 2)
    assert book.oldest(THERE, False) == (HERE, 4)
    assert book.counts() == (1, 3, 0)


def test_what_is_authenticated_has_a_place_among_the_connections() -> None:
    book, limits = parts.Admission(), parts.AcceptorLimits(connections=2, connections_per_address=1)
    for number, origin in enumerate(["a", "a", "b", "c"]):
        book.begin(HERE, number, origin, 0)
    assert book.authenticate(HERE, 0, limits, 1)
    assert not book.authenticate(HERE, 1, limits, 1), "its address has its one"
    assert book.authenticate(HERE, 2, limits, 1)
    assert not book.authenticate(HERE, 3, limits, 1), "there are two"
    book.refuse(HERE, 2)
    assert book.authenticate(HERE, 3, limits, 1), "a refused one has no place"
    assert book.connect(HERE, 0) == "a"
    assert book.counts() == (2, 1, 1)
    assert not book.authenticate(HERE, 1, parts.AcceptorLimits(connections_per_address=1), 1)
    book.disconnect("a")
    assert book.authenticate(HERE, 1, limits, 1)
    assert book.counts() == (1, 2, 0)
