"""Draws the help of a command. It fits 80 columns."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from softmrc.cli.exit_codes import TABLE
from softmrc.cli.help import Rows, arguments_of, commands_of, notes_of, options_of, path_of, usage_of
from softmrc.cli.terminal import terminal


def text_of(command: Any, ctx: Any) -> str:
    path, console = path_of(ctx), terminal(is_folded=True)
    panels = [{"Arguments": arguments_of(command), "Options": options_of(command.get_params(ctx))}]
    if isinstance(command, TyperGroup):
        panels.insert(0, commands_of(command, ctx))
    if not path:
        panels.append({"Exit codes": [(str(code), words) for code, words in TABLE.items()]})
    with console.capture() as shown:
        console.print(Text.assemble(("Usage: ", "bold"), usage_of(command, path)), soft_wrap=True, highlight=False)
        console.print(f"\n{command.help or ''}", highlight=False)
        for alike in panels:
            _print_panels(console, alike)
        for head, words in notes_of(path):
            console.print(Text.assemble(("\n" + head, "bold"), f" {words}"), soft_wrap=True, highlight=False)
    return "\n".join(line.rstrip() for line in shown.get().splitlines()) + "\n"


def _print_panels(console: Console, panels: dict[str, Rows]) -> None:
    """Their first columns are of one width."""
    width = max((len(name) for rows in panels.values() for name, _ in rows), default=0)
    for title, rows in panels.items():
        if not rows:
            continue
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=width, no_wrap=True, style="cyan")
        grid.add_column(overflow="fold")
        for row in rows:
            grid.add_row(*row)
        console.print(Text(f"\n{title}", "bold"))
        console.print(Padding(grid, (0, 0, 0, 2)))
