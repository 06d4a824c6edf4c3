"""Running a scenario: from its dataclasses to the native network, and back to arrays.

    result = softmrc.sim.run("scenarios/t1-reboot.toml", seed=7)

The native loop runs in slices. Between two of them Python reports progress, counts the states of the EVs, sees whether
anything still moves, and can be interrupted; slices never change what happens inside, and neither do cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from softmrc import _core
from softmrc.errors import ConfigError
from softmrc.sim import faults as fault_room
from softmrc.sim import verdict
from softmrc.sim.native import in_file, network_config
from softmrc.sim.result import EV_STATES, FLOW, PS_PER_US, Result, Verdict
from softmrc.sim.scenario import Scenario, load
from softmrc.sim.traffic import TrafficPlan
from softmrc.sim.workloads import make_plan

NEVER_PS = 2**62
SLICE_EVENTS = 400_000
CENSUS_SAMPLES = 400
FEW_EVS = 50_000  # more EVs are sampled more rarely
MAX_CENSUS_EVS = 2_000_000  # and one of more than this not at all
PORTS_PER_CORE = 64  # cores that have less to do wait for each other more than they work


@dataclass(frozen=True)
class Progress:
    """Where a run is. `share` is of the bytes to be delivered; `eta_s` is None until there is something to go by."""

    name: str
    simulated_us: float
    share: float
    flows_done: int
    flows: int
    wall_s: float
    eta_s: float | None
    packets_per_s: float


def run(
    scenario: Scenario | str | Path,
    seed: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    name: str | None = None,
    cores: int = 0,
) -> Result:
    """Run one scenario, without what it is compared with. Ctrl-C ends the run and keeps what it has found so far.

    The result is the same on any number of cores; 0 takes as many as there are, or fewer where the fabric is small.
    """
    if not isinstance(scenario, Scenario):
        scenario = load(scenario)
    return Run(scenario, seed, name, cores).to_end(on_progress)


def run_all(
    scenario: Scenario | str | Path,
    seed: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cores: int = 0,
) -> list[Result]:
    """Run a scenario and everything it is compared with; all of it is checked before the first one starts."""
    if not isinstance(scenario, Scenario):
        scenario = load(scenario)
    runs = [Run(one.scenario, seed, one.name, cores) for one in scenario.variants()]
    results = []
    for one in runs:
        results.append(one.to_end(on_progress))
        if results[-1].verdict.kind == "interrupted":
            break
    return results


def cores_for(scenario: Scenario) -> int:
    """As many as this process may use, but no more than have enough to do."""
    available = len(os.sched_getaffinity(0))
    return max(1, min(available, scenario.fabric.hosts * scenario.fabric.planes // PORTS_PER_CORE))


class EvStateSampler:
    """How many EVs are in which state, over time: finely at first, at half the pace whenever samples grow too many."""

    def __init__(self, interval_ps: int) -> None:
        self.is_taken = interval_ps > 0
        self.interval_ps = interval_ps or NEVER_PS
        self.due_ps = self.interval_ps
        self.at_us: list[float] = []
        self.states: list[tuple[int, ...]] = []

    def take(self, network: Any) -> None:
        if not self.is_taken:
            return
        self.at_us.append(network.now_ps / PS_PER_US)
        self.states.append(network.ev_census())
        if len(self.at_us) > CENSUS_SAMPLES:
            self.at_us, self.states = self.at_us[::2], self.states[::2]
            self.interval_ps *= 2
        self.due_ps = network.now_ps + self.interval_ps


class Run:
    """A scenario that has been checked and planned. The network is built when it starts."""

    def __init__(self, scenario: Scenario, seed: int | None = None, name: str | None = None, cores: int = 0) -> None:
        self.scenario = scenario
        self.seed = scenario.run.seed if seed is None else seed
        self.name = name or scenario.name
        t = scenario.transport
        self.actions = fault_room.actions(
            scenario.faults, scenario.fabric, t.mtu_bytes + t.header_bytes, self.seed, scenario.source
        )
        self.plan: TrafficPlan = make_plan(scenario.workloads, scenario.fabric, self.seed, scenario.source)
        self.config = network_config(scenario, self.seed)
        self.config.cores = cores or cores_for(scenario)
        self.network: Any = None
        self.build_s = 0.0
        ends = zip(self.plan.source, self.plan.destination, strict=True)
        evs = sum(source != destination for source, destination in set(ends)) * t.evs
        pace = 1 + evs // FEW_EVS
        is_counted = t.kind == "mrc" and evs <= MAX_CENSUS_EVS
        self.ev_states = EvStateSampler(round(scenario.bin_us * PS_PER_US) * pace if is_counted else 0)

    def build(self) -> None:
        started = time.perf_counter()
        try:
            self.network = _core.Network(self.config)
        except ConfigError as error:
            raise in_file(self.scenario, error) from None
        plan, network = self.plan, self.network
        for hosts in plan.ranks:
            network.add_group(hosts)
        for calls in plan.calls:
            network.add_collective(calls.ranks, int(calls.kind), calls.bytes, calls.algorithm or None)
        network.add_flows(
            np.array(plan.source, dtype=np.uint32),
            np.array(plan.destination, dtype=np.uint32),
            np.array(plan.bytes, dtype=np.uint32),
            np.array(plan.start_ps, dtype=np.int64),
            np.array(plan.call, dtype=np.int32),
            np.array(plan.rank, dtype=np.uint32),
            np.array(plan.lasts_ps, dtype=np.int64),
        )
        if plan.later:
            network.add_dependencies(
                np.array(plan.earlier, dtype=np.uint32),
                np.array(plan.later, dtype=np.uint32),
                np.array(plan.think_ps, dtype=np.int64),
            )
        for action in self.actions:
            kind = fault_room.native_kind(action.kind)
            for link in action.links.tolist():
                network.add_fault(action.at_ps, kind, link, action.value)
        network.sample_every(round(self.scenario.bin_us * PS_PER_US))
        self.build_s = time.perf_counter() - started

    def to_end(self, on_progress: Callable[[Progress], None] | None = None) -> Result:
        if self.network is None:
            self.build()
        started = time.perf_counter()
        try:
            ending = self._loop(started, on_progress)
        except KeyboardInterrupt:
            ending = verdict.interrupted(self.network, len(self.plan))
        return self._result(ending, time.perf_counter() - started)

    def _loop(self, started: float, on_progress: Callable[[Progress], None] | None) -> Verdict:
        network, settings = self.network, self.scenario.run
        until_ps = round(settings.until_ms * 1e9) or NEVER_PS
        stall_ps = round(settings.stall_ms * 1e9)
        planned_ps = self._last_planned_ps()
        stall_ps += max(self.plan.lasts_ps, default=0)  # hosts that compute need not send
        total = sum(self.plan.bytes) or 1
        while True:
            gives_up_ps = max(network.last_placed_ps, planned_ps) + stall_ps
            network.run(min(until_ps, self.ev_states.due_ps, gives_up_ps), SLICE_EVENTS * self.config.cores)
            now = network.now_ps
            gives_up_ps = max(network.last_placed_ps, planned_ps) + stall_ps
            is_complete = network.flows_completed == len(self.plan)
            if is_complete or now >= self.ev_states.due_ps:
                self.ev_states.take(network)
            if on_progress is not None:
                on_progress(self._progress(network.bytes_placed / total, time.perf_counter() - started))
            if is_complete:
                return verdict.complete(network)
            if now >= until_ps:
                return verdict.time_is_up(network, settings.until_ms, len(self.plan))
            if network.is_idle or now >= gives_up_ps:
                return verdict.stuck(network, self.scenario.fabric, self.plan, self.actions, settings.stall_ms)

    def _last_planned_ps(self) -> int:
        """The last moment for which something is planned whatever happens: a fault, the start of a flow, a pause."""
        starts = max(self.plan.start_ps, default=0)
        breaks = max((action.at_ps for action in self.actions), default=0)
        return max(starts, breaks, 0) + max(self.plan.think_ps, default=0)

    def _progress(self, share: float, wall_s: float) -> Progress:
        packets = self.network.counters()["data_packets"]
        return Progress(
            name=self.name,
            simulated_us=self.network.now_ps / PS_PER_US,
            share=share,
            flows_done=self.network.flows_completed,
            flows=len(self.plan),
            wall_s=wall_s,
            eta_s=wall_s * (1 - share) / share if share > 0.01 else None,
            packets_per_s=packets / wall_s if wall_s else 0.0,
        )

    def _result(self, ending: Verdict, wall_s: float) -> Result:
        network, fabric = self.network, self.scenario.fabric
        bin_ps = round(self.scenario.bin_us * PS_PER_US)
        placed = np.frombuffer(network.goodput_series(), dtype=np.uint64).reshape(-1, fabric.planes).T
        lost_ps, resent_ps, unsent = network.recovery()
        return Result(
            name=self.name,
            scenario=self.scenario,
            seed=self.seed,
            verdict=ending,
            flows=np.frombuffer(network.flow_rows(), dtype=FLOW),
            plan=self.plan,
            faults=tuple(self.actions),
            counters=network.counters(),
            stats=network.total_stats(),
            trace_hash=network.trace_hash,
            simulated_us=network.now_ps / PS_PER_US,
            build_s=self.build_s,
            wall_s=wall_s,
            goodput_bps=placed * (8e12 / bin_ps),
            bin_us=bin_ps / PS_PER_US,
            bad_evs=np.frombuffer(network.bad_ev_series(), dtype=np.int64),
            ev_census_us=np.array(self.ev_states.at_us),
            ev_census=np.array(self.ev_states.states, dtype=np.int64).reshape(-1, len(EV_STATES)),
            link_bytes=np.frombuffer(network.link_bytes(), dtype=np.uint64),
            link_max_queue_bytes=np.frombuffer(network.link_max_queue(), dtype=np.uint32),
            last_lost_us=lost_ps / PS_PER_US if lost_ps >= 0 else float("nan"),
            last_resent_us=resent_ps / PS_PER_US if resent_ps >= 0 else float("nan"),
            unsent_packets=unsent,
        )
