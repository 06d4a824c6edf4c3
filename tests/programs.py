"""Programs of the tests that are C++: targets of the one CMake build, made by `make test` before pytest starts."""

from __future__ import annotations

import importlib.machinery
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "TEST_PROGRAMS"  # where a build with other flags has its own (tools/sanitize.py)


def folder() -> Path:
    return Path(os.environ.get(FOLDER) or ROOT / "build" / "dev" / "test_programs")


def path(name: str) -> Path:
    found = folder() / name
    assert found.exists(), f"{found} is not built: run `make test-programs`"
    return found


def extension(name: str) -> Path:
    """Of this Python: from 3.12 on they keep to the stable ABI."""
    suffixes = [suffix for suffix in importlib.machinery.EXTENSION_SUFFIXES if (folder() / (name + suffix)).exists()]
    return path(name + (suffixes or [".so"])[0])
