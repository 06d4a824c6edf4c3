"""`softmrc examples`: scenarios, programs and labs that come with the package."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from softmrc._support import resources
from softmrc.cli.terminal import terminal
from softmrc.errors import ConfigError, did_you_mean

PROGRAMS = (".py", ".toml", ".md")


def _about(text: str) -> str:
    """The first sentence of a program or a page, or the first comment of a file."""
    for line in text.splitlines():
        words = line.strip().strip('"#').strip()
        if words and not line.startswith(("#!", "from ", "import ")):
            return words
    return ""


def examples(
    name: Annotated[str | None, typer.Argument(help="Print this one, for example ddp.py.", show_default=False)] = None,
) -> None:
    """List the scenarios and examples that come with SoftMRC, or print one: softmrc examples ddp.py > ddp.py"""
    root = resources.folder(resources.EXAMPLES)
    files = {file.name: file for file in sorted(root.iterdir()) if file.suffix in PROGRAMS} if root else {}
    scenarios = resources.names(resources.SCENARIOS)
    if name is not None:
        found = files.get(name) or scenarios.get(name)
        if found is None:
            known = [*files, *scenarios]
            raise ConfigError("name", name, f"one that `softmrc examples` lists{did_you_mean(name, known)}")
        sys.stdout.write(found.read_text(encoding="utf-8"))
        return
    console = terminal()
    console.print("Scenarios, for `softmrc sim NAME`:", style="bold")
    width = max(map(len, [*scenarios, *files]), default=0)
    for one, file in scenarios.items():
        console.print(f"  {one:<{width}}  {resources.question(file)}", highlight=False, soft_wrap=True)
    console.print("\nExamples, for `softmrc examples NAME`:", style="bold")
    for one, file in files.items():
        about = _about(file.read_text(encoding="utf-8"))
        console.print(f"  {one:<{width}}  {about}", highlight=False, soft_wrap=True)
