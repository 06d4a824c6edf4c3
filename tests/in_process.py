"""`softmrc …` without a separate process: its `main` is called here, with its own arguments, environment and
streams. Starting Python and importing the package costs a second, and most tests are about what the command says."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import softmrc.cli

COMMAND = typer.main.get_command(softmrc.cli.app)  # Typer makes it again for each call, which takes longer than most


@dataclass
class Done:
    """How it ended, by the names that `subprocess.run` gives; `error` is what `main` heard of and told."""

    returncode: int
    stdout: str
    stderr: str
    error: BaseException | None


def softmrc_here(*arguments: str | Path, cwd: Path | None = None, **env: str) -> Done:
    """An exception that `main` lets through, which a process would print as a traceback, is raised."""
    heard: list[BaseException] = []

    def app(**settings: object) -> object:
        try:
            return COMMAND(**settings)
        except BaseException as error:
            heard.append(error)
            raise

    with pytest.MonkeyPatch.context() as patch, CliRunner().isolation():
        patch.setattr(sys, "argv", ["softmrc", *map(str, arguments)])
        patch.setattr(softmrc.cli, "app", app)
        for name, value in env.items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        out, err = sys.stdout, sys.stderr
        try:
            softmrc.cli.main()
            status = 0
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        return Done(status, _text(out), _text(err), heard[0] if heard else None)


@contextmanager
def unseen() -> Iterator[None]:
    """Devices that are made in this block have no control socket: `softmrc top` looks for the one of its process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTMRC_CONTROL", "0")
        yield


def _text(stream: object) -> str:
    assert isinstance(stream, io.TextIOWrapper)
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]
