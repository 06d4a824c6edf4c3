"""SIGTERM for commands that start processes or build networks: they end as by Ctrl-C, and leave nothing behind."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

STATUS = 128 + signal.SIGTERM
AGAIN_S = 0.01


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` at the first SIGTERM; another does not disturb the clean-up. If it interrupts a finalizer,
    Python reports the exception and goes on: the signal is then raised again soon after."""
    main = threading.main_thread().ident or 0
    is_told = is_over = False

    def end(*_: Any) -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            raise Terminated

    def send_again() -> None:
        if not is_over:
            signal.pthread_kill(main, signal.SIGTERM)

    def report(lost: sys.UnraisableHookArgs) -> None:
        nonlocal is_told
        if not isinstance(lost.exc_value, Terminated):
            report_before(lost)
            return
        is_told = False
        with suppress(RuntimeError):  # no thread to be had: the next signal ends the command
            threading.Timer(AGAIN_S, send_again).start()

    report_before, sys.unraisablehook = sys.unraisablehook, report
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        is_over = True
        signal.signal(signal.SIGTERM, before)
        sys.unraisablehook = report_before
