"""Reads the golden packets: pages written by hand from the header tables, not by our encoder."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
LINE = re.compile(r"^(\d+)  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:\s{2,}.*)?$")


def names() -> list[str]:
    """Every golden packet there is."""
    return sorted(path.stem for path in HERE.glob("*.txt"))


def load(name: str) -> bytes:
    """The bytes of a golden packet; its offsets have to be right, or the page is not to be trusted."""
    data = b""
    for number, line in enumerate((HERE / f"{name}.txt").read_text().splitlines(), 1):
        if line.startswith("#") or line.isalpha() or line == "CC_STATE":
            continue
        match = LINE.match(line)
        assert match, f"{name}.txt:{number}: not an offset and bytes: {line!r}"
        assert int(match[1]) == len(data), f"{name}.txt:{number}: offset {match[1]} should be {len(data)}"
        data += bytes.fromhex(match[2])
    return data
