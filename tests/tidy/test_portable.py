"""`make arm64` and `make wheel-arm64` say what they lack. What they compare and try, they check themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (
            "portable.py",
            "Building for aarch64 needs cmake, g++-aarch64-linux-gnu, qemu-user "
            "(on Debian: apt install cmake g++-aarch64-linux-gnu qemu-user).",
        ),
        (
            "wheel_arm64.py",
            "A wheel for aarch64 needs g++-aarch64-linux-gnu, qemu-user "
            "(on Debian: apt install g++-aarch64-linux-gnu qemu-user).",
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, tool: str, said: str) -> None:
    interpreter = tmp_path / "python"
    interpreter.symlink_to(sys.executable)
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        [interpreter, ROOT / "tools" / tool], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.splitlines() == [said]
