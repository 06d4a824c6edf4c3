"""A thread-safe weak set of live objects."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakRegistry(Generic[T]):
    """Weak references to objects. Unlike a WeakSet it can be iterated while other threads add to it."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, one: T) -> None:
        self._known[id(one)] = one

    def discard(self, one: T) -> None:
        self._known.pop(id(one), None)

    def clear(self) -> None:
        self._known.clear()

    def __iter__(self) -> Iterator[T]:
        """A snapshot."""
        return iter([one for known in self._known.valuerefs() if (one := known()) is not None])

    def __bool__(self) -> bool:
        return any(known() is not None for known in self._known.valuerefs())
