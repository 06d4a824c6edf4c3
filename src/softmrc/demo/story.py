"""The course of the demo: the same job over Gloo, over MRC, and over MRC while its network breaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from softmrc.demo.ranks import DemoRanks, RankMessage
from softmrc.demo.script import Director, ScriptedFault
from softmrc.errors import InternalError

RANKS = 4
TICK_S = 0.05
SILENCE_S = 120.0
LEAST_SPAN_S = 0.1


@dataclass(frozen=True)
class NetworkSample:
    """Planes and paths at one moment, of all ranks together."""

    at_s: float
    sent_bytes: np.ndarray  # by plane, since the run began
    states: np.ndarray  # EVs by plane and state


@dataclass
class TrainingRun:
    """One job, from its first step to its last."""

    name: str
    backend: str
    steps: int
    script: tuple[ScriptedFault, ...] = ()
    begun_at: float = 0.0
    step_at_s: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    bands: list[tuple[ScriptedFault, float, float]] = field(default_factory=list)  # what was broken from when to when
    looks: list[NetworkSample] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    parameters: int = 0
    latest: dict[int, dict[str, Any]] = field(default_factory=dict)  # what each rank saw last
    earliest: dict[int, list[int]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Of the weights; the ranks agree, or it is no result."""
        found = set(self.digests.values())
        if len(found) != 1:
            raise InternalError(f"after {self.name} the ranks hold different weights: {self.digests}")
        return found.pop()

    @property
    def median_ms(self) -> float:
        return float(np.median(self.step_ms[1:]))  # the first step makes buckets and buffers

    @property
    def worst_ms(self) -> float:
        return float(np.max(self.step_ms[1:]))

    def during(self, fault: ScriptedFault) -> np.ndarray:
        """Milliseconds of the steps that a fault touched: one is under way when it begins and when it ends."""
        return np.array(self.step_ms[fault.start : fault.end + 1])


Watcher = Callable[[TrainingRun, Director], None]


def play(run: TrainingRun, ranks: DemoRanks, watch: Watcher, director: Director) -> None:
    """Have the ranks do one run, with its faults, and keep what they say."""
    ranks.order(None, {"do": "train", "run": run.name, "backend": run.backend, "steps": run.steps})
    spoken_at = time.monotonic()
    while len(run.digests) < ranks.size:
        report = ranks.next(TICK_S)
        now = time.monotonic()
        if report is not None:
            spoken_at = now
            _note(run, report, director)
        elif now - spoken_at > SILENCE_S:
            raise InternalError(f"no rank has reported anything for {SILENCE_S:.0f} s")
        _note_faults(run, director.tick(now), now - run.begun_at)
        watch(run, director)


def _note(run: TrainingRun, report: RankMessage, director: Director) -> None:
    content = report.content
    if report.kind == "begun" and report.rank == 0:
        run.begun_at = content["at"]
    elif report.kind == "step" and report.rank == 0:
        run.step_at_s.append(content["at"] - run.begun_at)
        run.step_ms.append(content["ms"])
        run.losses.append(content["loss"])
        _note_faults(run, director.at_step(content["step"] + 1, content["at"]), run.step_at_s[-1])
    elif report.kind == "look":
        run.latest[report.rank] = content
        run.earliest.setdefault(report.rank, content["bytes"])
        if len(run.latest) == RANKS and report.rank == 0:
            run.looks.append(_combined(run, content["at"] - run.begun_at))
    elif report.kind == "done":
        run.digests[report.rank] = content["digest"]
        run.parameters = content["parameters"]
        if run.latest:
            names = next(iter(run.latest.values()))["counters"]
            run.counters = {name: sum(one["counters"][name] for one in run.latest.values()) for name in names}


def _note_faults(run: TrainingRun, changed: Sequence[tuple[ScriptedFault, bool]], at_s: float) -> None:
    for fault, began in changed:
        if began:
            run.bands.append((fault, at_s, float("inf")))
        else:
            run.bands = [(f, a, at_s if f is fault and b == float("inf") else b) for f, a, b in run.bands]


def _combined(run: TrainingRun, at_s: float) -> NetworkSample:
    sent = sum(np.array(one["bytes"]) - run.earliest[rank] for rank, one in run.latest.items())
    return NetworkSample(at_s, np.asarray(sent), np.sum([one["states"] for one in run.latest.values()], axis=0))


def rates_gbps(run: TrainingRun) -> tuple[np.ndarray, np.ndarray]:
    """When, and by plane how many Gb/s all ranks together sent there. A look right after another says little."""
    looks = run.looks[:1]
    for look in run.looks[1:]:
        if look.at_s - looks[-1].at_s >= LEAST_SPAN_S:
            looks.append(look)
    if len(looks) < 2:
        return np.zeros(0), np.zeros((0, 0))
    at = np.array([look.at_s for look in looks])
    sent = np.array([look.sent_bytes for look in looks])
    return at[1:], (np.diff(sent, axis=0) * 8 / np.diff(at)[:, None] / 1e9).T
