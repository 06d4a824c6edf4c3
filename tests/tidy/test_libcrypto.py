"""Which libcrypto a wheel gets, where Debian's archive is as it should be, lacks something, or is not there."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
URIS = """\
'http://mirror.test/debian/dists/bookworm/InRelease' one 0
'http://mirror.test/debian-security/dists/bookworm-security/InRelease' two 0
'http://elsewhere.test/apt/dists/nodistro/InRelease' three 0
"""


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import debian  # type: ignore[import-not-found]

    monkeypatch.setattr(debian, "codename", lambda: "bookworm")
    return debian


def put(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def put_apt(folder: Path, monkeypatch: pytest.MonkeyPatch, unavailable: str = "none") -> None:
    """An archive with two versions of a package, one of which cannot be fetched."""
    (folder / "uris").write_text(URIS)
    put(
        folder,
        "apt-get",
        f'case "$*" in *--print-uris*) cat {folder}/uris ;; *{unavailable}*) echo "E: 404" >&2; exit 100 ;; esac',
    )
    put(folder, "apt-cache", "printf 'Version: 3.5.7-1\\nVersion: 3.5.10-1\\n'")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_another_release_is_asked_for_where_this_one_comes_from(
    debian: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_apt(tmp_path, monkeypatch)
    debian.Archive(tmp_path / "lists", "trixie")
    entries = (tmp_path / "lists" / "debian.sources").read_text().split("\n\n")
    assert ["\n".join(entry.splitlines()[1:3]) for entry in entries] == [
        "URIs: http://mirror.test/debian\nSuites: trixie",
        "URIs: http://mirror.test/debian-security\nSuites: trixie-security",
    ]


@pytest.mark.parametrize(("unavailable", "taken"), [("none", "3.5.10-1"), ("3.5.10-1", "3.5.7-1")])
def test_the_newest_that_can_be_had(
    debian: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unavailable: str, taken: str
) -> None:
    put_apt(tmp_path, monkeypatch, unavailable)
    assert debian.Archive(tmp_path / "lists", "trixie").source_version("openssl") == taken


def test_what_is_missing_is_said_in_a_line(tmp_path: Path) -> None:
    tool = tmp_path / "tools" / "libcrypto.py"  # where nothing was built before
    tool.parent.mkdir()
    for one in ("libcrypto.py", "debian.py"):
        (tool.parent / one).write_text((ROOT / "tools" / one).read_text())
    nothing = {"PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, tool], capture_output=True, text=True, timeout=60, env=nothing)
    assert done.returncode == 1 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("No recent OpenSSL: ")


def test_a_wheel_then_has_the_systems(
    debian: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import wheel  # type: ignore[import-not-found]

    def refuse(_: str) -> Path:
        raise debian.Unavailable("no network")

    monkeypatch.setattr(wheel, "static_libcrypto", refuse)
    assert wheel.libcrypto() == []
    (line,) = capsys.readouterr().out.splitlines()
    assert "this system's OpenSSL" in line and "no network" in line
