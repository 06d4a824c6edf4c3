"""What a run found, as NumPy arrays and as tables that pandas takes as they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from softmrc.sim.faults import FaultAction
from softmrc.sim.scenario import Scenario
from softmrc.sim.traffic import TrafficPlan

PS_PER_US = 1_000_000
FLOW = np.dtype(
    [
        ("start_ps", "<i8"),
        ("delivered_ps", "<i8"),
        ("completed_ps", "<i8"),
        ("source", "<u4"),
        ("destination", "<u4"),
        ("bytes", "<u4"),
        ("reserved", "<u4"),
    ]
)
EV_STATES = ("good", "skip", "assumed_bad", "denied")


@dataclass(frozen=True)
class Verdict:
    """How a run ended: `complete`, `stuck`, `time is up` or `interrupted`, and a sentence about it."""

    kind: str
    text: str
    stuck: tuple[int, ...] = ()  # flows under way that cannot finish

    def __bool__(self) -> bool:
        return self.kind == "complete"


@dataclass(frozen=True)
class Result:
    """One run of one scenario."""

    name: str
    scenario: Scenario
    seed: int
    verdict: Verdict
    flows: np.ndarray  # dtype FLOW, in the order of the plan
    plan: TrafficPlan = field(repr=False)
    faults: tuple[FaultAction, ...] = field(repr=False)
    counters: dict[str, int]
    stats: dict[str, int]
    trace_hash: int
    simulated_us: float
    build_s: float
    wall_s: float
    goodput_bps: np.ndarray  # planes × bins
    bin_us: float
    bad_evs: np.ndarray  # EVs assumed bad at the end of each bin
    ev_states_us: np.ndarray
    ev_states: np.ndarray  # samples × EV_STATES
    link_bytes: np.ndarray
    link_max_queue_bytes: np.ndarray
    last_lost_us: float  # the last data packet that a fault dropped; nan: none was
    last_retransmitted_us: float  # the last time one of them was retransmitted
    unsent_packets: int  # of them, how many were not

    @property
    def is_delivered(self) -> np.ndarray:
        return self.flows["delivered_ps"] >= 0

    @property
    def is_done(self) -> np.ndarray:
        return self.flows["completed_ps"] >= 0

    @property
    def is_sent(self) -> np.ndarray:
        """Which flows are messages or calls; in the others a host computes."""
        return np.array(self.plan.lasts_ps) < 0

    @property
    def fct_us(self) -> np.ndarray:
        """From the start of a flow to the completion that its sender sees; nan for one that did not complete, or in
        which nothing is sent."""
        took = (self.flows["completed_ps"] - self.flows["start_ps"]) / PS_PER_US
        return np.where(self.is_done & self.is_sent, took, np.nan)

    @property
    def rate_bps(self) -> np.ndarray:
        """Payload over the time from start to delivery."""
        took = (self.flows["delivered_ps"] - self.flows["start_ps"]) / PS_PER_US
        rate = self.flows["bytes"] * 8e6 / np.maximum(took, 1e-6)
        return np.where(self.is_delivered & self.is_sent, rate, np.nan)

    @property
    def makespan_us(self) -> float:
        """From time zero to the last delivery."""
        return float(self.flows["delivered_ps"].max(initial=0)) / PS_PER_US

    @property
    def goodput_mean_bps(self) -> float:
        """Everything delivered over the time it took."""
        delivered = int(self.flows["bytes"][self.is_delivered].sum(dtype=np.uint64))
        return delivered * 8e6 / self.makespan_us if self.makespan_us else 0.0

    @property
    def data_packets(self) -> int:
        """All that were sent, retransmissions among them. MRC's hosts count these apart."""
        again = self.counters["retransmitted"] if self.scenario.transport.kind == "mrc" else 0
        return self.counters["data_packets"] + again

    @property
    def retransmitted(self) -> int:
        """Of the data packets, those retransmitted. The RoCE baseline counts all of its data packets alike."""
        if self.scenario.transport.kind == "mrc":
            return self.counters["retransmitted"]
        mtu = self.scenario.transport.mtu_bytes
        needed = int((-(-self.flows["bytes"][self.is_delivered].astype(np.int64) // mtu)).sum())
        return max(self.counters["data_packets"] - needed, 0)

    @property
    def step_us(self) -> np.ndarray:
        """How long each step took, from the end of the one before; of training runs and repeated collectives."""
        steps = np.array(self.plan.step)
        ends = [0.0]
        for step in range(int(steps.max(initial=-1)) + 1):
            done = self.flows["delivered_ps"][steps == step]
            ends.append(float(done.max()) / PS_PER_US if (done >= 0).all() else float("nan"))
        return np.diff(np.array(ends))

    @property
    def ideal_us(self) -> np.ndarray:
        """How long each collective would take if every link of its ranks were full of it all the time."""
        f, t = self.scenario.fabric, self.scenario.transport
        rate_bps = f.host_link_bps * f.planes * t.mtu_bytes / (t.mtu_bytes + t.header_bytes)
        return np.array([calls.wire_bytes * 8e6 / rate_bps for calls in self.plan.calls])

    @property
    def call_us(self) -> np.ndarray:
        """How long each collective took, from the first rank's call to the last one's end; nan if it did not end."""
        took = []
        owner = np.array(self.plan.call)
        for number in range(len(self.plan.calls)):
            rows = self.flows[owner == number]
            is_over = (rows["completed_ps"] >= 0).all()
            took.append((rows["completed_ps"].max() - rows["start_ps"].min()) / PS_PER_US if is_over else np.nan)
        return np.array(took)

    def group(self, name: str) -> np.ndarray:
        """Which flows belong to a named part of the workload, as a mask."""
        return np.array(self.plan.group) == self.plan.groups.index(name)

    def goodput_between_bps(self, start_us: float, end_us: float) -> float:
        """Mean goodput of whole bins between two moments."""
        first, last = int(np.ceil(start_us / self.bin_us)), int(end_us / self.bin_us)
        chosen = self.goodput_bps[:, first:last]
        return float(chosen.sum(axis=0).mean()) if chosen.size else 0.0

    def table(self) -> dict[str, np.ndarray]:
        """One row a flow: `pandas.DataFrame(result.table())`."""
        names = np.array(self.plan.groups or [""])
        return {
            "source": self.flows["source"],
            "destination": self.flows["destination"],
            "bytes": self.flows["bytes"],
            "group": names[np.array(self.plan.group, dtype=int)],
            "step": np.array(self.plan.step),
            "start_us": _us(self.flows["start_ps"]),
            "delivered_us": _us(self.flows["delivered_ps"]),
            "completed_us": _us(self.flows["completed_ps"]),
            "fct_us": self.fct_us,
            "rate_bps": self.rate_bps,
        }

    def link_table(self) -> dict[str, np.ndarray]:
        """One row a link: plane, name, load as a share of its rate, and the longest queue."""
        fabric = self.scenario.fabric
        rates = np.full(fabric.links, fabric.fabric_link_bps * fabric.cables_per_link, dtype=float)
        for name, links in fabric.stages().items():
            if "host" in name:
                rates[links.ravel()] = fabric.host_link_bps
            elif "T2" in name:
                rates[links.ravel()] = fabric.fabric_link_bps * fabric.cables_per_core_link
        busy_us = max(self.makespan_us, 1e-9)
        return {
            "plane": np.arange(fabric.links) // fabric.links_per_plane,
            "name": np.array([fabric.link_name(i) for i in range(fabric.links)]),
            "bytes": self.link_bytes,
            "load": self.link_bytes * 8e6 / busy_us / rates,
            "max_queue_bytes": self.link_max_queue_bytes,
        }

    def summary(self) -> dict[str, Any]:
        """The figures of a run, ready for JSON."""
        arrived = self.is_delivered & self.is_sent
        fct = self.fct_us[self.is_done & self.is_sent]
        quantiles = np.percentile(fct, [50, 99]) if len(fct) else (float("nan"),) * 2
        slowest = float(self.rate_bps[arrived].min()) if arrived.any() else 0.0
        found = {
            "name": self.name,
            "seed": self.seed,
            "verdict": self.verdict.kind,
            "explanation": self.verdict.text,
            "flows": int(self.is_sent.sum()),
            "flows_delivered": int(arrived.sum()),
            "makespan_us": self.makespan_us,
            "fct_mean_us": float(fct.mean()) if len(fct) else None,
            "fct_p50_us": _finite(quantiles[0]),
            "fct_p99_us": _finite(quantiles[1]),
            "fct_max_us": float(fct.max()) if len(fct) else None,
            "goodput_gbps": self.goodput_mean_bps / 1e9,
            "slowest_flow_gbps": slowest / 1e9,
            "data_packets": self.data_packets,
            "retransmitted": self.retransmitted,
            "trimmed": self.counters["trimmed"],
            "marked": self.counters["marked"],
            "dropped": self.counters["dropped"],
            "lost_to_faults": self.counters["lost_to_faults"],
            "evs_demoted": self.stats.get("evs_demoted", 0),
            "timeouts": self.stats.get("timeouts", 0),
            "trace_hash": f"{self.trace_hash:016x}",
            "simulated_us": self.simulated_us,
            "wall_s": self.wall_s,
        }
        if self.plan.calls:
            found["call_us"] = [_finite(one) for one in self.call_us]
            found["ideal_us"] = [float(one) for one in self.ideal_us]
        if len(self.step_us):
            found["step_us"] = [_finite(one) for one in self.step_us]
        return found


def _us(ps: np.ndarray) -> np.ndarray:
    return np.where(ps >= 0, ps / PS_PER_US, np.nan)


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
