"""The invariant CRC that ends every packet, and the CRC-32 beneath it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import IntEnum

from softmrc._core import wire as _native
from softmrc.errors import ConfigError, UsageError
from softmrc.wire.route import Route

ICRC_SIZE = 4
_DONT_FRAGMENT = 0x4000


class CrcMethod(IntEnum):
    """Two ways to the same number; AUTOMATIC takes the faster one that this processor has."""

    AUTOMATIC = 0
    TABLE = 1
    CARRYLESS = 2


def carryless_available() -> bool:
    """Whether this processor can multiply without carries (PCLMULQDQ)."""
    found: bool = _native.carryless_available()
    return found


def icrc(
    route: Route,
    *pieces: bytes,
    method: CrcMethod = CrcMethod.AUTOMATIC,
    identification: int = 0,
    dont_fragment: bool = True,
) -> int:
    """The ICRC over the pieces of one packet (headers, payload, padding), as a number.

    On the wire its least significant byte comes first. `identification` and `dont_fragment` are the IPv4 header's.
    """
    identity = identification << 16 | (_DONT_FRAGMENT if dont_fragment else 0)
    value: int = _native.icrc(route, [bytes(p) for p in pieces], int(method), identity)
    return value


def seal(route: Route, packet: bytes) -> bytes:
    """The packet with its ICRC behind it: the whole UDP payload."""
    sealed: bytes | None = _native.seal(route, bytes(packet) + bytes(ICRC_SIZE), _DONT_FRAGMENT)
    if sealed is None:
        raise ConfigError("packet", f"{len(packet)} bytes", "must be at least the 12 bytes of a BTH")
    return sealed


def verify(route: Route, udp_payload: bytes) -> bool:
    """Whether the last four bytes are the ICRC of what precedes them."""
    good: bool = _native.verify(route, bytes(udp_payload), _DONT_FRAGMENT)
    return good


def crc32(data: bytes, start: int = 0, method: CrcMethod = CrcMethod.AUTOMATIC) -> int:
    """The plain CRC-32, the same as zlib's."""
    value: int = _native.crc32(bytes(data), start, int(method))
    return value


def measure_crc(
    sizes: Sequence[int] = (64, 256, 1024, 4096, 65536), seconds: float = 0.1
) -> dict[tuple[CrcMethod, int], float]:
    """How fast this machine sums, in gigabytes (10⁹ bytes) a second, by method and block size; the best of three."""
    if seconds <= 0:
        raise UsageError("measure_crc needs some time to measure in; seconds must be positive")
    methods = [CrcMethod.TABLE] + ([CrcMethod.CARRYLESS] if carryless_available() else [])
    return {(method, size): _measure_one(method, size, seconds) for size in sizes for method in methods}


def print_crc_rates(seconds: float = 0.1) -> None:
    """Print what `measure_crc` measures, as a table."""
    rates = measure_crc(seconds=seconds)
    methods = sorted({method for method, _ in rates})
    print("block", *(f"{method.name.lower():>14}" for method in methods))
    for size in sorted({size for _, size in rates}):
        print(f"{size:5d}", *(f"{rates[method, size]:9.1f} GB/s" for method in methods))


def _measure_one(method: CrcMethod, size: int, seconds: float) -> float:
    data = bytes(i * 131 & 0xFF for i in range(size))
    rounds = max(1, 1_000_000 // size)
    best = 0.0
    for _ in range(3):
        spent, done = 0.0, 0
        while spent < seconds / 3:
            begin = time.perf_counter()
            _native.crc32_rounds(data, rounds, int(method))
            spent += time.perf_counter() - begin
            done += rounds
        best = max(best, done * size / spent / 1e9)
    return best
