"""A lab of eight hosts and four planes: how fast it is built and removed, whether every path is the one it says, and
how traffic fares while it is broken and repaired.

The traffic is MRC's, compared with Multipath TCP's. Figures that need a kind of traffic that is not here are null, and
`not_measured` says why. Nothing is estimated.
"""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from rich.table import Table

from softmrc.errors import InternalError
from softmrc.lab import Lab, kernel
from softmrc_bench.figures import BenchFigure
from softmrc_bench.traffic import Mptcp, NotHere, Traffic, mrc, permutation

SHAPE = """
[fabric]
planes = 4
hosts = 8
hosts_per_leaf = 2
spines = 4
host_link_bps = "20M"
fabric_link_bps = "20M"
[lab]
mtu = 4200
"""
ACTING = SHAPE + "[switch]\necn = true\ntrim = true\n"


@dataclass(frozen=True)
class Failure:
    """What breaks and how; the hosts whose flows it touches, and the share of their capacity that survives."""

    target: str
    mode: str
    hosts: tuple[int, ...]
    surviving: float


# A leaf has twice the uplinks that its hosts can fill, so losing one of them, or a spine, takes nothing away; a port or
# a leaf takes one plane of four.
FAILURES = {
    "blackhole": Failure("p0.leaf0-spine1", "blackhole", (0, 1), 1.0),
    "link": Failure("p0.leaf0-spine1", "down", (0, 1), 1.0),
    "spine": Failure("p1.spine1", "reboot", tuple(range(8)), 1.0),
    "port": Failure("p2.host0-leaf0", "down", (0,), 0.75),
    "leaf": Failure("p3.leaf1", "reboot", (2, 3), 0.75),
}
# One spine's port at a quarter of its rate. A leaf has twice the uplinks that its hosts fill: all they need is left.
GREY = Failure("p0.leaf0-spine1", "slow=25%", (0, 1), 1.0)
# The same judgement with nothing broken: how much of a figure is this machine's own unrest.
CONTROL = Failure("", "", (0, 1), 1.0)
RECOVERED, RESTORED = 0.9, 0.95
SAMPLE_S, BIN_S, AVERAGE_BINS = 0.005, 0.02, 5
MRC_KEYS = ("recover_ms_p50", "restore_s", "qp_errors", "incast_assumed_bad", "path_spread", "grey_goodput")

TITLE = "A lab of 8 hosts × 4 planes × (4 + 4) switches"
FIGURES = (
    BenchFigure("up_s", "time to build the lab, without ECN and trimming", "s", 2.0, False),
    BenchFigure("up_ecn_trim_s", "time to build the lab, with ECN and trimming", "s", 5.0, False),
    BenchFigure("down_s", "time to remove the lab", "s", 1.0, False),
    BenchFigure("paths_wrong", "paths that did not use exactly their links", "", 0, False),
    BenchFigure("qp_errors", "queue pair errors under failures", "", 0, False),
    BenchFigure("incast_assumed_bad", "EVs withdrawn by mistake during an incast", "", 0, False),
    BenchFigure("grey_goodput", "goodput over remaining capacity, one spine port at 25 % of its rate", "", 0.95, True),
    BenchFigure("path_spread", "packets on the busiest path over the mean", "", 1.1, False),
)


def build(text: str, rounds: int) -> tuple[float, float]:
    """Seconds to build and to remove a lab: medians."""
    ups, downs = [], []
    for _ in range(rounds):
        start = time.monotonic()
        lab = Lab.up(text, f"bench{os.getpid()}")
        ups.append(time.monotonic() - start)
        start = time.monotonic()
        lab.down()
        downs.append(time.monotonic() - start)
    return statistics.median(ups), statistics.median(downs)


def check_paths(lab: Lab, pairs: list[tuple[int, int]]) -> tuple[int, int]:
    """How many EVs were tried, and how many did not use exactly the links they name, by every link's counter."""
    plan, wrong, checked = lab.plan, 0, 0
    _wait_for_quiet(lab)
    for source, destination in pairs:
        with lab.socket(source) as sender, lab.socket(destination) as receiver:
            receiver.bind(("::", 4791))
            receiver.settimeout(0.5)
            for ev in range(plan.evs(source, destination)):
                place = plan.place_of(ev)
                before = lab.packets()
                sender.sendto(b"x", (str(plan.carrier(source, destination, *place)), 4791))
                arrived = _arrives(receiver)
                after = lab.packets()
                used = {link for link in after if after[link] != before[link]}
                checked += 1
                wrong += not arrived or used != set(plan.links(source, destination, *place))
    return checked, wrong


def _arrives(receiver: socket.socket) -> bool:
    try:
        return receiver.recv(16) == b"x"
    except TimeoutError:
        return False


def _wait_for_quiet(lab: Lab) -> None:
    last, quiet = lab.packets(), 0
    for _ in range(100):
        time.sleep(0.05)
        now = lab.packets()
        quiet = quiet + 1 if now == last else 0
        if quiet == 10:
            return
        last = now
    raise InternalError("the lab does not fall quiet")


class _Sampler:
    """Bytes received by each host, every five milliseconds, in a separate thread."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._ending = threading.Event()
        self.at_s: list[float] = []
        self.received: list[list[int]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while not self._ending.wait(SAMPLE_S):
            self.at_s.append(time.monotonic())
            self.received.append(self._traffic.received_bytes())

    def rates_bps(self, start_s: float, end_s: float, receivers: list[int]) -> list[float]:
        """What these hosts received together, in each bin between two moments."""
        edges = [start_s + BIN_S * i for i in range(int((end_s - start_s) / BIN_S) + 1)]
        count = min(len(self.at_s), len(self.received))
        sums = [sum(row[host] for host in receivers) for row in self.received[:count]]
        levels = np.interp(edges, self.at_s[:count], sums)
        return [float(b - a) * 8 / BIN_S for a, b in pairwise(levels)]


def first_recovery_s(rates_bps: list[float], threshold_bps: float) -> float | None:
    """Seconds until the first 100 ms that average the threshold, after the first 100 ms that do not; 0 where none of
    those that begin within 200 ms falls below it, None where it never recovers. Single bins of a loaded machine are too
    restless to be judged alone; 20 ms without any packet do show in an average."""
    averages = np.convolve(rates_bps, np.ones(AVERAGE_BINS) / AVERAGE_BINS, "valid")
    dip = next((i for i, rate in enumerate(averages) if rate < threshold_bps), None)
    if dip is None or dip * BIN_S > 0.2:
        return 0.0
    recovered = next((i for i in range(dip, len(averages)) if averages[i] >= threshold_bps), None)
    return None if recovered is None else recovered * BIN_S


@dataclass
class TrafficOutcome:
    """How one kind of traffic fared in one way of breaking."""

    recover_ms: list[float | None]
    restore_s: list[float | None]

    def recover_ms_p50(self) -> float | None:
        return _median(self.recover_ms)


def _median(values: list[float | None]) -> float | None:
    """A median in which never counts as later than any time."""
    found = statistics.median(float("inf") if v is None else v for v in values)
    return None if found == float("inf") else round(found, 3)


def under_failures(lab: Lab, make: Callable[[Lab], Traffic], rounds: int) -> dict[str, Any]:
    """Break and repair the lab under load, each way so many times."""
    traffic = make(lab)
    outcomes = {name: TrafficOutcome([], []) for name in FAILURES}
    control = TrafficOutcome([], [])
    try:
        traffic.start()
        time.sleep(2)
        with _Sampler(traffic) as sampler:
            for _ in range(rounds):
                for name, failure in FAILURES.items():
                    _break_once(lab, sampler, outcomes[name], failure)
                _break_once(lab, sampler, control, CONTROL)
            moved = sum(sampler.received[-1]) - sum(sampler.received[0])
            goodput = moved * 8 / (sampler.at_s[-1] - sampler.at_s[0])
    finally:
        traffic.stop()
    return {
        "goodput_bps": round(goodput),
        "share_of_links": round(goodput / (lab.shape.hosts * lab.shape.planes * lab.shape.host_link_bps), 3),
        "recover_ms_p50": {name: o.recover_ms_p50() for name, o in outcomes.items()},
        "restore_s": {name: _median(o.restore_s) for name, o in outcomes.items()},
        "control_ms_p50": control.recover_ms_p50(),
        "errors": traffic.errors(),
    }


def _break_once(lab: Lab, sampler: _Sampler, outcome: TrafficOutcome, failure: Failure, wait_s: float = 2.0) -> None:
    """One failure and its repair, judged by the flows that it touches, together."""
    pairs = permutation(lab.shape.hosts, lab.shape.hosts_per_leaf)
    touched = [to for host, to in pairs.items() if host in failure.hosts or to in failure.hosts]
    began = time.monotonic()
    time.sleep(1.0)
    failed = time.monotonic()
    before = sampler.rates_bps(began, failed, touched)
    full_bps = sum(before) / len(before)
    name = lab.fail(failure.target, failure.mode) if failure.target else None
    time.sleep(wait_s)
    healed = time.monotonic()
    threshold_bps = RECOVERED * failure.surviving * full_bps
    recovered = first_recovery_s(sampler.rates_bps(failed, healed, touched), threshold_bps)
    outcome.recover_ms.append(None if recovered is None else recovered * 1e3)
    if name:
        lab.heal(name)
    time.sleep(wait_s)
    restored = first_recovery_s(sampler.rates_bps(healed, time.monotonic(), touched), RESTORED * full_bps)
    outcome.restore_s.append(restored)


def under_a_slow_port(lab: Lab, make: Callable[[Lab], Traffic], rounds: int) -> float:
    """Goodput of the flows that a slow port touches, over what it was before; the median of so many rounds."""
    traffic = make(lab)
    pairs = permutation(lab.shape.hosts, lab.shape.hosts_per_leaf)
    touched = [to for host, to in pairs.items() if host in GREY.hosts or to in GREY.hosts]
    shares = []
    try:
        traffic.start()
        time.sleep(2)
        with _Sampler(traffic) as sampler:
            for _ in range(rounds):
                began = time.monotonic()
                time.sleep(3.0)
                name = lab.fail(GREY.target, GREY.mode)
                failed = time.monotonic()
                time.sleep(3.0)
                healed = time.monotonic()
                lab.heal(name)
                before = sampler.rates_bps(began, failed, touched)
                during = sampler.rates_bps(failed, healed, touched)
                shares.append(statistics.mean(during) / (GREY.surviving * statistics.mean(before)))
    finally:
        traffic.stop()
    return round(statistics.median(shares), 3)


def _mrc_figures(lab: Lab, rounds: int) -> dict[str, Any]:
    """What needs queue pairs: failures under load, evenness, an incast."""
    found = under_failures(lab, mrc, rounds)
    from softmrc_bench.mrc_traffic import measure_incast, measure_spread

    condemned, trimmed, errors = measure_incast(lab, 3.0)
    return {
        "goodput_bps": found["goodput_bps"],
        "share_of_links": found["share_of_links"],
        "recover_ms_p50": found["recover_ms_p50"],
        "restore_s": found["restore_s"],
        "control_ms_p50": found["control_ms_p50"],
        "qp_errors": found["errors"] + errors,
        "incast_assumed_bad": condemned,
        "incast_trimmed": trimmed,
        "path_spread": measure_spread(lab, 3.0),
        "grey_goodput": under_a_slow_port(lab, mrc, rounds),
    }


def measure(quick: bool = False, mptcp: bool = True) -> dict[str, Any]:
    """All figures; `quick` for a look, not for the record."""
    kernel.require_root()
    rounds = 1 if quick else 3
    up_s, down_s = build(SHAPE, 1 if quick else 5)
    acting_s, acting_down_s = build(ACTING, 1 if quick else 5)
    figures: dict[str, Any] = {
        "up_s": up_s,
        "up_ecn_trim_s": acting_s,
        "down_s": max(down_s, acting_down_s),
        **dict.fromkeys(MRC_KEYS),
    }
    with Lab.up(ACTING, f"bench{os.getpid()}") as lab:
        figures["ecn_and_trimming"] = lab.record.without or "in the kernel"
        pairs = [(0, 7), (7, 0), (2, 5), (0, 1)]
        figures["paths_checked"], figures["paths_wrong"] = check_paths(lab, pairs[: 1 if quick else 4])
        not_measured: dict[str, str] = {}
        try:
            figures |= _mrc_figures(lab, rounds)
        except NotHere as reason:
            not_measured = dict.fromkeys(MRC_KEYS, str(reason))
        figures["mptcp"] = None
        if mptcp:
            try:
                figures["mptcp"] = under_failures(lab, Mptcp, rounds)
            except NotHere as reason:
                not_measured["mptcp"] = str(reason)
        figures["not_measured"] = not_measured
    return figures


def notes(figures: dict[str, Any]) -> list[str | Table]:
    """What each failure did, with MRC and with Multipath TCP, and why something was not measured."""
    tables = [_failures("MRC", figures), _failures("Multipath TCP, for comparison", figures["mptcp"])]
    reasons = sorted(set(figures["not_measured"].values()))
    return [table for table in tables if table] + [f"Not measured: {reason}." for reason in reasons]


def _failures(title: str, found: dict[str, Any] | None) -> Table | None:
    if not found or found["recover_ms_p50"] is None:
        return None
    table = Table(title=f"{title}: {100 * found['share_of_links']:.0f} % of the links' rate", title_justify="left")
    for head in ("broken", "recovered after", "restored after"):
        table.add_column(head, justify="left" if head == "broken" else "right")
    for name, recovered in {**found["recover_ms_p50"], "nothing": found["control_ms_p50"]}.items():
        restored = found["restore_s"].get(name, 0.0)
        table.add_row(
            name,
            "not within 2 s" if recovered is None else f"{recovered:.0f} ms",
            "not within 2 s" if restored is None else f"{restored:.2f} s",
        )
    return table
