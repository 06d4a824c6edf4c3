"""Dataclass fields that know their range, so that a wrong value is refused where it is given and by its name."""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields
from enum import IntEnum
from typing import Any

from softmrc.errors import ConfigError


def bits(width: int, default: int = 0) -> Any:
    """An unsigned field of so many bits."""
    return field(default=default, metadata={"low": 0, "high": (1 << width) - 1})


def signed(width: int, default: int = 0) -> Any:
    """A two's complement field of so many bits."""
    return field(default=default, metadata={"low": -(1 << (width - 1)), "high": (1 << (width - 1)) - 1})


def flag(default: bool = False) -> Any:
    """One bit that reads as a statement."""
    return field(default=default, metadata={"flag": True})


def named(enum: type[IntEnum], default: IntEnum | None = None) -> Any:
    """A field whose values have names; numbers and the names themselves are taken as well."""
    return field(default=MISSING if default is None else default, metadata={"enum": enum})


def as_integer(name: str, value: object, low: int, high: int) -> int:
    """`value`, if it is a whole number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(name, value, f"must be an integer, {low} to {high}")
    if not low <= value <= high:
        raise ConfigError(name, value, f"must be {low} to {high}")
    return int(value)


def as_named(name: str, value: Any, enum: type[IntEnum]) -> IntEnum:
    """`value` as a member of `enum`, from a member, its number, or its name in any case."""
    try:
        if isinstance(value, str):
            return enum[value.upper()]
        return enum(value)
    except (KeyError, ValueError):
        raise ConfigError(name, value, "must be one of " + ", ".join(m.name for m in enum)) from None


def _checked(name: str, spec: Field[Any], value: object) -> object:
    rule = spec.metadata
    if "enum" in rule:
        return as_named(name, value, rule["enum"])
    if "flag" in rule:
        if value not in (0, 1):
            raise ConfigError(name, value, "must be True or False")
        return bool(value)
    if "high" in rule:
        return as_integer(name, value, rule["low"], rule["high"])
    return value


class Checked:
    """Base of frozen dataclasses whose fields are made by the functions above."""

    def __post_init__(self) -> None:
        for spec in fields(self):  # type: ignore[arg-type]
            if spec.metadata:
                value = _checked(f"{type(self).__name__}.{spec.name}", spec, getattr(self, spec.name))
                object.__setattr__(self, spec.name, value)
