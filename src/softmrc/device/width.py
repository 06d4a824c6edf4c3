"""The default number of lanes: from the processors that this process may use, and the processes that share them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

MAX_LANES = 8  # more moves more than memory does
LANE_BPS = 10_000_000_000  # less than one moves
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def cores() -> float:
    """Processors that this process may use, by its affinity and by its control group's share."""
    allowed = float(len(os.sched_getaffinity(0)))
    try:
        with open(QUOTA, "rb", 0) as file:
            quota, period = file.read().split()
        return min(allowed, int(quota) / int(period))
    except (OSError, ValueError):  # no such file, or "max"
        return allowed


def processes_here(unless_said: int = 1) -> int:
    """Ranks of a job that share this host, as its launcher says."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(said) if said.isdecimal() and int(said) > 0 else unless_said


def lanes_here(port: int) -> int:
    """A lane is a thread, and the application wants as many processors as all lanes. With a fixed port there is one:
    each further lane needs another port, which another process may have."""
    return 1 if port else max(1, min(MAX_LANES, int(cores() / 2 / processes_here())))


def lanes_of_rank(ranks_here: int, speeds_bps: Sequence[int]) -> int:
    """A thread that waits for a collective drives a lane, so ranks may use all processors between them. Where the
    speed of every link is known, more lanes than fill them would only share them."""
    enough = math.ceil(sum(speeds_bps) / LANE_BPS) if all(speeds_bps) else MAX_LANES
    return max(1, min(MAX_LANES, int(cores() / ranks_here), enough))
