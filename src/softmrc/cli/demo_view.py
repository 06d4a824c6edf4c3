"""How the demo looks while it runs: a live screen on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from softmrc.cli.marks import MARKS
from softmrc.demo.script import Director
from softmrc.demo.story import TrainingRun, View, traffic_of
from softmrc.engine import EvState

BARS = " ▁▂▃▄▅▆▇█"
REFRESH_S = 0.2
LINE_EVERY = 40
WIDTH = 72
RATES, RATE_S = 24, 0.2


def bars(values: list[float], top: float) -> str:
    return "".join(BARS[min(int(value / top * (len(BARS) - 1) + 0.5), len(BARS) - 1)] for value in values)


class Lines:
    """A line when something happens, and one now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: set[tuple[str, str]] = set()
        self._shown = 0

    def begin(self, run: TrainingRun, number: int, of: int) -> None:
        self._shown = 0
        self._console.print(f"[{number}/{of}] {run.name}: {run.steps} steps", highlight=False)

    def watch(self, run: TrainingRun, director: Director) -> None:
        for fault, start, end in run.bands:
            self._once(run, f"{start:6.1f} s  step {{}}  begins: {fault.label}")
            if end != float("inf"):
                self._once(run, f"{end:6.1f} s  step {{}}  ends:   {fault.label}")
        done = len(run.step_ms)
        if done >= self._shown + LINE_EVERY:
            self._shown = done
            recent = sorted(run.step_ms[-LINE_EVERY:])
            pace = f"{recent[len(recent) // 2]:.0f} ms a step (longest {recent[-1]:.0f}), loss {run.losses[-1]:.3f}"
            self._console.print(f"      {run.step_at_s[-1]:6.1f} s  step {done:3d}  {pace}", highlight=False)

    def _once(self, run: TrainingRun, text: str) -> None:
        if (run.name, text) not in self._said:
            self._said.add((run.name, text))
            self._console.print("      " + text.format(f"{len(run.step_ms):3d}"), highlight=False)

    def end(self, run: TrainingRun) -> None:
        pass


class Screen:
    """The same on a terminal, moving."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._drawn_at = 0.0
        self._head = Text()

    def begin(self, run: TrainingRun, number: int, of: int) -> None:
        self._head = Text(f"{number}/{of} {run.name}", "bold")
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def watch(self, run: TrainingRun, director: Director) -> None:
        now = time.monotonic()
        if self._live is not None and now - self._drawn_at >= REFRESH_S:
            self._drawn_at = now
            self._live.update(self._draw(run, director), refresh=True)

    def end(self, run: TrainingRun) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if len(run.step_ms) < 2:
            return
        about = f": {len(run.step_ms)} steps, median {run.median_ms:.0f} ms, longest {run.worst_ms:.0f} ms"
        self._console.print(Text.assemble(self._head, about))

    def _draw(self, run: TrainingRun, director: Director) -> RenderableType:
        parts: list[RenderableType] = [self._head]
        if not run.step_ms:
            return Group(*parts, Text("  the ranks are meeting …"))
        recent = run.step_ms[-WIDTH:]
        top = max(max(recent), 1.0)
        last = f"  step {len(run.step_ms):3d} of {run.steps}   {run.step_ms[-1]:6.1f} ms   loss {run.losses[-1]:.3f}\n"
        parts.append(Text.assemble(last, ("  " + bars(recent, top), "cyan"), f" {top:.0f} ms"))
        if run.looks:
            parts.append(self._planes(run, director))
        calm = Text("  nothing is broken" if run.script else "", "green")
        parts.append(Text(f"  ▲ {director.active.label}", "red") if director.active else calm)
        return Group(*parts)

    def _planes(self, run: TrainingRun, director: Director) -> Table:
        table = Table(box=None, padding=(0, 2))
        for column in ("plane", "Gb/s", "", "paths"):
            table.add_column(column, justify="right" if column == "Gb/s" else "left")
        edges = run.looks[-1].at_s + RATE_S * np.arange(-RATES, 1)
        traffic = traffic_of(run)
        rates = traffic.rates_gbps(edges) if traffic else np.zeros((len(run.looks[-1].states), RATES))
        top = max(float(rates.max()), 0.1)
        for plane, states in enumerate(run.looks[-1].states):
            history = list(rates[plane])
            marks = Text("  ").join(
                Text.assemble(MARKS[EvState(i)], f" {int(n):3d}") for i, n in enumerate(states) if n or i == 0
            )
            is_broken = director.active is not None and plane in director.active.planes
            name = Text(str(plane), "red" if is_broken else "")
            table.add_row(name, f"{history[-1]:.2f}", Text(bars(history, top), "cyan"), marks)
        return table


def view_for(console: Console) -> View:
    return Screen(console) if console.is_terminal else Lines(console)
