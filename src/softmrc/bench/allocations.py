"""What the native core allocates. Counting begins with the first question and lasts as long as the process."""

from __future__ import annotations

import functools

from softmrc import _core, _yardstick
from softmrc.errors import InternalError


@functools.cache
def _watch() -> None:
    if not _yardstick.watch_allocations(_core.__file__):
        raise InternalError(f"what {_core.__file__} allocates cannot be counted: it brings operators of its own")


def allocations() -> tuple[int, int]:
    """How often the core has allocated since the first call, and how many bytes it holds more than then."""
    _watch()
    count, held = _yardstick.allocations()
    return count, held
