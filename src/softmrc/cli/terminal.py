"""What commands write to: a terminal on which square brackets are square brackets, and nothing that was said elsewhere
moves the cursor.

Names, paths and errors come from peers, files and callers, so markup is off and control characters are shown. What we
ourselves want to be bold or green is a `Text`, or a whole line with a `style`.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from softmrc.errors import on_terminal

PAPER = 10_000  # columns: more than any table has
LEAST_FOLDED = 16
FIGURE = re.compile(r"[-+0-9,.%—]*")


class Terminal(Console):
    """Text that is drawn has no commands to the terminal in it; rich keeps those in separate segments."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for one in super().render(renderable, options):
            is_clean = one.control is not None or one.text.isprintable()
            yield one if is_clean else one._replace(text=on_terminal(one.text))


def say(text: object, stderr: bool = False) -> None:
    """A line of plain text, whatever words from elsewhere are in it, and at once."""
    print(on_terminal(str(text)), file=sys.stderr if stderr else sys.stdout, flush=True)


def terminal(stderr: bool = False, is_folded: bool = False) -> Console:
    """Without a terminal (a pipe, a file) lines are not folded, unless they shall be at 80 columns."""
    console = Terminal(markup=False, emoji=False, stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ and not is_folded:
        console.width = PAPER
    return console


class Grid:
    """A table that loses columns, not letters, where the terminal is narrow, and says which."""

    def __init__(self, *heads: str, spare: Sequence[str] = (), folds: str = "", title: str | None = None) -> None:
        """`spare`: columns that can be done without, the first one first; `folds`: one that may have several lines."""
        self._heads, self._spare, self._folds, self._title = heads, spare, folds, title
        self._rows: list[tuple[Text, ...]] = []

    def add_row(self, *cells: str | Text) -> None:
        self._rows.append(tuple(Text(one) if isinstance(one, str) else one for one in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        heads = list(self._heads)
        for name in self._spare:
            if self._width(heads) <= options.max_width:
                break
            heads.remove(name)
        table = Table(title=self._title, title_justify="left")
        for head in heads:
            cells = self._cells(head)
            is_figure = bool(cells) and all(FIGURE.fullmatch(one.plain) for one in cells)
            table.add_column(head, justify="right" if is_figure else "left", overflow="fold")
        for row in zip(*map(self._cells, heads), strict=True):
            table.add_row(*row)
        yield table
        if left_out := [head for head in self._heads if head not in heads]:
            yield Text(f"too narrow for: {', '.join(left_out)}", "dim")

    def _cells(self, head: str) -> list[Text]:
        at = self._heads.index(head)
        return [row[at] for row in self._rows]

    def _width(self, heads: Sequence[str]) -> int:
        """With nothing folded but the column that may be, and three characters between two columns."""
        widths = [max(cell_len(head), *(one.cell_len for one in self._cells(head)), 0) for head in heads]
        for at, head in enumerate(heads):
            if head == self._folds:
                widths[at] = min(widths[at], LEAST_FOLDED)
        return sum(widths) + 3 * len(heads) + 1


def a_number(value: float) -> float:
    """For options: refuse NaN, which passes range checks."""
    if math.isnan(value):
        raise typer.BadParameter("must be a number")
    return value


def check_mark(holds: bool) -> Text:
    return Text("✓", "green") if holds else Text("✗", "red")
