"""The course of the demo: the same job over MRC and over TCP, each undisturbed and while its network breaks."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from softmrc.demo.ranks import DemoRanks, RankMessage, RankPlace
from softmrc.demo.script import Director, ScriptedFault, scripted
from softmrc.demo.traffic import Sampler, Traffic
from softmrc.errors import InternalError

RANKS = 4
TICK_S = 0.01
SILENCE_S = 120.0
MRC, TCP = "MRC", "TCP"
BACKENDS = {MRC: "mrc", TCP: "gloo"}


class Network(Protocol):
    """What connects the ranks, and what breaks it. Use it as a context."""

    @property
    def planes(self) -> int: ...
    @property
    def steps(self) -> int: ...  # of a job, by default
    @property
    def faults(self) -> tuple[ScriptedFault, ...]: ...
    @property
    def breaks_tcp(self) -> bool: ...
    @property
    def text(self) -> str: ...
    @property
    def tcp_text(self) -> str: ...
    def __enter__(self) -> object: ...
    def __exit__(self, *_: object) -> None: ...
    def places(self) -> list[RankPlace]: ...
    def break_it(self, ranks: DemoRanks, fault: ScriptedFault, is_broken: bool) -> None: ...
    def sampled(self) -> AbstractContextManager[Sampler | None]: ...


@dataclass(frozen=True)
class NetworkSample:
    """Planes and paths at one moment, of all ranks together."""

    at_s: float
    sent_bytes: np.ndarray  # by plane, since the run began
    states: np.ndarray  # EVs by plane and state


@dataclass
class TrainingRun:
    """One job, from its first step to its last, or to the one that failed."""

    transport: str
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
    stopped: str = ""  # why it ended early
    traffic: Traffic | None = None
    latest: dict[int, dict[str, Any]] = field(default_factory=dict)  # what each rank saw last
    earliest: dict[int, list[int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.transport}, {'with faults' if self.script else 'undisturbed'}"

    @property
    def digest(self) -> str:
        """Of the weights; empty unless all ranks ended with the same."""
        found = set(self.digests.values())
        return found.pop() if len(found) == 1 and not self.stopped else ""

    @property
    def median_ms(self) -> float:
        return float(np.median(self.step_ms[1:] or [0.0]))  # the first step makes buckets and buffers

    @property
    def worst_ms(self) -> float:
        return float(np.max(self.step_ms[1:] or [0.0]))

    @property
    def run_s(self) -> float:
        return self.step_at_s[-1] if self.step_at_s else 0.0

    def during(self, fault: ScriptedFault) -> np.ndarray:
        """Milliseconds of the steps that a fault touched, whole or in part."""
        found = next(((start, end) for one, start, end in self.bands if one.label == fault.label), None)
        if found is None:
            return np.zeros(0)
        ends = np.array(self.step_at_s)
        begins = ends - np.array(self.step_ms) / 1e3
        return np.array(self.step_ms)[(ends > found[0]) & (begins < found[1])]


class View(Protocol):
    """Who looks on."""

    def begin(self, run: TrainingRun, number: int, of: int) -> None: ...
    def watch(self, run: TrainingRun, director: Director) -> None: ...
    def end(self, run: TrainingRun) -> None: ...


def perform(network: Network, steps: int, env: Mapping[str, str], view: View) -> list[TrainingRun]:
    """Train four times, or three where TCP cannot have the faults. How long a fault lasts follows from the pace of the
    first, which is undisturbed."""
    runs = [TrainingRun(MRC, steps)]
    with ExitStack() as ended:
        ranks = ended.enter_context(DemoRanks(network.places(), env))
        for number in range(1, 5):
            run = runs[-1]
            view.begin(run, number, 3 + network.breaks_tcp)
            try:
                _play(run, network, ranks, view)
            finally:
                view.end(run)
            if run.stopped and not run.script:
                raise InternalError(f"the undisturbed job over {run.transport} stopped: {run.stopped}")
            if number == 1:
                script = scripted(network.faults, steps, run.median_ms / 1e3)
                runs.append(TrainingRun(MRC, steps, script))
            elif number == 2:
                runs.append(TrainingRun(TCP, steps))
            elif number == 3 and network.breaks_tcp:
                runs.append(TrainingRun(TCP, steps, script))
            else:
                break
            if run.stopped:  # its processes are of no use any more
                ended.close()
                ranks = ended.enter_context(DemoRanks(network.places(), env))
    return runs


def _play(run: TrainingRun, network: Network, ranks: DemoRanks, view: View) -> None:
    """Have the ranks do one run, with its faults, and keep what they say."""
    director = Director(run.script, lambda fault, is_broken: network.break_it(ranks, fault, is_broken))
    ranks.order(None, {"do": "train", "run": run.name, "backend": BACKENDS[run.transport], "steps": run.steps})
    spoken_at = time.monotonic()
    with network.sampled() as sampler:
        try:
            while len(run.digests) < ranks.size and not run.stopped:
                report = ranks.next(TICK_S)
                now = time.monotonic()
                if report is not None:
                    spoken_at = now
                    _note(run, report)
                elif now - spoken_at > SILENCE_S:
                    raise InternalError(f"no rank has reported anything for {SILENCE_S:.0f} s")
                if run.step_ms and len(run.step_ms) < run.steps:
                    _note_faults(run, director.tick(len(run.step_ms), now), now - run.begun_at)
                view.watch(run, director)
        finally:
            director.stop()
        if sampler is not None:
            run.traffic = sampler.result().since(run.begun_at)
    end = run.run_s if run.step_at_s else 0.0
    run.bands = [(fault, a, min(b, max(end, a))) for fault, a, b in run.bands]


def _note(run: TrainingRun, report: RankMessage) -> None:
    content = report.content
    if report.kind == "begun" and report.rank == 0:
        run.begun_at = content["at"]
    elif report.kind == "step" and report.rank == 0:
        run.step_at_s.append(content["at"] - run.begun_at)
        run.step_ms.append(content["ms"])
        run.losses.append(content["loss"])
    elif report.kind == "look":
        run.latest[report.rank] = content
        run.earliest.setdefault(report.rank, content["bytes"])
        if len(run.latest) == RANKS and report.rank == 0:
            run.looks.append(_combined(run, content["at"] - run.begun_at))
    elif report.kind == "failed":
        run.stopped = f"rank {report.rank}: {content['why']}"
    elif report.kind == "done":
        run.digests[report.rank] = content["digest"]
        run.parameters = content["parameters"]
        if run.latest:
            names = next(iter(run.latest.values()))["counters"]
            run.counters = {name: sum(one["counters"][name] for one in run.latest.values()) for name in names}


def _note_faults(run: TrainingRun, changed: Sequence[tuple[ScriptedFault, bool]], at_s: float) -> None:
    for fault, began in changed:
        if began:
            run.bands.append((fault, at_s, math.inf))
        else:
            run.bands = [(f, a, at_s if f is fault and b == math.inf else b) for f, a, b in run.bands]


def _combined(run: TrainingRun, at_s: float) -> NetworkSample:
    sent = sum(np.array(one["bytes"]) - run.earliest[rank] for rank, one in run.latest.items())
    return NetworkSample(at_s, np.asarray(sent), np.sum([one["states"] for one in run.latest.values()], axis=0))


def traffic_of(run: TrainingRun) -> Traffic | None:
    """By the switches' counters; where there are none, what MRC says that it sent."""
    if run.traffic is not None or len(run.looks) < 2:
        return run.traffic
    sent = np.array([look.sent_bytes for look in run.looks], dtype=float)
    return Traffic(np.array([look.at_s for look in run.looks]), sent, sent)
