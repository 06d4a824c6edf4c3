"""Files that commands take, of which some travel with the package and go by their names: `t1-reboot` for
`scenarios/t1-reboot.toml`. In an installed package they lie inside it; in a clone at its root.

There are three kinds, recognised by keys that only they have; a file of another kind is refused with the command that
takes it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from softmrc.errors import ConfigError, did_you_mean

PACKAGE = Path(__file__).resolve().parents[1]
ROOTS = (PACKAGE, PACKAGE.parent.parent)
EXAMPLES = "examples"
SCENARIOS, STUDIES, FABRICS = "scenario", "study", "fabric file"
FOLDERS = {SCENARIOS: "scenarios", STUDIES: EXAMPLES, FABRICS: EXAMPLES}
MARKS = {SCENARIOS: ("question", "workload"), STUDIES: ("gpus", "vary"), FABRICS: ("fabric",)}  # asked in this order
TAKEN_BY = {SCENARIOS: "softmrc sim", STUDIES: "softmrc study", FABRICS: "softmrc assess"}


def folder(name: str) -> Path | None:
    """Where a folder of the package is; None where it was left out."""
    return next((root / name for root in ROOTS if (root / name).is_dir()), None)


def kind_of(file: Path) -> str | None:
    """What kind a file is; None if that cannot be decided."""
    table = _read(file)
    return next((kind for kind, marks in MARKS.items() if any(mark in table for mark in marks)), None)


def names(kind: str) -> dict[str, Path]:
    """What there is of a kind, by the name it is called by: its path below the folder, without the ending."""
    root = folder(FOLDERS[kind])
    if root is None:
        return {}
    found = {file.relative_to(root).as_posix().removesuffix(".toml"): file for file in sorted(root.rglob("*.toml"))}
    return {name: file for name, file in found.items() if kind_of(file) == kind}


def find(wanted: Path, kind: str, field: str) -> Path:
    """A file that the user named: one of theirs, or one that is shipped."""
    try:
        if wanted.is_dir():
            raise ConfigError(field, str(wanted), "must be a .toml file, and is a directory")
        if wanted.exists():
            return _of_kind(wanted, kind, field, wanted)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(field, str(wanted), "must be the name of a file") from None
    name = str(wanted).removesuffix(".toml").removeprefix(f"{FOLDERS[kind]}/")
    known = names(kind)
    if name in known:
        return known[name]
    for other in MARKS:
        if name in names(other):
            return _of_kind(names(other)[name], kind, field, wanted)
    listing = "Run `softmrc examples` to list the built-in ones." if kind == SCENARIOS else _built_in(known)
    hint = did_you_mean(name, known) or listing
    raise ConfigError(field, str(wanted), f"no such file, and no built-in {kind}", hint)


def _built_in(known: Iterable[str]) -> str:
    return f"Built in: {', '.join(known)}."


def _of_kind(file: Path, kind: str, field: str, wanted: Path) -> Path:
    found = kind_of(file)
    if found not in (None, kind):
        raise ConfigError(field, str(wanted), f"must be a {kind}, and is a {found}", f"Use `{TAKEN_BY[found]}` for it.")
    return file


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}


def question(file: Path) -> str:
    """What a scenario asks; empty where it is none."""
    return str(_read(file).get("question", ""))
