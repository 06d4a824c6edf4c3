"""As many lanes as TCP streams: what one device moves, by its width, and how long it is held up when a plane dies.

One process sends and one receives, with a thread for every lane; TCP gets a process for every receiver, which is better
for it than threads.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from softmrc.connection import connect
from softmrc.device import Device
from softmrc_bench.figures import BenchFigure, Sampled, Versus, compared, percentile_99

if TYPE_CHECKING:
    from softmrc._support.subprocesses import WorkerProcess

WIDTHS = (1, 2, 4, 8)
WIDE = 4  # the width that bounds are set for
CORES = 16  # that this takes: as many again for the receiver and for the kernel
TRIALS = 40
BEFORE_MS, AFTER_MS = 150, 400

FIGURES = (
    BenchFigure(
        "lanes_4_over_1",
        f"goodput of 4 lanes over 1 lane (needs {CORES} cores)",
        "",
        3.4,
        True,
        versus=Versus("1 lane", "lanes.4.gbps", "lanes.1.gbps", "Gb/s"),
    ),
    BenchFigure(
        "lanes_4_ratio",
        "goodput of 4 lanes over 4 TCP streams",
        "",
        0.75,
        True,
        versus=Versus("4 TCP streams", "lanes.4.gbps", "lanes.4.tcp_gbps", "Gb/s"),
    ),
    BenchFigure(
        "lanes_blackhole_ms_p99",
        "black-holed plane, 4 lanes at full load: time back to 90 % of the other planes, p99",
        "ms",
        50,
        False,
    ),
)


class Wide:
    """A device of so many lanes, with a connection in each."""

    def __init__(self, other: WorkerProcess, lanes: int, seal: str = "auto", secret: str | None = None) -> None:
        from softmrc_bench.udp import HOT, LOOPBACK, Flow

        host = LOOPBACK[0]
        settings = {"lanes": lanes, "seal": seal, "secret": secret}
        self.other = other
        ordered = other.ask(do="mrc", host=host, size=lanes * HOT, planes=LOOPBACK, settings=settings, flows=lanes)
        self.device = Device(LOOPBACK, lanes=lanes, seal=seal)
        self.flows = []
        for lane in range(lanes):
            flow = object.__new__(Flow)
            flow.other, flow.size, flow.base = other, HOT, lane * HOT
            flow.connection = connect(host, ordered["port"], device=self.device, secret=secret)
            flow.source = self.device.register(bytearray(HOT))
            self.flows.append(flow)
        other.receive()

    def gbps(self, seconds: float) -> float:
        return sum(side_by_side([partial(flow.gbps, seconds) for flow in self.flows]))

    def blackhole_ms(self, plane: int) -> float | None:
        """From the death of a plane under full load until the others carry what they can."""
        from softmrc_bench.failover import recovery_ms

        started_ns = self.other.ask(start=BEFORE_MS + AFTER_MS + 50)["started_ns"]
        fault_ns = 0

        def break_it() -> float:
            nonlocal fault_ns
            time.sleep(BEFORE_MS / 1e3)
            fault_ns = time.monotonic_ns()
            self.device.set_faults(plane, black_hole=True)
            time.sleep(AFTER_MS / 1e3)
            return 0.0

        seconds = (BEFORE_MS + AFTER_MS) / 1e3
        side_by_side([break_it, *(partial(flow.gbps, seconds) for flow in self.flows)])
        bins = self.other.ask(read=True)["bins"]
        self.device.set_faults(plane)
        time.sleep(0.3)
        return recovery_ms(bins[: BEFORE_MS + AFTER_MS], max(1, (fault_ns - started_ns) // 1_000_000))

    def close(self) -> None:
        self.other.send(stop=True)
        self.other.receive()
        for flow in self.flows:
            flow.connection.close()
        self.device.close()


def side_by_side(calls: list[Callable[[], float]]) -> list[float]:
    """What each of them returns, each in a separate thread."""
    found = [0.0] * len(calls)
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            found[number] = calls[number]()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return found


def _goodput(lanes: int, rounds: int, seconds: float) -> dict[str, Sampled]:
    from softmrc_bench.udp import HOT, LOOPBACK, sink, tcp_gbps

    with ExitStack() as stack:
        streams = [stack.enter_context(sink()) for _ in range(lanes)]
        wide = Wide(stack.enter_context(sink()), lanes)
        rows = []
        for _ in range(rounds):
            theirs = sum(side_by_side([partial(tcp_gbps, one, LOOPBACK[0], seconds, HOT) for one in streams]))
            rows.append((wide.gbps(seconds), theirs))
        wide.close()
    return compared(rows, "gbps", "tcp_gbps")


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    from softmrc_bench.udp import LOOPBACK, sink

    by_width = {str(lanes): _goodput(lanes, rounds, seconds) for lanes in WIDTHS}
    figures: dict[str, Any] = {"lanes": by_width, "cores": len(os.sched_getaffinity(0))}
    if figures["cores"] < CORES:
        return figures | {figure.key: None for figure in FIGURES}
    with sink() as other:
        wide = Wide(other, WIDE)
        wide.gbps(0.5)
        trials = TRIALS if rounds > 2 else 4
        took = [wide.blackhole_ms(trial % len(LOOPBACK)) for trial in range(trials)]
        wide.close()
    took_ms = [1e9 if one is None else one for one in took]
    return figures | {
        "lanes_4_over_1": by_width["4"]["gbps"] / by_width["1"]["gbps"],
        "lanes_4_ratio": by_width["4"]["ratio"],
        "lanes_blackhole_ms_p50": Sampled(took_ms),
        "lanes_blackhole_ms_p99": Sampled(took_ms, percentile_99),
    }
