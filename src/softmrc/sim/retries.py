"""What retries cost, fault by fault, with MRC and with RoCE: of the bandwidth, of the time, of a step, in money.

One small training job, its steps computing and then reducing gradients, runs with a fault and without. What is sent
again takes bandwidth; what is waited for takes time, and time is what is paid for. A run that does not finish has no
share: it is said to stop.
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
    "T0–T1 cable dead, unnoticed": {"kind": "black_hole", "link": {"plane": 0, "leaf": 1, "spine": 2}},
    "T0–T1 cable down": {"kind": "down", "link": {"plane": 0, "leaf": 1, "spine": 2}},
    "T1 switch reboots": {"kind": "down", "switch": {"plane": 0, "tier": "t1", "index": 2}, "for_us": 500.0},
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
class Cost:
    """What one fault costs with one transport, over the seeds. Shares are means; None where the job stops."""

    fault: str
    transport: str
    bandwidth_share: float  # of the data packets, those that had been sent before
    time_share: float | None  # of the job's time, what the fault added
    step_share: float | None  # by how much the worst step is longer than one without the fault
    usd: float | None  # of a thousand GPU-hours that a job like this takes while the fault is there
    least_time_share: float | None
    most_time_share: float | None
    stopped: int  # of the seeds

    @property
    def is_clear(self) -> bool:
        """Whether every seed lost time: no fault makes a job faster, and what is less than chance is nothing."""
        return self.least_time_share is not None and self.least_time_share > 0


def scenario_of(transport: str, fault: dict[str, Any] | None, fabric: dict[str, Any] | None = None) -> Scenario:
    """The job with this transport, and with the fault or without."""
    table = copy.deepcopy(JOB)
    table["fabric"] |= fabric or {}
    for section, keys in TRANSPORTS[transport].items():
        table[section] = table.get(section, {}) | keys
    if fault is not None:
        table["faults"] = {"events": [fault | {"at_us": HIT_US}]}
    return parse(table)


def costs(
    seeds: int = 3, gpu_hour_usd: float = 2.5, on_run: Callable[[str, str], None] | None = None
) -> Iterator[Cost]:
    """One after the other, as they are found."""
    first = range(1, seeds + 1)
    calm = {t: [_run(scenario_of(t, None), seed) for seed in first] for t in TRANSPORTS}
    for name, fault in FAULTS.items():
        for transport in TRANSPORTS:
            if on_run:
                on_run(name, transport)
            scenario = scenario_of(transport, fault)
            yield weigh(name, transport, [_run(scenario, seed) for seed in first], calm[transport], gpu_hour_usd)


def _run(scenario: Scenario, seed: int) -> Result:
    """One that somebody interrupted is none, and no other follows it."""
    result = run(scenario, seed)
    if result.verdict.kind == "interrupted":
        raise KeyboardInterrupt
    return result


def weigh(fault: str, transport: str, hit: list[Result], calm: list[Result], gpu_hour_usd: float) -> Cost:
    """The runs with a fault beside those without, seed by seed."""
    resent = float(np.mean([one.retransmitted / max(one.counters["data_packets"], 1) for one in hit]))
    pairs = [(a, b) for a, b in zip(hit, calm, strict=True) if a.verdict]
    stopped = len(hit) - len(pairs)
    if not pairs:
        return Cost(fault, transport, resent, None, None, None, None, None, stopped)
    times = [1 - b.makespan_us / a.makespan_us for a, b in pairs]
    steps = [float(np.max(a.step_us) / np.max(b.step_us)) - 1 for a, b in pairs]
    mean = float(np.mean(times))
    usd = (mean if min(times) > 0 else 0.0) * 1000 * gpu_hour_usd
    return Cost(fault, transport, resent, mean, float(np.mean(steps)), usd, min(times), max(times), stopped)
