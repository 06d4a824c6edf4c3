"""Scenarios and examples that travel with the package, by name: `t1-reboot` for `scenarios/t1-reboot.toml`.

In an installed package they lie inside it; in a clone at its root.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from softmrc.errors import ConfigError, did_you_mean

PACKAGE = Path(__file__).resolve().parent
ROOTS = (PACKAGE, PACKAGE.parent.parent)
SCENARIOS, EXAMPLES = "scenarios", "examples"


def folder(kind: str) -> Path | None:
    """Where things of this kind are; None where they were left out."""
    return next((root / kind for root in ROOTS if (root / kind).is_dir()), None)


def names(kind: str, ending: str = ".toml") -> dict[str, Path]:
    """What there is, by the name it is called by: its path below the folder, without the ending."""
    root = folder(kind)
    if root is None:
        return {}
    found = sorted(root.rglob(f"*{ending}"))
    return {file.relative_to(root).as_posix().removesuffix(ending): file for file in found if file.is_file()}


def find(wanted: Path, kind: str, field: str) -> Path:
    """A file that the user named: one of theirs, or one that is shipped."""
    try:
        if wanted.exists():
            return wanted
    except (OSError, ValueError):
        raise ConfigError(field, str(wanted), "the name of a file") from None
    known = names(kind)
    name = str(wanted).removesuffix(".toml").removeprefix(f"{kind}/")
    if name in known:
        return known[name]
    close = did_you_mean(name, known) or f"; {', '.join(known)} are shipped"
    raise ConfigError(field, str(wanted), f"a file that is there, or a shipped one{close}")


def question(file: Path) -> str:
    """What a scenario asks; empty where it is none."""
    try:
        return str(tomllib.loads(file.read_text(encoding="utf-8")).get("question", ""))
    except (OSError, ValueError):
        return ""
