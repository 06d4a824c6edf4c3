"""Numbers that a caller gives, checked by name: the native core would only say that some type did not fit."""

from __future__ import annotations

import operator
from typing import Any

from softmrc.errors import ConfigError

BITS = {8: (1 << 8) - 1, 16: (1 << 16) - 1, 24: (1 << 24) - 1, 32: (1 << 32) - 1, 64: (1 << 64) - 1}


def whole(field: str, value: Any, bits: int) -> int:
    """A whole number of so many bits."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number <= BITS[bits]:
        raise ConfigError(field, value, f"a whole number from 0 to {BITS[bits]:,}")
    return number


def blame(**fields: tuple[Any, int]) -> None:
    """Name the field that does not fit, of (value, bits) each; for calls that are too frequent to check beforehand."""
    for field, (value, bits) in fields.items():
        whole(field, value, bits)
