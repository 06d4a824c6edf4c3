"""Files that users name and that hold something else: one line that says which file and what is wrong, no traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from softmrc import cli

SCENARIO = """
question = "Does it read its flows?"
[fabric]
hosts = 8
hosts_per_leaf = 4
planes = 1
spines = 2
[workload]
kind = "flows"
path = "{path}"
"""
BYTES = {
    "Latin-1": "source,destination,bytes\n0,1,100 # fünf\n".encode("latin-1"),
    "UTF-16": "source,destination,bytes\n0,1,100\n".encode("utf-16"),
    "half a character": b"source,destination,bytes\n0,1,100\n# \xe2\x82",
    "a program": b"\x7fELF\x02\x01\x01\x00" + bytes(range(256)),
    "zeros": bytes(4096),
    "nothing": b"",
    "one long word": b"x" * 200_000,
    "brackets without end": b"flow = " + b"[" * 100_000,
    "a number without end": b"flow = " + b"9" * 10_000,
    "commands to a terminal": b"\x1b[2J\x1b]0;title\x07,\x00\n",
}


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command says, which must be one line, and exit code 2: a file that is not allowed."""
    monkeypatch.setattr(sys, "argv", ["softmrc", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert ended.value.code == (1 if arguments[0] == "dissect" else 2) and not said.out, said
    assert said.err.startswith("softmrc: ") and said.err.count("\n") == 1 and said.err[:-1].isprintable(), said.err
    return said.err


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("suffix", ["csv", "toml", "cm"])
def test_flow_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], suffix: str, name: str
) -> None:
    (tmp_path / f"flows.{suffix}").write_bytes(BYTES[name])
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(SCENARIO.format(path=f"flows.{suffix}"))
    assert f"flows.{suffix}" in refused(monkeypatch, capsys, "sim", str(scenario), "--quiet")


COMMANDS = [
    "sim {}",
    "sweep {} --vary fabric.planes=1,2",
    "assess {}",
    "fabric routes {} p0.leaf0",
    "plan --gpus 64 --prices {}",
]


@pytest.mark.parametrize("name", sorted({*BYTES} - {"nothing"}))  # a file without prices leaves them as they are
@pytest.mark.parametrize("command", COMMANDS)
def test_files_of_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    file = tmp_path / "file.toml"
    file.write_bytes(BYTES[name])
    assert "file" in refused(monkeypatch, capsys, *command.format(file).split())
