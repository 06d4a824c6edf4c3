"""Commands are imported on first use, and import no heavy modules that they do not need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from softmrc import _core
from softmrc.cli import COMMANDS, app, ctl
from softmrc.cli.lazy import LazyCommand, group_of

SOFTMRC = [sys.executable, "-P", "-m", "softmrc"]
HEAVY = {
    "numpy",
    "torch",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "softmrc_bench",
    "softmrc.sim",
    "softmrc.device",
}
ALL = HEAVY | {"softmrc._core", "softmrc.fabric", "softmrc.wire"}

# Modules that a command must not import.
WITHOUT = {
    "--version": ALL,
    "--help": ALL,
    "nosuch": ALL,
    "nccl-plugin": HEAVY | {"softmrc.fabric", "softmrc.wire"},
    "info": HEAVY | {"softmrc.ops.mapper"},
    "examples": HEAVY | {"softmrc.fabric", "softmrc.wire"},
    "ctl --help": HEAVY | {"softmrc.fabric", "softmrc.wire"},
    "ctl devices": HEAVY | {"softmrc.fabric", "softmrc.wire"},
    "ctl profile --help": HEAVY | {"softmrc.fabric", "softmrc.wire"},
    "key --help": HEAVY | {"softmrc.fabric", "softmrc.wire"},
    **({"key new key": HEAVY | {"softmrc.fabric", "softmrc.wire"}} if _core.can_seal() else {}),
    "bench --help": HEAVY - {"softmrc_bench"}
    | {"softmrc_bench._native", "softmrc_bench.engine"}
    | {"softmrc.fabric", "softmrc.wire"},
    "exporter --help": HEAVY | {"softmrc.lab", "softmrc.ops.mapper"},
    "lab --help": HEAVY,
    "fabric --help": HEAVY,
    "dissect --help": HEAVY,
    "capture --help": HEAVY,
}
LOADED = """
import sys
from softmrc.__main__ import main
try:
    main()
finally:
    print("\\nloaded:", *sys.modules)
"""


def groups(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    yield " ".join(path), group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from groups(command, (*path, name))


GROUPS = dict(groups(typer.main.get_command(app)))


@pytest.mark.parametrize("words", WITHOUT)
def test_heavy_modules_are_not_imported(words: str, tmp_path: Path) -> None:
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    program = [sys.executable, "-P", "-c", LOADED, *words.split()]
    done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == (2 if words == "nosuch" else 0), done.stderr
    loaded = set(done.stdout.rpartition("\nloaded:")[2].split())
    assert "softmrc.cli" in loaded and not WITHOUT[words] & loaded


@pytest.mark.parametrize("entry", [*COMMANDS, *ctl.GROUPS], ids=lambda entry: entry.name)
def test_the_help_line_in_the_table_is_the_commands_own(entry: LazyCommand) -> None:
    command = entry.load()
    assert command.name == entry.name and command.help.split("\n\n")[0] == entry.help


@pytest.mark.parametrize("path", GROUPS, ids=lambda path: path or "softmrc")
def test_help_of_a_group_lists_every_command(path: str) -> None:
    """In the order of the table, each with the first paragraph of its own help, and on one line."""
    shown = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "80"}).output
    rows = [line.split(None, 1) for line in shown[: shown.index("\nOptions")].splitlines() if line.startswith("  ")]
    assert rows == [[name, one.help.split("\n\n")[0]] for name, one in GROUPS[path].commands.items()]


def test_registered_commands_come_before_the_table() -> None:
    tried = typer.Typer(cls=group_of(LazyCommand("missing", "softmrc.cli.nowhere", "missing", "Cannot be imported.")))
    usual = typer.Typer()
    usual.command("missing")(lambda: None)
    for one in (tried, usual):
        one.command("here", help="Can be run.")(lambda: print("here"))
        one.command("hidden", hidden=True)(lambda: None)
        one.callback()(lambda: None)
    group: Any = typer.main.get_command(tried)
    assert list(group.commands) == ["here", "hidden", "missing"] and "missing" in group.commands
    shown = CliRunner().invoke(tried, ["--help"]).output
    assert shown.index("Can be run.") < shown.index("Cannot be imported.") and "hidden" not in shown
    assert CliRunner().invoke(tried, ["here"]).output == "here\n"
    mistyped = [CliRunner().invoke(one, ["mising"]) for one in (tried, usual)]
    assert mistyped[0].output == "softmrc: `mising`: no such command. Did you mean missing?\n"
    assert mistyped[0].exit_code == mistyped[1].exit_code == 2
    assert isinstance(CliRunner().invoke(tried, ["missing"]).exception, ModuleNotFoundError)


def test_ctrl_c_during_the_import_of_a_command_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        [*SOFTMRC, "perf", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and said == ""


def test_the_import_restores_the_sigint_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    entry = next(one for one in COMMANDS if one.name == "nccl-plugin")
    for handler in (signal.default_int_handler, signal.SIG_IGN):
        try:
            signal.signal(signal.SIGINT, handler)
            entry.load()
            assert signal.getsignal(signal.SIGINT) is handler
        finally:
            signal.signal(signal.SIGINT, before)


def test_without_softmrc_bench_a_line_says_what_to_install() -> None:
    program = """if True:
        import sys
        from softmrc.__main__ import main
        class Hidden:
            @staticmethod
            def find_spec(name, *_):
                if name == "softmrc_bench":
                    raise ModuleNotFoundError("hidden", name=name)
        sys.meta_path.insert(0, Hidden)
        main()"""
    for words in (["bench"], ["bench", "engine"], ["demo", "--gpu"]):
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, *words], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 2 and not done.stdout
        (line,) = done.stderr.splitlines()
        assert line.startswith("softmrc: ") and " needs softmrc-bench: pip install softmrc-bench" in line
