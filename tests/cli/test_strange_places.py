"""The command in strange places: Ctrl-C before it is there, ports that others have, full disks, narrow windows."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from in_process import softmrc_here
from softmrc import _core
from softmrc.cli import capture, exporter, info
from softmrc.cli.marks import MARKS
from softmrc.cli.terminal import Grid, terminal
from softmrc.collectives.group import made_for
from softmrc.config import DeviceConfig
from softmrc.connection import Connection, connect, listen
from softmrc.errors import DeviceError, words_of
from softmrc.ops import control

COMMAND = [sys.executable, "-P", "-m", "softmrc"]
ROOT = Path(__file__).resolve().parents[2]


# A real process: SIGINT ends it.
@pytest.mark.process
def test_ctrl_c_while_the_command_is_imported_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [*COMMAND, "info"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT and said == ""


# A real process: SIGINT ends it.
@pytest.mark.process
def test_ctrl_c_while_the_command_is_put_together_is_no_error() -> None:
    program = "import os, signal, typer, softmrc.__main__ as first; typer.main.get_command = " + (
        "lambda app: os.kill(os.getpid(), signal.SIGINT); first.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 128 + signal.SIGINT and (done.stdout, done.stderr) == ("", "")


# A real process: SIGINT ends it.
@pytest.mark.process
@pytest.mark.parametrize("command", ["exporter", "dashboard"])
@pytest.mark.parametrize("wait_s", [0.0, 0.02, 1.0])
def test_ctrl_c_ends_an_agent_without_a_word(command: str, wait_s: float) -> None:
    """At once, while the server starts, and later."""
    pytest.importorskip("uvicorn")
    with subprocess.Popen(
        [*COMMAND, command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d+/(metrics)?\n", process.stdout.readline())
        time.sleep(wait_s)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=120)
    assert process.returncode == 0 and (out, said) == ("", "")


def test_an_agent_names_no_address_that_it_does_not_have() -> None:
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = softmrc_here("exporter", "--listen", where)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == f"softmrc: cannot listen on {where}: Address already in use\n"


# A real process: its streams have another encoding.
@pytest.mark.process
def test_marks_are_told_apart_where_there_is_only_ascii() -> None:
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "info"], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0 and "\n+  Python " in done.stdout and "\\u" not in done.stdout
    marks = [mark.plain for mark in MARKS.values()]
    plain = "".join(marks).encode("ascii", "softmrc-plainer")
    assert len(set(plain)) == len(marks)
    assert "a\udcffµü".encode("ascii", "softmrc-plainer") == b"a\\udcffu\\xfc"


# A real process: it has few descriptors.
@pytest.mark.process
def test_a_device_that_needs_more_files_says_so_with_what_helps() -> None:
    planes = ["--planes", ",".join(f"127.0.0.{i}" for i in range(1, 5))]
    few = subprocess.run(
        ["bash", "-c", 'ulimit -n 20; exec "$@"', "bash", *COMMAND, "perf", "--port", "0", *planes],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert few.returncode == 1 and "Too many open files; this device alone needs" in few.stderr, few.stderr
    assert "a process may have 20 files: raise `ulimit -n`" in few.stderr and few.stderr.count("\n") == 1


def test_planes_that_are_not_here_are_said_with_who_named_them() -> None:
    elsewhere = softmrc_here("perf", "--port", "0", SOFTMRC_PLANES="127.0.0.1,192.0.2.7")
    assert elsewhere.returncode == 1 and "192.0.2.7" in elsewhere.stderr and "SOFTMRC_PLANES" in elsewhere.stderr


def test_what_the_system_refuses_is_told_in_words_and_not_in_numbers() -> None:
    with listen("127.0.0.1", memory=bytearray(64)) as listener:
        done = softmrc_here("perf", "--port", str(listener.port))
    assert done.stderr == f"softmrc: cannot listen on 127.0.0.1 port {listener.port}: Address already in use\n"
    assert words_of(OSError(28, "No space left on device", "x y")) == "`x y`: no space left on device"
    assert words_of(ValueError("[Errno 1] said by a peer")) == "[Errno 1] said by a peer"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system, and looks at an interface")
def test_a_capture_onto_a_full_disk_says_which_file(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (small / "full").write_bytes(bytes(4096))
        file = small / "x y.pcapng"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, pytest.raises(DeviceError) as ended:
            honest = capture.next_frame

            def busy(seen: socket.socket) -> tuple[int, bytes] | None:
                sock.sendto(bytes(1000), ("127.0.0.1", 9))
                return honest(seen)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(capture, "next_frame", busy)
                capture.capture("lo", file, duration="20s", limit=2000)
        assert str(ended.value) == f"the capture into {str(file)!r} ends early: No space left on device"
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_planes_of_ranks_say_where_they_were_written() -> None:
    with pytest.raises(DeviceError, match="set by SOFTMRC_PLANES"):
        made_for(["nosuch0"], DeviceConfig(), 2, why="set by SOFTMRC_PLANES")


def test_a_host_without_a_network_is_said_in_words() -> None:
    """TCP to a broadcast address is refused by the kernel, before anything is sent."""
    with pytest.raises(OSError) as refused:
        _core.Connector([_core.DialCandidate(bytes([255] * 4), 1)], _core.Credentials.none()).poll()
    assert refused.value.errno and refused.value.strerror == os.strerror(refused.value.errno)


def test_the_mapper_takes_what_is_shipped_by_its_name(tmp_path: Path) -> None:
    done = softmrc_here("mapper", "sim", "lab", "--duration", "0.2", cwd=tmp_path)
    assert done.returncode == 0 and "nothing is broken" in done.stdout, done.stderr


def test_commands_to_copy_are_on_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fix = "sysctl -w " + " ".join(f"net.core.name{i}=33554432" for i in range(8))
    monkeypatch.setattr(info, "facts", lambda: [info.Fact("buffers", "word " * 40, False, fix)])
    monkeypatch.setenv("COLUMNS", "40")
    info.info(as_json=False)
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1].strip() == fix and len(shown) > 3  # the rest is folded


# A real process: what is copied into a shell starts one.
@pytest.mark.process
@pytest.mark.parametrize("as_module", [True, False])
def test_a_command_to_copy_can_be_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_module: bool) -> None:
    script = tmp_path / "soft mrc"
    script.write_text(f"#!{sys.executable}\nfrom softmrc.__main__ import main\nmain()\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [info.__file__ if as_module else str(script)])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda tool: tool)
    (lab,) = [fact for fact in info.facts() if fact.name == "lab"]
    assert lab.fix.startswith("sudo ") and lab.fix.endswith(" lab up lab")
    again = [*shlex.split(lab.fix.removeprefix("sudo "))[:-3], "--version"]
    done = subprocess.run(again, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("softmrc "), done.stderr


def test_what_agents_lack_is_said_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "MODULES", ("json", "nosuch_module"))
    (found,) = [fact for fact in info.facts() if fact.name == "exporter"]
    assert not found.is_good and "nosuch_module not installed;" in found.found and found.fix.startswith("pip install")


def test_torch_is_good_enough_if_it_may_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`softmrc info` and the package say the same of the oldest torch."""
    (least,) = re.findall(r'torch = \["torch>=(\d+)\.(\d+)', (ROOT / "pyproject.toml").read_text())
    assert tuple(map(int, least)) == info.LEAST_TORCH


def drawn(grid: Grid, width: int) -> list[str]:
    console = Console(width=width, markup=False, color_system=None)
    with console.capture() as found:
        console.print(grid)
    return found.get().splitlines()


@pytest.mark.parametrize("columns", ["50", "60", "80", "200"])
def test_a_plan_has_all_its_figures_however_narrow_the_terminal(columns: str) -> None:
    done = softmrc_here("plan", "--gpus", "131072", COLUMNS=columns)
    assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) <= int(columns)
    whole = softmrc_here("plan", "--gpus", "131072")
    assert "…" not in done.stdout
    figures = re.compile(r"\d{1,3}(?:,\d{3})+")
    assert set(figures.findall(done.stdout)) == set(figures.findall(whole.stdout)) != set()


def test_a_narrow_grid_has_fewer_columns_and_every_letter() -> None:
    heads = ("plane", "state", "packets sent", "received", "paths")
    grid = Grid(*heads, spare=("received", "state"), folds="paths")
    grid.add_row("0 10.0.0.1", Text("up"), "1,234,567", "9", "●" * 64)
    grid.add_row("1 10.0.1.1", Text("down"), "7", "12,345", "○" * 64)
    for width in range(46, 130):
        lines = drawn(grid, width)
        text = "\n".join(lines)
        assert max(map(len, lines)) <= width
        assert "…" not in text and "1,234,567" in text and "10.0.1.1" in text and "packets sent" in text
        assert (text.count("●"), text.count("○")) == (64, 64)
    assert "too narrow" not in "\n".join(drawn(grid, 129)) and drawn(grid, 60)[-1] == "too narrow for: received"
    assert drawn(grid, 50)[-1] == "too narrow for: state, received"
    right = next(line for line in drawn(grid, 129) if "1 10.0.1.1" in line)
    assert "            7 │" in right  # figures stand on the right


def test_nothing_is_folded_where_nobody_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with (tmp_path / "out").open("w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", file)
        terminal().print("word " * 100)
    assert (tmp_path / "out").read_text().count("\n") == 1
    listed = softmrc_here("examples").stdout
    assert "…" not in listed and re.search(r"^  t1-reboot +A spine dies .* for how long\?$", listed, re.MULTILINE)


@contextmanager
def a_busy_connection(folder: Path) -> Iterator[Connection]:
    """This process has the devices; the command is to find them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        planes = ["127.0.0.1", "127.0.0.2"]
        with (
            listen("127.0.0.1", planes=planes, memory=bytearray(1 << 20)) as listener,
            connect("127.0.0.1", listener.port, planes=planes) as connection,
            listener.accept(10),
        ):
            yield connection


def test_top_finds_running_devices_and_changes_nothing(tmp_path: Path) -> None:
    with a_busy_connection(tmp_path) as connection:
        has_seen = threading.Event()

        def write() -> None:
            while not has_seen.is_set():
                connection.write(connection.remote[0], 0, bytes(1 << 20))

        with ThreadPoolExecutor(1) as beside:
            writes = beside.submit(write)
            try:
                top = softmrc_here("top", "--duration", "2", "--interval", "0.2")
            finally:
                has_seen.set()
            writes.result()
        out = top.stdout
        names = [node.name for node in control.devices()]
        assert top.returncode == 0, top.stderr
        assert len(names) == 2 and all(name in out for name in names)
        busy = [float(rate) for rate in re.findall(r"│ \d 127\.0\.0\.\d │ up +│ +([\d.]+)", out)]
        assert len(busy) == 4 and max(busy) > 0, out
        assert out.count("●●●●") == 4 and "● good" in out and "retransmitted" in out and out.endswith("\n")
        one = softmrc_here("top", "-d", names[0], "--duration", "0.3")
        assert names[0] in one.stdout and names[1] not in one.stdout
        narrow = softmrc_here("top", "--duration", "0.3", COLUMNS="48").stdout
        assert "127.0.0.2" in narrow and "…" not in narrow and max(map(len, narrow.splitlines())) <= 48


def test_top_without_anybody_says_how_to_have_a_load(tmp_path: Path) -> None:
    done = softmrc_here("top", "--duration", "1", XDG_RUNTIME_DIR=str(tmp_path))
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "--load HOST:PORT" in done.stderr
    for more in (["--planes", "lo"], ["--loss", "0.1"], ["--secret", "x"]):
        done = softmrc_here("top", *more, XDG_RUNTIME_DIR=str(tmp_path))
        assert done.returncode == 2 and "only with --load" in done.stderr
