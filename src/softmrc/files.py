"""Files that a user names: what is in them, or in one line why nothing is, or why nothing can be."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from softmrc.errors import ConfigError, DeviceError


def read_text(path: Path, field: str) -> str:
    """The text of a file; `field` is what the user calls it."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(field, str(path), f"a file that can be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(field, str(path), f"a file of UTF-8 text (byte {error.start} is none)") from None


def write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a name with a zero in it
        raise DeviceError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None


def check_can_write(path: Path) -> None:
    """Before the work whose result is to go there."""
    try:
        if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise DeviceError(f"cannot write {str(path)!r}: not a file in a folder that is there and may be written to")
    except (OSError, ValueError) as error:
        if isinstance(error, DeviceError):
            raise
        raise DeviceError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None


def parse_toml(text: str, field: str, source: str) -> dict[str, Any]:
    """The table that a text holds; `source` is where it is from."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also of a number with thousands of digits
        raise ConfigError(field, source, f"TOML ({error})") from None
