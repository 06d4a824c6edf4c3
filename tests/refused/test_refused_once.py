"""System calls that are refused in threads that live long: each once, those of lanes for a second, too. They go on,
and nothing stays disabled. What is refused where is in calls.py."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import calls
import pytest

import needs
import programs
from sanitizers import NOT_UNDER_SANITIZERS
from softmrc import _core
from softmrc.nccl import plugin_path

pytestmark = [pytest.mark.process, NOT_UNDER_SANITIZERS]
HERE = Path(__file__).parent
TESTS = HERE.parent


def run(home: Path, program: str, *words: str, within: tuple[str, ...] = ()) -> str:
    """In a separate process, with a separate folder of control sockets."""
    folders = [HERE, TESTS / "udp", TESTS / "collectives", TESTS, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "LD_PRELOAD": str(programs.path("refusals.so")),
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PYTHONUNBUFFERED": "1",
        "XDG_RUNTIME_DIR": str(home),
    }
    command = [*within, sys.executable, str(HERE / f"run_{program}.py"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("what", ["once", "no_room", "nobody_there"])
def test_lanes_go_on(tmp_path: Path, what: str) -> None:
    run(tmp_path, "driver", what)


@pytest.mark.nightly
def test_lanes_go_on_after_a_second(tmp_path: Path) -> None:
    run(tmp_path, "driver", "second")


@pytest.mark.parametrize("planes", ["1", "2"])
def test_a_listener_receives_who_comes_next(tmp_path: Path, planes: str) -> None:
    run(tmp_path, "listener", planes, "once")


def test_who_connects_does_or_is_told_why_not(tmp_path: Path) -> None:
    run(tmp_path, "connecting")


def test_a_control_socket_answers_the_next(tmp_path: Path) -> None:
    run(tmp_path, "control", "once")


def test_questions_about_sizes_take_no_room_from_data(tmp_path: Path) -> None:
    run(tmp_path, "sizes")


@pytest.mark.parametrize("what", ["device", "listener", "group"])
def test_it_is_opened_whole_or_not_at_all(tmp_path: Path, what: str) -> None:
    run(tmp_path, "opening", what)


def test_ranks_go_on(tmp_path: Path) -> None:
    run(tmp_path, "ranks")


PLUGIN = [(call, error) for (_, call), errors in calls.PLUGIN.items() for error in errors]


@pytest.mark.parametrize(("call", "error"), PLUGIN, ids=[f"{call}-{errno.errorcode[error]}" for call, error in PLUGIN])
def test_connections_of_nccl_are_made_in_the_end(tmp_path: Path, call: str, error: int) -> None:
    """Refused three times, in whichever thread asks first."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SOFTMRC_", "NCCL_"))}
    environment = {
        **clean,
        "LD_PRELOAD": str(programs.path("refusals.so")),
        "REFUSE": f"{call}:{error}:*:0:3",
        "REFUSED_REPORT": str(tmp_path / "refused"),
        "SOFTMRC_PLANES": "127.0.0.1,127.0.0.2",
        "SOFTMRC_CONTROL": "0",
    }
    command = [str(programs.path("nccl_harness")), str(plugin_path()), "11", "1", "traffic", "1", "10", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "all holds" in done.stdout, done.stdout + done.stderr
    refused = (tmp_path / "refused").read_text() if (tmp_path / "refused").exists() else ""
    assert f"{call} 3" in refused.splitlines(), f"refused: {refused or 'nothing'}"


STARTS = [
    (call, error, is_connecting)
    for is_connecting, table in enumerate((calls.PLUGIN_LISTENS, calls.PLUGIN_CONNECTS))
    for call, errors in table.items()
    for error in errors
    if call != "open" or _core.can_seal()
]


@pytest.mark.parametrize(
    ("call", "error", "is_connecting"),
    STARTS,
    ids=[f"{'connect' if late else 'listen'}-{call}-{errno.errorcode[error]}" for call, error, late in STARTS],
)
def test_nccl_listens_and_connects_in_the_end(tmp_path: Path, call: str, error: int, is_connecting: int) -> None:
    """Refused three times, when the first connection of a process is made."""
    (tmp_path / "softmrc.toml").write_text('[device]\nseal = "on"\n' if call == "open" else "")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SOFTMRC_", "NCCL_"))}
    environment = {
        **clean,
        "LD_PRELOAD": str(programs.path("refusals.so")),
        "HARNESS_CALL": call,
        "SOFTMRC_CONFIG": str(tmp_path / "softmrc.toml"),
        "SOFTMRC_CONTROL": "0",
        "SOFTMRC_KEYLOG": str(tmp_path / "keys"),
        "SOFTMRC_PLANES": "127.0.0.1,127.0.0.2",
        "SOFTMRC_SECRET": "0123456789abcdef",
    }
    words = [str(plugin_path()), "11", "1", "short_of", f"{error:d}", f"{is_connecting:d}"]
    done = subprocess.run(
        [str(programs.path("nccl_harness")), *words], env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "all holds" in done.stdout, done.stdout + done.stderr


@needs.in_namespaces
@needs.tools("unshare")
def test_links_are_followed(tmp_path: Path) -> None:
    run(tmp_path, "links", within=("unshare", "-n"))
