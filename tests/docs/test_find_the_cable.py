"""docs/tutorials/find-the-cable.md: in a lab the mapper names what the page breaks; a simulated one prints the page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import needs

pytestmark = pytest.mark.docs

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "find-the-cable.md").read_text()
CLOCK = re.compile(r"\d\d:\d\d:\d\d")


def session() -> list[tuple[str, str]]:
    """Each command of the page, with what it prints."""
    blocks = re.findall(r"^```\n(\$ .*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    parts = [part for block in blocks for part in ("\n" + block).split("\n$ ")[1:]]
    return [(command, printed.rstrip()) for command, _, printed in (part.partition("\n") for part in parts)]


def run(words: list[str], folder: Path, **more: str) -> str:
    command = [sys.executable, "-m", "softmrc", *words]
    env = {**os.environ, "COLUMNS": "80", **more}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    finds = words[0] == "mapper" and "nothing is broken" not in done.stdout
    assert done.returncode == (3 if finds else 0), done.stdout + done.stderr
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())


def test_the_simulated_fabric_prints_the_page(tmp_path: Path) -> None:
    ((command, printed),) = [one for one in session() if one[0].startswith("softmrc ")]
    assert CLOCK.sub("#", run(shlex.split(command)[1:], tmp_path)) == CLOCK.sub("#", printed)


@needs.lab
@needs.BPF
def test_the_mapper_names_what_the_page_breaks(tmp_path: Path) -> None:
    """With a lab of another name, so that one that is up does not conflict."""
    name = f"cable{os.getpid()}"
    (tmp_path / f"{name}.toml").write_text((ROOT / "examples" / "lab.toml").read_text())
    try:
        for command, printed in session():
            if not command.startswith("sudo softmrc "):
                continue
            words = shlex.split(command)[2:]
            words = [str(tmp_path / f"{name}.toml")] if "examples/lab.toml" in words else words
            words = ["lab", "up", *words] if words[0].endswith(".toml") else [*words[:2], "--lab", name, *words[2:]]
            found = run(words, tmp_path, COLUMNS="200")
            for what in ("p0.leaf0-spine1", " dead ", " loses "):  # on a busy machine something may be slow, too
                assert (what in found) == (what in printed), f"{command}\n{found}"
        assert "p0.leaf0>spine1" in (tmp_path / "denylist.json").read_text()
    finally:
        down = [sys.executable, "-m", "softmrc", "lab", "down", "--lab", name]
        subprocess.run(down, capture_output=True, timeout=300, check=False)
