"""Checks the style of C++ files with clang-format and looks for errors with clang-tidy: lint_cpp.py [--fix] JOBS.

A file that passed clang-tidy is checked again when it, a header that it includes, or .clang-tidy has changed.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "tidy"
PASSED = BUILD / "passed"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
FOLDERS = ("core", "benchmarks", "fuzz", "tests")
BIN = Path(sys.executable).parent


def sources() -> list[Path]:
    endings = ("*.h", "*.cpp")
    return sorted(path for folder in FOLDERS for ending in endings for path in (ROOT / folder).rglob(ending))


@cache
def with_headers(path: Path) -> frozenset[Path]:
    """This file, and what it includes of ours."""
    found = {path}
    for name in INCLUDE.findall(path.read_text()):
        for header in (ROOT / "core" / name, path.parent / name):
            if header.is_file() and header not in found:
                found |= with_headers(header)
    return frozenset(found)


def version_of(path: Path) -> str:
    digest = hashlib.sha256((ROOT / ".clang-tidy").read_bytes())
    for part in sorted(with_headers(path)):
        digest.update(part.read_bytes())
    return digest.hexdigest()


def tidy(path: Path) -> str:
    """What clang-tidy reports of this file; empty if nothing."""
    stamp = PASSED / str(path.relative_to(ROOT)).replace("/", "__")
    version = version_of(path)
    if stamp.exists() and stamp.read_text() == version:
        return ""
    command = [BIN / "clang-tidy", "--quiet", "-p", BUILD / "all", path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        stamp.write_text(version)
        return ""
    return done.stdout + ("" if done.stdout else done.stderr)


def main() -> int:
    fix = "--fix" in sys.argv
    jobs = int(sys.argv[-1])
    style = ["-i"] if fix else ["--dry-run", "-Werror"]
    if subprocess.run([BIN / "clang-format", *style, *sources()], check=False).returncode:
        print("Run `make format`.", file=sys.stderr)
        return 1
    # Without precompiled headers, which are gcc's, and with the files of each folder apart.
    options = ["-DSOFTMRC_PCH=OFF", "-DSOFTMRC_ONE_BY_ONE=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    commands = []
    for source, build in ((ROOT, BUILD), (ROOT / "benchmarks", BUILD / "benchmarks")):
        configure = [
            BIN / "cmake",
            "-S",
            source,
            "-B",
            build,
            *options,
            "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
            "-Wno-dev",
        ]
        done = subprocess.run(configure, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout + done.stderr, file=sys.stderr)
            return 1
        commands += json.loads((build / "compile_commands.json").read_text())
    (BUILD / "all").mkdir(exist_ok=True)
    (BUILD / "all" / "compile_commands.json").write_text(json.dumps(commands))
    PASSED.mkdir(exist_ok=True)
    ours = [ROOT / folder for folder in FOLDERS]
    files = sorted({path for one in commands if any((path := Path(one["file"])).is_relative_to(x) for x in ours)})
    with ThreadPoolExecutor(jobs) as pool:
        reports = [report for report in pool.map(tidy, files) if report]
    print("\n".join(reports), end="")
    return 1 if reports else 0


if __name__ == "__main__":
    sys.exit(main())
