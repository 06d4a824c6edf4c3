"""Which planes a device has: from what a person writes to addresses, interfaces and packet sizes.

"10.0.0.1"          this address, wherever the routes lead
"10.0.0.1%eth0"     this address, and nothing leaves but by eth0
"eth0"              the first address of eth0, bound to it
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from softmrc import _core
from softmrc._core import SMALLEST_MTU, LocalPlane, choose_mtu, payload_mtu, sealed_mtu
from softmrc._support.units import rate_text
from softmrc.errors import ConfigError

__all__ = [
    "SMALLEST_MTU",
    "LocalPlane",
    "choose_mtu",
    "namespace",
    "payload_mtu",
    "resolve",
    "resolve_all",
    "sealed_mtu",
    "speed_of",
    "speed_text",
]

UDP_BYTES = 8
LINKS = Path("/sys/class/net")


def speed_of(link: str) -> int:
    """Bits a second; 0 where the kernel does not know, or guesses."""
    return _core.link_speed(link, str(LINKS))


def resolve_all(texts: Iterable[str | LocalPlane], why: str = "") -> list[LocalPlane]:
    """Several at once; what is resolved stays as it is."""
    return [one if isinstance(one, LocalPlane) else resolve(one, why) for one in texts]


def resolve(text: str, why: str = "") -> LocalPlane:
    """What a person wrote, as a plane of this machine; `why` says where."""
    if not isinstance(text, str) or not text:
        raise ConfigError("planes", text, "must be an address, ADDRESS%INTERFACE or an interface's name")
    return _core.resolve_plane(text, why, str(LINKS))


def namespace() -> int:
    """The same for two processes of a machine exactly if loopback connects them."""
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0


def speed_text(plane: LocalPlane) -> str:
    """The speed of its link; empty where it is not known."""
    return rate_text(plane.speed_bps) if plane.speed_bps else ""
