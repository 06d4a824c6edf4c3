"""Files that a user names: what is in them, or in one line why nothing is."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from softmrc.errors import ConfigError


def read_text(path: Path, field: str) -> str:
    """The text of a file; `field` is what the user calls it."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(field, str(path), f"a file that can be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(field, str(path), f"a file of UTF-8 text (byte {error.start} is none)") from None


def parse_toml(text: str, field: str, source: str) -> dict[str, Any]:
    """The table that a text holds; `source` is where it is from."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also of a number with thousands of digits
        raise ConfigError(field, source, f"TOML ({error})") from None
