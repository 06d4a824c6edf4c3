"""An operation that ends on request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Told:
    source = -1

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._callbacks: list[Callable[[Any], Any]] = []

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> None:
        if not self._ended.wait(timeout_s):
            raise TimeoutError

    def add_done_callback(self, fn: Callable[[Any], Any]) -> None:
        self._callbacks.append(fn)

    def end(self) -> None:
        self._ended.set()
        for fn in self._callbacks:
            fn(self)
