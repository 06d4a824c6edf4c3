"""The demo and the examples, as their user runs them."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import needs
from softmrc.demo import namespaces, rank
from softmrc.demo.loopback import Loopback

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from softmrc.__main__ import main; main()", "demo"]
WHY_NOT = namespaces.why_not() and namespaces.why_not(in_user_namespace=True)


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


def run(tmp_path: Path, *arguments: str, prefix: Sequence[str] = ()) -> tuple[subprocess.CompletedProcess[str], str]:
    """A short demo; what it said, and its page."""
    mark = f"run-{os.getpid()}-{len(arguments)}-{len(prefix)}"
    done = subprocess.run(
        [*prefix, *COMMAND, *arguments, "--steps", "24", "--output", str(tmp_path / "page.html")],
        capture_output=True, text=True, timeout=400, env={**os.environ, "DEMO_MARK": mark, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MRC: 0 failed steps" in done.stdout and "identical weights" in done.stdout
    assert "\x1b" not in done.stdout, "no terminal, no escape sequences"
    assert gone(mark)
    return done, (tmp_path / "page.html").read_text()


def test_the_demo_on_loopback(tmp_path: Path) -> None:
    done, page = run(tmp_path, "--loopback")
    assert "plane 2 silent" in done.stdout and "TCP, with faults" not in done.stdout
    assert "only MRC meets faults" in done.stdout and "only SoftMRC can inject faults" in page


def is_of_namespaces(done: subprocess.CompletedProcess[str], page: str) -> None:
    assert "TCP, with faults" in done.stdout and "TCP: 0 failed steps" in done.stdout
    assert "First fault, planes 1 and 2 silent: 200 ms of TCP" in page


@pytest.mark.lab
@pytest.mark.skipif(bool(WHY_NOT), reason=f"needs network namespaces: {WHY_NOT}")
def test_the_demo_without_iproute2(tmp_path: Path) -> None:
    """The default form talks to the kernel itself."""
    is_of_namespaces(*run(tmp_path, prefix=["env", f"PATH={tmp_path}"]))


ORDINARY = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"] if os.geteuid() == 0 else []
AGAIN = "import os, sys, softmrc.cli.demo; os.execv(sys.executable, [sys.executable, '-c', ''])"
NO_MORE = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --inh-caps=-all --bounding-set=-all "$@"'


@pytest.mark.lab
@needs.tools("setpriv")
def test_the_demo_of_an_ordinary_user() -> None:
    if namespaces.why_not(in_user_namespace=True):
        pytest.skip("needs unprivileged user namespaces")
    if subprocess.run([*ORDINARY, sys.executable, "-c", AGAIN], capture_output=True, cwd="/").returncode:
        pytest.skip("needs an interpreter and packages that every user may read")
    with TemporaryDirectory() as folder:  # not in pytest's, which belongs to root alone
        Path(folder).chmod(0o777)
        is_of_namespaces(*run(Path(folder), prefix=ORDINARY))


@needs.in_namespaces
@needs.tools("setpriv", "unshare")
def test_the_demo_of_an_ordinary_user_without_user_namespaces(tmp_path: Path) -> None:
    done, page = run(tmp_path, prefix=["unshare", "-Ur", "sh", "-c", NO_MORE, "sh"])
    assert "Without network namespaces" in done.stdout.splitlines()[0] and Loopback.tcp_text in page


@pytest.mark.parametrize("form", [[], ["--loopback"]], ids=["default", "loopback"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("start", [signal.SIG_DFL, signal.SIG_IGN], ids=["usual", "where both are ignored"])
def test_a_signal_leaves_nothing_running(
    tmp_path: Path, start: signal.Handlers, how: signal.Signals, form: list[str]
) -> None:
    """Also from a background shell, under nohup, and wherever else a process is born deaf to it."""
    demo, mark = started(tmp_path, form, start)
    demo.send_signal(how)
    rest, _ = demo.communicate(timeout=60)
    assert demo.returncode == 128 + how and "nothing is left running" in rest, rest
    assert gone(mark) and not list(tmp_path.glob("temporary/softmrc-*"))


def test_a_rank_that_is_killed_ends_the_demo(tmp_path: Path) -> None:
    demo, mark = started(tmp_path, [], signal.SIG_DFL)
    others = [pid for pid in marked(mark) if pid != demo.pid]
    os.kill(others[0], signal.SIGKILL)
    rest, _ = demo.communicate(timeout=90)
    assert demo.returncode == 1 and "ended early" in rest.splitlines()[-1], rest
    assert gone(mark) and not list(tmp_path.glob("temporary/softmrc-*"))


def test_a_demo_that_is_killed_takes_its_ranks_along(tmp_path: Path) -> None:
    demo, mark = started(tmp_path, [], signal.SIG_DFL)
    demo.kill()
    demo.communicate(timeout=60)
    assert gone(mark), "their input ended"


def started(tmp_path: Path, form: list[str], start: signal.Handlers) -> tuple[subprocess.Popen[str], str]:
    """A demo that trains, and the mark of its processes."""
    mark = f"stop-{os.getpid()}-{tmp_path.name}"
    folder = tmp_path / "temporary"
    folder.mkdir()
    demo = subprocess.Popen(
        [*COMMAND, *form, "--output", str(tmp_path / "page.html")], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "DEMO_MARK": mark, "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)},
        preexec_fn=lambda: [signal.signal(one, start) for one in (signal.SIGINT, signal.SIGTERM)],
    )  # fmt: skip
    assert demo.stdout is not None
    for line in demo.stdout:
        if "step  40" in line:
            break
    assert len(marked(mark)) >= 5
    return demo, mark


@needs.lab
def test_the_demo_in_a_lab(tmp_path: Path) -> None:
    done, page = run(tmp_path, "--lab")
    assert "spine 0 of plane 0 reboots" in done.stdout and "TCP, with faults" in page


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_examples(name: str) -> None:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*run, str(ROOT / "examples" / f"{name}.py")], capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step 40: loss" in done.stdout


def test_a_fault_after_the_end_of_a_job_leaves_the_rank_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job may end before its last fault does, and there is no device then."""
    sent = [{"do": "faults", "plane": 0, "faults": {}}, {"do": "port", "plane": 0, "up": True}, {"do": "train"}]
    monkeypatch.setattr(rank, "read_messages", lambda: iter(sent))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("os._exit", lambda code: None)
    orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
    rank.listen(orders)
    assert [orders.get_nowait() for _ in range(2)] == [{"do": "train"}, None]
