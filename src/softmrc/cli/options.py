"""Options that several commands have, and how they print JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from softmrc._support.units import as_duration_ns
from softmrc.errors import ConfigError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print JSON Lines: one object a line.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Report = Annotated[Path | None, typer.Option("--report", help="Also write an HTML report.", show_default=False)]
Seed = Annotated[int, typer.Option("--seed", min=0, max=(1 << 63) - 1, help="Seed of all random choices.")]
DeviceName = Annotated[
    str | None, typer.Option("--device", "-d", help="4711-0, or 4711 if process 4711 has one device.")
]
Secret = Annotated[
    str | None, typer.Option("--secret", help="Shared secret. Safer in SOFTMRC_SECRET: others see command lines.")
]
Planes = Annotated[
    str | None,
    typer.Option("--planes", help="Planes of this side: ADDRESS, ADDRESS%INTERFACE or INTERFACE. Default: detected."),
]
NUMBER, ZERO = re.compile(r"[0-9]+(\.[0-9]+)?"), re.compile(r"0+(\.0+)?(s|ms|us|ns)?")


def print_json(value: dict[str, Any], is_stream: bool = False) -> None:
    """One object: over several lines, or on one line where more follow."""
    print(json.dumps(value, indent=None if is_stream else 2), flush=True)


def planes_of(text: str | None) -> list[str] | None:
    """ADDRESS,…, as in SOFTMRC_PLANES."""
    if text is None:
        return None
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise ConfigError("--planes", text, "must be addresses or interfaces with commas between them, as eth0,eth1")
    return found


def seconds_of(option: str, text: str, least: float = 0.0, most: float = 1e9) -> float:
    """A duration, as 50ms or 3s; a number without a unit is seconds."""
    if ZERO.fullmatch(text):
        found = 0.0  # which as_duration_ns refuses
    else:
        found = as_duration_ns(option, f"{text}s" if NUMBER.fullmatch(text) else text) / 1e9
    if not least <= found <= most:
        raise ConfigError(option, text, f"must be {least:g} s to {most:g} s")
    return found
