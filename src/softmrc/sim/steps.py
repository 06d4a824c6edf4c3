"""Where the steps of a job go: computing, what is sent inside a host, waiting for other stages, and communication that
nothing hides.

Exposed communication is what a step takes, less what it would take if the network took no time. That second figure is
worked out, not simulated: the same tasks wait for the same others, messages arrive at once, and a collective ends when
the last of its ranks calls it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from softmrc.sim.job import Job
from softmrc.sim.programs import COMPUTE, SCALE_UP
from softmrc.sim.result import Result
from softmrc.sim.traffic import PS_PER_US, WAITS, TrafficPlan


@dataclass(frozen=True)
class Step:
    """One step in µs; the last four make the first. What ranks do is their mean."""

    step_us: float
    computing_us: float
    scale_up_us: float
    waiting_us: float  # for other stages of a pipeline, and for ranks that compute longer
    exposed_us: float

    @property
    def exposed_share(self) -> float:
        return self.exposed_us / self.step_us if self.step_us else 0.0


def has_steps(plan: TrafficPlan) -> bool:
    """Whether hosts compute in this plan."""
    return any(one >= 0 for one in plan.lasts_ps)


def free_ends_ps(plan: TrafficPlan) -> np.ndarray:
    """When each flow would end if the network took no time."""
    count = len(plan)
    unit = [count + call if call >= 0 else flow for flow, call in enumerate(plan.call)]
    members: dict[int, list[int]] = {}
    for flow, one in enumerate(unit):
        members.setdefault(one, []).append(flow)
    starts = [max(one, 0) if one != WAITS else 0 for one in plan.start_ps]
    later: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    left = dict.fromkeys(members, 0)
    for earlier, after, think in zip(plan.earlier, plan.later, plan.think_ps, strict=True):
        later[earlier].append((after, think))
        left[unit[after]] += 1
    ends = np.zeros(count, dtype=np.int64)
    ready = deque(one for one, waits in left.items() if not waits)
    while ready:
        flows = members[ready.popleft()]
        end = max(starts[flow] + max(plan.lasts_ps[flow], 0) for flow in flows)
        for flow in flows:
            ends[flow] = end
            for after, think in later[flow]:
                starts[after] = max(starts[after], end + think)
                left[unit[after]] -= 1
                if not left[unit[after]]:
                    ready.append(unit[after])
    return ends


def steps_of(result: Result) -> list[Step]:
    """One for each step; those that did not end have a nan."""
    plan = result.plan
    step, group = np.array(plan.step), np.array(plan.group)
    lasts = np.maximum(np.array(plan.lasts_ps), 0)
    free = free_ends_ps(plan)
    hosts = max(len(set(np.array(plan.source)[np.array(plan.lasts_ps) >= 0].tolist())), 1)
    found, before = [], float(np.array([one for one in plan.start_ps if one >= 0]).min(initial=0))
    first_us = before / PS_PER_US
    for number, took in enumerate(result.step_us):
        rows = step == number
        end = float(free[rows].max(initial=0))
        alone = (end - before) / PS_PER_US
        before = end
        spent = {}
        for name in (COMPUTE, SCALE_UP):
            named = [i for i, one in enumerate(plan.groups) if one == name]
            spent[name] = float(lasts[rows & np.isin(group, named)].sum()) / PS_PER_US / hosts
        took = float(took) - (first_us if number == 0 else 0.0)
        waiting = alone - spent[COMPUTE] - spent[SCALE_UP]
        found.append(Step(took, spent[COMPUTE], spent[SCALE_UP], waiting, took - alone))
    return found


def mfu(result: Result) -> float:
    """The share of what its GPUs could compute that a job made use of, at the median step; nan where unknown."""
    jobs = [one for one in result.scenario.workloads if isinstance(one, Job) and not one.gpu.forward_us]
    steps = [one.step_us for one in steps_of(result)]
    if len(jobs) != 1 or not steps:
        return float("nan")
    return jobs[0].step_flops() / jobs[0].gpu.flops / (float(np.median(steps)) / 1e6)


def summary(result: Result) -> dict[str, Any]:
    """Ready for JSON."""
    steps = [{key: _finite(value) for key, value in asdict(one).items()} for one in steps_of(result)]
    return {"steps": steps, "mfu": _finite(mfu(result)), "calls_us": calls_us(result)}


def calls_us(result: Result) -> dict[str, float | None]:
    """The mean time that a collective, or a message, of each name takes."""
    is_sent = np.array(result.plan.lasts_ps) < 0
    found = {}
    for number, name in enumerate(result.plan.groups):
        rows = is_sent & (np.array(result.plan.group) == number)
        if rows.any():
            found[name] = _finite(result.fct_us[rows].mean())
    return found


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
