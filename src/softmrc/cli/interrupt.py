"""Ctrl-C, wherever a command was started."""

from __future__ import annotations

import signal


def heed_ctrl_c() -> None:
    """Where SIGINT is ignored (nohup, a shell's background, some CI) Python leaves it so; undo that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
