"""The simulator: agreement with a public reference, speed, scale, and failover in simulated time.

    A      random permutation, 128 hosts, three-tier fat tree, 100G, 2 MB      mean and max completion, mean of 5 seeds
    C      incast 32 to 1, 128 hosts, leaf-spine, 400G, 2 MB                   the same
    B      random permutation, 1 024 hosts, leaf-spine, 400G, 2 MB             speed on one core
    F      the same with 8 192 hosts
    cores  B and F on one core and on all of them, in turn                     how many times as fast
    full   131 072 NICs, two tiers, 8 planes of 100G, every NIC sends 256 KiB  time and memory of the whole run
    full_1m    the same with 1 MiB (with --full, as it takes minutes)
    full_a2a   the same; every NIC sends 64 KiB to 4 others, 2 at a time: a slice of an all-to-all (with --full)
    failover   a leaf-spine cable is black-holed under load (base RTT 8.3 µs)
    grey   the fabric of C, a random permutation, one spine at a share of its rate from the start
    a2a    64 hosts send 256 KiB to each other, 1 to 16 messages at a time, compared with RoCE

A, B, C and F use the reference's settings: packet sizes on the link, marks on the last hop too, an early first SACK.
Runs whose memory is measured get a separate process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from softmrc import sim
from softmrc._support.subprocesses import python_command
from softmrc.errors import InternalError
from softmrc.sim.run import Run
from softmrc_bench.figures import BenchFigure, flat

_LIKE_THE_REFERENCE: dict[str, Any] = {
    "transport": {
        "mtu_bytes": 4084, "header_bytes": 66, "control_packet_bytes": 64, "trimmed_packet_bytes": 64, "evs": 64,
        "sack_first_packet": True, "paths": "drawn",
    },
    "queues": {"ecn_on_last_hop": True, "last_hop_trim_bdp": 1.0},
    "run": {"bin_us": 1000.0},
}  # fmt: skip
_FAT_TREE = {"planes": 1, "hosts": 128, "hosts_per_leaf": 4, "spines": 4, "pods": 8, "cores_per_spine": 4}
_ALL_NICS = {"planes": 8, "hosts": 131_072, "hosts_per_leaf": 256, "spines": 256}
_PERMUTATION = {"kind": "permutation", "message_bytes": 2_000_000}
_ONE_TO_ONE = {"hosts": 64, "hosts_per_leaf": 8, "spines": 8}
_ACROSS = {"kind": "permutation", "pattern": "across_leaves"}
DEAD = {"plane": 0, "leaf": 1, "spine": 2}
_FAILOVER: dict[str, Any] = {
    "faults": {"events": [{"kind": "black_hole", "at_us": 150.0, "link": DEAD}]},
    "run": {"bin_us": 10.0},
}

SCENARIOS: dict[str, dict[str, Any]] = {
    "A": _LIKE_THE_REFERENCE | {"fabric": _FAT_TREE, "workload": _PERMUTATION},
    "B": _LIKE_THE_REFERENCE
    | {
        "fabric": {"planes": 1, "hosts": 1024, "hosts_per_leaf": 32, "spines": 32, "host_link_gbps": 400},
        "workload": _PERMUTATION,
    },
    "C": _LIKE_THE_REFERENCE
    | {
        "fabric": {"planes": 1, "hosts": 128, "hosts_per_leaf": 16, "spines": 16, "host_link_gbps": 400},
        "workload": {"kind": "incast", "sources": list(range(3, 128, 4)), "message_bytes": 2_000_000},
    },
    "F": _LIKE_THE_REFERENCE
    | {
        "fabric": {"planes": 1, "hosts": 8192, "hosts_per_leaf": 64, "spines": 64, "host_link_gbps": 400},
        "workload": _PERMUTATION,
    },
    "full": {
        "fabric": _ALL_NICS,
        "workload": {"kind": "permutation", "message_bytes": 256 << 10},
        "run": {"bin_us": 1000.0},
    },
    "full_1m": {
        "fabric": _ALL_NICS,
        "workload": {"kind": "permutation", "message_bytes": 1 << 20},
        "run": {"bin_us": 1000.0},
    },
    "full_a2a": {
        "fabric": _ALL_NICS,
        "workload": {"kind": "all_to_all", "message_bytes": 64 << 10, "window": 2, "peers": 4},
        "run": {"bin_us": 1000.0, "chain": "acknowledgement"},
    },
    "grey": _LIKE_THE_REFERENCE
    | {
        "fabric": {"planes": 1, "hosts": 128, "hosts_per_leaf": 16, "spines": 16, "host_link_gbps": 400},
        "workload": _PERMUTATION,
    },
    "a2a": {
        "fabric": {"planes": 1, "hosts": 64, "hosts_per_leaf": 8, "spines": 8, "host_link_gbps": 400},
        "transport": {"evs": 256},
        "workload": {"kind": "all_to_all", "message_bytes": 256 << 10},
        "run": {"bin_us": 1000.0},
    },
    # One uplink for each host of a leaf and nothing to spare, loaded to the last bit.
    "failover": _FAILOVER
    | {
        "fabric": _ONE_TO_ONE | {"planes": 2, "host_link_gbps": 400},
        "workload": _ACROSS | {"message_bytes": 35_000_000},
    },
    "failover_4x100": _FAILOVER
    | {
        "fabric": _ONE_TO_ONE | {"planes": 4, "host_link_gbps": 100},
        "workload": _ACROSS | {"message_bytes": 18_000_000},
    },
}
GREY_SPINE = 3
LONG_BYTES = 20_000_000
A2A_WINDOWS = (1, 4, 8, 16)
ROCE_QPS = (1, 4, 16)
FAULT_US = 150.0
RUNS = {"B": 3, "F": 2}  # of which the fastest counts
WATCHED_US = 150.0

TITLE = "The simulator"
FIGURES = (
    BenchFigure("A.fct_mean_us", "A: mean completion (reference 193.5 ± 5 %)", "µs", 193.5, True, 0.05),
    BenchFigure("A.fct_max_us", "A: last completion (reference 204 ± 5 %)", "µs", 204.0, True, 0.05),
    BenchFigure("C.fct_mean_us", "C: mean completion (reference 1137 ± 10 %)", "µs", 1137.0, True, 0.10),
    BenchFigure("C.fct_max_us", "C: last completion (reference 1329 ± 5 %)", "µs", 1329.0, True, 0.05),
    BenchFigure(
        "B.data_packets_per_s", "B: data packets per second on one core, 1,024 hosts", "packets/s", 250e3, True
    ),
    BenchFigure("B.link_hops_per_s", "B: link hops per second on one core", "hops/s", 0, True),
    BenchFigure("B.rss_gib", "B: peak memory", "GiB", 0, True),
    BenchFigure("F.data_packets_per_s", "F: data packets per second on one core, 8,192 hosts", "packets/s", 0, True),
    BenchFigure("F.link_hops_per_s", "F: link hops per second on one core", "hops/s", 1e6, True),
    BenchFigure("F.rss_gib", "F: peak memory", "GiB", 0, True),
    BenchFigure("cores", "cores available", "", 0, True),
    BenchFigure("cores_speedup.B", "B: all cores over one (expected: 1.6 with 2 cores, 5 with 16)", "×", 1.6, True),
    BenchFigure("cores_speedup.F", "F: all cores over one (expected: 1.6 with 2 cores, 5 with 16)", "×", 1.6, True),
    BenchFigure("full.nics", "full: number of NICs", "", 131_072, True),
    BenchFigure("full.build_s", "full: time to build the fabric", "s", 20, False),
    BenchFigure("full.run_s", "full: time to complete every message", "s", 600, False),
    BenchFigure("full.rss_gib", "full: peak memory", "GiB", 8, False),
    BenchFigure("full_1m.run_s", "full_1m: time to complete 1 MiB from every NIC, all cores", "s", 0, False),
    BenchFigure("full_1m.rss_gib", "full_1m: peak memory", "GiB", 0, False),
    BenchFigure("full_a2a.run_s", "full_a2a: time to complete part of an all-to-all, all cores", "s", 0, False),
    BenchFigure("full_a2a.rss_gib", "full_a2a: peak memory", "GiB", 0, False),
    BenchFigure(
        "failover_us",
        "failover, 2 × 400G: black-holed cable withdrawn and its packets retransmitted, worst seed",
        "µs",
        50,
        False,
    ),
    BenchFigure(
        "goodput_floor", "failover, 2 × 400G: least goodput over remaining capacity, worst seed", "", 0.95, True
    ),
    BenchFigure(
        "failover_4x100_us",
        "failover, 4 × 100G: cable withdrawn and its packets retransmitted, worst seed",
        "µs",
        50,
        False,
    ),
    BenchFigure(
        "goodput_floor_4x100", "failover, 4 × 100G: least goodput over remaining capacity, worst seed", "", 0.95, True
    ),
    BenchFigure("grey_25", "grey, one spine at 25 %: last completion over no fault, worst seed", "", 1.10, False),
    BenchFigure("grey_10", "grey, one spine at 10 %: last completion over no fault, worst seed", "", 1.15, False),
    BenchFigure("grey_50", "grey, one spine at 50 %: last completion over no fault, worst seed", "", 1.15, False),
    BenchFigure(
        "grey_25_scaled",
        "grey, one spine at 25 %, queues scaled with its rate: last completion over no fault",
        "",
        1.10,
        False,
    ),
    BenchFigure(
        "grey_25_long",
        "grey, 20 MB, one spine at 25 %: last completion over that without the spine, worst seed",
        "",
        1.10,
        False,
    ),
    BenchFigure(
        "grey_25_long_us",
        "grey, 20 MB, one spine at 25 %: last completion, mean of the seeds (ideal: 451)",
        "µs",
        496,
        False,
    ),
    BenchFigure(
        "a2a_over_roce", "all-to-all, windows 1 to 16: time over RoCE's best, worst window and seed", "", 1.0, False
    ),
    BenchFigure("a2a_p99", "all-to-all, window 8: flow completion, p99 over median, worst seed", "", 1.4, False),
)


def scenario(name: str) -> sim.Scenario:
    return sim.parse({"question": f"How does run {name} fare?"} | SCENARIOS[name])


def agreement(name: str, seeds: int) -> dict[str, float]:
    """Mean and last completion, each as the mean over seeds."""
    runs = [_finished(sim.run(scenario(name), seed)) for seed in range(1, seeds + 1)]
    return {
        "fct_mean_us": float(np.mean([run.fct_us.mean() for run in runs])),
        "fct_max_us": float(np.mean([run.fct_us.max() for run in runs])),
    }


def speed(name: str) -> dict[str, float]:
    """On one core, the fastest of a few runs: whatever else the machine does can only slow one down."""
    runs = [_finished(sim.run(scenario(name), cores=1)) for _ in range(RUNS.get(name, 1))]
    result = min(runs, key=lambda run: run.wall_s)
    return {
        "data_packets_per_s": result.counters["data_packets"] / result.wall_s,
        "link_hops_per_s": result.counters["link_hops"] / result.wall_s,
        "rss_gib": peak_rss_gib(),
    }


def cores_speedup(name: str) -> dict[str, float]:
    """How many times as fast all cores are: the fastest run of each, one core and all of them in turn."""
    least: dict[int, float] = {}
    hashes = set()
    for _ in range(RUNS.get(name, 1)):
        for cores in (1, len(os.sched_getaffinity(0))):
            result = _finished(sim.run(scenario(name), cores=cores))
            least[cores] = min(result.wall_s, least.get(cores, result.wall_s))
            hashes.add(result.trace_hash)
    if len(hashes) > 1:
        raise InternalError(f"run {name} is not the same on all cores as on one")
    return {"speedup": least[min(least)] / least[max(least)]}


def whole_fabric(name: str, cores: int = 0) -> dict[str, float]:
    run = Run(scenario(name), cores=cores)
    run.build()
    result = _finished(run.to_end())
    return {
        "nics": result.scenario.fabric.hosts,
        "build_s": run.build_s,
        "run_s": result.wall_s,
        "rss_gib": peak_rss_gib(),
    }


def failover(name: str, seeds: int) -> tuple[float, float]:
    """The worst time to leave a dead cable, and the least goodput, over seeds."""
    slowest, floor = 0.0, float("inf")
    for seed in range(1, seeds + 1):
        result = sim.run(scenario(name), seed)
        if result.unsent_packets or not result.verdict:
            raise InternalError(
                f"{name}, seed {seed}: {result.verdict.text}; {result.unsent_packets} never retransmitted"
            )
        slowest = max(slowest, result.last_lost_us - FAULT_US, result.last_retransmitted_us - FAULT_US)
        floor = min(floor, float(_share_of_capacity(result).min()))
    return slowest, floor


def _slowed(share: float, **keys: Any) -> sim.Scenario:
    event = {"kind": "slow", "value": share, "switch": {"plane": 0, "tier": "t1", "index": GREY_SPINE}} | keys
    return scenario("grey").with_keys({"faults.events": [event]})


def _last_us(one: sim.Scenario, seed: int) -> float:
    return float(_finished(sim.run(one, seed)).fct_us.max())


def grey(seeds: int) -> dict[str, float]:
    """Last completions with a slow spine over those with nothing wrong; of long messages, over those with it gone."""
    runs = range(1, seeds + 1)
    healthy = {seed: _last_us(scenario("grey"), seed) for seed in runs}
    slow = {"grey_25": _slowed(0.25), "grey_10": _slowed(0.1), "grey_50": _slowed(0.5)}
    slow["grey_25_scaled"] = _slowed(0.25, queues="scaled")
    found = {key: max(_last_us(one, seed) / healthy[seed] for seed in runs) for key, one in slow.items()}
    long = {"workload.message_bytes": LONG_BYTES}
    gone = scenario("grey").with_keys(long | {"fabric.spines": 15})
    last = {seed: _last_us(_slowed(0.25).with_keys(long), seed) for seed in runs}
    found["grey_25_long"] = max(last[seed] / _last_us(gone, seed) for seed in runs)
    found["grey_25_long_us"] = float(np.mean(list(last.values())))
    return found


def all_to_all(seeds: int) -> dict[str, float]:
    """How long it takes over RoCE's best, and how even flows are, each at its worst."""
    behind, uneven = 0.0, 0.0
    for seed in range(1, seeds + 1):
        for window in A2A_WINDOWS:
            mrc = scenario("a2a").with_keys({"workload.window": window})
            roce = [mrc.with_keys({"transport.kind": "roce", "transport.qps_per_pair": qps}) for qps in ROCE_QPS]
            ours = _finished(sim.run(mrc, seed))
            best = min(_finished(sim.run(one, seed)).simulated_us for one in roce)
            behind = max(behind, ours.simulated_us / best)
            if window == 8:
                uneven = max(uneven, float(np.percentile(ours.fct_us, 99) / np.median(ours.fct_us)))
    return {"a2a_over_roce": behind, "a2a_p99": uneven}


def _share_of_capacity(result: sim.Result) -> np.ndarray:
    """Goodput after the fault, as a share of what the links that are left can carry, less headers.

    A flow from or to the leaf with the dead cable has as much less as that leaf has lost of its uplinks.
    """
    fabric, t = result.scenario.fabric, result.scenario.transport
    payload = t.mtu_bytes / (t.mtu_bytes + t.header_bytes)
    per_flow = np.ones(len(result.flows))
    hit = (result.flows["source"] // fabric.hosts_per_leaf == DEAD["leaf"]) | (
        result.flows["destination"] // fabric.hosts_per_leaf == DEAD["leaf"]
    )
    uplinks = fabric.planes * fabric.spines
    per_flow[hit] = min(1.0, (uplinks - 1) / uplinks * fabric.spines / fabric.hosts_per_leaf)
    capacity_bps = per_flow.sum() * fabric.planes * fabric.host_link_bps * payload
    first = int(FAULT_US / result.bin_us)
    return result.goodput_bps.sum(axis=0)[first : first + int(WATCHED_US / result.bin_us)] / capacity_bps


def peak_rss_gib() -> float:
    """The most memory this process has held at once."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / (1 << 20)
    raise InternalError("the kernel does not say how much memory was used")


def _finished(result: sim.Result) -> sim.Result:
    if not result.verdict:
        raise InternalError(f"{result.scenario.question} {result.verdict.text}")
    return result


def _apart(*words: str) -> dict[str, float]:
    """A measurement in a separate process."""
    done = subprocess.run(python_command(__name__, *words), capture_output=True, text=True, check=False)
    if done.returncode:
        raise InternalError(f"run {' '.join(words)} failed: {done.stderr.strip()}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def measure(quick: bool = False, full: bool = False) -> dict[str, Any]:
    """All figures; `quick` leaves out runs of a minute, and is not for the record; `full` adds runs of minutes."""
    figures: dict[str, Any] = {name: agreement(name, 2 if quick else 5) for name in ("A", "C")}
    sizes = ("B",) if quick else ("B", "F")
    figures |= {name: _apart("speed", name) for name in sizes}
    figures["cores"] = len(os.sched_getaffinity(0))
    figures["cores_speedup"] = {name: _apart("cores", name)["speedup"] for name in sizes}
    if not quick:
        figures["full"] = _apart("full", "full")
    if full:
        figures |= {name: _apart("full", name) for name in ("full_1m", "full_a2a")}
    seeds = 2 if quick else 5
    figures["failover_us"], figures["goodput_floor"] = failover("failover", seeds)
    figures["failover_4x100_us"], figures["goodput_floor_4x100"] = failover("failover_4x100", seeds)
    figures |= grey(seeds)
    figures |= all_to_all(1 if quick else 2)
    return figures


shown = flat


if __name__ == "__main__":
    what, which = sys.argv[1:]
    # Time and memory of `full` have been taken on one core ever since.
    found = {
        "speed": speed,
        "cores": cores_speedup,
        "full": lambda name: whole_fabric(name, cores=1 if name == "full" else 0),
    }[what](which)
    print(json.dumps(found))
