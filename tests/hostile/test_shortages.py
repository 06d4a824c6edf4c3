"""A listener that the system refuses something for a moment: it turns one visitor away, and serves the next."""

from __future__ import annotations

import errno
import socket
import threading
from contextlib import ExitStack
from typing import Any

import pytest
from liar import LIMIT_S, heard, hello, serves_an_honest_one, visit

from softmrc.connection import listen
from softmrc.verbs import Device


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
