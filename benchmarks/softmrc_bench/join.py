"""Time of `init_process_group` and `new_group`, compared with Gloo in alternating rounds.

Ranks are processes on loopback that have imported everything and use a TCPStore. A time ends when the slowest rank has
done its first all-reduce of one number. The first round of each backend is not counted: it does the lazy imports.
"""

from __future__ import annotations

import contextlib
import importlib.util
import socket
from typing import Any

from softmrc._support.subprocesses import python_command
from softmrc.errors import DeviceError
from softmrc_bench.figures import BenchFigure, Sampled, Versus, compared
from softmrc_bench.ranks import BenchRanks

SIZES = (2, 4, 8, 16)
WHAT = ("setup", "new_group")
_CALLED = {"setup": "init_process_group, {} ranks", "new_group": "new_group, {} ranks"}
RATIOS = tuple(
    BenchFigure(
        f"{what}.{size}",
        f"{_CALLED[what].format(size)}: time over Gloo's",
        "",
        1.2,
        False,
        versus=Versus("Gloo", f"{what}.{size}.ms", f"{what}.{size}.gloo_ms", "ms"),
    )
    for what in WHAT
    for size in SIZES
)
_TIMES = tuple(
    BenchFigure(f"{what}.{size}.{key}", f"{_CALLED[what].format(size)}: {whose}", "ms", 0, True)
    for what in WHAT
    for size in SIZES
    for key, whose in (("ms", "SoftMRC"), ("gloo_ms", "Gloo"))
)

TITLE = "Group set-up, on loopback"
FIGURES = (*_TIMES, *RATIOS)
NO_TORCH = "Gloo is not measured: torch is not installed (pip install torch)."


def has_gloo() -> bool:
    return importlib.util.find_spec("torch") is not None


def require() -> None:
    if not has_gloo():
        raise DeviceError(NO_TORCH)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _ranks(backend: str, size: int) -> BenchRanks:
    port = str(_free_port())
    return BenchRanks(
        [python_command("softmrc_bench.join_rank", backend, port, str(r), str(size)) for r in range(size)]
    )


def _round(ranks: BenchRanks, number: int) -> dict[str, float]:
    rows = ranks.order("set_up", number=number)
    return {what: max(row[what] for row in rows) * 1e3 for what in WHAT}


def _of_size(size: int, rounds: int) -> dict[str, dict[str, Sampled]]:
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(_ranks(backend, size)) for backend in ("mrc", "gloo")]
        rows = [[_round(ranks, number) for ranks in both] for number in range(rounds + 1)][1:]
    found = {}
    for what in WHAT:
        found[what] = compared(((ours[what], gloo[what]) for ours, gloo in rows), "ms", "gloo_ms")
    return found


def measure(quick: bool = False) -> dict[str, Any]:
    """All figures; `quick` for a look, not for the record."""
    return rounds_of(3 if quick else 15)


def rounds_of(rounds: int) -> dict[str, Any]:
    """By what is measured, and by the number of ranks."""
    by_size = {size: _of_size(size, rounds) for size in SIZES}
    return {what: {str(size): by_size[size][what] for size in SIZES} for what in WHAT}


def shown(figures: dict[str, Any]) -> dict[str, float]:
    """The figures by the keys of FIGURES."""
    rows = [(f"{what}.{size}", row) for what in WHAT for size, row in figures[what].items()]
    times = {f"{name}.{key}": row[key] for name, row in rows for key in ("ms", "gloo_ms")}
    return times | {name: row["ratio"] for name, row in rows}
