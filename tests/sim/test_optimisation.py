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
CORE = ROOT / "core"
ROOMS = ("base", "wire", "proto", "collectives", "sim")
HEADERS = [path for room in ROOMS for path in (CORE / room).rglob("*.h")]


def compiler() -> str:
    found = next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)
    if found is None:
        pytest.skip("no C++ compiler (c++, g++ or clang++)")
    return found


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def compile_together(level: str, name: str, sources: list[Path], into: Path) -> Path:
    """An object file, kept until a source or a header changes. Most of what compiling a source costs is its headers."""
    made = into / level / f"{name}.o"
    newest = max(path.stat().st_mtime for path in [*sources, *HEADERS])
    if not made.exists() or made.stat().st_mtime < newest:
        made.parent.mkdir(exist_ok=True)
        draft = made.with_suffix(f".{os.getpid()}")  # two test runs may share the cache
        together = draft.with_suffix(".cpp")
        together.write_text("".join(f'#include "{source}"\n' for source in sources))
        run([compiler(), "-std=c++20", level, "-w", "-I", str(CORE), "-c", str(together), "-o", str(draft)])
        together.unlink()
        draft.rename(made)
    return made


def parts() -> dict[str, list[Path]]:
    """What is compiled as one: a room, but for the reductions, which are compiled twice under names of a macro."""
    found = {"trace": [ROOT / "tests" / "sim" / "native" / "trace.cpp"]}
    for room in ROOMS:
        for source in sorted((CORE / room).rglob("*.cpp")):
            found.setdefault(source.stem if source.stem.startswith("reduce_") else room, []).append(source)
    return found


@pytest.fixture(scope="module")
def programs(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    compiler()
    assert pytestconfig.cache is not None
    into = Path(pytestconfig.cache.mkdir("softmrc-trace"))
    found = {}
    with ThreadPoolExecutor(2) as pool:
        for level in LEVELS:
            made = [pool.submit(compile_together, level, name, sources, into) for name, sources in parts().items()]
            objects = [one.result() for one in made]
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
