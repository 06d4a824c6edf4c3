"""What retries cost, fault by fault, with MRC and with RoCE: of the bandwidth, of the time, of a step, in money.

One small training job, its steps computing and then reducing gradients, runs with a fault and without. What is sent
again takes bandwidth; what is waited for takes time, and time is what is paid for. A fault that stays takes a share of
the time from when it comes; one that ends takes so much time each time it happens, and what that is of a job depends on
how long the job is. A run that does not finish has neither: it is said to stop.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from softmrc.sim.result import Result
from softmrc.sim.run import run
from softmrc.sim.scenario import Scenario, parse

NOTICED = 0.0005  # of a job's time: less is printed as nothing
HIT_US = 700.0  # when the fault comes: in one of the first steps
JOB: dict[str, Any] = {
    "question": "What do retries cost?",
    "fabric": {
        "nic_bps": "400G", "planes": 4, "hosts": 16, "hosts_per_leaf": 4, "spines": 4,
        "convergence_delay_ms": 1.0,  # for RoCE: until switches route round a link that is known to be down
    },
    "workload": {"kind": "training", "steps": 12, "compute_us": 100.0, "bytes": 8_000_000},
    "run": {"stall_ms": 50.0},
}  # fmt: skip
TRANSPORTS: dict[str, dict[str, Any]] = {
    "MRC": {},
    "RoCE": {"transport": {"kind": "roce", "qps_per_pair": 4}, "fabric": {"planes": 1}},
}
FAULTS: dict[str, dict[str, Any]] = {
    "uplink dead, unnoticed": {"kind": "black_hole", "link": {"plane": 0, "leaf": 1, "spine": 2}},
    "uplink down": {"kind": "down", "link": {"plane": 0, "leaf": 1, "spine": 2}},
    "spine reboots": {"kind": "down", "switch": {"plane": 0, "tier": "t1", "index": 2}, "for_us": 500.0},
    "NIC port down": {"kind": "down", "port": {"plane": 0, "host": 5}},
    "NIC port flaps": {
        "kind": "down", "port": {"plane": 0, "host": 5}, "for_us": 100.0, "times": 4, "every_us": 400.0,
    },
    "a cable loses 0.1 %": {
        "kind": "loss", "value": 0.001, "link": {"plane": 0, "leaf": 1, "spine": 2},
    },
    "all cables lose 0.1 %": {
        "kind": "loss", "value": 0.001, "link": {"plane": "all", "leaf": "all", "spine": "all"},
    },
    "a cable at a tenth": {"kind": "slow", "value": 0.1, "link": {"plane": 0, "leaf": 1, "spine": 2}},
}  # fmt: skip


@dataclass(frozen=True)
class SeedSpread:
    """What a fault adds, with each seed that finished; less than `noticed` is nothing."""

    values: tuple[float, ...]
    noticed: float = NOTICED

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def is_clear(self) -> bool:
        """Whether every seed lost something. No fault makes a job faster: who gains, gains by chance."""
        return bool(self.values) and min(self.values) >= self.noticed

    @property
    def is_none(self) -> bool:
        return bool(self.values) and max(self.values) < self.noticed

    def to_json(self) -> dict[str, float | None]:
        """The mean, where all seeds agree that there is one; the least and the most."""
        if not self.values:
            return dict.fromkeys(("mean", "least", "most"))
        mean = 0.0 if self.is_none else self.mean if self.is_clear else None
        return {"mean": mean, "least": min(self.values), "most": max(self.values)}


@dataclass(frozen=True)
class Cost:
    """What one fault costs with one transport, over the seeds."""

    fault: str
    transport: str
    bandwidth_share: float  # of the data packets, those that had been sent before; the mean
    is_lasting: bool  # it stays; else it is over before the job is
    time: SeedSpread  # of the time since it came, what the fault added; empty where the job stops
    lost_us: SeedSpread  # the same in microseconds, all of it
    step: SeedSpread  # by how much the worst step is longer than one without the fault
    stopped: int  # of the seeds
    calm_us: float  # how long the job takes without the fault; the mean
    gpu_hour_usd: float

    @property
    def usd(self) -> float | None:
        """Of a thousand GPU-hours during a permanent fault; None: the fault ends, or the cost is unclear."""
        mean = self.time.to_json()["mean"]
        return None if mean is None or not self.is_lasting else mean * 1000 * self.gpu_hour_usd

    def to_json(self) -> dict[str, Any]:
        return {
            "fault": self.fault, "transport": self.transport, "bandwidth_share": self.bandwidth_share,
            "is_lasting": self.is_lasting, "time_share": self.time.to_json() if self.is_lasting else None,
            "lost_us": self.lost_us.to_json(), "step_share": self.step.to_json(), "usd": self.usd,
            "stopped": self.stopped, "calm_us": self.calm_us,
        }  # fmt: skip


def scenario_of(
    transport: str,
    fault: dict[str, Any] | None,
    fabric: dict[str, Any] | None = None,
    keys: dict[str, Any] | None = None,
) -> Scenario:
    """The job with this transport, and with the fault or without; `keys` are changed last, by their dotted paths."""
    table = copy.deepcopy(JOB)
    table["fabric"] |= fabric or {}
    for section, own in TRANSPORTS[transport].items():
        table[section] = table.get(section, {}) | own
    if fault is not None:
        table["faults"] = {"events": [fault | {"at_us": HIT_US}]}
    return parse(table).with_keys(keys) if keys else parse(table)


def costs(
    seeds: range, gpu_hour_usd: float, keys: dict[str, Any], on_run: Callable[[str, str], None] | None = None
) -> Iterator[Cost]:
    """One after the other, as they are found."""
    calm = {t: [_run(scenario_of(t, None, keys=keys), seed) for seed in seeds] for t in TRANSPORTS}
    for name, fault in FAULTS.items():
        for transport in TRANSPORTS:
            if on_run:
                on_run(name, transport)
            scenario = scenario_of(transport, fault, keys=keys)
            hit = [_run(scenario, seed) for seed in seeds]
            yield weigh(name, transport, hit, calm[transport], gpu_hour_usd, is_lasting="for_us" not in fault)


def _run(scenario: Scenario, seed: int) -> Result:
    """An interrupted run is dropped, and ends the series."""
    result = run(scenario, seed)
    if result.verdict.kind == "interrupted":
        raise KeyboardInterrupt
    return result


def weigh(
    fault: str, transport: str, hit: list[Result], calm: list[Result], gpu_hour_usd: float, is_lasting: bool = True
) -> Cost:
    """The runs with a fault compared with those without, seed by seed."""
    retransmitted = float(np.mean([one.retransmitted / max(one.data_packets, 1) for one in hit]))
    pairs = [(a, b) for a, b in zip(hit, calm, strict=True) if a.verdict]
    calm_us = float(np.mean([one.makespan_us for one in calm]))
    times = SeedSpread(tuple(1 - (b.makespan_us - HIT_US) / (a.makespan_us - HIT_US) for a, b in pairs))
    lost_us = SeedSpread(tuple(a.makespan_us - b.makespan_us for a, b in pairs), NOTICED * calm_us)
    steps = SeedSpread(tuple(float(np.max(a.step_us) / np.max(b.step_us)) - 1 for a, b in pairs))
    return Cost(
        fault, transport, retransmitted, is_lasting, times, lost_us, steps, len(hit) - len(pairs), calm_us, gpu_hour_usd
    )
