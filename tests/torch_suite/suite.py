"""Torch's own tests on our backend and on Gloo, side by side: `make torch-suite`.

Fails if there is a test that Gloo passes, we do not, and `excused.toml` does not name.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SIZES = {"narrow": 3, "wide": 8, "rpc": 0}  # ranks; a few tests want one number or the other, those of rpc choose
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
SILENCE_S = 300.0  # twice what a test may take by its own rules

Outcome = dict[str, Any]
Column = dict[str, Outcome]  # by test


def names(width: str) -> list[str]:
    """Every test there is."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch_suite.column", "gloo", width, str(SIZES[width])],
        cwd=ROOT, env=ENV, input="", capture_output=True, text=True, timeout=SILENCE_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [json.loads(line)["test"] for line in done.stdout.splitlines()]


def column(backend: str, width: str, tests: list[str], log: Path, size: int | None = None) -> Iterator[Outcome]:
    """How each test ended. A process that hangs or dies costs the test that it was at."""
    left = list(tests)
    while left:
        for one in _some(backend, width, SIZES[width] if size is None else size, tuple(left), log):
            left.remove(one["test"])
            yield one
        if left:
            yield {"test": left.pop(0), "ended": "fail", "seconds": SILENCE_S, "words": "hung, or died"}


def _some(backend: str, width: str, size: int, tests: Sequence[str], log: Path) -> Iterator[Outcome]:
    with log.open("a") as errors, subprocess.Popen(
        [sys.executable, "-m", "tests.torch_suite.column", backend, width, str(size)],
        cwd=ROOT, env=ENV, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout
        process.stdin.write("\n".join(tests))
        process.stdin.close()
        try:
            for _ in tests:
                if not select.select([process.stdout], [], [], SILENCE_S)[0]:
                    return
                if not (line := process.stdout.readline()):
                    errors.write(f"the process ended: {process.wait()}\n")
                    return
                yield json.loads(line)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def excuses() -> dict[str, str]:
    """Tests that need not pass, and why."""
    with (HERE / "excused.toml").open("rb") as file:
        return tomllib.load(file)


def behind(ours: Column, gloos: Column) -> list[str]:
    """Tests that Gloo passes and we do not, nor skip by their own rules."""
    return [name for name, one in gloos.items() if one["ended"] == "pass" and ours[name]["ended"] == "fail"]


def table(columns: dict[tuple[str, str], Column]) -> str:
    lines = [f"{'':22}{'Gloo':^24}{'mrc':^24}", f"{'':22}" + f"{'pass':>8}{'fail':>8}{'skip':>8}" * 2]
    for width in dict.fromkeys(width for width, _ in columns):
        counts = [Counter(one["ended"] for one in columns[width, backend].values()) for backend in ("gloo", "mrc")]
        cells = "".join(f"{count[ended]:8}" for count in counts for ended in ("pass", "fail", "skip"))
        lines.append(f"{width + (f', {SIZES[width]} ranks' if SIZES[width] else ''):22}{cells}")
    return "\n".join(lines)


def run(widths: list[str], select_by: str, out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    excused, columns, is_bad = excuses(), {}, False
    for width in widths:
        tests = [name for name in names(width) if re.search(select_by, name)]
        for backend in ("gloo", "mrc"):
            found: Column = {}
            for one in column(backend, width, tests, out / f"{width}-{backend}.log"):
                found[one["test"]] = one
                if sys.stderr.isatty():
                    print(f"\r{width} {backend} {len(found)}/{len(tests)} ", end="", file=sys.stderr)
            columns[width, backend] = found
            (out / f"{width}-{backend}.json").write_text(json.dumps(found, indent=1))
    print("\r" + table(columns))
    needed = set()
    for width in widths:
        for name in behind(columns[width, "mrc"], columns[width, "gloo"]):
            needed.add(name)
            is_bad |= name not in excused
            print(f"{width}: {name}: {excused.get(name) or _why(columns[width, 'mrc'][name])}")
    if select_by == "." and len(widths) == len(SIZES):
        for name in excused.keys() - needed:
            print(f"{name} is excused and need not be")
    return int(is_bad)


def _why(one: Outcome) -> str:
    """The last error that the test's words name."""
    found = [line for line in one["words"].splitlines() if re.match(r"\w+(Error|Exception)\b", line)]
    return f"Gloo passes it; {(found or ['no reason'])[-1]}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", choices=list(SIZES), action="append", help="default: all")
    parser.add_argument("--select", default=".", help="a regular expression that names of tests must match")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "torch-suite")
    given = parser.parse_args()
    sys.exit(run(given.width or list(SIZES), given.select, given.out))
