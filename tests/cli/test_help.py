"""Every command's help: what each option takes, an example that is right, and no line of more than 80 columns."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from in_process import COMMAND, softmrc_here
from softmrc.cli import app
from softmrc.cli.exit_codes import MEANS_NO, TABLE
from softmrc.cli.help import options_of
from softmrc.cli.options import seconds_of
from softmrc.cli.usage import EXAMPLES
from softmrc.errors import ConfigError

EXITS = (SystemExit, typer.Exit)
# Examples that need no file, no device, no root and no other host are run; of the others the arguments are parsed.
RUN = (
    *("info", "examples", "nccl-plugin", "ctl devices", "plan", "assess", "study", "fabric config", "fabric draw"),
    *("fabric routes", "mapper sim"),
)


def walk(group: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        found[" ".join((*path, name))] = command
        if hasattr(command, "commands"):
            found |= walk(command, (*path, name))
    return found


ALL = walk(COMMAND)
LEAVES = {path: command for path, command in ALL.items() if not hasattr(command, "commands")}


def words_of(path: str) -> list[str]:
    """The example's arguments after `softmrc`."""
    words = shlex.split(re.sub(r" > \S+$", "", EXAMPLES[path]))
    words = shlex.split("softmrc nccl-plugin") if "$(softmrc nccl-plugin)" in EXAMPLES[path] else words
    return words[words.index("softmrc") + 1 :]


@pytest.mark.parametrize("path", ["", *ALL], ids=lambda path: path or "softmrc")
def test_help_fits_80_columns_and_names_what_options_take(path: str) -> None:
    shown = CliRunner().invoke(app, [*path.split(), "-h"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0 and shown.output.startswith(f"Usage: softmrc {path}".rstrip())
    lines = [line for line in shown.output.splitlines() if not line.startswith(("Example: ", "Usage: "))]
    assert max(map(len, lines)) <= 80
    assert not re.search(r"<\w+|\[\d+<=|Initialize|None", shown.output)
    assert shown.output == CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "80"}).output


@pytest.mark.parametrize("path", LEAVES)
def test_an_option_says_what_it_takes_and_does(path: str) -> None:
    for param in LEAVES[path].params:
        if param.param_type_name == "option":
            assert param.is_flag or param.metavar, f"{path} {param.opts[0]}: cli/help.py has no name for its value"
            assert not param.secondary_opts, "a flag needs no negative"
    assert all(words for _, words in options_of(LEAVES[path].params))


def test_an_option_takes_the_same_in_all_commands() -> None:
    """But for options whose name is a plain word, as --planes: addresses of planes, or how many."""
    takes: dict[str, set[str]] = {}
    for path, command in LEAVES.items():
        for param in command.params:
            if param.param_type_name == "option" and not path.startswith("bench"):
                takes.setdefault(param.opts[0], set()).add("" if param.is_flag else param.metavar)
    several = {option for option, kinds in takes.items() if len(kinds) > 1}
    # demo and replace have flags of these names; `fabric config` writes a folder; `plan` counts planes.
    assert several == {"--lab", "--profile", "--output", "--planes", "--ev"}


@pytest.mark.parametrize("path", LEAVES)
def test_a_command_has_an_example_that_is_right(path: str) -> None:
    words = words_of(path)
    assert words[: len(path.split())] == path.split()
    rest = words[len(path.split()) :]
    LEAVES[path].make_context(path, [word for word in rest if word not in ("--help", "-h")]).close()


@pytest.mark.parametrize("path", RUN)
def test_an_example_that_needs_nothing_is_run(path: str, tmp_path: Path) -> None:
    done = softmrc_here(*words_of(path), cwd=tmp_path, XDG_RUNTIME_DIR=str(tmp_path))
    assert done.returncode in ((0, 3) if path in MEANS_NO else (0,)) and done.stdout, done


def test_examples_and_codes_are_of_commands() -> None:
    assert set(EXAMPLES) == set(LEAVES) and set(MEANS_NO) <= set(LEAVES)
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    assert all(f"  {code:<5}" in shown for code in TABLE)


def test_a_wrong_command_line_is_one_line_and_2() -> None:
    for words, said in (
        (["png"], "Did you mean ping?"),
        (["ping"], "HOST:PORT"),
        (["ping", "127.0.0.1:1", "--cout", "3"], "--count"),
        (["ping", "127.0.0.1:1", "--count", "x"], "--count"),
        (["plan", "--spares", "1"], "1%"),
        (["plan", "--gpus", "8q"], "8k"),
        (["fabric", "config", "lab", "--target", "cisco"], "linux"),
        (["dashboard", "--denylist", "x"], "--fabric"),
        (["top", "--interval", "fast"], "--interval"),
    ):
        done = softmrc_here(*words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr, done
        assert done.stderr.startswith("softmrc: ") and not done.stdout


def test_no_command_is_help() -> None:
    for words in ([], ["ctl"], ["ctl", "profile"]):
        done = softmrc_here(*words)
        assert done.returncode == 2 and done.stdout.startswith("Usage: softmrc") and not done.stderr


def test_the_version_and_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: ("bash", "/bin/bash"))  # there may be none
    assert softmrc_here("-V").stdout == softmrc_here("--version").stdout != ""
    done = softmrc_here("--show-completion", "bash")
    assert done.returncode == 0 and "complete" in done.stdout


@pytest.mark.parametrize(
    ("typed", "has"), [("softmrc p", "plan"), ("softmrc ctl d", "deny"), ("softmrc sim slow", "slow-link")]
)
def test_names_are_completed(typed: str, has: str) -> None:
    asked = {"_SOFTMRC_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    done = CliRunner().invoke(app, [], env=asked, prog_name="softmrc")
    assert has in done.output.split(), done


def test_a_config_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    assert softmrc_here("fabric", "config", "lab", "--target", "cisco", cwd=tmp_path).returncode == 2
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3.0), ("0", 0.0), ("0s", 0.0), ("0.5", 0.5), ("100ms", 0.1), ("2min", 120.0), ("1.5s", 1.5), ("20us", 2e-5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of("--timeout", text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", " ", "-1", "1 s s", "nan", "inf", "1e3", "s", "1x", "9" * 400, "0x10"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="--timeout"):
        seconds_of("--timeout", text)


def test_a_duration_has_bounds() -> None:
    with pytest.raises(ConfigError, match=r"must be 0\.05 s to 2 s"):
        seconds_of("--timeout", "3s", 0.05, 2)
