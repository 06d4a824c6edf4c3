"""An operation under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from softmrc.errors import RemoteError


class CollectiveError(RemoteError, RuntimeError):
    """An operation failed; the text says which rank and what. The group is of no use afterwards."""


class Work:
    """One operation, from its issue to its end. The memory that it uses must be left alone until then."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it is done. The waiting thread drives the device meanwhile, without the GIL.

        Raises `CollectiveError` if it failed, and `TimeoutError` if it is not done in time; it goes on then."""
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        raise NotImplementedError

    @property
    def error(self) -> CollectiveError | None:
        """Why it failed; None while it runs, and when it went well."""
        raise NotImplementedError

    def add_done_callback(self, fn: Callable[[Work], Any]) -> None:
        """Call `fn(work)` once it has ended: from the process's completion thread, never from the caller's."""
        raise NotImplementedError
