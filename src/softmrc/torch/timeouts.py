"""What torch's users mean by a timeout, in seconds."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

from softmrc.errors import ConfigError

UNSET = timedelta(milliseconds=-1)  # what torch puts into the options of an operation by default
LONGEST_S = 86_400.0 * 999_999_999  # that a timedelta can say
POSITIVE = "must be a time above 0 and below 292 000 years, which is as far as torch can count"


def of_group(timeout: Any) -> float:
    """The timeout of every operation that is given none."""
    s = _seconds(timeout)
    if not s > 0:
        raise RuntimeError(str(ConfigError("timeout", str(timeout), POSITIVE)))
    return s


def of_operation(timeout: Any) -> float | None:
    """None: the group's. That is also what 0 means: torch cuts its options' times to milliseconds."""
    return None if timeout is None or timeout == UNSET or not timeout else of_group(timeout)


def of_waiting(timeout: Any) -> float | None:
    """How long a caller waits. None: as long as it takes, which is what torch means by 0; below 0, not at all."""
    return max(_seconds(timeout), 0.0) if timeout else None


def moment(limit_s: float | None) -> float | None:
    """When a wait that begins now must be over, for `left`. None: never."""
    return None if limit_s is None else time.monotonic() + limit_s


def left(until: float | None) -> float | None:
    """Seconds until then, as far as Python's locks can count."""
    return None if until is None else min(max(until - time.monotonic(), 0.0), threading.TIMEOUT_MAX)


def _seconds(timeout: Any) -> float:
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    if isinstance(timeout, int | float) and timeout == timeout:
        return float(timeout)
    raise TypeError(str(ConfigError("timeout", timeout, "must be a timedelta, or a number of seconds")))
