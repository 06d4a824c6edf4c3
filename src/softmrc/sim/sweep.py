"""A scenario run again and again with some keys varied and several seeds, on all cores or on a Ray cluster.

Every point is checked before the first one runs. Results come as they are ready, so that a sweep cut short is worth
what it has found; how many workers there are changes the order of results, never the results.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import tomllib
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from softmrc._support.subprocesses import safe_spawning
from softmrc.errors import ConfigError, DeviceError
from softmrc.sim.answer import FIGURES, figure_of, figure_value, number
from softmrc.sim.run import Run, run
from softmrc.sim.scenario import Scenario, Variant, parse

MAX_POINTS = 100_000
RUNNERS = ("local", "ray")


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep, small enough to travel."""

    table: dict[str, Any]
    source: str
    changes: dict[str, Any]
    seed: int
    variant: int = 0  # 0: the scenario itself; n: the nth of what it is compared with

    def run(self) -> dict[str, Any]:
        chosen = parse(self.table, self.source).with_keys(self.changes).variants()[self.variant]
        result = run(chosen.scenario, self.seed, name=chosen.name, cores=1)
        return {"point": self.changes, "variant": self.variant, "answer": figure_value(result)} | result.summary()


def read_set(text: str) -> tuple[str, Any]:
    """`key=value`: a key by its dotted path."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise ConfigError("--set", text, "must be key=value, as fabric.planes=8")
    return key.strip(), _value(value.strip())


VARY_FORMS = "key=first..last, key=first..last..step, or key=one,two,three"


def read_vary(text: str) -> tuple[str, list[Any]]:
    """`key=0..20`, `key=0..20..5` or `key=a,b,c`: a key by its dotted path and the values it takes."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise ConfigError("--vary", text, f"must be {VARY_FORMS}")
    if ".." in values:
        try:
            first, last, *step = (int(part) for part in values.split(".."))
        except ValueError:
            raise ConfigError("--vary", text, "must have whole numbers around '..'", f"Write {VARY_FORMS}.") from None
        if len(step) > 1 or (step and step[0] < 1) or last < first:
            raise ConfigError("--vary", text, "must be a range that goes up", f"Write {VARY_FORMS}.")
        return key.strip(), list(range(first, last + 1, *step))
    return key.strip(), [_value(one.strip()) for one in values.split(",")]


def _value(text: str) -> Any:
    """A value as TOML has it; what is no TOML is a text."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def plan_sweep(scenario: Scenario, varied: list[tuple[str, list[Any]]], seeds: int, compare: bool) -> list[SweepRun]:
    """All runs, checked: a wrong value is refused now, not an hour later."""
    points = [
        dict(zip([k for k, _ in varied], values, strict=True)) for values in itertools.product(*(v for _, v in varied))
    ]
    variants = 1 + (len(scenario.compare) if compare else 0)
    if len(points) * seeds * variants > MAX_POINTS:
        raise ConfigError("--vary", len(points) * seeds * variants, f"must make at most {MAX_POINTS} runs in all")
    first = scenario.run.seed
    tasks = []
    for point in points:
        for one in scenario.with_keys(point).variants()[:variants]:
            Run(one.scenario, first, one.name)
        for seed, variant in itertools.product(range(first, first + seeds), range(variants)):
            tasks.append(SweepRun(scenario.table, scenario.source, point, seed, variant))
    return tasks


def heads(keys: list[str]) -> list[str]:
    """Keys as short as they can be and still differ: planes, links; or faults.kind, transport.kind."""
    short = list(keys)
    for length in (3, 2, 1):
        ends = [".".join(key.split(".")[-length:]) for key in keys]
        short = [end if ends.count(end) == 1 else old for end, old in zip(ends, short, strict=True)]
    return short


def sweep(tasks: list[SweepRun], runner: str = "local", workers: int = 0) -> Iterator[dict[str, Any]]:
    """Summaries of runs, as they finish. Stopping early stops the workers."""
    if runner not in RUNNERS:
        raise ConfigError("--runner", runner, "must be one of " + ", ".join(repr(one) for one in RUNNERS))
    return _on_ray(tasks) if runner == "ray" else _on_cores(tasks, workers or os.cpu_count() or 1)


@contextmanager
def running(tasks: list[SweepRun], runner: str = "local", workers: int = 0) -> Iterator[Iterator[dict[str, Any]]]:
    """The same, for those who may stop looking: that stops the processes, too, and at once."""
    rows = sweep(tasks, runner, workers) if tasks else iter(())
    try:
        yield rows
    finally:
        if isinstance(rows, Generator):
            rows.close()


def _on_cores(tasks: list[SweepRun], workers: int) -> Iterator[dict[str, Any]]:
    with safe_spawning():
        yield from _on_processes(tasks, workers)


def _on_processes(tasks: list[SweepRun], workers: int) -> Iterator[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    # Ctrl-C at a terminal reaches the workers too, and this process ends them.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    others = set(multiprocessing.active_children())
    is_over = False
    pool = ProcessPoolExecutor(min(workers, len(tasks)), context, initializer=signal.signal, initargs=ignore)
    # Only a few tasks are handed out ahead, so that stopping early leaves little to wait for.
    waiting = iter(tasks)
    pending = {pool.submit(SweepRun.run, task) for task in itertools.islice(waiting, 2 * workers)}
    try:
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            pending |= {pool.submit(SweepRun.run, task) for task in itertools.islice(waiting, len(done))}
            for one in done:
                yield one.result()
        is_over = True
    finally:
        if not is_over:  # who stopped looking does not wait for runs of minutes
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


def _on_ray(tasks: list[SweepRun]) -> Iterator[dict[str, Any]]:
    try:
        import ray
    except ImportError:
        raise DeviceError("--runner ray needs Ray: pip install ray") from None
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(log_to_driver=False, include_dashboard=False)
    try:
        remote = ray.remote(SweepRun.run)
        pending = [remote.remote(task) for task in tasks]
        while pending:
            done, pending = ray.wait(pending)
            yield from ray.get(done)
    finally:
        if started_here:
            ray.shutdown()


@dataclass(frozen=True)
class SweepSpread:
    """Mean, least and most of one figure over the seeds of a point."""

    mean: float
    least: float
    most: float


def gather(rows: list[dict[str, Any]], figure: str) -> SweepSpread | None:
    """Of the runs that finished: what others show is what arrived before they stopped, and always looks well."""
    values = [row[figure] for row in rows if row["verdict"] == "complete" and row.get(figure) is not None]
    return SweepSpread(sum(values) / len(values), min(values), max(values)) if values else None


def stopped(rows: list[dict[str, Any]]) -> str:
    """Why runs of a point did not finish: the verdict of the first that did not; nothing where all did."""
    return next((str(row["verdict"]) for row in rows if row["verdict"] != "complete"), "")


def label(rows: list[dict[str, Any]], variant: Variant) -> str:
    """What a variant is called in a sweep: by its name, unless that is another one at each point."""
    names = {row["name"] for row in rows}
    own = f"variant {rows[0]['variant']}" if rows and rows[0]["variant"] else "the scenario"
    return names.pop() if len(names) == 1 else own if names else variant.name


def conclusion(scenario: Scenario, rows: list[dict[str, Any]], compare: bool) -> str:
    """The answer: for each variant where its figure is best, where worst, and where it does not finish."""
    said = []
    for number_, variant in enumerate(scenario.variants()[: None if compare else 1]):
        mine = [row for row in rows if row["variant"] == number_]
        name = label(mine, variant)
        figure = FIGURES[figure_of(variant.scenario)]
        points: dict[str, list[dict[str, Any]]] = {}
        for row in mine:
            points.setdefault(", ".join(f"{key} = {value}" for key, value in row["point"].items()), []).append(row)
        means = {at: spread.mean for at, those in points.items() if (spread := gather(those, "answer"))}
        failed = [at for at, those in points.items() if stopped(those)]
        if not points:
            continue
        if not means:
            said.append(f"{name} finishes nowhere ({stopped(mine)})")
            continue
        ranked = sorted(means, key=lambda at: means[at], reverse=figure.more_is_better)
        best, worst = ranked[0], ranked[-1]
        text = f"{name}: {figure.words} {number(means[best])} {figure.unit} at {best}"
        if best != worst:
            ratio = f" ({means[worst] / means[best]:.2f} times)" if means[best] else ""
            text += f" at best, and {number(means[worst])} {figure.unit}{ratio} at {worst} at worst"
        if failed:
            more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            text += f"; not every run finishes at {failed[0]}{more}"
        said.append(text)
    return ". ".join(said) + "." if said else ""
