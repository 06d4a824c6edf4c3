"""SIGTERM for commands that start processes or build networks: they end as by Ctrl-C, and leave nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STATUS = 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """Somebody sent SIGTERM."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` where SIGTERM finds the command. Once: another does not disturb what is being put away."""
    is_told = False

    def end(*_: Any) -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
