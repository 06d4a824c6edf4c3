"""Who stops looking at a sweep, or interrupts `softmrc retries`, does not wait for what was still running."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import replace

import pytest
from tests.sim.small import table
from typer.testing import CliRunner

from softmrc import sim
from softmrc.cli import app
from softmrc.planner import retries
from softmrc.sim.result import Verdict
from softmrc.sim.sweep import plan_sweep, running

pytestmark = pytest.mark.process


def test_a_sweep_that_nobody_looks_at_any_more_ends_its_workers() -> None:
    bytes_each = [10_000, 500_000_000, 500_000_001]
    tasks = plan_sweep(sim.parse(table()), [("workload.message_bytes", bytes_each)], 1, False)
    with running(tasks, workers=3) as rows:
        assert next(iter(rows))["point"] == {"workload.message_bytes": 10_000}
        workers = multiprocessing.active_children()
        assert workers
    assert -signal.SIGTERM in {one.exitcode for one in workers}, "they were not waited for"
    assert not multiprocessing.active_children()


def test_interrupted_retries_end_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was interrupted ends with a verdict; the next one must not begin."""
    begun: list[int] = []
    real = retries.run

    def pretended(scenario: sim.Scenario, seed: int) -> sim.Result:
        begun.append(seed)
        result = real(scenario, seed)
        return replace(result, verdict=Verdict("interrupted", "by hand")) if len(begun) == 4 else result

    monkeypatch.setattr(retries, "run", pretended)
    done = CliRunner().invoke(app, ["retries", "--seeds", "1"])
    assert done.exit_code == 130 and len(begun) == 4 and "Stopped by hand: 1 of 16 rows" in done.output
