"""A plane dies under load: how long until the others carry what they can?

Four veth links between two namespaces, shaped to 500 Mb/s each. Goodput is what the receiver placed, in bins of 1 ms.
Recovered is the start of the first 20 ms whose mean is at least 0.9 × ¾ of the mean before the fault. A black hole is
a BPF program at the receiving ends, switched in microseconds; link down is the administrator's. MPTCP runs over the
same links in the same run.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from softmrc._support.subprocesses import WorkerProcess
from softmrc.errors import DeviceError, InternalError
from softmrc_bench.black_hole import BlackHole
from softmrc_bench.figures import BenchFigure, Sampled, Versus, dumps, percentile_99
from softmrc_bench.receiver import IPPROTO_MPTCP
from softmrc_bench.udp import SECRET, Flow, sink
from softmrc_bench.veth import VethPair, address_of, link_of, planes_of, run, veth_planes

PLANES = 4
RATE_MBPS = 500
BUFFER = 8 << 20
MESSAGE = 1 << 18
DEPTH = 32
BEFORE_S = 0.1
AFTER_S = 0.4
SPAN_MS = 20
SHARE = 0.9

TITLE = "A plane fails under load, {trials} trials"
FIGURES = (
    BenchFigure(
        "blackhole_ms_p50",
        "black-holed plane: time back to 90 % of the remaining capacity, median",
        "ms",
        10,
        False,
        versus=Versus("MPTCP", "blackhole_ms_p50", "mptcp_blackhole_ms_p50", "ms"),
    ),
    BenchFigure("blackhole_ms_p99", "black-holed plane, p99", "ms", 50, False),
    BenchFigure("blackhole_ms_max", "black-holed plane, worst", "ms", 100, False),
    BenchFigure("busy_blackhole_ms_p99", "black-holed plane while all cores are busy, p99", "ms", 100, False),
    BenchFigure("down_ms_p50", "link down, median", "ms", 10, False),
    BenchFigure("down_ms_p99", "link down, p99", "ms", 50, False),
    BenchFigure("mptcp_blackhole_ms_p50", "black-holed plane, MPTCP, median", "ms", 1e9, False),
    BenchFigure("restore_s", "plane repaired: time back to full rate, p99", "s", 2, False),
    BenchFigure("corrupt_bytes", "bytes received wrong", "B", 0, False),
)


class Load:
    """Writes without a pause, from a thread, until stopped."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.problem: InternalError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.flow.write_while(lambda: not self._stop.is_set(), MESSAGE, DEPTH)
        except InternalError as error:
            self.problem = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.problem:
            raise self.problem


def recovery_ms(bins: list[int], fault_bin: int) -> float | None:
    """From the fault to the start of the first span that is good enough; None when there is none."""
    series = np.asarray(bins, dtype=float)
    wanted = SHARE * (PLANES - 1) / PLANES * series[:fault_bin].mean()
    spans = np.convolve(series[fault_bin:], np.ones(SPAN_MS) / SPAN_MS, mode="valid")
    good = np.flatnonzero(spans >= wanted)
    return float(good[0]) if len(good) else None


class FailoverTrials:
    """One flow over the four links, and faults on it."""

    def __init__(self, namespaces: tuple[str, str]) -> None:
        self.lab = VethPair(namespaces, PLANES)
        self.other = sink(("ip", "netns", "exec", namespaces[1]))
        host = address_of(1, 0)
        settings = {"secret": SECRET, "seal": "off", "rate_bps": PLANES * RATE_MBPS * 1_000_000}
        self.flow = Flow(self.other, host, BUFFER, planes_of(0, PLANES), planes_of(1, PLANES), **settings)
        self.plugs = [
            BlackHole([(namespaces[0], link_of(0, p)), (namespaces[1], link_of(1, p))]) for p in range(PLANES)
        ]
        self.rates_mbps: list[float] = []  # before each fault
        self.load = Load(self.flow)
        time.sleep(0.5)

    def tell(self, **order: Any) -> dict[str, Any]:
        return self.other.ask(**order)

    def trial(self, plane: int, link_down: bool) -> tuple[float | None, float | None]:
        """(ms to recover, s to full rate after the plane is back)."""
        total_ms = int((BEFORE_S + AFTER_S) * 1000) + 50
        started_ns = self.tell(start=total_ms)["started_ns"]
        time.sleep(BEFORE_S)
        fault_ns = time.monotonic_ns()
        self._set(plane, False, link_down)
        time.sleep(AFTER_S)
        bins = self.tell(read=True)["bins"]
        fault_bin = max(1, int((fault_ns - started_ns) // 1_000_000))
        recovered = recovery_ms(bins[: int((BEFORE_S + AFTER_S) * 1000)], fault_bin)
        full = float(np.mean(bins[:fault_bin]))
        self.rates_mbps.append(full * 8 / 1000)
        return recovered, self._restore(plane, link_down, full)

    def _set(self, plane: int, works: bool, link_down: bool) -> None:
        if not link_down:
            self.plugs[plane].set(not works)
            return
        self.lab.set_link(0, plane, works)

    def _restore(self, plane: int, link_down: bool, full: float) -> float | None:
        started_ns = self.tell(start=3000)["started_ns"]
        self._set(plane, True, link_down)
        back_ns = time.monotonic_ns()
        for _ in range(12):
            time.sleep(0.25)
            bins = np.asarray(self.tell(read=True)["bins"], dtype=float)
            now_bin = (time.monotonic_ns() - started_ns) // 1_000_000
            spans = np.convolve(bins[: max(now_bin - 1, SPAN_MS)], np.ones(SPAN_MS) / SPAN_MS, mode="valid")
            good = np.flatnonzero(spans >= SHARE * full)
            if len(good):
                return max(float(good[0]) / 1000 - (back_ns - started_ns) / 1e9, 0.0)
        return None

    def close(self) -> int:
        """Bytes that were wrong."""
        self.load.stop()
        corrupt = int(self.tell(check=True)["corrupt"])
        self.flow.close()
        self.other.close()
        for plug in self.plugs:
            plug.close()
        return corrupt


def _burn() -> None:
    while True:
        sum(range(10_000))


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """As many processes that want a core as there are cores."""
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=_burn, daemon=True) for _ in range(os.cpu_count() or 1)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def mptcp_trial(lab: VethPair, other: WorkerProcess, plug: BlackHole) -> float | None:
    """A new connection; the plane dies after half a second. Recovery in ms, or None within the second that follows."""
    port = other.ask(do="mptcp", bins=3000)["port"]
    stop = threading.Event()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP) as stream:
        stream.connect((address_of(1, 0), port))
        stream.settimeout(0.5)

        def send() -> None:
            data = bytes(MESSAGE)
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    stream.send(data)

        sender = threading.Thread(target=send)
        sender.start()
        time.sleep(1.0)
        fault_ns = time.monotonic_ns()
        plug.set(True)
        time.sleep(1.5)
        stop.set()
        sender.join()
        plug.set(False)
    told = other.receive()
    fault_bin = int((fault_ns - told["started_ns"]) // 1_000_000)
    bins = told["bins"][fault_bin - 500 : fault_bin + 1500]
    if np.mean(bins[:500]) < 0.6 * PLANES * RATE_MBPS * 125:
        return math.nan  # it never used the links to begin with
    return recovery_ms(bins, 500)


def _mptcp(namespaces: tuple[str, str], trials: int) -> float | None:
    lab = VethPair(namespaces, PLANES)
    try:
        for name in namespaces:
            run("ip", "-n", name, "mptcp", "limits", "set", "subflow", "8", "add_addr_accepted", "8")
        for plane in range(1, PLANES):
            signal = (address_of(1, plane), "dev", link_of(1, plane), "signal")
            run("ip", "-n", namespaces[1], "mptcp", "endpoint", "add", *signal)
        plug = BlackHole([(namespaces[0], link_of(0, 2)), (namespaces[1], link_of(1, 2))])
    except (DeviceError, OSError):
        return None
    other = sink(("ip", "netns", "exec", namespaces[1]))
    try:
        found = [mptcp_trial(lab, other, plug) for _ in range(trials)]
        found = [ms for ms in found if ms is None or not math.isnan(ms)]
    except OSError:
        return None
    finally:
        plug.close()
        other.close()
    if not found:
        return None
    # A run that did not recover in the time it had counts as that time: it can only have been worse.
    return Sampled(1500.0 if ms is None else ms for ms in found)


def _summary(name: str, values: list[float | None]) -> dict[str, float]:
    if not values:
        return {}
    shown = [AFTER_S * 1000 if v is None else v for v in values]
    return {
        f"{name}_p50": Sampled(shown),
        f"{name}_p99": Sampled(shown, percentile_99),
        f"{name}_max": Sampled(shown, max),
    }


def inside(namespaces: tuple[str, str], trials: int, busy: int, downs: int, mptcps: int) -> dict[str, Any]:
    """Runs in the first namespace."""
    work = FailoverTrials(namespaces)
    holes = [work.trial(n % PLANES, link_down=False) for n in range(trials)]
    with busy_cores():
        strained = [work.trial(n % PLANES, link_down=False) for n in range(busy)]
    down = [work.trial(n % PLANES, link_down=True) for n in range(downs)]
    qp_state = work.flow.connection.qp.state.name
    figures: dict[str, Any] = {"corrupt_bytes": work.close(), "qp_state": qp_state, "trials": trials}
    # Where this is far below the links' sum, the machine was too busy for the other figures to mean much.
    figures["goodput_mbps"] = Sampled(work.rates_mbps)
    figures |= _summary("blackhole_ms", [ms for ms, _ in holes])
    figures |= _summary("busy_blackhole_ms", [ms for ms, _ in strained])
    figures |= _summary("down_ms", [ms for ms, _ in down])
    restored = [3.0 if s is None else s for _, s in holes]
    figures["restore_s"] = Sampled(restored, percentile_99)
    figures["restore_s_p50"] = Sampled(restored)
    figures["mptcp_blackhole_ms_p50"] = _mptcp(namespaces, mptcps)
    return figures


def measure(quick: bool = False) -> dict[str, Any]:
    """All figures; `quick` for a look, not for the record. Needs root."""
    counts = (12, 6, 6, 3) if quick else (200, 50, 50, 10)
    with veth_planes(PLANES, rate_mbps=RATE_MBPS) as lab:
        return lab.inside(0, "softmrc_bench.failover", *lab.names, *(str(n) for n in counts))


if __name__ == "__main__":
    first, second, *numbers = sys.argv[1:]
    print(dumps(inside((first, second), *(int(n) for n in numbers))))
