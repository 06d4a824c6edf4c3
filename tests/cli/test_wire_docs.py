"""The pages on the wire format and on captures: sessions print what the pages show."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import softmrc.wire
from in_process import softmrc_here

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "reference" / "wire.md"
TUTORIAL = ROOT / "docs" / "tutorials" / "read-a-capture.md"
MODULES = [softmrc.wire, softmrc.wire.srv6, sys.modules["softmrc.wire.packet"], sys.modules["softmrc.wire.capture"]]


def session(text: str) -> dict[str, str]:
    """The commands of the page's console session, each with what it printed."""
    block = next(b for b in text.split("```") if "$ softmrc dissect" in b)
    commands = [part.partition("\n") for part in block.split("\n$ ")[1:]]
    return {command: output for command, _, output in commands}


# A real process: one of the commands runs a program of the examples.
@pytest.mark.process
def test_the_session_is_real(tmp_path: Path) -> None:
    printed = session(TUTORIAL.read_text())
    assert len(printed) == 3
    for command, expected in printed.items():
        program, *arguments = command.split()
        if program == "python":
            example = [sys.executable, str(ROOT / arguments.pop(0)), *arguments]
            done: Any = subprocess.run(example, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        else:
            done = softmrc_here(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.rstrip("\n") == expected.rstrip("\n")


def test_the_python_session_is_real() -> None:
    text = DOCS.read_text()
    code = text.split("```python\n")[1].split("```")[0]
    test = doctest.DocTestParser().get_doctest(code, {}, "wire.md", str(DOCS), 0)
    runner = doctest.DocTestRunner()
    runner.run(test)
    assert runner.summarize().failed == 0


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_docstrings_are_real(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0 and result.failed == 0
