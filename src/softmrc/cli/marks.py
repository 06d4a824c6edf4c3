"""How the state of a path is shown."""

from __future__ import annotations

from rich.text import Text

from softmrc._core import EvState

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
