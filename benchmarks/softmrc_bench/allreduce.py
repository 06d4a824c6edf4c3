"""All-reduce of float32, compared with Gloo in alternating rounds, and while a plane fails.

On loopback every rank is a process with a device on four planes; Gloo uses TCP. Bandwidth is the buffer's size over the
time of the slowest rank. As root also between two namespaces over two links of 1 Gb/s, one of which fails. A ratio
is the median of the ratios of each round, because the machine's speed drifts.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from softmrc._support.subprocesses import python_command
from softmrc.collectives.shm import SHARED_MEMORY
from softmrc.errors import DeviceError
from softmrc_bench import cuda, join, simulated
from softmrc_bench.black_hole import BlackHole
from softmrc_bench.figures import BenchFigure, Sampled, Versus
from softmrc_bench.ranks import BenchRanks
from softmrc_bench.udp import LOOPBACK
from softmrc_bench.veth import VethPair, link_of, planes_of, veth_planes

MIB = 1 << 20
LINKS = 2
LINK_MBPS = 1000
STEPS = {"64MiB": (64 * MIB, 3), "1MiB": (MIB, 50), "64KiB": (64 << 10, 100), "8B": (8, 400)}  # bytes, how many a round
SIZES = (2, 4, 8, 16)
SPOKEN = {"64MiB": "64 MiB", "1MiB": "1 MiB", "64KiB": "64 KiB", "8B": "8 bytes"}
LARGE = [(size, name) for size in (2, 4) for name in ("64MiB", "1MiB")]  # what is worth sharing memory for
ALWAYS = 4  # ranks that are measured on any machine; more, where each has a core


def _gloo_figures(size: int, large: float, middle: float, small: float) -> tuple[BenchFigure, ...]:
    """Ratios to Gloo by message size: bandwidth from 1 MiB, time below."""
    limits = {"64MiB": large, "1MiB": middle, "64KiB": small, "8B": small}
    return tuple(_gloo_figure(f"ranks{size}.{name}", f"{size} ranks", name, limits[name]) for name in STEPS)


def _gloo_figure(key: str, ranks: str, name: str, limit: float) -> BenchFigure:
    is_large = STEPS[name][0] >= MIB
    own, unit, what = ("gbytes_s", "GB/s", "bandwidth") if is_large else ("us", "µs", "time")
    versus = Versus("Gloo", f"{key}.{own}", f"{key}.gloo", unit)
    return BenchFigure(key, f"{ranks}, {SPOKEN[name]}: {what} over Gloo's", "", limit, is_large, versus=versus)


TITLE = "All-reduce of float32"
FIGURES = (
    *_gloo_figures(2, 1.2, 1.2, 1.5),
    *_gloo_figures(4, 1.0, 1.0, 1.5),
    *_gloo_figures(8, 1.2, 1.2, 0.8),
    *_gloo_figures(16, 1.0, 1.2, 0.8),
    *(
        BenchFigure(
            f"memory.{size}.{name}",
            f"{size} ranks, shared memory, {SPOKEN[name]}: bandwidth over loopback's",
            "",
            1,
            True,
            versus=Versus("loopback", f"memory.{size}.{name}.gbytes_s", f"memory.{size}.{name}.loopback", "GB/s"),
        )
        for size, name in LARGE
    ),
    BenchFigure("fault_worst_over_median", "black-holed plane: worst 64 MiB step over the median", "", 3, False),
    BenchFigure("fair_worst_over_median", "no fault: worst 64 MiB step over the median", "", 0, True),
    BenchFigure("sim1024_ideal_ratio", "1,024 simulated ranks, 64 MiB: bus bandwidth over the links'", "", 0.85, True),
    _gloo_figure("cuda.64MiB", "2 ranks on one GPU, GPU memory", "64MiB", 1.5),
    _gloo_figure("cuda.1MiB", "2 ranks on one GPU, GPU memory", "1MiB", 0),
    *join.RATIOS,
    BenchFigure(
        "links.ms",
        "64 MiB over 2 links of 1 Gb/s",
        "ms",
        320,
        False,
        versus=Versus("Gloo, one link", "links.ms", "links.gloo_ms", "ms"),
    ),
    BenchFigure("links.one_link_ms", "64 MiB over 1 link of 1 Gb/s", "ms", 0, True),
    BenchFigure("links.loss_worst_ms", "64 MiB over 2 links, one dies: worst step", "ms", 0, True),
    BenchFigure(
        "links.loss_worst_over_one_link", "64 MiB over 2 links, one dies: worst step over one link's", "", 1.3, False
    ),
    BenchFigure("links.gloo_ms", "64 MiB, Gloo over 1 link of 1 Gb/s", "ms", 0, True),
    BenchFigure("links.gloo_dead_link_s", "64 MiB, Gloo: step while its link is dead for 2 s", "s", 0, True),
)


def _ours(store: str, size: int, planes: Sequence[str], memory: str = "off") -> list[list[str]]:
    settings = ["env", f"{SHARED_MEMORY}={memory}"]  # where wires are compared, nothing goes round them
    module = [*settings, *python_command("softmrc_bench.ranks", store)]
    return [[*module, str(rank), str(size), "{}", *planes] for rank in range(size)]


def _gloos(store: str, size: int) -> list[list[str]]:
    return [python_command("softmrc_bench.gloo_rank", store, str(r), str(size), "lo") for r in range(size)]


@contextlib.contextmanager
def _store() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="softmrc-") as folder:
        yield folder


def _summary(nbytes: int, rows: list[tuple[float, float | None]]) -> dict[str, Any]:
    """One size, from (our seconds, Gloo's) of each round: bandwidth from 1 MiB, times below."""
    gloo = [theirs for _, theirs in rows if theirs]
    is_large = nbytes >= MIB
    spoken = partial(_gbytes_s, nbytes) if is_large else _in_us
    figures = {"gbytes_s" if is_large else "us": spoken([ours for ours, _ in rows])}
    if not gloo:
        return {**figures, "gloo": None, "ratio": None}
    ratio = Sampled(theirs / ours if is_large else ours / theirs for ours, theirs in rows if theirs)
    return {**figures, "gloo": spoken(gloo), "ratio": ratio}


def _in_us(times_s: list[float]) -> Sampled:
    return Sampled(took_s * 1e6 for took_s in times_s)


def _gbytes_s(nbytes: int, times_s: list[float]) -> Sampled:
    """The bandwidth of the median time."""
    return Sampled((nbytes / took_s / 1e9 for took_s in times_s), lambda _: nbytes / statistics.median(times_s) / 1e9)


def _beside_gloo(size: int, rounds: int) -> dict[str, Any]:
    """Every message size, one round of ours and one of Gloo's in turns."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(_store())
        ours = stack.enter_context(BenchRanks(_ours(store, size, LOOPBACK)))
        gloo = stack.enter_context(BenchRanks(_gloos(store, size))) if join.has_gloo() else None
        found = {}
        for name, (nbytes, count) in STEPS.items():
            for ranks in (ours, gloo):
                if ranks:
                    ranks.times(nbytes, 2)
            rows = []
            for _ in range(rounds):
                mine = statistics.median(ours.times(nbytes, count))
                rows.append((mine, statistics.median(gloo.times(nbytes, count)) if gloo else None))
            found[name] = _summary(nbytes, rows)
        return found


def _too_large(size: int) -> str | None:
    """Why so many ranks would say nothing here: they would wait for each other's turn on a core."""
    cores = len(os.sched_getaffinity(0))
    return None if size <= max(cores, ALWAYS) else f"{size} ranks want as many cores, and there are {cores}"


def _every_size(rounds: int) -> dict[str, Any]:
    reasons = {size: _too_large(size) for size in SIZES}
    return {
        f"ranks{size}": {"not_measured": reason} if reason else _beside_gloo(size, rounds)
        for size, reason in reasons.items()
    }


def _through_memory(rounds: int) -> dict[str, Any]:
    """Ranks of one machine over shared memory, compared with loopback: the ratio of their bandwidths."""
    found = {}
    for size, name in LARGE:
        nbytes, count = STEPS[name]
        with contextlib.ExitStack() as stack:
            both = [
                stack.enter_context(BenchRanks(_ours(stack.enter_context(_store()), size, LOOPBACK, memory)))
                for memory in ("on", "off")
            ]
            rows = [[statistics.median(one.times(nbytes, count)) for one in both] for _ in range(rounds + 1)][1:]
        found[f"{size}.{name}"] = {
            "gbytes_s": _gbytes_s(nbytes, [mine for mine, _ in rows]),
            "loopback": _gbytes_s(nbytes, [theirs for _, theirs in rows]),
            "ratio": Sampled(theirs / mine for mine, theirs in rows),
        }
    return found


def _fault(trials: int, steps: int) -> dict[str, Any]:
    """64 MiB steps; a plane of rank 0 is a black hole for the middle half of each trial."""
    with _store() as store, BenchRanks(_ours(store, 2, LOOPBACK)) as ours:
        ours.times(64 * MIB, 3)
        fair = ours.times(64 * MIB, steps)
        total_s = sum(fair)
        faulty: list[float] = []
        for trial in range(trials):
            plane = trial % len(LOOPBACK)
            hole = {"do": "faults", "plane": plane, "black_hole": True}
            heal = {"do": "faults", "plane": plane}
            faulty += ours.times(64 * MIB, steps, [(0.25 * total_s, hole), (0.75 * total_s, heal)])
            ours.times(64 * MIB, 2)
    median = statistics.median(fair)
    return {
        "fault_median_ms": median * 1e3,
        "fault_worst_ms": max(faulty) * 1e3,
        "fault_worst_over_median": Sampled((step_s / median for step_s in faulty), max),
        "fair_worst_over_median": Sampled((step_s / median for step_s in fair), max),
    }


class _Links:
    """Two ranks in two namespaces."""

    def __init__(self, lab: VethPair) -> None:
        self.lab = lab

    def ours(self, store: str, links: int) -> BenchRanks:
        # What one link's queue still holds when the other is gone: 1.6 ms of all links; half a GSO batch in a row.
        rate_bps = links * LINK_MBPS * 1_000_000
        settings = json.dumps({"rate_bps": rate_bps, "window_bytes": rate_bps // 8 // 625, "quantum": 22})
        module = python_command("softmrc_bench.ranks", store)
        return self._ranks([[*module, str(side), "2", settings, *planes_of(side, links)] for side in (0, 1)])

    def gloo(self, store: str) -> BenchRanks:
        module = python_command("softmrc_bench.gloo_rank", store)
        return self._ranks([[*module, str(side), "2", link_of(side, 0)] for side in (0, 1)])

    def _ranks(self, commands: list[list[str]]) -> BenchRanks:
        return BenchRanks(
            [["ip", "netns", "exec", self.lab.names[side], *command] for side, command in enumerate(commands)]
        )

    def plug(self, plane: int) -> BlackHole:
        return BlackHole([(self.lab.names[side], link_of(side, plane)) for side in (0, 1)])


def _dying_link(ranks: BenchRanks, plug: BlackHole, trials: int, one_link_s: float) -> float:
    """The worst of some steps in which a link dies for good, at another moment each time."""
    worst = 0.0
    for trial in range(trials):
        timer = threading.Timer((0.1 + 0.8 * trial / trials) * one_link_s / 2, plug.set, [True])
        timer.start()
        worst = max(worst, *ranks.times(64 * MIB, 2))
        timer.join()
        plug.set(False)
        time.sleep(1.0)  # until the plane is in use again
        ranks.times(64 * MIB, 2)
    return worst


def _gloo_on_links(links: _Links, rounds: int) -> dict[str, Any]:
    if not join.has_gloo():
        return {"gloo_ms": None, "gloo_dead_link_s": None}
    with _store() as store, links.gloo(store) as gloo:
        gloo.times(64 * MIB, 1)
        usual = gloo.times(64 * MIB, rounds)
        plug = links.plug(0)
        begin, end = threading.Timer(0.2, plug.set, [True]), threading.Timer(2.2, plug.set, [False])
        begin.start()
        end.start()
        stall = max(gloo.times(64 * MIB, 2))
        end.join()
        plug.close()
    return {"gloo_ms": Sampled(1e3 * step_s for step_s in usual), "gloo_dead_link_s": stall}


def _on_links(rounds: int, trials: int) -> dict[str, Any]:
    """Over two shaped links; a reason instead where this machine does not let us make them."""
    try:
        with veth_planes(LINKS, rate_mbps=LINK_MBPS) as lab:
            links = _Links(lab)
            with _store() as store, links.ours(store, 1) as ours:
                ours.times(64 * MIB, 1)
                one_s = Sampled(ours.times(64 * MIB, rounds))
            with _store() as store, links.ours(store, LINKS) as ours:
                ours.times(64 * MIB, 2)
                both_s = Sampled(ours.times(64 * MIB, rounds))
                plug = links.plug(1)
                worst_s = _dying_link(ours, plug, trials, one_s)
                plug.close()
            found = {
                "ms": Sampled(1e3 * step_s for step_s in both_s.rounds),
                "one_link_ms": Sampled(1e3 * step_s for step_s in one_s.rounds),
                "loss_worst_ms": worst_s * 1e3,
                "loss_worst_over_one_link": worst_s / one_s,
            }
            return found | _gloo_on_links(links, rounds)
    except DeviceError as error:
        return {"refused": str(error)}


def measure(quick: bool = False) -> dict[str, Any]:
    """All figures; `quick` for a look, not for the record."""
    rounds = 3 if quick else 9
    figures = _every_size(rounds)
    figures["memory"] = _through_memory(rounds)
    figures |= _fault(*((2, 20) if quick else (8, 30)))
    figures["links"] = _on_links(3 if quick else 9, 2 if quick else 8)
    figures["rounds"] = rounds
    if not quick:
        figures["sim1024_ideal_ratio"] = simulated.ideal_ratio(1024, 64 * MIB)
    if join.has_gloo():
        figures |= join.rounds_of(rounds)
        figures |= cuda.measure(rounds, _summary)
    else:
        figures["not_measured"] = join.NO_TORCH
    return figures


def shown(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures by the keys of FIGURES."""
    flat = {key: value for key, value in figures.items() if isinstance(value, float)}
    groups = (*(f"ranks{size}" for size in SIZES), "memory", "cuda", *join.WHAT)
    for group in [name for name in groups if name in figures]:
        flat |= {f"{group}.{name}": row["ratio"] for name, row in figures[group].items() if name != "not_measured"}
    return flat | {f"links.{name}": value for name, value in figures["links"].items() if name != "refused"}


def notes(figures: dict[str, Any]) -> list[str]:
    """Why something was not measured."""
    reasons = [figures.get("not_measured"), figures.get("cuda_not_measured"), figures["links"].get("refused")]
    reasons += [row.get("not_measured") for row in figures.values() if isinstance(row, dict)]
    return [reason for reason in reasons if reason]
