"""The same seed gives the same trace at every optimisation level."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .traces import RUNS

ROOT = Path(__file__).parents[2]
LEVELS = ("-O0", "-O2")
ROOMS = ("base", "wire", "proto", "collectives", "sim")
SOURCES = [path for room in ROOMS for path in sorted((ROOT / "core" / room).rglob("*.cpp"))] + [
    ROOT / "tests" / "sim" / "native" / "trace.cpp"
]
HEADERS = [path for room in ROOMS for path in (ROOT / "core" / room).rglob("*.h")]


def compiler() -> str:
    found = next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)
    if found is None:
        pytest.skip("no C++ compiler (c++, g++ or clang++)")
    return found


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def compile_one(level: str, source: Path, into: Path) -> Path:
    """An object file, kept until a source or a header changes."""
    made = into / level / f"{source.parent.name}-{source.stem}.o"
    newest = max(path.stat().st_mtime for path in [source, *HEADERS])
    if not made.exists() or made.stat().st_mtime < newest:
        made.parent.mkdir(exist_ok=True)
        draft = made.with_suffix(f".{os.getpid()}")  # two test runs may share the cache
        run([compiler(), "-std=c++20", level, "-w", "-I", str(ROOT / "core"), "-c", str(source), "-o", str(draft)])
        draft.rename(made)
    return made


@pytest.fixture(scope="module")
def programs(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    compiler()
    assert pytestconfig.cache is not None
    into = Path(pytestconfig.cache.mkdir("softmrc-trace"))
    found = {}
    with ThreadPoolExecutor(2) as pool:
        for level in LEVELS:
            objects = list(pool.map(lambda source, level=level: compile_one(level, source, into), SOURCES))
            found[level] = tmp_path_factory.mktemp("trace") / "trace"
            run([compiler(), *map(str, objects), "-pthread", "-o", str(found[level])])
    return found


def trace(program: Path, words: str) -> str:
    done = subprocess.run([program, *words.split()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS.keys())
def test_the_trace_does_not_depend_on_optimisation(programs: dict[str, Path], words: str) -> None:
    plain, optimised = (trace(programs[level], words) for level in LEVELS)
    assert plain == optimised
    assert "32 of 32 flows" in plain


def test_another_seed_is_another_trace(programs: dict[str, Path]) -> None:
    """So that the comparison can fail."""
    first, second = (trace(programs["-O2"], RUNS["mrc"].replace(" 7 ", f" {seed} ")) for seed in (7, 8))
    assert first != second
