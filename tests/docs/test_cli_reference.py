"""docs/reference/cli.md is what tools/cli_reference.py writes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_of_the_command_line_is_current() -> None:
    pytest.importorskip("softmrc_bench")
    tool = runpy.run_path(str(ROOT / "tools" / "cli_reference.py"))
    written = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert written == tool["page"](), "run python tools/cli_reference.py"
