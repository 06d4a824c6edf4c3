"""Ctrl-C at a chosen moment of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def is_interrupted(step: int, fn: Callable[[], Any], *files: str | None) -> bool:
    """Call it, with Ctrl-C at that step: as a function of those files begins, or as a function in C that one of them
    called returns. Those are the moments at which Python looks for signals. False: it has fewer."""
    left = step

    def look(frame: Any, event: str, _: Any) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename in files:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        fn()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False
