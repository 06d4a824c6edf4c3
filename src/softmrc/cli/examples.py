"""`softmrc examples`: scenarios, programs and labs that come with the package."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from softmrc._support import resources
from softmrc.cli.options import AsJson, print_json
from softmrc.cli.terminal import terminal
from softmrc.errors import ConfigError, did_you_mean

PROGRAMS = (".py", ".toml", ".md")


def _about(file: Path) -> str:
    """The first sentence of a program's docstring, of a page's first paragraph, or of a file's first comment."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        paragraph = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    elif file.suffix == ".md":
        paragraph = next((part for part in text.split("\n\n") if not part.startswith("#")), "")
    else:
        paragraph = text.splitlines()[0].lstrip("# ")
    return " ".join(paragraph.split()).split(". ")[0].removesuffix(".")


def _files() -> dict[str, Path]:
    root = resources.folder(resources.EXAMPLES)
    return {file.name: file for file in sorted(root.iterdir()) if file.suffix in PROGRAMS} if root else {}


def _complete(incomplete: str) -> Iterable[str]:
    return [name for name in [*_files(), *resources.names(resources.SCENARIOS)] if name.startswith(incomplete)]


def examples(
    name: Annotated[
        str | None,
        typer.Argument(help="Print this one, for example ddp.py.", show_default=False, autocompletion=_complete),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the scenarios and examples that come with SoftMRC.

    With a NAME, print that one."""
    files, scenarios = _files(), resources.names(resources.SCENARIOS)
    if name is not None:
        found = files.get(name) or scenarios.get(name)
        if found is None:
            known = [*files, *scenarios]
            hint = did_you_mean(name, known) or "Run `softmrc examples` to list them."
            raise ConfigError("NAME", name, "no such scenario or example", hint)
        sys.stdout.write(found.read_text(encoding="utf-8"))
        return
    questions = {one: resources.question(file) for one, file in scenarios.items()}
    about = {one: _about(file) for one, file in files.items()}
    if as_json:
        print_json({"scenarios": questions, "examples": about})
        return
    console = terminal()
    console.print("Scenarios, for `softmrc sim NAME`:", style="bold")
    width = max(map(len, [*scenarios, *files]), default=0)
    for one, words in questions.items():
        console.print(f"  {one:<{width}}  {words}", highlight=False, soft_wrap=True)
    console.print("\nExamples, for `softmrc examples NAME`:", style="bold")
    for one, words in about.items():
        console.print(f"  {one:<{width}}  {words}", highlight=False, soft_wrap=True)
