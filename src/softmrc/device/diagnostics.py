"""Captures of a device's packets, and faults of its planes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

from softmrc import _core
from softmrc.config import LONGEST_US, quantity
from softmrc.device.checks import flag, whole
from softmrc.errors import ConfigError

SHARES = ("drop", "duplicate", "reorder", "corrupt", "mark", "trim")
DELAYS = ("delay_us", "reorder_delay_us")


def native_faults(faults: dict[str, float | bool]) -> Any:
    """As the core has them."""
    native = _core.Faults()
    for name, value in faults.items():
        if name == "black_hole":
            native.black_hole = flag("black_hole", value)
        elif name == "mtu":
            native.mtu = whole("mtu", value, 16)
        elif name in SHARES:
            setattr(native, name, quantity(name, value, 1.0, "must be a share, from 0 to 1"))
        elif name in DELAYS:
            setattr(
                native, name, quantity(name, value, LONGEST_US, f"must be microseconds, from 0 to {LONGEST_US:,.0f}")
            )
        else:
            raise ConfigError("faults", name, "must be one of " + ", ".join((*SHARES, *DELAYS, "mtu", "black_hole")))
    return native


def file_name(path: str | os.PathLike[str]) -> str:
    try:
        name = os.fspath(path)
        if not isinstance(name, str) or not name or "\0" in name:
            raise TypeError
        name.encode()
    except (TypeError, UnicodeError):
        raise ConfigError("path", path, "must be the name of a file") from None
    return name


class Capture:
    """A running capture; leaving it closes the file."""

    def __init__(self, path: str, stop: Callable[[], int]) -> None:
        self.path = path
        self._stop = stop
        self.packets = 0
        self._is_running = True

    def stop(self) -> int:
        """End it; the number of packets captured."""
        if self._is_running:
            self._is_running = False
            self.packets = self._stop()
        return self.packets

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
