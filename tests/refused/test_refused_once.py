"""System calls that are refused in threads that live long: each once, or each for a second. They go on, and nothing stays
disabled. What is refused where is in calls.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import programs
from sanitizers import NOT_UNDER_SANITIZERS

pytestmark = [pytest.mark.process, NOT_UNDER_SANITIZERS]
HERE = Path(__file__).parent
TESTS = HERE.parent


def run(home: Path, program: str, *words: str) -> str:
    """Of a process of its own, and with a folder of control sockets of its own."""
    folders = [HERE, TESTS / "udp", TESTS / "collectives", TESTS, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "LD_PRELOAD": str(programs.path("refusals.so")),
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PYTHONUNBUFFERED": "1",
        "XDG_RUNTIME_DIR": str(home),
    }
    command = [sys.executable, str(HERE / f"{program}.py"), *words]
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
@pytest.mark.parametrize("times", ["once", pytest.param("second", marks=pytest.mark.nightly)])
def test_a_listener_receives_who_comes_next(tmp_path: Path, planes: str, times: str) -> None:
    run(tmp_path, "listener", planes, times)


@pytest.mark.parametrize("times", ["once", pytest.param("second", marks=pytest.mark.nightly)])
def test_a_control_socket_answers_the_next(tmp_path: Path, times: str) -> None:
    run(tmp_path, "control", times)
