"""Builds a wheel for Python 3.11 on aarch64, here, and tries it under QEMU: python3.11 tools/wheel_arm64.py

The compiler is Debian's for aarch64; Python and what it stands on are Debian 12's packages for arm64, unpacked into
build/. What is built, carried and tried is what tools/wheel.py builds, carries and tries.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from debian import Archive, Unavailable
from libcrypto import static_libcrypto
from portable import COMPILER, EMULATOR, NEEDED
from wheel import DIST, ROOT, TOOLS, check_contents, made_venv, run, try_out

RELEASE = "bookworm"
SYSTEM = ROOT / "build" / "debian" / f"{RELEASE}-arm64-system"
PACKAGES = """
    python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libpython3.11-dev
    libc6 libstdc++6 libgcc-s1 libssl3 zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5 libuuid1
"""


def made_system() -> Path:
    """A command that is that Python."""
    if not SYSTEM.exists():
        archive = Archive(ROOT / "build" / "debian" / f"{RELEASE}-arm64", RELEASE, "arm64")
        with tempfile.TemporaryDirectory(dir=ROOT / "build" / "debian") as name:
            archive.unpack(PACKAGES.split(), Path(name) / "system")
            shutil.move(Path(name) / "system", SYSTEM)
    python = SYSTEM / "python"
    python.write_text(f'#!/bin/sh\nexec {EMULATOR} -L "{SYSTEM}" "{SYSTEM}/usr/bin/python3.11" "$@"\n')
    python.chmod(0o755)
    return python


def build(tools: Path, folder: Path, python: Path) -> Path:
    run(tools / "python", "-m", "build", "--sdist", "--outdir", folder, ROOT)
    (sources,) = folder.glob("*.tar.gz")
    headers = SYSTEM / "usr" / "include"
    defines = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": COMPILER,
        "CMAKE_CXX_FLAGS": f"-idirafter {headers}",  # where Debian's headers of Python look for those of a processor
        "Python_INCLUDE_DIR": headers / "python3.11",
        "SOFTMRC_OPENSSL": static_libcrypto("aarch64"),
        "SOFTMRC_PYTHON": python,
    }
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "TMPDIR": str(folder)}
    env["SKBUILD_CMAKE_DEFINE"] = ";".join(f"{name}={value}" for name, value in defines.items())
    env |= {"_PYTHON_HOST_PLATFORM": "linux-aarch64", "SETUPTOOLS_EXT_SUFFIX": ".cpython-311-aarch64-linux-gnu.so"}
    pip = (tools / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-deps", "--wheel-dir", folder / "raw", sources, env=env)
    (raw,) = (folder / "raw").glob("*.whl")
    env["LD_LIBRARY_PATH"] = str(SYSTEM / "usr" / "lib" / "aarch64-linux-gnu")
    run(tools / "auditwheel", "repair", raw, "--wheel-dir", folder / "repaired", env=env)
    (wheel,) = (folder / "repaired").glob("*.whl")
    DIST.mkdir(exist_ok=True)
    return Path(shutil.move(wheel, DIST / wheel.name))


def check(wheel: Path, tools: Path, folder: Path, python: Path) -> None:
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in range(17, 37)]
    only = (*platforms, "--python-version=3.11", "--only-binary=:all:", "--target", folder / "installed")
    run(tools / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", *only, wheel)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8", "PYTHONPATH": str(folder / "installed")}
    try_out(python, [python, "-P", "-m", "softmrc"], folder, env)


def main() -> None:
    missing = [NEEDED[command] for command in (COMPILER, EMULATOR) if not shutil.which(command)]
    if missing:
        sys.exit(f"A wheel for aarch64 needs {', '.join(missing)} (on Debian: apt install {' '.join(missing)}).")
    if sys.version_info[:2] != (3, 11):
        sys.exit("A wheel for aarch64 is built with Python 3.11, for which it is: make wheel-arm64 PYTHON=python3.11")
    try:
        python = made_system()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            tools = made_venv(sys.executable, folder / "tools").parent
            run(tools / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *TOOLS)
            wheel = build(tools, folder, python)
            check_contents(wheel)
            print(f"{wheel.relative_to(ROOT)}, {wheel.stat().st_size / 1e6:.1f} MB; under {EMULATOR}:", flush=True)
            check(wheel, tools, folder, python)
    except Unavailable as problem:
        sys.exit(f"A wheel for aarch64 needs Debian's packages: {problem}")


if __name__ == "__main__":
    main()
