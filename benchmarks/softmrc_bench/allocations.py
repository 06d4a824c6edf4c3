"""What the native core allocates. Counting begins with the first question and lasts as long as the process."""

from __future__ import annotations

import functools

from softmrc import _core
from softmrc_bench import _native


@functools.cache
def are_counted() -> bool:
    """Whether counting is possible: not where the core was linked with its own `operator new`."""
    return _native.watch_allocations(_core.__file__) > 0


def allocations() -> tuple[int, int]:
    """How often the core has allocated since the first call, and how many bytes it holds more than then."""
    assert are_counted(), f"{_core.__file__} was linked with its own operator new"
    count, held = _native.allocations()
    return count, held
