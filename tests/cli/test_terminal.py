"""Words from files and devices that would move a cursor, change a title or hide what follows: shown, not obeyed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.panel import Panel
from rich.text import Text

from softmrc.cli.terminal import Grid, say, terminal
from softmrc.errors import ConfigError, on_terminal, printable
from softmrc.sim.flowfiles import read_flow_file

EVIL = "\x1b]0;x\x07\x1b[2J\x9b31m\u202e\x08"
COMMAND = [sys.executable, "-P", "-c", "from softmrc.cli import main; main()"]


def is_text(said: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in said)


def test_lines_stay_and_commands_to_the_terminal_do_not() -> None:
    assert on_terminal(f"one\ntwo{EVIL}") == "one\ntwo" + printable(EVIL)
    assert is_text(on_terminal(EVIL)) and is_text(str(ConfigError(EVIL, EVIL, EVIL)))
    assert on_terminal("1\u00a0000\u202f000 µs") == "1\u00a0000\u202f000 µs"


def test_whatever_is_drawn_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    grid = Grid(EVIL, "b", title=EVIL)
    grid.add_row(EVIL, Text(EVIL, "red"))
    for shown in (EVIL, Text(EVIL), grid, Panel(EVIL, title=EVIL)):
        for stderr in (False, True):
            terminal(stderr).print(shown)
    say(EVIL)
    say(EVIL, stderr=True)
    both = capsys.readouterr()
    assert r"\x1b[2J" in both.out and r"\x1b[2J" in both.err
    assert is_text(both.out + both.err)


def test_the_header_of_a_csv_file_is_told_in_text(tmp_path: Path) -> None:
    file = tmp_path / "flows.csv"
    file.write_text(f"source,destination,bytes,{EVIL}\n0,1,2,3\n")
    with pytest.raises(ConfigError) as raised:
        read_flow_file(file, 4)
    assert is_text(str(raised.value)) and r"\x1b[2J" in str(raised.value)


@pytest.mark.process
@pytest.mark.parametrize("command", [["sim"], ["fabric", "draw"], ["study"]], ids=" ".join)
def test_what_is_wrong_with_a_file_is_told_in_text(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('["\\u001b[2J"]\n"\\u001b]0;x\\u0007" = 5\n')
    found = subprocess.run([*COMMAND, *command, str(file)], capture_output=True, text=True, timeout=120)
    assert found.returncode == 2 and found.stderr.startswith("softmrc: "), found
    assert is_text(found.stdout + found.stderr), found
