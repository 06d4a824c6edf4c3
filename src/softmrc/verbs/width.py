"""How wide a device is where nobody says: from the processors that this process may use, and who else wants them."""

from __future__ import annotations

import os
from pathlib import Path

MOST_LANES = 8  # more moves more than memory does
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def cores() -> float:
    """Processors that this process may use, by its affinity and by its control group's share."""
    allowed = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = QUOTA.read_text().split()
        return min(allowed, int(quota) / int(period))
    except (OSError, ValueError):  # no such file, or "max"
        return allowed


def processes_here() -> int:
    """Ranks of a job that share this host, as its launcher says."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(said) if said.isdecimal() and int(said) > 0 else 1


def lanes_here(port: int) -> int:
    """A lane is a thread, and the application wants as many processors as all lanes. With a fixed port there is one:
    every other would take a port of its own beside it, which somebody else may have."""
    return 1 if port else max(1, min(MOST_LANES, int(cores() / 2 / processes_here())))
