"""What can go wrong, as a caller sees it.

MrcError
├── ConfigError    a value in a configuration is not allowed; names the field, the value, and what is
├── UsageError     a call that its object's state does not permit
├── DeviceError    the machine underneath refused: a socket, an interface, a permission
├── RemoteError    the peer did it: it died, refused, or sent an invalid answer
└── InternalError  we did it: a broken promise of our own code; please report it with the seed

What the network does (loss, reordering, garbage on the wire) is never an exception: it is a counter and an event.
A failed work request is a completion with a status.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final


class MrcError(Exception):
    """The root of every exception that SoftMRC raises on purpose."""


MISSING: Final = object()  # in the place of a value that nobody gave


class ConfigError(MrcError, ValueError):
    """A configuration value that is not allowed, or that is missing."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        said = "is missing" if value is MISSING else f"= {value!r} is not allowed"
        super().__init__(on_terminal(f"{field} {said}: {allowed}"))  # names of fields may be from a file
        self.field = field
        self.value = value
        self.allowed = allowed


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a sentence about a name that is unknown: one that is much like it, or begins so, if there is one. The
    prefix is what stands before all of them."""
    names = list(known)
    close = difflib.get_close_matches(word, names, 1, 0.6) or [name for name in names if name.startswith(word)]
    return f"; did you mean {prefix}{close[0]}?" if word and close else ""


class UsageError(MrcError, RuntimeError):
    """A call that the object's present state does not permit."""


class DeviceError(MrcError, OSError):
    """The machine underneath refused."""


class HandshakeError(Exception):
    """Why a handshake ends: what this side reports of the peer, and what is sent to it, if anything. After one that was
    `busy` another try may succeed. Callers get it as a RemoteError."""

    def __init__(self, reason: str, message_to_peer: str = "", busy: bool = False) -> None:
        super().__init__(reason)
        self.message_to_peer = message_to_peer
        self.busy = busy


LONGEST_SAYING = 500  # characters
SPACES = "\u00a0\u202f"  # which do not break, and are not printable to Python


def printable(text: str) -> str:
    """Text from outside, on one line and without commands to a terminal."""
    return "".join(c if c.isprintable() or c in SPACES else repr(c)[1:-1] for c in text)


def on_terminal(text: str) -> str:
    """What may go to a terminal of a text in which there are words from elsewhere: files, peers, devices. Its lines
    stay, and nothing else that moves a cursor. Commands print such text by `cli.terminal`, which asks this."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


class RemoteError(MrcError, ConnectionError):
    """The peer died, refused, or sent an invalid answer.

    Its own words may be in the text, and the text ends up in logs and on terminals: one line, printable, not too long.
    """

    def __init__(self, text: str) -> None:
        shown = printable(text[:LONGEST_SAYING])
        super().__init__(shown if len(text) <= LONGEST_SAYING else f"{shown} … ({len(text):,} characters)")


def words_of(error: BaseException) -> str:
    """What an error says, without the number that the system has for it; of a file that was at fault, its name too."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror


class InternalError(MrcError, AssertionError):
    """A broken promise of our own code."""
