"""Everything that can be set, as plain dataclasses.

The native core declares its settings (`softmrc.config.settings` is generated from that) and alone decides which values
are allowed; another is a `ConfigError` that names the field, the problem and the value. Durations
end in `_us` and are microseconds; rates are bits per second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from softmrc import _core
from softmrc._core import PAYLOAD_UNIT, RETRY_FOREVER, EvFormat, EvMode
from softmrc.config import settings
from softmrc.config.settings import CcProfile, EndpointConfig, InitAttributes, RtrAttributes, RtsAttributes
from softmrc.errors import ConfigError
from softmrc.wire.entropy import EvField, layout

__all__ = [
    "PAYLOAD_UNIT",
    "RETRY_FOREVER",
    "CcProfile",
    "DeviceConfig",
    "EndpointConfig",
    "EvFormat",
    "EvMode",
    "EvProfile",
    "InitAttributes",
    "RtrAttributes",
    "RtsAttributes",
    "bounds",
    "to_native",
    "whole_payload",
]

LONGEST_US = 1e12
IN_US = f"must be microseconds, from 0 to {LONGEST_US:,.0f}"


@dataclass(frozen=True)
class EvProfile(settings.EvProfile):
    """The paths of a queue pair: how many, and where their entropy values come from.

    An entry is (EV, port). An EV is a 32-bit number, or up to 32 bytes which `fields` and `widths` expand (without
    fields they are the value itself); in the SRV6 format the value is an outer destination and the segment behind it,
    and packets carry the number of the entry. GENERATED ones are drawn within the bounds of the fields, separately for
    each queue pair.
    """

    widths: tuple[int, ...] = ()  # of the format's fields, in bits
    fields: tuple[EvField, ...] = ()
    entries: tuple[tuple[int | bytes, int], ...] = field(default=(), repr=False)  # (EV, port), for EXPLICIT


def bounds(kind: type, setting: str) -> tuple[int, int]:
    """The least and the most that the core allows."""
    _, rows = _core.settings()[kind.__name__]
    least, most = next(limits for name, _, limits, _ in rows if name == setting)
    return least, most


def quantity(name: str, value: Any, most: float, problem: str) -> float:
    """A number from 0 to so many; neither infinite nor none at all."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ConfigError(name, value, problem)
    return value


def whole_payload(room_bytes: int) -> int:
    """The payload of a full packet where there is room for so many bytes."""
    return room_bytes // PAYLOAD_UNIT * PAYLOAD_UNIT


@dataclass(frozen=True)
class DeviceConfig(settings.DeviceConfig):
    """A node on real sockets. The defaults are for software: coarser timers, and windows that hide scheduling."""

    def checked(self) -> DeviceConfig:
        """Itself, if the core allows every value."""
        if not vars(self).get("_is_checked"):
            for item in fields(self):
                if item.type == "float":
                    quantity(item.name, getattr(self, item.name), LONGEST_US, IN_US)
            if not isinstance(self.seal, str):
                raise ConfigError("seal", self.seal, "must be 'auto', 'on' or 'off'")
            to_native(self).check()
            vars(self)["_is_checked"] = True  # it stays so
        return self

    def sending(self) -> dict[str, int]:
        """What `RtsAttributes` takes from here."""
        names = ("mpr", "max_wimm", "timeout", "retry_linear", "retry_exponential", "max_send_wr")
        return {name: getattr(self, name) for name in names}

    @property
    def patience_s(self) -> float:
        """After so many seconds a peer that says nothing is given up; inf: never."""
        if self.retry_exponential >= RETRY_FOREVER:
            return math.inf
        return 1.024e-6 * 2**self.timeout * (self.retry_linear + 2 ** (self.retry_exponential + 2) - 2)

    def quantum_for(self, mtu: int) -> int:
        """The spray quantum with packets of this size."""
        return self.quantum or _core.usual_quantum(mtu)

    def cc_profile(self, speeds_bps: Sequence[int] = (0,), stays_here: bool = False) -> CcProfile:
        """Congestion control for a device whose links have these speeds; 0 where one is not known. What stays on this
        machine has no link to overrun: round trips tell of processors only, and the window is whole from the start."""
        native = to_native(self).congestion(list(speeds_bps), stays_here)
        return CcProfile(**{one.name: getattr(native, one.name) for one in fields(CcProfile)})


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def to_native(config: Any, native: Any = None) -> Any:
    """The native twin of a configuration; a value that does not fit its type is refused by name."""
    if native is None:
        native = getattr(_core, type(config).__name__)()
    twin: Any = type(config)
    for name in _names(twin):
        value = getattr(config, name)
        if name in ("entries", "fields", "widths") and not isinstance(value, tuple | list):
            raise ConfigError(name, value, "must be a tuple")
        if name == "entries":
            for entry in value:
                try:
                    native.add_entry(*entry)
                except TypeError:
                    problem = "must be pairs of an EV, which is a 32-bit number or 1 to 32 bytes, and a port"
                    raise ConfigError("entries", entry, problem) from None
            continue
        if name == "fields":
            native.set_layout(layout(config.widths, value))
        if name in ("fields", "widths"):
            continue
        try:
            setattr(native, name, value)
        except TypeError:
            kind = type(getattr(native, name)).__name__
            words = {"int": "a whole number that is not negative", "str": "a text", "bool": "true or false"}
            problem = f"must be {words.get(kind, f'a {kind}')}"
            if kind == "int" and hasattr(value, "__index__") and value >= 0:
                problem = "must be a smaller whole number"
            raise ConfigError(name, value, problem) from None
    return native
