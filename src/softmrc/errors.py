"""What can go wrong, as a caller sees it.

MrcError
├── ConfigError    a value is not valid; names the field, the problem, the value, and what to do
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
from typing import Any, Final


class MrcError(Exception):
    """The root of every exception that SoftMRC raises on purpose."""


MISSING: Final = object()  # in the place of a value that was not given
LONGEST_VALUE = 200  # characters of a value in a message


class ConfigError(MrcError, ValueError):
    """A configuration value that is not valid, or that is missing.

    The message says what is wrong, which value was given and what to do: "`field`: problem (got value). Hint". A value
    of a file has `where` in front, as "fabric.toml:4"; what is wrong with a file as a whole has no field. `problem`
    completes what `field` begins ("must be 0 to 1", "no such file"); `hint` is a sentence, or empty.
    """

    def __init__(self, field: str, value: object, problem: str, hint: str = "", where: str = "") -> None:
        place = f"{where}: " if where else ""
        got = "" if value is MISSING else f" (got {shortened(repr(value), LONGEST_VALUE)})"
        name = f"`{field}`: " if field else ""
        text = f"{place}{name}{problem}{got}" + (f". {hint}" if hint else "")
        super().__init__(on_terminal(text))  # names of fields may be from a file
        self.field, self.value, self.problem, self.hint, self.where = field, value, problem, hint, where

    def replaced(self, **parts: Any) -> ConfigError:
        """The same error with another field, value, problem, hint or place."""
        own = {"field": self.field, "value": self.value, "problem": self.problem}
        return type(self)(**{**own, "hint": self.hint, "where": self.where, **parts})


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """A question about an unknown name: "Did you mean x?", with a known name that resembles it or begins with it. Empty
    where there is none. The prefix stands before all known names."""
    names = list(known)
    close = difflib.get_close_matches(word, names, 1, 0.6) or [name for name in names if name.startswith(word)]
    return f"Did you mean {prefix}{close[0]}?" if word and close else ""


def shortened(text: str, most: int) -> str:
    """A text, with an ellipsis in the place of what is too long."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


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
    if error.filename is None:
        return error.strerror
    return f"`{error.filename}`: {error.strerror[:1].lower()}{error.strerror[1:]}"


class InternalError(MrcError, AssertionError):
    """A broken promise of our own code."""
