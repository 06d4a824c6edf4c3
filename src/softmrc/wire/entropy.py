"""Entropy values: the 32 bits that choose a packet's path.

The lower half is the UDP source port, the upper half the low 16 bits of the IPv6 flow label. IPv4 carries only the
lower half, and what was not carried is echoed as zero.

A controller's EV may be longer, up to 32 bytes: a profile's fields and a format's widths say what becomes of it.

>>> tiers = [EvField(4, max=15, mask=0xF), EvField(4, init_val=8, max=1, mask=1)]
>>> expand(bytes([0b10101000]), tiers, [16, 16])[:4].hex(" ", 2)
'000a 0009'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softmrc import _core
from softmrc._core import wire as _native
from softmrc.errors import ConfigError
from softmrc.wire.fields import Checked, as_integer, bits
from softmrc.wire.srv6 import Path

EV_BITS = 256


# Where the network reads the entropy: UDP, the source port; STEV, source port and flow label as a structured value;
# SRV6, the destination of an outer header, and the segment behind it.
EvFormat = _core.EvFormat


@dataclass(frozen=True)
class EvField(Checked):
    """One field of an EV profile: bits under `mask` come from the EV, the others from `init_val`.

    What the bits under the mask spell together lies within `min` and `max` where EVs are generated; EVs that a
    controller gives are not bounded. Checked where the fields are used, against the format that they have to fit.
    """

    width: int = bits(8)
    init_val: int = bits(32)
    min: int = bits(32)
    max: int = bits(32)
    mask: int = bits(32)

    @property
    def bits(self) -> int:
        """How many bits of an EV it takes."""
        return self.mask.bit_count()


def _ev(ev: int) -> int:
    return as_integer("ev", ev, 0, 0xFFFFFFFF)


def ports_of(ev: int) -> tuple[int, int]:
    """What carries an EV: the UDP source port and the flow label."""
    port, label = _native.carried_by(_ev(ev))
    return port, label


def ev_of(source_port: int, flow_label: int = 0) -> int:
    """The EV that a source port and a flow label carry; over IPv4 there is no flow label."""
    port = as_integer("source_port", source_port, 0, 0xFFFF)
    ev: int = _native.ev_of(port, as_integer("flow_label", flow_label, 0, 0xFFFFF))
    return ev


def layout(widths: Sequence[int], fields: Sequence[EvField]) -> tuple[tuple[int, ...], tuple[EvField, ...]]:
    """The widths of a format and the fields of a profile, as the core takes them."""
    checked = tuple(as_integer(f"widths[{i}]", w, 1, EV_BITS) for i, w in enumerate(widths))
    for i, f in enumerate(fields):
        if not isinstance(f, EvField):
            raise ConfigError(f"fields[{i}]", f, "must be an EvField")
    return checked, tuple(fields)


def as_ev(name: str, ev: object) -> bytes:
    """`ev`, if it is 1 to 32 bytes."""
    if isinstance(ev, bytes | bytearray | memoryview) and 1 <= len(bytes(ev)) <= EV_BITS // 8:
        return bytes(ev)
    raise ConfigError(name, ev, "must be 1 to 32 bytes, of which the first bit is the EV's most significant one")


def validate(fields: Sequence[EvField], widths: Sequence[int], room: int = EV_BITS) -> None:
    """Raise ConfigError for fields that make no sense or do not fit the widths of their format."""
    _native.validate_layout(layout(widths, fields), as_integer("room", room, 1, EV_BITS))


def expand(ev: bytes, fields: Sequence[EvField], widths: Sequence[int]) -> bytes:
    """What the network reads of an EV: 32 bytes, the first bit first, what is not used zero.

    Each set mask bit, most significant first, takes the next bit of the EV; each field stands at the right of its width
    in the format, and the widths stand side by side.
    """
    value: bytes = _native.expand(as_ev("ev", ev), layout(widths, fields))
    return value


def entropy_bits(fields: Sequence[EvField]) -> int:
    """How many bits of the EV these fields use up."""
    return sum(f.bits for f in fields)


def pack_stev(widths: Sequence[int], values: Sequence[int]) -> int:
    """A structured EV: a subfield per tier, from the most significant bit down, the rest zero."""
    numbers = [as_integer(f"values[{i}]", v, 0, 0xFFFFFFFF) for i, v in enumerate(values)]
    ev: int = _native.pack_stev(_widths(widths), numbers)
    return ev


def unpack_stev(widths: Sequence[int], ev: int) -> list[int]:
    """The subfields of a structured EV."""
    values: list[int] = _native.unpack_stev(_widths(widths), _ev(ev))
    return values


def _widths(widths: Sequence[int]) -> list[int]:
    return [as_integer(f"widths[{i}]", w, 1, 32) for i, w in enumerate(widths)]


def path_of(expanded: bytes) -> Path:
    """The path that a value of the SRV6 format names: a destination, and a segment to go on to if there is one."""
    path: Any = _native.path_of(as_ev("expanded", expanded))
    return path


def ev_of_path(path: Path) -> bytes:
    """A path as an EV of 32 bytes; one with more than a single segment behind its destination does not fit."""
    ev: bytes = _native.ev_of_path(path)
    return ev
