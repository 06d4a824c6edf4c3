"""What a caller gives, checked by name: the native core would only say that some type did not fit."""

from __future__ import annotations

import operator
from typing import Any, TypeVar

import numpy as np

from softmrc.errors import ConfigError

T = TypeVar("T")

LONGEST_S = 1e9
FOR_EVER = ", or None for ever"
BITS = {8: (1 << 8) - 1, 16: (1 << 16) - 1, 24: (1 << 24) - 1, 32: (1 << 32) - 1, 64: (1 << 64) - 1}


def whole(field: str, value: Any, bits: int) -> int:
    """A whole number of so many bits."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number <= BITS[bits]:
        raise ConfigError(field, value, f"must be a whole number from 0 to {BITS[bits]:,}")
    return number


def seconds(field: str, value: Any, *, is_positive: bool = False, or_else: str = "") -> float:
    """A duration. Infinity is refused: callers handle None and the like, which mean no limit, before this check."""
    number = value
    if type(value) not in (float, int):
        try:
            number = -1.0 if isinstance(value, bool | str | bytes) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = -1.0
    if not 0 <= number <= LONGEST_S or (is_positive and not number):
        least = "more than 0" if is_positive else "0"
        raise ConfigError(field, value, f"must be seconds, from {least} to {LONGEST_S:,.0f}{or_else}")
    return number


def flag(field: str, value: Any) -> bool:
    """True or false; "down" and 2 are neither, and would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(field, value, "must be true or false")
    return bool(value)


def instance(field: str, value: Any, kind: type[T], problem: str) -> T:
    """One of our own objects."""
    if not isinstance(value, kind):
        raise ConfigError(field, value, problem)
    return value


def blame(**fields: tuple[Any, int]) -> None:
    """Name the field that does not fit, of (value, bits) each; for calls that are too frequent to check beforehand."""
    for field, (value, bits) in fields.items():
        whole(field, value, bits)
