"""The demo on a GPU: NCCL trains with DDP over its own sockets, over our plugin, and over that while planes break."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from softmrc_bench.nccl import OURS, SOCKET, RankPair, TimeBudget, mps, require

STEPS = 400
WHOLE_S = 300.0
ANSWER_S = 120.0

# When, as a share of the run, and what from then on.
SCRIPT = (
    (0.10, "1:black_hole", "plane 1 black-holed"),
    (0.25, "", "all faults cleared"),
    (0.35, "drop=0.01", "every plane loses 1 %"),
    (0.50, "0:black_hole;2:black_hole", "two planes black-holed"),
    (0.65, "reorder=0.2,duplicate=0.05", "packets overtake each other, and come twice"),
    (0.80, "3:delay_us=20000", "plane 3 is 20 ms late"),
    (0.90, "", "no faults"),
)


@dataclass
class NcclRun:
    """One training run, and how it went."""

    name: str
    way: str
    script: Sequence[tuple[float, str, str]] = ()
    step_s: list[float] = field(default_factory=list)
    loss: float = 0.0
    digests: list[str] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.step_s[1:]) * 1e3

    @property
    def worst_ms(self) -> float:
        return max(self.step_s[1:]) * 1e3  # the first step makes buckets and buffers


def play(pair: RankPair, job: NcclRun, steps: int, usual_s: float) -> None:
    """Have it trained, with its faults at their time by the length that a run usually has."""
    pair.send("train", steps=steps)
    start = time.monotonic()
    for share, faults, _ in job.script:
        time.sleep(max(0.0, start + share * usual_s - time.monotonic()))
        pair.faults(faults)
    answers = [pair.receive(rank, ANSWER_S) for rank in range(2)]
    job.step_s = [max(step) for step in zip(*(answer["times"] for answer in answers), strict=True)]
    job.loss = answers[0]["loss"]
    job.digests = [answer["digest"] for answer in answers]


def perform(steps: int) -> list[NcclRun]:
    """All three, one after the other."""
    require()
    steps = steps or STEPS
    jobs = [
        NcclRun("NCCL's sockets", SOCKET),
        NcclRun("NCCL over SoftMRC", OURS),
        NcclRun("NCCL over SoftMRC, with faults", OURS, SCRIPT),
    ]
    clock = TimeBudget(WHOLE_S)
    with tempfile.TemporaryDirectory(prefix="softmrc-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        stack.enter_context(mps(folder))
        pairs = {way: RankPair(way, folder / way, clock) for way in (SOCKET, OURS)}
        for pair in pairs.values():
            stack.callback(pair.close)
        for pair in pairs.values():
            pair.wait_until_ready()
        for job in jobs:
            play(pairs[job.way], job, steps, sum(jobs[1].step_s))
    return jobs


def is_identical(jobs: Sequence[NcclRun]) -> bool:
    """Whether every rank of every job ended with the same weights."""
    return len({digest for job in jobs for digest in job.digests}) == 1
