"""What `make arm64`, `make wheel-arm64` and `make openssl` lack here is one line, with what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
CROSS = "g++-aarch64-linux-gnu qemu-user"
SAID = {
    "portable.py": f"(on Debian: apt install cmake {CROSS}).",
    "wheel_arm64.py": f"(on Debian: apt install {CROSS}).",
    "libcrypto.py": "No recent OpenSSL: ",
}


# A real process: what is missing is what its PATH does not have, and its status is what `make` looks at.
@pytest.mark.process
def test_what_is_missing_is_said_in_a_line(tmp_path: Path) -> None:
    tools = tmp_path / "tools"  # in a folder where nothing was built before
    tools.mkdir()
    for name in ("portable.py", "wheel_arm64.py", "libcrypto.py", "debian.py", "wheel.py"):
        (tools / name).write_text((TOOLS / name).read_text())
    (tmp_path / "tests").symlink_to(TOOLS.parent / "tests")
    interpreter = tmp_path / "python"
    interpreter.symlink_to(sys.executable)
    for name, words in SAID.items():
        done = subprocess.run(
            [interpreter, tools / name], capture_output=True, text=True, timeout=120, env={"PATH": str(tmp_path)}
        )
        (line,) = done.stderr.splitlines()
        assert done.returncode == 1 and not done.stdout and words in line, line


def test_a_wheel_then_has_the_systems(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without Debian's archive it is built all the same, and says with what."""
    monkeypatch.syspath_prepend(TOOLS)
    import debian  # type: ignore[import-not-found]
    import wheel  # type: ignore[import-not-found]

    def refuse(_: str) -> Path:
        raise debian.Unavailable("no network")

    monkeypatch.setattr(wheel, "static_libcrypto", refuse)
    assert wheel.libcrypto() == []
    (line,) = capsys.readouterr().out.splitlines()
    assert "this system's OpenSSL" in line and "no network" in line
