"""Tables of TOML files, read into dataclasses: scenarios, fabrics, prices, studies and settings of devices.

What a key may hold is declared once, together with its default, by `setting`; a rate (`_bps`) or a share (`_share`) may
be a text with its unit. Everything that does not fit is a ConfigError that names the file, the key, the problem and the
value; for an unknown key it names the nearest one that exists.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from softmrc._support.units import as_rate_bps, as_share
from softmrc.errors import MISSING, ConfigError, did_you_mean

Index = int | tuple[int, ...] | str  # one, several, or "all"


def setting(default: Any = dataclasses.MISSING, **limits: Any) -> Any:
    """A key: its default, and any of `low`, `above`, `high` and `choices`."""
    return dataclasses.field(default=default, metadata=limits)


def refuse(source: str, key: str, value: object, problem: str, hint: str = "") -> ConfigError:
    shown = f"[{key}]" if isinstance(value, dict) else value
    return ConfigError(key, shown, problem, hint, source)


def read_table(kind: type, table: Any, source: str, key: str) -> Any:
    """An instance of the dataclass `kind`; `key` is where the table stands in the file."""
    if not isinstance(table, dict):
        raise refuse(source, key, table, f"must be a table, [{key}]")
    fields = {item.name: item for item in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    values = {}
    check_keys(fields, table, source, key)
    for name, value in table.items():
        where = f"{key}.{name}" if key else name
        values[name] = read_value(hints[name], fields[name].metadata, value, source, where)
    for name, item in fields.items():
        is_required = item.default is item.default_factory is dataclasses.MISSING
        if name not in values and is_required:
            raise refuse(
                source, f"{key}.{name}" if key else name, MISSING, "is missing", f"Set it to {wanted(hints[name])}."
            )
    return kind(**values)


def check_keys(known: Iterable[str], table: Mapping[str, Any], source: str, key: str) -> None:
    """Refuse a key of a table that is not known; `key` is where the table stands."""
    for name, value in table.items():
        if name not in known:
            raise refuse(source, f"{key}.{name}" if key else name, value, "unknown key", known_keys(name, known, key))


def known_keys(name: str, known: Iterable[str], key: str) -> str:
    """What to do about an unknown key: the known one that resembles it, or all."""
    prefix = f"{key}." if key else ""
    return did_you_mean(name, known, prefix) or f"Known keys: {', '.join(prefix + one for one in sorted(known))}."


def wanted(hint: Any) -> str:
    """What a type wants, in words."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return "a table with " + ", ".join(item.name for item in dataclasses.fields(hint))
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    if hint in words:
        return words[hint]
    if hint == Index:
        return 'a whole number, a list of them, or "all"'
    return "a list of whole numbers"


def read_value(hint: Any, limits: Any, value: Any, source: str, key: str) -> Any:
    if isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint) and hint != Index:
        rest = [one for one in typing.get_args(hint) if one is not type(None)]
        hint = rest[0] if len(rest) == 1 else Index
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return read_table(hint, value, source, key)
    try:
        if hint is int and key.endswith("_bps"):
            typed: Any = as_rate_bps(key, value)
        elif hint is float and key.endswith("_share"):
            typed = as_share(key, value)
        else:
            typed = _typed(hint, value)
    except ConfigError as error:
        raise error.replaced(where=source) from None
    if typed is None:
        raise refuse(source, key, value, f"must be {wanted(hint)}")
    _check_limits(limits, typed, value, source, key)
    return typed


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _typed(hint: Any, value: Any) -> Any:
    """The value as its key wants it, or None where it is of another kind."""
    if hint is bool:
        return value if isinstance(value, bool) else None
    if hint is int:
        return value if _is_whole(value) else None
    if hint is float:
        is_number = _is_whole(value) or isinstance(value, float)
        return float(value) if is_number and math.isfinite(value) else None
    if hint is str:
        return value if isinstance(value, str) else None
    if hint == Index and (_is_whole(value) or value == "all"):
        return value
    if isinstance(value, list) and value and all(_is_whole(one) for one in value):
        return tuple(value)
    return None


def _check_limits(limits: Any, typed: Any, value: Any, source: str, key: str) -> None:
    choices = limits.get("choices")
    if choices and typed not in choices:
        meant = did_you_mean(str(typed), choices)
        raise refuse(source, key, value, "must be one of " + ", ".join(repr(one) for one in choices), meant)
    for one in typed if isinstance(typed, tuple) else (typed,):
        if "low" in limits and not isinstance(one, str) and one < limits["low"]:
            raise refuse(source, key, value, f"must be at least {limits['low']}")
        if "above" in limits and one <= limits["above"]:
            raise refuse(source, key, value, f"must be more than {limits['above']}")
        if "high" in limits and not isinstance(one, str) and one > limits["high"]:
            raise refuse(source, key, value, f"must be at most {limits['high']}")
