"""What operating a fabric claims: that the mapper names what is broken, soon, for next to nothing; and that slow
operations are explained."""

from __future__ import annotations

from typing import Any

from softmrc_bench import broken_job, mapper, monitoring_cost, page
from softmrc_bench.figures import BenchFigure

TITLE = "{mapper_faults} faults in {mapper_trials} fabrics"
FIGURES = (
    BenchFigure("mapper_precision", "of what the mapper named, was broken so", "", 0.95, True),
    BenchFigure("mapper_recall", "of what was broken, the mapper named", "", 0.95, True),
    BenchFigure("mapper_seconds", "until the last dead component was named, fabric's time", "s", 2, False),
    BenchFigure("mapper_bandwidth_share", "of a link's bandwidth, the mapper took", "", 0.001, False),
    BenchFigure("watch_cost", "of a busy device's goodput, watching takes", "", 0.02, False),
    BenchFigure("page_seconds", "until the page shows a cable that was pulled, the longest", "s", 2, False),
    BenchFigure("explained", "of jobs broken in five ways, were explained rightly", "", 1, True),
)


def measure(quick: bool = False) -> dict[str, Any]:
    """All figures; the mapper's over 200 trials of one to three faults among 512 simulated hosts, and 20 runs of a job
    of two ranks for each way to break it."""
    named = mapper.measure(trials=8 if quick else 200)
    shown = page.page_seconds(1 if quick else 10)
    return named | shown | broken_job.explained(1 if quick else 20) | monitoring_cost.watch_cost(3 if quick else 10)
