"""Parts of the core by themselves: the extension `_parts`, which `make test` builds and nothing installs."""

from __future__ import annotations

import importlib.util
from typing import Any

import programs
from softmrc import _core  # whose types it takes

assert _core
_spec = importlib.util.spec_from_file_location("_parts", programs.extension("_parts"))
assert _spec is not None and _spec.loader is not None
_parts = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_parts)


def __getattr__(name: str) -> Any:
    return getattr(_parts, name)
