"""All-reduces of NCCL over its own sockets and over our plugin, in turns, in one run on one GPU.

Two processes share the GPU and act as two hosts (NCCL_HOSTID), so that NCCL uses the network between them;
NVIDIA's MPS, where it starts, lets both run at once. NCCL reads its variables once, so each transport gets
a separate pair of processes. Everything is bounded in time: what does not answer is named, with the end of its log.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from softmrc._support.subprocesses import WorkerProcess, close_workers, python_command
from softmrc.errors import DeviceError, InternalError, MrcError
from softmrc.nccl import NET, plugin_path
from softmrc_bench.figures import BenchFigure, Sampled, Versus
from softmrc_bench.udp import LOOPBACK

MIB = 1 << 20
WHOLE_S = 400.0  # everything together
START_S = 75.0
ANSWER_S = 45.0
ROUNDS = 3
SIZES = {"8B": (8, 200), "64KiB": (64 << 10, 100), "1MiB": (MIB, 50), "64MiB": (64 * MIB, 8), "256MiB": (256 * MIB, 3)}
SMALL = 256 << 10  # below this a ratio is one of times, else one of speeds
FAULT_BYTES = 64 * MIB

OURS = "ours"
SOCKET = "socket"
TUNED = {"socket 2x4": (2, 4), "socket 4x4": (4, 4)}  # helper threads, and sockets of each

TITLE = "NCCL on one GPU, two processes"


def _ratio(name: str, spoken: str, rival: str, limit: float) -> BenchFigure:
    """Speed over NCCL's sockets, `SMALL` or larger; time over theirs below."""
    is_large = SIZES[name][0] >= SMALL
    key, theirs = ("ratio", "socket_us") if rival == "NCCL sockets" else ("ratio_best", "socket_best_us")
    row = f"allreduce.{name}"
    return BenchFigure(
        f"{name}.{key}",
        f"{spoken}: {'speed' if is_large else 'time'} over {rival}",
        "",
        limit,
        is_large,
        versus=Versus(rival, f"{row}.us", f"{row}.{theirs}", "µs"),
    )


FIGURES = (
    _ratio("64MiB", "64 MiB", "NCCL sockets", 1.5),
    _ratio("64MiB", "64 MiB", "NCCL sockets, tuned", 0.8),
    _ratio("256MiB", "256 MiB", "NCCL sockets", 1.5),
    _ratio("256MiB", "256 MiB", "NCCL sockets, tuned", 0.8),
    _ratio("1MiB", "1 MiB", "NCCL sockets, tuned", 0),
    _ratio("64KiB", "64 KiB", "NCCL sockets, tuned", 1.3),
    _ratio("8B", "8 bytes", "NCCL sockets, tuned", 1.3),
    BenchFigure(
        "fault_worst_over_median", "one of four planes black-holed: worst 64 MiB step over the median", "", 3, False
    ),
    BenchFigure("fault_after_over_before", "one of four planes black-holed: speed over before", "", 0.7, True),
    BenchFigure("flap_over_calm", "each plane down for 0.5 s in turn: speed over no fault", "", 0.7, True),
    BenchFigure("loss_over_calm", "1 % loss everywhere: speed over no fault", "", 0.7, True),
    BenchFigure("again_worst_s", "abort and join again, worst", "s", 2, False),
    BenchFigure("killed_s", "peer killed: time until NCCL reports it", "s", 12, False),
)


class Broken(MrcError):
    """A pair of ranks did not do what it should have."""


class TimeBudget:
    """What is left of the time for everything."""

    def __init__(self, whole_s: float) -> None:
        self._until = time.monotonic() + whole_s

    def left(self, at_most_s: float) -> float:
        return max(0.0, min(at_most_s, self._until - time.monotonic()))


def _environment(way: str, rank: int, folder: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "SOFTMRC_"))}
    common = {
        "NCCL_HOSTID": f"r{rank}",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,GRAPH",
        "NCCL_DEBUG_FILE": str(folder / f"nccl.{rank}"),
        "LOCAL_WORLD_SIZE": "2",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # sums in one order
    }
    if way == OURS:
        ours = {"NCCL_NET_PLUGIN": str(plugin_path()), "NCCL_NET": NET, "SOFTMRC_PLANES": ",".join(LOOPBACK)}
        return {**clean, **common, **ours, "SOFTMRC_FAULTS": f"@{folder / 'faults'}"}
    sockets = {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"}
    if way in TUNED:
        threads, each = TUNED[way]
        sockets |= {"NCCL_SOCKET_NTHREADS": str(threads), "NCCL_NSOCKS_PERTHREAD": str(each)}
    return {**clean, **common, **sockets}


class RankPair:
    """Two ranks that are connected one way."""

    def __init__(self, way: str, folder: Path, clock: TimeBudget) -> None:
        self.way, self.folder, self._clock = way, folder, clock
        folder.mkdir()
        self.workers = [
            WorkerProcess(
                python_command("softmrc_bench.nccl_rank", str(folder), str(rank), "2"),
                env=_environment(way, rank, folder),
                stderr=folder / f"stderr.{rank}",
            )
            for rank in range(2)
        ]

    def log(self, lines: int = 25) -> str:
        """The end of what both ranks said."""
        found = []
        for path in sorted([*self.folder.glob("nccl.*"), *self.folder.glob("stderr.*")]):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            found.append(f"--- {self.way}: {path.name}\n" + "\n".join(tail))
        return "\n".join(found)

    def receive(self, rank: int, at_most_s: float) -> dict[str, Any]:
        try:
            return self.workers[rank].receive(self._clock.left(at_most_s))
        except (TimeoutError, InternalError) as error:
            raise Broken(f"{self.way}: rank {rank}: {error}\n{self.log()}") from None

    def wait_until_ready(self) -> None:
        for rank in range(2):
            self.receive(rank, START_S)
        if self.way == OURS and f"NET/{NET}" not in self.log(lines=100_000):
            raise Broken(f"NCCL did not use the plugin\n{self.log()}")

    def send(self, do: str, **values: Any) -> None:
        for worker in self.workers:
            worker.send(do=do, **values)

    def order(self, do: str, at_most_s: float = ANSWER_S, **values: Any) -> list[dict[str, Any]]:
        self.send(do, **values)
        return [self.receive(rank, at_most_s) for rank in range(2)]

    def mean_s(self, nbytes: int, count: int) -> float:
        return max(answer["s"] for answer in self.order("mean", elements=max(1, nbytes // 4), count=count))

    def times(self, count: int, during: Callable[[], None] | None = None) -> list[float]:
        """Of each all-reduce, how long the slower rank took; `during` is called while they run."""
        self.send("times", elements=FAULT_BYTES // 4, count=count)
        if during:
            during()
        rows = [self.receive(rank, ANSWER_S)["times"] for rank in range(2)]
        return [max(step) for step in zip(*rows, strict=True)]

    def faults(self, text: str) -> None:
        draft = self.folder / "faults.new"
        draft.write_text(text)
        draft.replace(self.folder / "faults")

    def close(self) -> None:
        close_workers(self.workers)


def _starts(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@contextlib.contextmanager
def mps(folder: Path) -> Iterator[bool]:
    """NVIDIA's service that lets processes share a GPU, for as long as this lasts; False where it does not start."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        yield control is not None
        return
    names = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "mps"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "mps-log")}
    for name in names.values():
        Path(name).mkdir()
    os.environ.update(names)
    try:
        yield _starts([control, "-d"])
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            subprocess.run([control], input="quit\n", text=True, capture_output=True, timeout=20, check=False)
        for name in names:
            os.environ.pop(name, None)


def in_us(seconds: Sampled | None) -> Sampled | None:
    return None if seconds is None else Sampled(one * 1e6 for one in seconds.rounds)


def _beside(pairs: dict[str, RankPair], rounds: int) -> dict[str, Any]:
    """Every size, a round of each way in turns."""
    found = {}
    for name, (nbytes, count) in SIZES.items():
        rows: dict[str, list[float]] = {way: [] for way in pairs}
        for _ in range(rounds):
            for way, pair in pairs.items():
                rows[way].append(pair.mean_s(nbytes, count))
        medians = {way: Sampled(row) for way, row in rows.items()}
        socket_s = medians.get(SOCKET)
        best_s = min((value for way, value in medians.items() if way != OURS), default=None)

        def ratio(
            theirs_s: float | None, ours_s: float = medians[OURS], is_small: bool = nbytes < SMALL
        ) -> float | None:
            if theirs_s is None:
                return None
            return ours_s / theirs_s if is_small else theirs_s / ours_s

        found[name] = {
            "us": in_us(medians[OURS]),
            "socket_us": in_us(socket_s),
            "socket_best_us": in_us(best_s),
            "ratio": ratio(socket_s),
            "ratio_best": ratio(best_s),
            "rounds_us": {way: [round(value * 1e6, 1) for value in row] for way, row in rows.items()},
        }
    return found


def _identical(pairs: dict[str, RankPair]) -> dict[str, Any]:
    """Whether every collective gives the same bits by our way and by NCCL's own."""
    other = next((pair for way, pair in pairs.items() if way != OURS), None)
    if other is None:
        return {"identical": None}
    ours, theirs = pairs[OURS].order("results"), other.order("results")
    wrong = sorted({name for a, b in zip(ours, theirs, strict=True) for name in b if a.get(name) != b[name]})
    return {"identical": not wrong, "compared": len(theirs[0]), "different": wrong}


def _broken_planes(pair: RankPair) -> dict[str, Any]:
    """64 MiB steps while a plane is a black hole, while each does in turn, and while all lose packets."""
    pair.times(3)
    before = pair.times(20)
    calm = statistics.median(before)

    def break_one() -> None:
        time.sleep(5 * calm)
        pair.faults("1:black_hole")

    dead = pair.times(30, break_one)
    found = {
        "fault_median_ms": calm * 1e3,
        "fault_worst_ms": max(dead) * 1e3,
        "fault_worst_over_median": max(dead) / calm,
        "fair_worst_over_median": max(before) / calm,
        "fault_after_over_before": calm / statistics.median(dead[-10:]),
    }
    pair.faults("")
    pair.times(5)

    def flap() -> None:
        for turn in range(20):
            pair.faults(f"{turn % len(LOOPBACK)}:black_hole")
            time.sleep(0.5)
        pair.faults("")

    steps = max(20, min(2000, int(8 / calm)))
    flapped = pair.times(steps, flap)
    found["flap_over_calm"] = calm * len(flapped) / sum(flapped)
    pair.faults("drop=0.005")  # at both ends of each way
    lossy = pair.times(20)
    found["loss_over_calm"] = calm / statistics.median(lossy)
    pair.faults("")
    pair.times(3)
    return found


def _again(pair: RankPair, times: int) -> dict[str, Any]:
    took = [max(answer["s"] for answer in pair.order("again", attempt=n + 1)) for n in range(times)]
    return {"again_worst_s": Sampled(took, max), "again_median_s": Sampled(took), "again_times": times}


def _killed(folder: Path, clock: TimeBudget) -> dict[str, Any]:
    """One rank is killed during all-reduces; how long until NCCL warns of it at the other, and its message.

    Without MPS, under which the GPU's other processes die with one that is killed.
    """
    pair = RankPair(OURS, folder, clock)
    try:
        pair.wait_until_ready()
        pair.send("times", elements=FAULT_BYTES // 4, count=1000)
        time.sleep(1.0)
        log = pair.folder / "nccl.0"
        said_before = log.stat().st_size if log.exists() else 0
        pair.workers[1].process.kill()
        return _words_of_death(pair, log, said_before)
    finally:
        for worker in pair.workers:
            worker.process.kill()  # there is nothing left for it to do
        pair.close()


def _words_of_death(pair: RankPair, log: Path, said_before: int) -> dict[str, Any]:
    start = time.monotonic()
    has_ended = False
    while time.monotonic() - start < 20 and not has_ended:
        has_ended = pair.workers[0].process.poll() is not None
        text = log.read_bytes()[said_before:].decode(errors="replace") if log.exists() else ""
        words = [line for line in text.splitlines() if "NET/SoftMRC" in line and "WARN" in line and "peer" in line]
        if words:
            return {"killed_s": time.monotonic() - start, "killed_words": words[-1][-200:]}
        time.sleep(0.02)
    return {"killed_s": None, "killed_words": pair.log()[-400:]}


def measure(quick: bool = False) -> dict[str, Any]:
    """All of it. What could not be measured is None, and `failed` says why."""
    found: dict[str, Any] = {"allreduce": {}, "identical": None, "fault_worst_over_median": None, "failed": {}}
    clock = TimeBudget(WHOLE_S)
    ways = [OURS, SOCKET, *TUNED]

    def attempt(name: str, what: Callable[[], dict[str, Any]]) -> None:
        if clock.left(1) < 1:
            found["failed"][name] = "no time was left"
            return
        try:
            found.update(what())
        except (Broken, OSError, subprocess.SubprocessError) as error:
            found["failed"][name] = str(error)

    with tempfile.TemporaryDirectory(prefix="softmrc-") as name:
        folder = Path(name)
        with contextlib.ExitStack() as stack:
            found["mps"] = stack.enter_context(mps(folder))
            started = {way: RankPair(way, folder / way.replace(" ", "-"), clock) for way in ways}
            for pair in started.values():
                stack.callback(pair.close)
            pairs = {}
            for way, pair in started.items():
                try:
                    pair.wait_until_ready()
                    pairs[way] = pair
                except Broken as error:
                    found["failed"][way] = str(error)
            if OURS not in pairs:
                return found
            attempt("allreduce", lambda: {"allreduce": _beside(pairs, 1 if quick else ROUNDS)})
            attempt("identical", lambda: _identical(pairs))
            attempt("faults", lambda: _broken_planes(pairs[OURS]))
            attempt("again", lambda: _again(pairs[OURS], 3 if quick else 20))
        attempt("killed", lambda: _killed(folder / "killed", clock))
    return found


def require() -> None:
    """Refuse early, in words, where there is nothing to measure with."""
    if not Path("/dev/nvidiactl").exists():
        raise DeviceError("no NVIDIA GPU here (there is no /dev/nvidiactl); `make test` tests the plugin without one")


def shown(figures: dict[str, Any]) -> dict[str, Any]:
    rows = {f"{size}.{key}": value for size, row in figures["allreduce"].items() for key, value in row.items()}
    return rows | {key: value for key, value in figures.items() if key != "allreduce"}


def notes(figures: dict[str, Any]) -> list[str]:
    return [f"{name} failed: {why}" for name, why in figures["failed"].items()]
