"""Quantities as people write them: `100G`, `51.2T`, `50ms`, `8MiB`, `1%`.

Inside, a rate is whole bits per second, a duration whole nanoseconds, a size whole bytes, a share a float from 0 to 1.
Both ways live here, so that what a table prints can be pasted into a file.
"""

from __future__ import annotations

import re
from fractions import Fraction

from softmrc import _core
from softmrc._core import as_duration_ns as as_duration_ns
from softmrc.errors import ConfigError

_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*")
LONGEST_TEXT = 100
SLOWEST_BPS = 1_000_000  # of a link


def as_rate_bps(field: str, value: object) -> int:
    """Bits per second, from a whole number or from text such as `100G` or `20Mbit/s`. A text without a unit is refused,
    and a number that no link has: who writes 800 means 800G."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= SLOWEST_BPS:
        return value
    return _core.as_rate_bps(field, value)


def as_share(field: str, value: object) -> float:
    """A share of one, from `1%` or `0.01`."""
    problem = "must be a share from 0 to 1, as 1% or 0.01"
    text = str(value) if isinstance(value, (int, float)) else value
    match = _SHARE.fullmatch(text) if isinstance(text, str) and len(text) <= LONGEST_TEXT else None
    if match is None:
        raise ConfigError(field, value, problem)
    if isinstance(value, str) and match[0].strip() == "1":
        raise ConfigError(field, value, "must have a unit, since 1 is 100%", "Write 1%, 0.01 or 100%.")
    share = float(Fraction(match[1]) / (100 if match[2] else 1))
    if not 0 <= share <= 1:
        raise ConfigError(field, value, problem)
    return share


def rate_text(rate_bps: int) -> str:
    """The shortest way to write a rate: 100G, 51.2T, 20M."""
    for suffix, scale in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if rate_bps >= scale:
            return f"{rate_bps / scale:.10g}{suffix}"
    return f"{rate_bps}bit/s"


def share_text(share: float) -> str:
    """A share as a percentage with two digits that mean something: 12.5 %, 0.39 %, 0."""
    if share == 0:
        return "0"
    percent = 100 * share
    return f"{percent:.1f} %".replace(".0 %", " %") if percent >= 1 else f"{percent:.2g} %"


def ratio_text(ratio: Fraction) -> str:
    """Downlinks to uplinks, in the smallest whole numbers: 3:1, 35:16."""
    return f"{ratio.numerator}:{ratio.denominator}"


def money_text(usd: float) -> str:
    """$ 1.63 G, $ 77 M: three digits are more than prices deserve."""
    return f"$ {_three_digits(usd, (' G', 1e9), (' M', 1e6), (' k', 1e3), ('', 1))}"


def power_text(watts: float) -> str:
    return _three_digits(watts, (" GW", 1e9), (" MW", 1e6), (" kW", 1e3), (" W", 1))


def _three_digits(value: float, *scales: tuple[str, float]) -> str:
    """999 k, 1 M: in the largest unit of which there is one, once it is rounded."""
    rounded = float(f"{value:.3g}")
    suffix, scale = next((one for one in scales if abs(rounded) >= one[1]), ("", 1))
    if scale == 1:
        return f"{value:.0f}{scales[-1][0]}"
    shown = rounded / scale
    return f"{shown:,.0f}{suffix}" if abs(shown) >= 100 else f"{shown:.3g}{suffix}"


def counted(count: int, word: str, ending: str = "s") -> str:
    """1 plane, 2 planes."""
    return f"{count:,} {word}{'' if count == 1 else ending}"


def count_text(value: float) -> str:
    """A count or an average of counts, with no more digits than mean something."""
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:,.3g}"


def qpn_text(qpn: int) -> str:
    """A queue pair's number, wherever people read it."""
    return f"{qpn:#x}"


def ev_text(value: int | str) -> str:
    """A path's value, wherever people read it: with the digits that packets are shown with. Wide ones are text."""
    return f"{value:#010x}" if isinstance(value, int) else value
