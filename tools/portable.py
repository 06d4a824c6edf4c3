"""Builds the tests that need no Python, for this machine and for aarch64, runs the latter under QEMU, and compares.

Everything that the two print must be the same: checksums, reductions, golden packets, trace hashes of seeded runs.
Usage: portable.py JOBS [sanitize]

With `sanitize` they are built for this machine only, with AddressSanitizer and UndefinedBehaviorSanitizer, and no
report may come: the short form of tools/sanitize.py, which takes Python's tests along. Where clang is, the fuzzers are
built with them and run from their corpus, ten seconds each; elsewhere the corpus is replayed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "vectors"), str(ROOT / "tests" / "sim")]
from golden import load, names  # noqa: E402
from traces import RUNS  # noqa: E402

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
NEEDED = {"cmake": "cmake", COMPILER: "g++-aarch64-linux-gnu", EMULATOR: "qemu-user"}  # commands, and Debian's packages
SYSROOT = "/usr/aarch64-linux-gnu"
ARM64 = (
    "-DCMAKE_SYSTEM_NAME=Linux",
    "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
    f"-DCMAKE_CXX_COMPILER={COMPILER}",
    f"-DCMAKE_FIND_ROOT_PATH={SYSROOT}",
)
FUZZED = ("parse", "endpoint", "collectives")  # without OpenSSL
CORPUS = ROOT / "fuzz" / "corpus"


def path() -> str:
    """Where commands are looked for: next to this interpreter first, as virtual environments bring their own cmake."""
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def build(folder: Path, jobs: str, *options: str) -> None:
    environment = {**os.environ, "PATH": path()}
    configure = ["cmake", "-S", ROOT, "-B", folder, "-DSOFTMRC_NATIVE_TESTS=ON", "-DCMAKE_BUILD_TYPE=Release", *options]
    subprocess.run(configure, check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "-j", jobs], check=True, env=environment)


def vectors() -> str:
    """What `portable` reads: a golden packet or an expansion a line."""
    lines = [f"packet {load(name).hex()}" for name in names() if name != "endpoint_response_other_reading"]
    profiles = tomllib.loads((ROOT / "tests" / "vectors" / "ev_expansion.toml").read_text())["profile"]
    for profile in profiles:
        fields = [number for field in profile["fields"] for number in field]
        layout = [len(profile["widths"]), *profile["widths"], len(profile["fields"]), *fields]
        for ev, expanded in profile["expansions"]:
            lines.append(" ".join(map(str, ["expansion", *layout, ev, expanded])))
    return "\n".join(lines) + "\n"


def results(folder: Path, *emulator: str) -> str:
    """Everything that the programs print; one that fails ends us."""
    commands = [[folder / "portable"], *([folder / "trace", *words.split()] for words in RUNS.values())]
    replays = [[folder / f"replay_{name}", CORPUS / name] for name in FUZZED]
    commands += [replay for replay in replays if replay[0].exists()]
    printed = ""
    for command in commands:
        done = subprocess.run(
            [*emulator, *command], input=vectors(), capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        printed += f"{command[0].name:<19} " + done.stdout.replace("\n", f"\n{'':20}").rstrip() + "\n"
    return printed


# Quick to compile, and as good to find what is wrong.
SANITIZED = ("-DSOFTMRC_SANITIZE=address", "-DSOFTMRC_UNITY=ON", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -g1")
FUZZING = ("-DSOFTMRC_FUZZ=ON", "-DCMAKE_CXX_COMPILER=clang++")


def fuzz(program: Path) -> str:
    """From its corpus on; new inputs go into a temporary folder."""
    name = program.name.removeprefix("fuzz_")
    with tempfile.TemporaryDirectory() as found:
        command = [program, "-max_total_time=10", "-print_final_stats=1", "-verbosity=0", found, CORPUS / name]
        done = subprocess.run(command, cwd=found, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            kept = ROOT / "build" / "fuzz-found"
            shutil.copytree(found, kept, dirs_exist_ok=True)
            sys.exit(f"{program.name} ended with {done.returncode}; see {kept}\n{done.stderr[-6000:]}")
    runs = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    return f"{program.name:<19} {runs[1] if runs else 'no'} runs\n"


def sanitized(jobs: str) -> None:
    has_clang = shutil.which("clang++") is not None
    folder = ROOT / "build" / ("sanitize-short-clang" if has_clang else "sanitize-short")
    if not has_clang:
        print("There is no clang++: what the fuzzers have learnt is replayed, and nothing added to it.", flush=True)
    build(folder, jobs, *SANITIZED, *(FUZZING if has_clang else ()))
    print(results(folder), end="", flush=True)
    with ThreadPoolExecutor(int(jobs)) as pool:
        for line in pool.map(fuzz, sorted(folder.glob("fuzz_*"))):
            print(line, end="", flush=True)
    print("Nothing was reported.")


def main(jobs: str, what: str = "arm64") -> None:
    if what == "sanitize":
        sanitized(jobs)
        return
    missing = [package for command, package in NEEDED.items() if not shutil.which(command, path=path())]
    if missing:
        sys.exit(f"Building for aarch64 needs {', '.join(missing)} (on Debian: apt install {' '.join(missing)}).")
    here, there = ROOT / "build" / "portable", ROOT / "build" / "arm64"
    build(here, jobs)
    build(there, jobs, *ARM64)
    with ThreadPoolExecutor(2) as pool:
        ours = pool.submit(results, here)
        theirs = pool.submit(results, there, EMULATOR, "-L", SYSROOT)
    print(theirs.result(), end="")
    if ours.result() != theirs.result():
        sys.exit(f"aarch64 does not give what {os.uname().machine} gives:\n{ours.result()}")
    print(f"The same on aarch64 and on {os.uname().machine}.")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["2"])
