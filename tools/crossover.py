"""Where the algorithms of an all-reduce cross: every one that is possible, over sizes, and which one is chosen.

    python tools/crossover.py sim 16 128       on the simulated fabric of `softmrc bench allreduce`
    python tools/crossover.py loopback 2 4     between processes of this machine, in turns

Draws docs/evidence/results/all-reduce-WHERE-RANKS.svg for each number of ranks and prints the times as a table,
the chosen one in bold, with what the choice costs over the best.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from softmrc import _core
from softmrc._support.report import plots
from softmrc.collectives.block import CollectiveKind
from softmrc_bench.allreduce import LOOPBACK, _ours
from softmrc_bench.ranks import BenchRanks
from softmrc_bench.simulated import all_reduce_us

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "evidence" / "results"
SIZES = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
ORDER = list(_core.collective_times(CollectiveKind.ALL_REDUCE, 4, 8))
HOPELESS = 8.0  # times the model's best: not tried
ROUNDS = 5
Times = dict[int, dict[str, float]]  # microseconds, by bytes and algorithm


def candidates(ranks: int, size: int) -> list[str]:
    model = _core.collective_times(CollectiveKind.ALL_REDUCE, ranks, size)
    return [name for name, time in model.items() if time <= HOPELESS * min(model.values())]


def chosen(ranks: int, size: int) -> str:
    model = _core.collective_times(CollectiveKind.ALL_REDUCE, ranks, size)
    return min(model, key=model.__getitem__)


def simulated(ranks: int) -> Times:
    return {size: {name: all_reduce_us(ranks, size, name)[0] for name in candidates(ranks, size)} for size in SIZES}


def over_loopback(ranks: int) -> Times:
    """Medians of rounds in which the algorithms take turns, so that the machine's moods are everybody's."""
    found: Times = {}
    with tempfile.TemporaryDirectory(prefix="softmrc-") as store, BenchRanks(_ours(store, ranks, LOOPBACK)) as group:
        for size in SIZES:
            rows: dict[str, list[float]] = {name: [] for name in candidates(ranks, size)}
            for _ in range(ROUNDS):
                for name, row in rows.items():
                    group.order("force", algorithm=name)
                    row.append(statistics.median(group.times(size, 3 if size > 1 << 20 else 20)))
            found[size] = {name: statistics.median(row) * 1e6 for name, row in rows.items()}
    return found


def words(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def table(ranks: int, times: Times) -> str:
    tried = {name for row in times.values() for name in row}
    names = [name for name in ORDER if name in tried]
    lines = [f"| {ranks} ranks, µs | {' | '.join(names)} | chosen over best |", "|---" * (len(names) + 2) + "|"]
    for size, row in times.items():
        choice = chosen(ranks, size)
        cells = [f"{row[name]:,.0f}" if name in row else "–" for name in names]
        cells = [f"**{cell}**" if name == choice else cell for name, cell in zip(names, cells, strict=True)]
        lines.append(f"| {words(size)} | {' | '.join(cells)} | {row[choice] / min(row.values()):.2f} |")
    return "\n".join(lines)


def picture(times: Times) -> str:
    """Speed over the best one's at each size: the curve at 1 is the fastest."""
    series = []
    for name in ORDER:
        sizes = [size for size in times if name in times[size]]
        if not sizes:
            continue
        share = [min(times[size].values()) / times[size][name] for size in sizes]
        series.append(plots.Series(name, np.array(sizes) / 1024.0, np.array(share)))
    return plots.standalone(plots.line_chart(series, "KiB", "speed, of the best one's", y_max=1.05, log_x=True))


def main(where: str, *numbers: str) -> None:
    measure: Callable[[int], Times] = {"sim": simulated, "loopback": over_loopback}[where]
    for ranks in map(int, numbers):
        times = measure(ranks)
        (PICTURES / f"all-reduce-{where}-{ranks}.svg").write_text(picture(times))
        print(table(ranks, times), end="\n\n", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
