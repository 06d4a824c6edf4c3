"""The operator's tools: precision, recall, speed and bandwidth of the mapper, and the verdicts of `softmrc explain`."""

from __future__ import annotations

from typing import Any

from softmrc_bench import broken_job, mapper, monitoring_cost, page
from softmrc_bench.figures import BenchFigure

TITLE = "Operations: {mapper_faults} faults in {mapper_trials} simulated fabrics"
FIGURES = (
    BenchFigure("mapper_precision", "mapper: precision", "", 0.95, True),
    BenchFigure("mapper_recall", "mapper: recall", "", 0.95, True),
    BenchFigure("mapper_seconds", "mapper: time to name the last dead component, simulated time", "s", 2, False),
    BenchFigure("mapper_bandwidth_share", "mapper: share of a link's bandwidth", "", 0.001, False),
    BenchFigure("watch_cost", "exporter: share of a busy device's goodput", "", 0.02, False),
    BenchFigure("page_seconds", "dashboard: time until a pulled cable is shown, worst", "s", 2, False),
    BenchFigure(
        "explained", "`softmrc explain`: share of jobs with one of five faults explained correctly", "", 1, True
    ),
)


def measure(quick: bool = False) -> dict[str, Any]:
    """All figures: 200 mapper trials with one to three faults among 512 simulated hosts, and 20 runs of a job of two
    ranks for each of five faults."""
    named = mapper.measure(trials=8 if quick else 200)
    shown = page.page_seconds(1 if quick else 10)
    return named | shown | broken_job.explained(1 if quick else 20) | monitoring_cost.watch_cost(3 if quick else 10)
