"""What the core declares is written elsewhere only by `make settings`; each controller has its own file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from softmrc import _core

ROOT = Path(__file__).parents[2]
CONGESTION = ROOT / "core" / "proto" / "congestion"
LIST = CONGESTION / "controller.h"


@pytest.mark.parametrize("tool", ["settings", "counters"])
def test_what_is_written_from_the_core_is_up_to_date(tool: str) -> None:
    done = subprocess.run([sys.executable, f"tools/{tool}.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def class_of(name: str) -> str:
    return "".join(word.title() for word in name.split("_"))


@pytest.mark.parametrize("name", _core.controllers())
def test_nothing_in_the_core_knows_a_controller_but_itself_and_the_list(name: str) -> None:
    word = re.compile(rf'\b{class_of(name)}\b|"{name}"')
    own = {path for path in CONGESTION.iterdir() if path.stem == name}
    assert own, f"{name} has its own file"
    paths = [path for path in (ROOT / "core").rglob("*") if path.suffix in {".h", ".cpp"}]
    others = [
        str(path.relative_to(ROOT)) for path in paths if path not in own | {LIST} and word.search(path.read_text())
    ]
    assert not others, f"{name} is named in {', '.join(others)}"
