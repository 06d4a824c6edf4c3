"""Every option of every command, with values that make no sense: a line that says so, and never a traceback.

The commands and their options are read from the command itself, so that none is forgotten.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from softmrc.cli import agent, app, ctl, demo
from softmrc.errors import MrcError, UsageError

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "127.0.0.1:1"
FABRIC, SCENARIO = str(ROOT / "examples" / "lab.toml"), str(ROOT / "scenarios" / "slow-link.toml")
LONG_S = 60

# What makes a command cheap, or certain to end, while one of its options is tried.
BASE: dict[str, list[str]] = {
    "demo": [],
    "dissect": [FABRIC],
    "ping": [NOWHERE],
    "perf": [NOWHERE],
    "top": ["--load", NOWHERE],
    "sim": [SCENARIO, "--quiet", "--set", "end=1us"],
    "sweep": [SCENARIO, "--vary", "fabric.planes=0"],
    "plan": ["--gpus", "64"],
    "assess": [FABRIC, "--trials", "1"],
    "fabric config": [FABRIC],
    "fabric draw": [FABRIC],
    "fabric routes": [FABRIC, "--from", "host0", "--to", "host1"],
}
SKIPPED = {"bench", "lab", "mapper", "retries", "study"}  # need root or minutes; all but benches have own tests
VALUES = [
    "",
    " ",
    "nosuch",
    "-1",
    "nan",
    "1e400",
    "9" * 60,
    "ü",
    "🙂",
    "/dev/null/x",
    "/",
    "a=b=c",
    "a,b,,",
    "%",
]


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(typer.main.get_command(app)))
OPTIONS = [
    (name, param.opts[0] if param.param_type_name == "option" else "")
    for name, command in COMMANDS.items()
    if name.split()[0] not in SKIPPED
    for param in command.params
    if not getattr(param, "is_flag", False)
]


def outcome(arguments: list[str]) -> Any:
    """Whatever escaped, of what must not."""

    def too_long(*_: object) -> None:
        raise AssertionError(f"{arguments} takes more than {LONG_S} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONG_S)
    try:
        result = CliRunner().invoke(app, arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    fits = result.exception is None or isinstance(result.exception, SystemExit | MrcError | OSError)
    return None if fits else result.exception


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UsageError("nobody trains here")

    monkeypatch.setattr(agent, "_serve", refuse)
    monkeypatch.setattr(ctl, "_again", lambda watch, show: show())
    monkeypatch.setattr(demo, "Ranks", refuse)
    monkeypatch.setattr(demo, "show_gpu", refuse)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=[f"{a} {b or 'argument'}" for a, b in OPTIONS])
def test_what_makes_no_sense_is_a_line(name: str, option: str) -> None:
    base = BASE.get(name, [])
    for value in VALUES:
        if (name, option, value) == ("perf", "", ""):
            continue  # a server, which ends with Ctrl-C
        arguments = [*base, option, value] if option else [value, *base[1:]]
        escaped = outcome([*name.split(), *arguments])
        assert escaped is None, f"{name} {arguments}: {escaped!r}"


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.startswith("lab ")])
def test_commands_of_a_lab_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    required = [param for param in COMMANDS[name].params if param.required]
    for value in VALUES:
        for more in ([], ["--lab", value] if name != "lab up" else []):
            if name == "lab up" or more or required:
                assert outcome([*name.split(), *[value or "x"] * len(required), *more]) is None


def test_a_lab_without_root_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for name, command in COMMANDS.items():
        if not name.startswith("lab "):
            continue
        required = [FABRIC if name == "lab up" else "host0" for param in command.params if param.required]
        result = CliRunner().invoke(app, [*name.split(), *required])
        assert isinstance(result.exception, MrcError) and "root" in str(result.exception), name


@pytest.mark.parametrize("steps", ["1", "2", "19"])
def test_a_demo_that_is_too_short_for_its_faults_is_refused(steps: str) -> None:
    result = CliRunner().invoke(app, ["demo", "--steps", steps])
    assert isinstance(result.exception, MrcError) and "at least 20" in str(result.exception)


@pytest.mark.parametrize("place", ["/dev/null/page.html", "/"])
def test_a_page_that_cannot_be_written_is_refused_before_the_work(place: str) -> None:
    result = CliRunner().invoke(app, ["demo", "--output", place])
    assert isinstance(result.exception, MrcError) and "cannot write" in str(result.exception)
    assert result.output == ""


@pytest.mark.parametrize("place", ["/dev/null/page.html", "/", "/proc/x/y.html"])
@pytest.mark.parametrize("command", [["sim", SCENARIO], ["plan"], ["assess", FABRIC], ["study", "study"]])
def test_a_report_that_cannot_be_written_is_refused_before_the_work(place: str, command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--report", place])
    assert isinstance(result.exception, MrcError) and "cannot write" in str(result.exception)
    assert result.output == ""


@pytest.mark.parametrize(
    "command",
    [
        ["sim", SCENARIO, "--report"],
        ["plan", "--report"],
        ["plan", "--gpus", "64", "--spares", "0", "--planes", "1", "--tiers", "1", "--write"],
        ["assess", FABRIC, "--report"],
        ["study", "study", "--report"],
        ["demo", "--output"],
        ["fabric", "draw", FABRIC, "--output"],
    ],
)
def test_a_name_that_was_mistyped_makes_no_folder(tmp_path: Path, command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, str(tmp_path / "mistyped" / "x")])
    assert isinstance(result.exception, MrcError) and f"no folder '{tmp_path}/mistyped'" in str(result.exception)
    assert not any(tmp_path.iterdir())


def test_a_name_that_is_no_text_is_shown_all_the_same(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from softmrc.cli import main; main()", "fabric", "draw", FABRIC, "--output"]
    done = subprocess.run([*program, os.fsdecode(b"\xff.svg")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "" and "\\udcff.svg" in done.stdout


def test_who_reads_only_the_beginning_sees_no_traceback() -> None:
    program = (
        f"{sys.executable} -c 'from softmrc.cli import main; main()' fabric routes {FABRIC} --from host0 --to host7"
    )
    done = subprocess.run(f"{program} | head -n 1", shell=True, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.stdout.startswith("ev 0")


def test_help_breaks_no_line_but_where_a_paragraph_ends() -> None:
    assert all(command.help for command in COMMANDS.values())
    assert not [name for name, command in COMMANDS.items() if "\n" in command.help.replace("\n\n", "")]
