"""`make arm64` says what it lacks. What it compares, it compares itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.symlink_to(sys.executable)
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        [interpreter, ROOT / "tools" / "portable.py"], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.splitlines() == [
        "Building for aarch64 needs cmake, g++-aarch64-linux-gnu, qemu-user "
        "(on Debian: apt install cmake g++-aarch64-linux-gnu qemu-user)."
    ]
