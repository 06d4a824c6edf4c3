"""All-reduce of CUDA tensors, compared with Gloo in alternating rounds: two ranks of each that share one GPU.

Several processes on one GPU get it in turns unless NVIDIA's MPS runs (`nvidia-cuda-mps-control -d`), which costs either
kind milliseconds a step: start it before.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

from softmrc._support.subprocesses import python_command
from softmrc.errors import InternalError
from softmrc_bench.ranks import BenchRanks

MIB = 1 << 20
STEPS = {"64MiB": (64 * MIB, 3), "1MiB": (MIB, 50)}  # bytes, and how many a round
LIMIT_S = 16.0  # of all rounds together
PROBE_S = 20.0
Summary = Callable[[int, list[tuple[float, float | None]]], dict[str, Any]]


def beside(device: str, steps: dict[str, tuple[int, int]], rounds: int, limit_s: float, summary: Summary) -> Any:
    """Every size, one round of ours and one of Gloo's in turns, and at least one of each however long it takes."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(tempfile.TemporaryDirectory(prefix="softmrc-"))
        ours, gloo = (
            stack.enter_context(
                BenchRanks(
                    [python_command("softmrc_bench.device_rank", name, store, str(r), "2", device) for r in range(2)]
                )
            )
            for name in ("mrc", "gloo")
        )
        found = {}
        for name, (nbytes, count) in steps.items():
            for ranks in (ours, gloo):
                ranks.times(nbytes, 2)  # pins memory
            rows: list[tuple[float, float | None]] = []
            until = time.monotonic() + limit_s / len(steps)
            while len(rows) < rounds and (not rows or time.monotonic() < until):
                mine = statistics.median(ours.times(nbytes, count))
                rows.append((mine, statistics.median(gloo.times(nbytes, count))))
            found[name] = summary(nbytes, rows)
        return found


def reason_not() -> str | None:
    """Why it cannot be measured here."""
    try:
        probe = subprocess.run(
            python_command("softmrc_bench.device_rank"), capture_output=True, timeout=PROBE_S, check=True
        )
        return None if json.loads(probe.stdout)["devices"] else "torch sees no GPU"
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"torch cannot list GPUs ({error})"


def measure(rounds: int, summary: Summary) -> dict[str, Any]:
    """`cuda`, or why there is none."""
    reason = reason_not()
    if reason is None:
        try:
            return {"cuda": beside("cuda:0", STEPS, rounds, LIMIT_S, summary)}
        except InternalError as error:
            reason = str(error)
    return {"cuda_not_measured": f"CUDA tensors are not measured: {reason}."}
