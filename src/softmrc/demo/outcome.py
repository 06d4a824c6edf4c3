"""What the demo found, as figures and as sentences: the headline of the terminal and of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from softmrc.demo.script import ScriptedFault
from softmrc.demo.story import MRC, TCP, TrainingRun
from softmrc.engine import EvState

ENOUGH = 0.95  # of the paths that a fault takes: the last few carried nothing, and are noticed later


@dataclass(frozen=True)
class Outcome:
    """A job with faults, compared with the same job undisturbed."""

    transport: str
    steps: int
    faults: int
    stopped_at: int | None  # the step that failed; None: the job ended as it should
    stall_s: float  # the longest step, less the median step of the undisturbed job
    calm_s: float  # the undisturbed job's run time
    run_s: float
    is_identical: bool

    @property
    def failed_steps(self) -> int:
        return 0 if self.stopped_at is None else 1

    @property
    def extra(self) -> float:
        """Run time that the faults added, as a share."""
        return self.run_s / self.calm_s - 1

    @property
    def words(self) -> str:
        if self.stopped_at is not None:
            return f"job stopped at step {self.stopped_at} of {self.steps}"
        weights = "identical weights" if self.is_identical else "different weights"
        return f"0 failed steps, longest stall {seconds(self.stall_s)}, {percent(self.extra)} run time, {weights}"


def outcome_of(calm: TrainingRun, faulty: TrainingRun) -> Outcome:
    stall_ms = max(faulty.worst_ms - calm.median_ms, 0.0) if len(faulty.step_ms) > 1 else 0.0
    return Outcome(
        calm.transport,
        faulty.steps,
        len(faulty.bands),
        len(faulty.step_ms) + 1 if faulty.stopped else None,
        stall_ms / 1e3,
        calm.run_s,
        faulty.run_s if faulty.step_at_s else 0.0,
        not faulty.stopped and bool(faulty.digest) and faulty.digest == calm.digest and faulty.losses == calm.losses,
    )


def pick(runs: Sequence[TrainingRun], transport: str, is_faulty: bool) -> TrainingRun | None:
    return next((run for run in runs if run.transport == transport and bool(run.script) == is_faulty), None)


def outcomes(runs: Sequence[TrainingRun]) -> list[Outcome]:
    """MRC's, then TCP's where it had the faults too."""
    found = []
    for transport in (MRC, TCP):
        calm, faulty = pick(runs, transport, False), pick(runs, transport, True)
        if calm is not None and faulty is not None:
            found.append(outcome_of(calm, faulty))
    return found


def count_of(found: Sequence[Outcome]) -> str:
    return f"{found[0].faults} network fault{'' if found[0].faults == 1 else 's'}"


def headline(found: Sequence[Outcome]) -> str:
    return ". ".join([count_of(found), *(f"{one.transport}: {one.words}" for one in found)]) + "."


def where_tcp_is_better(mrc: Outcome, tcp: Outcome) -> str:
    """One sentence, empty where it is better in nothing."""
    found = []
    if tcp.calm_s < mrc.calm_s:
        found.append(f"the undisturbed run is shorter ({seconds(tcp.calm_s)} against {seconds(mrc.calm_s)})")
    if tcp.stopped_at is None:
        if mrc.stopped_at is not None:
            found.append("its job ended")
        else:
            if tcp.stall_s < mrc.stall_s:
                found.append(f"its longest stall is shorter ({seconds(tcp.stall_s)} against {seconds(mrc.stall_s)})")
            if tcp.extra < mrc.extra:
                found.append(f"the faults cost it less run time ({percent(tcp.extra)} against {percent(mrc.extra)})")
        if tcp.is_identical and not mrc.is_identical:
            found.append("its weights are identical")
    return f"Where TCP is better: {', '.join(found)}." if found else ""


@dataclass(frozen=True)
class Withdrawal:
    """What one fault did to the paths of all connections."""

    withdrawn: int
    paths: int
    within_s: float
    back_s: float | None  # after the repair; None: not before the job or the next fault ended

    @property
    def short(self) -> str:
        if not self.withdrawn:
            return "none"
        return f"{self.withdrawn:,} of {self.paths:,} in {milliseconds(self.within_s)}"

    @property
    def sentence(self) -> str:
        if not self.withdrawn:
            return "no path withdrawn"
        words = f"{self.withdrawn:,} of {self.paths:,} paths withdrawn within {milliseconds(self.within_s)}"
        return words + (f", back {milliseconds(self.back_s)} after the repair" if self.back_s is not None else "")


def withdrawal_of(run: TrainingRun, fault: ScriptedFault) -> Withdrawal | None:
    """None where nothing was seen of it."""
    at = next((index for index, (one, _, _) in enumerate(run.bands) if one.label == fault.label), None)
    if at is None or not run.looks:
        return None
    _, start, end = run.bands[at]
    until = run.bands[at + 1][1] if at + 1 < len(run.bands) else np.inf
    when = np.array([look.at_s for look in run.looks])
    bad = np.array([look.states[:, EvState.ASSUMED_BAD.value].sum() for look in run.looks])
    before, during, after = bad[when <= start], (when > start) & (when <= end), (when > end) & (when <= until)
    base = int(before[-1]) if len(before) else 0
    total = int(run.looks[-1].states.sum())
    most = int(bad[during].max(initial=base)) - base
    if most <= 0:
        return Withdrawal(0, total, 0.0, None)
    first = when[during][bad[during] - base >= ENOUGH * most][0]
    healed = when[after][bad[after] - base <= (1 - ENOUGH) * most]
    return Withdrawal(most, total, float(first - start), float(healed[0] - end) if len(healed) else None)


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"


def percent(value: float) -> str:
    return f"{round(100 * value):+d} %"


def milliseconds(value: float) -> str:
    return seconds(value) if value >= 1 else f"{value * 1e3:.0f} ms"
