"""Files, modules and classes that pages name in backticks are those of the tree."""

from __future__ import annotations

import builtins
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
NOTES = [page for page in PAGES if page.parent.name == "design"]
SOURCES = [ROOT / name for name in ("core", "src", "tests", "tools", "benchmarks", "fuzz", "examples", "contrib")]
BASES = [ROOT, ROOT / "core", ROOT / "src", ROOT / "src" / "softmrc"]  # a page may leave these out
SUFFIXES = (".h", ".cpp", ".py", ".c", ".lua")
QUOTED = re.compile(r"`([^`\n]+)`")
FOREIGN = {"Future", "PythonCallbackWork", "Reducer", "Work"}  # classes of torch


@cache
def folders() -> set[str]:
    """First parts of paths into the tree; build/ holds what was made."""
    return {path.name for base in BASES for path in base.iterdir() if path.is_dir()} - {"build"}


@cache
def file_names() -> set[str]:
    return {path.name for folder in SOURCES for path in folder.rglob("*") if path.suffix in SUFFIXES}


@cache
def classes() -> set[str]:
    defined = re.compile(r"\b(?:class|struct|concept|using|enum)\s+(\w+)|^(\w+) = ", re.MULTILINE)
    texts = [path.read_text() for folder in SOURCES for path in folder.rglob("*") if path.suffix in SUFFIXES]
    return {name for text in texts for match in defined.findall(text) for name in match} | FOREIGN | set(dir(builtins))


def module_exists(dotted: str) -> bool:
    """Whether `softmrc.a.b` is a module, or a name that module softmrc.a has."""
    *parts, last = dotted.split(".")
    folder = (ROOT / "src").joinpath(*parts)
    if (folder / last).is_dir() or (folder / f"{last}.py").is_file():
        return True
    texts = [file.read_text() for file in (folder.with_suffix(".py"), folder / "__init__.py") if file.is_file()]
    return any(re.search(rf"\b{last}\b", text) for text in texts) or (
        bool(parts[1:]) and module_exists(".".join(parts))
    )


def missing(text: str) -> list[str]:
    """Files and modules of the tree that a page names and that are not there."""
    found = []
    for token in (token for quoted in QUOTED.findall(text) for token in quoted.split()):
        if re.fullmatch(r"softmrc(\.\w+)+", token) and not token.endswith(SUFFIXES):
            there = module_exists(token)
        elif re.fullmatch(r"[\w.*-]+(/[\w.*-]*)+", token):
            inside = token.split("/")[0] in folders() or token.endswith(SUFFIXES)
            there = not inside or any(any(base.glob(token.rstrip("/").replace("NAME", "*"))) for base in BASES)
        elif re.fullmatch(r"\w[\w-]*(\.\w+)*", token) and token.endswith(SUFFIXES):
            there = token in file_names()
        else:
            continue
        if not there:
            found.append(token)
    return found


def undefined(text: str) -> list[str]:
    """Classes that a note names and that nothing defines."""
    names = [re.match(r"([A-Z][a-z]\w*)(?:(?:::|\.|\()\S*)?$", quoted) for quoted in QUOTED.findall(text)]
    return [name[1] for name in names if name and name[1] not in classes() and not (ROOT / name[1]).exists()]


def test_the_check_can_fail() -> None:
    assert missing("`core/face/door.h` `face.cpp` `proto/silence.h` `tests/unit` `softmrc.verbs`") == [
        "core/face/door.h",
        "face.cpp",
        "proto/silence.h",
        "softmrc.verbs",
    ]
    assert missing("`python tools/nothing.py --all` `src/softmrc/face/`") == ["tools/nothing.py", "src/softmrc/face/"]
    assert missing("`connection/x.py` `build/x.h` `says/R` `/tmp/x.py`") == ["connection/x.py", "build/x.h"]
    assert not missing("`proto/endpoint.h` `core/*/settings.h` `sim/` `shard.h` `softmrc.sim` `softmrc.wire.Packet`")
    assert undefined("`Strand` `Requester::on_ack` `Door`") == ["Strand", "Door"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    assert missing(page.read_text()) == []


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.name)
def test_classes_that_a_design_note_names_exist(note: Path) -> None:
    assert undefined(note.read_text()) == []
