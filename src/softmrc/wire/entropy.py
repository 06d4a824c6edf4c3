"""Entropy values: the 32 bits that choose a packet's path.

The lower half is the UDP source port, the upper half the low 16 bits of the IPv6 flow label. IPv4 carries only the
lower half, and what was not carried is echoed as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from softmrc._core import wire as _native
from softmrc.errors import ConfigError
from softmrc.wire.fields import Checked, as_integer, bits
from softmrc.wire.srv6 import Path


class EvFormat(IntEnum):
    """Where the network reads the entropy; the value is how many bits it has room for."""

    UDP = 16
    STEV = 32
    SRV6 = 128


@dataclass(frozen=True)
class EvField(Checked):
    """One field of a GENERATED value: bits under `mask` come from the EV, the others from `init_val`.

    Widths and values are checked where the fields are used, against the format that they have to fit.
    """

    width: int = bits(8)
    init_val: int = bits(32)
    min: int = bits(32)
    max: int = bits(32)
    mask: int = bits(32)

    def _native(self) -> tuple[int, ...]:
        return (self.width, self.init_val, self.min, self.max, self.mask)


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


def validate(fields: Sequence[EvField], format: EvFormat | int, ev_bits: int = 32) -> None:
    """Raise ConfigError for fields that make no sense or do not fit the format."""
    _native.validate_fields([f._native() for f in fields], int(format), as_integer("ev_bits", ev_bits, 0, 32))


def expand(ev: int, fields: Sequence[EvField], format: EvFormat | int, ev_bits: int = 32) -> bytes:
    """The GENERATED value of an EV, as the format's bits, most significant first.

    Each set mask bit, most significant first, takes the next most significant bit of the EV; the fields are
    concatenated and the rest of the format is zero. `ev_bits` says where the EV's most significant bit is: 32 for a
    value drawn at random, `entropy_bits(fields)` for one that counts from 0. A field's value outside its min and max is
    an EV that the fields do not have: ConfigError.
    """
    bits_of_ev = as_integer("ev_bits", ev_bits, 0, 32)
    value: bytes = _native.expand(_ev(ev), [f._native() for f in fields], int(format), bits_of_ev)
    return value


def entropy_bits(fields: Sequence[EvField]) -> int:
    """How many bits of the EV these fields use up."""
    return sum(f.mask.bit_count() for f in fields)


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


def path_of(ev: int, paths: Sequence[Path]) -> Path:
    """Explicit SRV6 mode: the EV is the index of a path in the controller's list."""
    if not 0 <= ev < len(paths):
        raise ConfigError("ev", ev, f"0 to {len(paths) - 1}, an index into the list of paths")
    return paths[ev]
