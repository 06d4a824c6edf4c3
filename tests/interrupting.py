"""Ctrl-C, or another signal, at a chosen moment of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def is_interrupted(
    step: int, fn: Callable[[], Any], *files: str | None, error: type[BaseException] = KeyboardInterrupt
) -> bool:
    """Call it, with a signal at that step whose handler raises this error: as a function of those files begins, or as a
    function in C that one of them called returns. Those are the moments at which Python looks for signals. False: it
    has fewer."""
    left = step

    def look(frame: Any, event: str, _: Any) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename in files:
            left -= 1
            if left == 0:
                raise error

    sys.setprofile(look)
    try:
        fn()
    except error:
        return True
    finally:
        sys.setprofile(None)
    return False
