"""The pages on fabrics, studies and the lab: commands print what the pages show, times and counters aside."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import needs
from in_process import softmrc_here
from softmrc.fabric import parse

ROOT = Path(__file__).parents[2]
FABRIC, LAB, STUDY = (
    ROOT / "docs" / name for name in ("tutorials/design-a-fabric.md", "guides/lab.md", "guides/study.md")
)


def sessions(text: str) -> list[tuple[str, str]]:
    """Every command of a page's console sessions, with what it printed."""
    fenced = re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    blocks = [block for block in fenced if block.startswith("$ ")]
    parts = [part for block in blocks for part in ("\n" + block).split("\n$ ")[1:]]
    return [(command, output.rstrip()) for command, _, output in (part.partition("\n") for part in parts)]


def begin(command: str) -> tuple[subprocess.Popen[str], str]:
    """One that goes on for a while: its process, and the first line that it prints."""
    arguments = shlex.split(command.removeprefix("sudo softmrc ").removesuffix(" &"))
    start = [sys.executable, "-c", "from softmrc.cli import main; main()"]
    process = subprocess.Popen([*start, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().rstrip()


def run(command: str, **others: str) -> str:
    program, *arguments = shlex.split(command.removeprefix("sudo "))
    env = {"COLUMNS": "80"} | others
    # `lab` works in namespaces, and ends the processes that it finds there: never in ours.
    if program == "softmrc" and arguments[0] != "lab":
        done: Any = softmrc_here(*arguments, cwd=ROOT, **env)
    else:
        start = [sys.executable, *(["-m", "softmrc"] if program == "softmrc" else [])]
        words = [*start, *arguments]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, env=os.environ | env)
    is_refused = done.stdout.rstrip().endswith("None of the requested designs can be built.")
    assert (done.returncode, done.stderr) == (3 if is_refused else 0, "")
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())


@pytest.mark.parametrize(
    ("command", "printed"),
    sessions(FABRIC.read_text()) + sessions(STUDY.read_text()),
    ids=lambda v: v.splitlines()[0][:60],
)
def test_the_sessions_about_a_fabric_are_real(command: str, printed: str) -> None:
    assert run(command) == printed


def test_the_python_session_is_real() -> None:
    found = doctest.testfile(str(FABRIC), module_relative=False)
    assert found.attempted > 5 and not found.failed


def test_the_toml_of_the_pages_can_be_read() -> None:
    for page in (FABRIC, LAB):
        for text in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL):
            assert parse(text).fabric.planes >= 4


def steady(text: str) -> str:
    """Without what differs from run to run: seconds, and what ports have sent."""
    text = re.sub(r"\d+\.\d+ s\b", "# s", text)
    return re.sub(r"(│ [du]\d +│ \w+ +│ \w+ +│) .*", r"\1", text)


# A real process: a command of the session goes on behind the others.
@pytest.mark.process
@needs.lab
@needs.BPF
def test_the_session_in_a_lab_is_real(tmp_path: Path) -> None:
    """With a lab of another name, so that it may run next to one that is up."""
    name = f"doc{os.getpid()}"
    (tmp_path / f"{name}.toml").write_text((ROOT / "examples" / "lab.toml").read_text())
    commands = sessions(LAB.read_text())
    commands = commands[: [c for c, _ in commands].index("sudo softmrc lab down") + 1]
    assert len(commands) == 8 and commands[0][0].endswith("examples/lab.toml")
    behind: list[subprocess.Popen[str]] = []
    try:
        for command, printed in commands:
            words = command.replace("examples/lab.toml", str(tmp_path / f"{name}.toml"))
            if " up " not in words:
                verb = re.search(r"lab (\w+)", words)
                assert verb is not None
                words = words.replace(f"lab {verb[1]}", f"lab {verb[1]} --lab {name}", 1)
            if words.endswith(f"graph --lab {name}"):
                words += f" -o {tmp_path / 'lab.svg'}"
                assert run(words).endswith("lab.svg")
                continue
            if words.endswith(" &"):
                process, found = begin(words)
                behind.append(process)
                assert found == printed
                continue
            found = run(words, COLUMNS="200" if "inspect" in words else "80")
            found = re.sub(rf"\b{name}\b", "lab", found)
            if "inspect" in words:
                assert "p2.spine3 (reboot)" in found and "down" in found
                continue
            assert steady(found) == steady(printed)
    finally:
        for process in behind:
            process.kill()
            process.communicate()
        down = [sys.executable, "-m", "softmrc", "lab", "down", "--lab", name]
        subprocess.run(down, cwd=ROOT, capture_output=True, timeout=300, check=False)


# A real process: it is a program of the examples.
@pytest.mark.process
@needs.lab
def test_the_example_proves_every_path() -> None:
    printed = next(out for command, out in sessions(LAB.read_text()) if "lab_paths.py" in command)
    found = run("python examples/lab_paths.py")
    assert found == printed and found.count("and no other") == 16
