"""Every option of every command, with values that make no sense: a one-line error, and never a traceback.

The commands and their options are read from the command itself, so that none is forgotten. Of those in TAKEN it is
known which values mean something; every other one is refused, before anything is done.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from in_process import COMMAND, Done, softmrc_here
from softmrc.cli import ctl, demo
from softmrc.cli.ping import split_address
from softmrc.errors import ConfigError, MrcError, UsageError

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "127.0.0.1:1"
FABRIC, SCENARIO = str(ROOT / "examples" / "lab.toml"), str(ROOT / "scenarios" / "slow-link.toml")
LONG_S = 60
HUGE, LONG = str(1 << 70), "1" * 5000  # beyond any integer of the core, and of Python's own parser
VALUES = (
    *("", " ", "nosuch", "None", "ü", "²", "🙂", "%", "a=b=c", "a,b,,", "/dev/null/x", "/"),
    *("-1", "0", "1.5", "nan", "inf", "-inf", "1e300", "1e400", HUGE, LONG),
)

# What makes a command cheap, or certain to end, while one of its options is tried.
BASE: dict[str, list[str]] = {
    "demo": [],
    "dissect": [FABRIC],
    "ping": [NOWHERE],
    "perf": [NOWHERE],
    "top": ["--load", NOWHERE],
    "sim": [SCENARIO, "--quiet", "--set", "end=1us"],
    "sweep": [SCENARIO, "--vary", "fabric.planes=0"],
    "plan": ["--gpus", "64"],
    "assess": [FABRIC, "--trials", "1"],
    "fabric config": [FABRIC],
    "fabric draw": [FABRIC],
    "fabric routes": [FABRIC, "--from", "host0", "--to", "host1"],
    "mapper sim": [FABRIC],
}
# The same where only values that are refused are tried, and without them the command would do something.
INSTEAD: dict[str, list[str]] = {
    "demo --seed": ["--engine"],
    "perf --port": [],
    "sim --seed": [SCENARIO, "--quiet"],
    "sweep --seeds": [SCENARIO, "--vary", "fabric.planes=1"],
    "sweep --workers": [SCENARIO, "--vary", "fabric.planes=1"],
}
TAKEN: dict[str, set[str]] = {
    "ping --count": set(),
    "ping --interval": {"1.5"},
    "perf --duration": {"1.5"},
    "perf --port": {"0"},
    "perf --threads": {"0", "3"},
    "top --duration": {"0", "1.5"},
    "top --interval": {"1.5"},
    "top --loss": {"0"},
    "demo --seed": {"0", "-1", HUGE},
    "demo --steps": {"0", HUGE},
    "plan --gpus": set(),
    "plan --spares": {"0"},
    "plan --nic": set(),
    "plan --switch": set(),
    "plan --planes": set(),
    "plan --tiers": set(),
    "plan --oversubscription": {"1.5"},
    "plan --nics-per-gpu": {HUGE},
    "assess --trials": {"0"},
    "assess --seed": {"0"},
    "fabric routes --ev": {"0"},
    "sim --seed": {"0"},
    "sweep --seed": set(),
    "sweep --seeds": set(),
    "sweep --workers": {"0"},
    "mapper sim --duration": {"1.5"},
    "mapper sim --seed": {"0"},
    "mapper sim --ports-per-optic": set(),
    "mapper sim --break": set(),
    "mapper lab --duration": {"1.5"},
    "ctl planes --interval": {"1.5"},
    "ctl deny --ev": {"0"},
    "ctl deny --qpn": {"0"},
    "exporter --listen": set(),
    "dashboard --listen": set(),
    "dissect --limit": set(),
    "dissect --port": set(),
}
SKIPPED = {"bench", "lab", "mapper", "retries", "study"}  # need root or minutes; all but benches have own tests


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(COMMAND))
OPTIONS = [
    (name, param.opts[0] if param.param_type_name == "option" else "")
    for name, command in COMMANDS.items()
    for param in command.params
    if not getattr(param, "is_flag", False)
]
OPTIONS = [(name, option) for name, option in OPTIONS if name.split()[0] not in SKIPPED or f"{name} {option}" in TAKEN]


def outcome(*arguments: str) -> Done:
    """How the command ends: in time, and with no exception but one that is reported in a line."""

    def too_long(*_: object) -> None:
        raise AssertionError(f"{arguments} takes more than {LONG_S} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONG_S)
    try:
        return softmrc_here(*arguments)
    except Exception as error:
        raise AssertionError(f"{arguments} ends with a traceback") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UsageError("nobody trains here")

    with suppress(ImportError):
        monkeypatch.setattr("uvicorn.Server.run", refuse)
    monkeypatch.setattr(ctl, "again", lambda watch, interval, show: show(False))
    monkeypatch.setattr(demo, "planes_or_loopback", refuse)
    monkeypatch.setattr(demo, "LabFabric", refuse)
    monkeypatch.setattr(demo, "show_gpu", refuse)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=[f"{a} {b or 'argument'}" for a, b in OPTIONS])
def test_what_makes_no_sense_is_a_line(name: str, option: str) -> None:
    base, key = BASE.get(name, []), f"{name} {option}"
    for value in VALUES:
        if key in TAKEN and value not in TAKEN[key]:
            done = outcome(*name.split(), *INSTEAD.get(key, base), option, value)
            is_usage = done.returncode == 2 and option in done.stderr
            assert is_usage or isinstance(done.error, ConfigError), f"{value}: {done}"
        elif name.split()[0] not in SKIPPED and (key, value) != ("perf ", ""):  # a server, which ends with Ctrl-C
            outcome(*name.split(), *([*base, option, value] if option else [value, *base[1:]]))


def test_no_option_is_forgotten_of_which_it_is_known_what_it_takes() -> None:
    assert set(TAKEN) <= {f"{name} {option}" for name, option in OPTIONS} and set(INSTEAD) <= set(TAKEN)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.startswith("lab ")])
def test_commands_of_a_lab_that_is_not_there(name: str) -> None:
    required = [param for param in COMMANDS[name].params if param.required]
    for value in VALUES:
        for more in ([], ["--lab", value] if name != "lab up" else []):
            if name == "lab up" or more or required:
                outcome(*name.split(), *[value or "x"] * len(required), *more)


def test_a_lab_without_root_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for name, command in COMMANDS.items():
        if not name.startswith("lab "):
            continue
        required = [FABRIC if name == "lab up" else "host0" for param in command.params if param.required]
        done = softmrc_here(*name.split(), *required)
        assert isinstance(done.error, MrcError) and "root" in str(done.error), name


@pytest.mark.parametrize("steps", ["1", "2", "19"])
def test_a_demo_that_is_too_short_for_its_faults_is_refused(steps: str) -> None:
    done = softmrc_here("demo", "--steps", steps)
    assert isinstance(done.error, MrcError) and "at least 20" in str(done.error)


@pytest.mark.parametrize("place", ["/dev/null/page.html", "/"])
def test_a_page_that_cannot_be_written_is_refused_before_the_work(place: str) -> None:
    done = softmrc_here("demo", "--output", place)
    assert isinstance(done.error, MrcError) and "cannot write" in str(done.error)
    assert done.stdout == ""


@pytest.mark.parametrize("place", ["/dev/null/page.html", "/", "/proc/x/y.html"])
@pytest.mark.parametrize("command", [["sim", SCENARIO], ["plan"], ["assess", FABRIC], ["study", "study"]])
def test_a_report_that_cannot_be_written_is_refused_before_the_work(place: str, command: list[str]) -> None:
    done = softmrc_here(*command, "--report", place)
    assert isinstance(done.error, MrcError) and "cannot write" in str(done.error)
    assert done.stdout == ""


@pytest.mark.parametrize(
    "command",
    [
        ["sim", SCENARIO, "--report"],
        ["plan", "--report"],
        ["plan", "--gpus", "64", "--spares", "0", "--planes", "1", "--tiers", "1", "--output"],
        ["assess", FABRIC, "--report"],
        ["study", "study", "--report"],
        ["demo", "--output"],
        ["fabric", "draw", FABRIC, "--output"],
    ],
)
def test_a_name_that_was_mistyped_makes_no_folder(tmp_path: Path, command: list[str]) -> None:
    done = softmrc_here(*command, str(tmp_path / "mistyped" / "x"))
    assert isinstance(done.error, MrcError) and f"no folder '{tmp_path}/mistyped'" in str(done.error)
    assert not any(tmp_path.iterdir())


def test_a_name_that_is_no_text_is_shown_all_the_same() -> None:
    done = softmrc_here("fabric", "draw", FABRIC, "--output", os.fsdecode(b"\xff.svg"))
    assert done.returncode == 0 and done.stderr == "" and "\\udcff.svg" in done.stdout


# A real process: its pipe is closed by another.
@pytest.mark.process
def test_who_reads_only_the_beginning_sees_no_traceback() -> None:
    program = f"{sys.executable} -m softmrc fabric routes {FABRIC} --from host0 --to host7"
    done = subprocess.run(f"{program} | head -n 1", shell=True, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.stdout.startswith("ev 0")


def test_help_breaks_no_line_but_where_a_paragraph_ends() -> None:
    assert all(command.help for command in COMMANDS.values())
    assert not [name for name, command in COMMANDS.items() if "\n" in command.help.replace("\n\n", "")]


@pytest.mark.parametrize(
    "text", ["", ":", ":1", "x", "x:", "x:y", "x:-1", "x:1.5", "x:²", "x:１２", f"x:{LONG}", "[::1]:", "x: 1", "x:1\n"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        split_address(text)


@pytest.mark.parametrize(
    "text", ["127.0.0.1:²", "a..b:19470", f"127.0.0.1:{LONG}", "." * 300 + ":1", "x" * 64 + ".y:1"]
)
def test_where_no_agent_can_listen_is_said(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMRC_TOKEN", "0123456789abcdef")
    for command in ("exporter", "dashboard"):
        error = softmrc_here(command, "--listen", text).error
        assert isinstance(error, ConfigError) and "ADDRESS:PORT" in str(error), repr(error)


@pytest.mark.parametrize("arguments", [("ping", NOWHERE), ("perf", NOWHERE), ("top", "--load", NOWHERE)])
def test_a_secret_of_the_environment_leaves_the_choice_to_connect(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which knows that SOFTMRC_IDENTITY goes before SOFTMRC_SECRET."""
    given: list[Any] = []

    def called(*_: Any, secret: Any, **settings: Any) -> None:
        given.append(secret)
        raise UsageError("seen")

    monkeypatch.setenv("SOFTMRC_SECRET", "of the environment")
    for module in ("ping", "perf", "top"):
        monkeypatch.setattr(f"softmrc.cli.{module}.connect", called)
    softmrc_here(*arguments)
    assert given == [None]
