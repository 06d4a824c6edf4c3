"""The demo and the examples, as their user runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import needs
from softmrc.demo.script import FLAP_S, Director, ScriptedFault

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from softmrc.__main__ import main; main()", "demo"]


def marked(mark: str) -> list[int]:
    """Processes whose environment carries a mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"DEMO_MARK={mark}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def gone(mark: str) -> bool:
    until = time.monotonic() + 20
    while marked(mark):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_the_demo(tmp_path: Path) -> None:
    mark = f"run-{os.getpid()}"
    done = subprocess.run(
        [*COMMAND, "--steps", "24", "--output", str(tmp_path / "page.html")],
        capture_output=True, text=True, timeout=240, env={**os.environ, "DEMO_MARK": mark, "COLUMNS": "120"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Weights bit-identical" in done.stdout and "plane 2 black-holed" in done.stdout
    assert "\x1b" not in done.stdout, "no terminal, no escape sequences"
    page = (tmp_path / "page.html").read_text()
    for words in ("Step time", "Goodput by plane", "Paths", "bit-identical", "Gloo, undisturbed"):
        assert words in page
    assert "plane 3 flapping at rank 3" in page and page.count("<svg") == 4
    assert gone(mark)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("start", [signal.SIG_DFL, signal.SIG_IGN], ids=["usual", "where both are ignored"])
def test_a_signal_leaves_nothing_running(tmp_path: Path, start: signal.Handlers, how: signal.Signals) -> None:
    """Also from a background shell, under nohup, and wherever else a process is born deaf to it."""
    mark = f"stop-{os.getpid()}-{start.name}-{how.name}"
    folder = tmp_path / "temporary"
    folder.mkdir()
    demo = subprocess.Popen(
        [*COMMAND, "--output", str(tmp_path / "page.html")], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "DEMO_MARK": mark, "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)},
        preexec_fn=lambda: [signal.signal(one, start) for one in (signal.SIGINT, signal.SIGTERM)],
    )  # fmt: skip
    assert demo.stdout is not None
    for line in demo.stdout:
        if "step  40" in line:
            break
    assert len(marked(mark)) >= 5
    demo.send_signal(how)
    rest, _ = demo.communicate(timeout=60)
    assert demo.returncode == 128 + how and "nothing is left running" in rest, rest
    assert gone(mark) and not list(folder.glob("softmrc-*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may run it")
def test_the_demo_in_a_lab_needs_root() -> None:
    done = subprocess.run([*COMMAND, "--lab"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "root" in done.stderr


@needs.lab
def test_the_demo_in_a_lab(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = subprocess.run(
        [*COMMAND, "--lab", "--steps", "12", "--output", str(page)],
        capture_output=True, text=True, timeout=240, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Weights bit-identical" in done.stdout and "spine 0 of plane 0 reboots" in done.stdout
    assert "Gloo, with faults" in page.read_text()


def test_the_director() -> None:
    orders: list[Any] = []
    hole = ScriptedFault("hole", 2, 4, plane=1, faults={"black_hole": True})
    flap = ScriptedFault("flap", 3, 6, plane=0, rank=2, flaps=True)
    director = Director((hole, flap), 2, lambda rank, what: orders.append((rank, what)))
    assert director.at_step(1, 0.0) == [] and not orders
    assert director.at_step(2, 1.0) == [(hole, True)]
    assert orders.pop() == (None, {"do": "faults", "plane": 1, "faults": {"black_hole": True}})
    assert director.at_step(3, 2.0) == [(flap, True)] and orders.pop() == (2, {"do": "port", "plane": 0, "up": False})
    director.tick(2.0 + FLAP_S)
    assert orders.pop() == (2, {"do": "port", "plane": 0, "up": True})
    assert director.at_step(4, 3.0) == [(hole, False)]
    assert orders.pop() == (None, {"do": "faults", "plane": 1, "faults": {}})
    assert director.at_step(9, 4.0) == [(flap, False)] and orders.pop()[1]["up"] and not director.active
    assert director.at_step(3, 5.0) == [], "what is over does not come back"


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_examples(name: str) -> None:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*run, str(ROOT / "examples" / f"{name}.py")], capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step 40: loss" in done.stdout
