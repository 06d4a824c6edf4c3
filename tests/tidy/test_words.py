"""tools/words.py: which words are found where, and that its baseline can only shrink."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _words() -> Any:
    spec = importlib.util.spec_from_file_location("words_tool", ROOT / "tools" / "words.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


words = _words()
LISTED = tomllib.loads(words.LIST.read_text(encoding="utf-8"))
BASELINE = tomllib.loads(words.BASELINE.read_text(encoding="utf-8"))


def found(path: str, text: str, usual: dict[str, list[str]] | None = None) -> list[tuple[int, str]]:
    return [(hit.line, hit.found) for hit in words.hits(path, text, LISTED["retired"], usual or {})]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("docs/a.md", "Nice weather.\n\n    weather in code\n\nA `weather` and\nkin.", [(1, "weather"), (6, "kin")]),
        ("docs/a.md", "```\nmended\n```\nMended", [(4, "Mended")]),
        ("src/a.py", 'weather = {"weather": 1}  # mends it\n', [(1, "mends")]),
        ("src/a.py", '"""First.\n\nSwallows.\n"""\nx = f"it is told {1}"\n', [(3, "Swallows"), (5, "is told")]),
        ("tests/a.py", '"""A liar."""\nassert "nobody else" in x  # anew\n', [(1, "liar"), (2, "anew")]),
        ("core/a.h", "int weather;  // a lap\n/* two\n   doors */\n", [(1, "lap"), (3, "doors")]),
        ("core/a.h", 'f("a door", "door");\n', [(1, "door")]),
        ("core/a.h", "// spec: sealed-packets\n// sent again\n", [(2, "sent again")]),
        ("docs/a.md", "Its own thread. The end of its own write. A thread of its own.", [(1, "of its own")]),
        ("docs/a.md", "Overlap, seals, lapse, kinds, mending", [(1, "mending"), (1, "seals")]),
    ],
)  # fmt: skip
def test_words_are_found_in_prose_only(path: str, text: str, expected: list[tuple[int, str]]) -> None:
    assert sorted(found(path, text)) == sorted(expected)


def test_a_word_with_its_usual_meaning_is_left_alone() -> None:
    usual = {"crews?": ["repair crew", "src/planner/*"]}
    assert found("docs/a.md", "a repair crew\nthe crew", usual) == [(2, "crew")]
    assert not found("src/planner/a.py", "# the crew\n", usual)
    assert set(LISTED["usual"]) <= set(LISTED["retired"])


def test_every_word_has_a_replacement() -> None:
    assert all(instead.strip() for instead in LISTED["retired"].values())


def test_a_baseline_only_shrinks() -> None:
    assert words.lowered({"a": 3, "b": 2, "c": 1}, Counter(a=5, b=1, d=4)) == {"a": 3, "b": 1}


def test_no_folder_has_more_retired_words_than_its_baseline() -> None:
    counts = Counter(words.folder_of(hit.path) for hit in words.scan())
    assert {folder: count for folder, count in counts.items() if count > BASELINE.get(folder, 0)} == {}
