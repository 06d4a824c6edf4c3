"""Everything that can be set, as plain dataclasses.

The native core declares its settings (`softmrc.config.settings` is generated from that) and alone decides which values
are allowed; a refused one is a `ConfigError` that names the field, the value and what would be right. Durations
end in `_us` and are microseconds; rates are bits per second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from typing import Any

from softmrc import _core
from softmrc._core import RETRY_FOREVER, EvFormat, EvMode
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
LONGEST_REKEY_S = 86_400
SEAL_CHOICES = ("auto", "on", "off")
PAYLOAD_UNIT = 128  # full packets carry a multiple of it, so that no word of a message is split between two
HERE_QUEUE_US = 8_000.0  # on loopback
UNKNOWN_RATE_BPS = 40_000_000_000  # what software may reach


@dataclass(frozen=True)
class EvProfile(settings.EvProfile):
    """The paths of a queue pair: how many, and where their entropy values come from.

    An entry is (EV, port). An EV is a 32-bit number, or up to 32 bytes which `fields` and `widths` expand (without
    fields they are the value itself); in the SRV6 format the value is an outer destination and the segment behind it,
    and packets carry the number of the entry. GENERATED ones are drawn within the bounds of the fields, for each queue
    pair anew.
    """

    widths: tuple[int, ...] = ()  # of the format's fields, in bits
    fields: tuple[EvField, ...] = ()
    entries: tuple[tuple[int | bytes, int], ...] = field(default=(), repr=False)  # (EV, port), for EXPLICIT


def bounds(kind: type, setting: str) -> tuple[int, int]:
    """The least and the most that the core allows."""
    _, rows = _core.settings()[kind.__name__]
    least, most = next(limits for name, _, limits, _ in rows if name == setting)
    return least, most


def quantity(name: str, value: Any, most: float, allowed: str) -> float:
    """A number from 0 to so many; neither infinite nor none at all."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ConfigError(name, value, allowed)
    return value


def whole_payload(room_bytes: int) -> int:
    """The payload of a full packet where there is room for so many bytes."""
    return room_bytes // PAYLOAD_UNIT * PAYLOAD_UNIT


@dataclass(frozen=True)
class DeviceConfig:
    """A node on real sockets. The defaults are for software: coarser timers, and windows that hide scheduling."""

    port: int = 0  # the UDP port of every plane; further lanes have those that follow; 0: any free one
    lanes: int = 0  # threads that move packets, each with sockets of its own; 0: by cores, or one where there is a port
    sockets_per_plane: int = 4  # how many source ports, and so how many paths where the network hashes them
    quantum: int = 0  # packets in a row that may share a path; 0: as many as two GSO batches hold
    mtu: int = 0  # payload bytes of a full packet; 0: what the links carry, up to mtu_limit
    mtu_limit: int = 16256  # four such packets fill a GSO batch
    icrc: bool = True
    seal: str = (
        "auto"  # packets are hidden and authentic: "on", "off", or where there is a secret and a way to leave here
    )
    rekey_packets: int = 1 << 36  # after so many the next key
    rekey_s: int = 3600  # or after so long
    gso: bool = True
    ecn: bool = True
    srv6: bool = False  # EVs are indices of SRv6 carriers, given with each peer
    trimming: bool = False  # the network trims and the peers understand it
    prove_addresses: bool = True  # send data only where a probe was answered; peers may say any address is theirs
    watch_links: bool = True
    leave_slow_planes: bool = True  # not use a plane whose round trips are three times the others'
    spin_us: float = 50.0
    buffer_bytes: int = 8 << 20
    send_buffer_bytes: int = 0  # of each socket; 0: an eighth of buffer_bytes. A short one chooses paths later
    congestion_control: str = "queue_delay"  # one of `softmrc._core.controllers()`
    queue_us: float = 1_000.0  # queue_delay: how much of a queue stands in front of each plane, which hides scheduling
    rate_bps: int = 0  # nscc: of all planes together; 0: what their links say, or 40 Gb/s
    base_rtt_us: float = 2_000.0  # below this, a round trip says more about scheduling than about the network
    window_bytes: int = 2 << 20  # the congestion window never grows beyond it: what is in flight should stay in caches
    reorder_us: float = 2_000.0  # how much later another packet must have been sent for a missing one to be lost
    sack_threshold_bytes: int = 64 * 1024
    sack_gap_us: float = 50.0  # between two unsolicited SACKs, unless four times as much has come
    probe_interval_us: float = 1_000.0
    answers_per_s: int = 10_000  # to probes of all peers together, and a tenth of that to each besides; 0: any number
    mpr: int = 64  # of 128 packets each: what may be under way, or have overtaken others
    max_wimm: int = 1024
    timeout: int = 16  # 1.024 µs · 2^16 = 67 ms
    retry_linear: int = 7
    retry_exponential: int = 8  # with these three a peer that says nothing is given up after 69 s
    max_send_wr: int = 4096

    def checked(self) -> DeviceConfig:
        """Itself, if every field has its type; what else is wrong with a value the core says, which uses it."""
        if not vars(self).get("_is_checked"):
            self._check()
            vars(self)["_is_checked"] = True  # it stays so
        return self

    def _check(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.type == "bool" and not isinstance(value, bool):
                raise ConfigError(item.name, value, "true or false")
            if item.type == "float":
                quantity(item.name, value, LONGEST_US, f"microseconds, from 0 to {LONGEST_US:,.0f}")
            if item.type == "int" and (not hasattr(value, "__index__") or not 0 <= value < 1 << 62):
                raise ConfigError(item.name, value, "a whole number that is not negative")
        if self.seal not in SEAL_CHOICES:
            raise ConfigError("seal", self.seal, "'auto', 'on' or 'off'")
        if not isinstance(self.congestion_control, str):
            raise ConfigError("congestion_control", self.congestion_control, "the name of a controller")
        for name, least, most in (("rekey_packets", 16, 1 << 36), ("rekey_s", 10, LONGEST_REKEY_S)):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(name, getattr(self, name), f"{least} to {most}")

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
        return self._cc_profile(tuple(speeds_bps), stays_here)

    @lru_cache(8)  # noqa: B019 - of all configurations together
    def _cc_profile(self, speeds_bps: tuple[int, ...], stays_here: bool) -> CcProfile:
        rate_bps = self.rate_bps or (sum(speeds_bps) if all(speeds_bps) else UNKNOWN_RATE_BPS)
        each_port = self.congestion_control == "queue_delay"
        native = to_native(
            CcProfile(
                algorithm=self.congestion_control,
                shared_window_bdp=0.0,  # the kernel's queues are no fabric's; a collective sends to all at once
                rate_bps=rate_bps,
                base_rtt_us=self.base_rtt_us,
                min_base_rtt_us=self.base_rtt_us,
                min_reorder_window_us=self.reorder_us,
                trimming=self.trimming,
                target_delay_us=(HERE_QUEUE_US if stays_here else self.queue_us) if each_port else 0.0,
                each_port=each_port,
            )
        )
        native.limit_window(self.window_bytes // len(speeds_bps) if each_port else self.window_bytes)
        if stays_here:
            native.start_bytes = native.most_bytes
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
            raise ConfigError(name, value, "a tuple")
        if name == "entries":
            for entry in value:
                try:
                    native.add_entry(*entry)
                except TypeError:
                    allowed = "pairs of an EV, which is a 32-bit number or 1 to 32 bytes, and a port"
                    raise ConfigError("entries", entry, allowed) from None
            continue
        if name == "fields":
            native.set_layout(layout(config.widths, value))
        if name in ("fields", "widths"):
            continue
        try:
            setattr(native, name, value)
        except TypeError:
            kind = type(getattr(native, name)).__name__
            words = {"int": "a whole number that is not negative", "str": "a text"}
            allowed = words.get(kind, f"a {kind}")
            raise ConfigError(name, value, allowed) from None
    return native
