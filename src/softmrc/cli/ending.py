"""SIGTERM for commands that start processes or build networks: they end as by Ctrl-C, and leave nothing behind."""

from __future__ import annotations

import signal
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from softmrc.threads import send_again

STATUS = 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """Somebody sent SIGTERM."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` where SIGTERM finds the command. Once: another does not disturb what is being put away. And
    again, if what was raised is gone and the command is not: Python forgets what is raised in a finalizer."""
    told: weakref.ref[Terminated] | None = None
    is_over = False

    def lost(_: object) -> None:
        if not is_over:
            send_again(signal.SIGTERM)

    def end(*_: Any) -> None:
        nonlocal told
        if told is None or told() is None:
            error = Terminated()
            told = weakref.ref(error, lost)
            try:
                raise error
            finally:
                del error  # its traceback holds this frame

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        is_over = True
        signal.signal(signal.SIGTERM, before)
