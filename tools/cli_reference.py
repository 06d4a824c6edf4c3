"""Writes docs/reference/cli.md: every command, from the command line itself. `python tools/cli_reference.py`"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from softmrc.cli import app
from softmrc.cli.exit_codes import MEANS_NO, NO, TABLE
from softmrc.cli.help import Rows, arguments_of, options_of, usage_of
from softmrc.cli.usage import EXAMPLES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"
HEAD = """# Command line

Written from the commands themselves by `python tools/cli_reference.py`; do not edit. `softmrc COMMAND -h` prints the
same. `softmrc --install-completion` installs shell completion.

- A DURATION is `100ms`, `3s` or `2min`; a number without a unit is seconds. A RATE is `400G` or `51.2T`.
- `--json` prints one object. Commands that stream print JSON Lines, one object a line; `--watch` makes a stream.
- `--report FILE` writes an HTML page, `--output FILE` writes data. `-d` names a running device, `--all` means all.
- `--planes ADDRESS,…` names planes as `SOFTMRC_PLANES` does; `--plane N` is the index of a plane.

## Exit codes

| code | meaning |
|---|---|
"""


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def table(head: str, rows: Rows) -> Iterator[str]:
    if rows:
        yield f"| {head} | |\n|---|---|\n" + "".join(f"| `{escaped(a)}` | {escaped(b)} |\n" for a, b in rows)


def section(path: str, command: Any) -> Iterator[str]:
    yield f"## {path}\n"
    yield (command.help or "") + "\n"
    yield f"`{usage_of(command, path)}`\n"
    yield from table("argument", arguments_of(command))
    yield from table("option", options_of(command.params))
    if path in EXAMPLES:
        yield f"Example: `{EXAMPLES[path]}`\n"
    if path in MEANS_NO:
        yield f"Exit code {NO}: {MEANS_NO[path]}.\n"


def sections(group: Any, path: str = "") -> Iterator[str]:
    """One for each command, in the order of the help; a group is a heading of its commands."""
    for name in group.commands:
        command = group.commands[name]
        if isinstance(command, TyperGroup):
            yield from sections(command, f"{path} {name}".strip())
        else:
            yield from section(f"{path} {name}".strip(), command)


def commands(group: Any) -> Iterator[str]:
    """The commands by what they are for."""
    panels: dict[str, list[str]] = {}
    for name, command in group.commands.listed().items():
        panels.setdefault(command.rich_help_panel, []).append(f"`{name}`")
    yield "## Commands\n"
    yield "| | |\n|---|---|\n" + "".join(f"| {panel} | {', '.join(names)} |\n" for panel, names in panels.items())


def page() -> str:
    group: Any = typer.main.get_command(app)
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in TABLE.items())
    return HEAD + codes + "\n" + "\n".join([*commands(group), *sections(group)])


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
