"""Rejects retired words in pages, comments, docstrings, help and messages: `python tools/words.py`.

tools/words.toml lists each word, what to write instead, and where it has its usual meaning. Folders that still have
hits are in tools/words_baseline.toml; `python tools/words.py baseline` lowers its counts and never raises one.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIST, BASELINE = ROOT / "tools" / "words.toml", ROOT / "tools" / "words_baseline.toml"
PAGES, PYTHON, CXX = {".md"}, {".py", ".pyi"}, {".h", ".cpp", ".c", ".lua"}
CODE = re.compile(r"``?[^`\n]*``?|\bspec: [^\n]*")
FENCE = re.compile(r"^ *```.*?^ *```|^    .*?$", re.DOTALL | re.MULTILINE)
CXX_PROSE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|--[^\n]*', re.DOTALL)


class Hit(NamedTuple):
    path: str
    line: int
    found: str
    instead: str


def blanked(text: str, pattern: re.Pattern[str]) -> str:
    """The text with every match replaced by spaces; lines keep their numbers."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def python_prose(text: str, is_test: bool) -> Iterator[tuple[int, str]]:
    """Comments and strings with a space in them; of tests docstrings only, since other strings quote messages."""
    strings = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_text = token.type in strings and len(token.string.split()) > 1 and (not is_test or '"""' in token.string)
        if token.type == tokenize.COMMENT or is_text:
            yield from enumerate(token.string.split("\n"), token.start[0])


def prose(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Line numbers and what a person reads there."""
    suffix = Path(path).suffix
    if suffix in PYTHON:
        yield from python_prose(text, path.startswith("tests/"))
    elif suffix in CXX:
        for match in CXX_PROSE.finditer(text):
            if len(match[0].split()) > 1:
                yield from enumerate(match[0].split("\n"), text.count("\n", 0, match.start()) + 1)
    else:
        yield from enumerate(blanked(text, FENCE).split("\n"), 1)


def hits(path: str, text: str, words: dict[str, str], usual: dict[str, list[str]]) -> list[Hit]:
    """Every retired word of a file. `usual` are paths, or parts of a line, where it has its usual meaning."""
    patterns = [
        (re.compile(rf"\b(?:{word})\b", re.IGNORECASE), usual.get(word, []), instead) for word, instead in words.items()
    ]
    found = []
    for line, shown in prose(path, text):
        read = blanked(shown, CODE)
        for pattern, where, instead in patterns:
            if (match := pattern.search(read)) and not any(fnmatch(path, one) or one in shown for one in where):
                found.append(Hit(path, line, match[0], instead))
    return found


def folder_of(path: str) -> str:
    """The folder under which the baseline counts a file."""
    parts = Path(path).parts[:-1]
    if parts[:1] == ("docs",):
        return "docs/design" if parts == ("docs", "design") else "docs"
    return "/".join(parts[: 3 if parts[:1] == ("src",) else 2]) or "."


def scan() -> list[Hit]:
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    paths = [path for path in done.stdout.splitlines() if Path(path).suffix in PAGES | PYTHON | CXX]
    paths = [path for path in paths if not any(fnmatch(path, where) for where in listed["skipped"])]
    there = [path for path in paths if (ROOT / path).is_file()]
    return [hit for path in there for hit in hits(path, (ROOT / path).read_text(), listed["retired"], listed["usual"])]


def lowered(baseline: dict[str, int], counts: Counter[str]) -> dict[str, int]:
    """The baseline after some hits were fixed; no count grows and no folder is added."""
    least = {folder: min(allowed, counts[folder]) for folder, allowed in baseline.items()}
    return {folder: count for folder, count in sorted(least.items()) if count}


def main() -> int:
    found = scan()
    counts = Counter(folder_of(hit.path) for hit in found)
    baseline = tomllib.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    if sys.argv[1:] == ["baseline"]:
        rows = [f'"{folder}" = {count}' for folder, count in lowered(baseline, counts).items()]
        BASELINE.write_text("\n".join(["# Retired words left in each folder; see tools/words.py.", *rows, ""]))
        return 0
    over = {folder for folder, count in counts.items() if count > baseline.get(folder, 0)}
    for hit in found:
        if folder_of(hit.path) in over or sys.argv[1:] == ["all"]:
            print(f"{hit.path}:{hit.line}: {hit.found!r}: write {hit.instead}")
    for folder in sorted(over):
        print(f"{folder}: {counts[folder]} retired words, {baseline.get(folder, 0)} in the baseline")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
