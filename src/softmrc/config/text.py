"""Settings of a device as people write them: `rate_bps = "10G"`, `base_rtt_us = "2ms"`, `timeout = "67ms"`.

Plain numbers are what the fields hold: bits a second, microseconds, bytes; for `timeout`, the exponent of InfiniBand.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from softmrc import _core
from softmrc._support.tables import check_keys
from softmrc.config import DeviceConfig
from softmrc.errors import ConfigError

KINDS = {one.name: str(one.type) for one in fields(DeviceConfig)}


def device(table: Any, path: str) -> dict[str, Any]:
    """Fields of `DeviceConfig`, from the table [device] of a file."""
    if not isinstance(table, dict):
        raise ConfigError("device", table, "must be a table, [device]", where=path)
    found = {}
    check_keys(KINDS, table, path, "device")
    for name, value in table.items():
        try:
            found[name] = setting(name, value)
        except ConfigError as error:
            raise error.replaced(field=f"device.{name}", value=value, where=path) from None
    return found


def setting(name: str, value: Any) -> Any:
    """What a field holds when a person has written this."""
    kind = KINDS[name]
    if isinstance(value, str) and kind in ("int", "float"):
        return _core.with_unit(name, value)
    if kind == "int" and isinstance(value, float) and value.is_integer():
        return int(value)  # 1e9
    expected = {"bool": bool, "str": str, "int": int, "float": int | float}[kind]
    if not isinstance(value, expected) or (kind != "bool" and isinstance(value, bool)):
        words = {"bool": "true or false", "str": "a text", "int": "a whole number", "float": "a number"}[kind]
        raise ConfigError(name, value, f"must be {words}{_or_units(name)}")
    return value


def _or_units(name: str) -> str:
    for end, example in (("_bps", "10G"), ("_bytes", "8MiB"), ("_us", "2ms"), ("timeout", "67ms")):
        if name.endswith(end):
            return f', or a text with its unit, as "{example}"'
    return ""
