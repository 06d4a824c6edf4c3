"""What commands write to: a terminal on which square brackets are square brackets.

Names, paths and errors come from peers, files and callers, so markup is off. What we ourselves want to be bold or green
is a `Text`, or a whole line with a `style`.
"""

from __future__ import annotations

import math

import typer
from rich.console import Console
from rich.text import Text

from softmrc.engine import EvState

MARKS = {
    EvState.GOOD: Text("●", "green"),
    EvState.SKIP: Text("◐", "yellow"),
    EvState.ASSUMED_BAD: Text("○", "red"),
    EvState.DENIED: Text("·", "dim"),
}
LEGENDS = {
    EvState.GOOD: "good",
    EvState.SKIP: "skipped once",
    EvState.ASSUMED_BAD: "assumed bad",
    EvState.DENIED: "denied",
}


def terminal(stderr: bool = False) -> Console:
    return Console(markup=False, emoji=False, stderr=stderr)


def a_number(value: float) -> float:
    """For options: NaN lies within no range, and passes every comparison that asks whether it lies without."""
    if math.isnan(value):
        raise typer.BadParameter("nan is no number")
    return value


def check_mark(holds: bool) -> Text:
    return Text("✓", "green") if holds else Text("✗", "red")
