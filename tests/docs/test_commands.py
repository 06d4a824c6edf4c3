"""Every command and snippet in the code of the pages runs, as it stands there or shortened, in a separate folder.

Names of other hosts become a server here, and commands such as `ctl` find a job that runs at the same time. What
another test compares with its page, and what cannot run here, stands in a table with the reason. What is new on a page
is run as it is.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

import needs
from softmrc.cli import app

pytestmark = pytest.mark.docs

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]
SHOWN = re.compile(r"^(?:[a-z]*\$ +)?((?:[A-Z_]+=\S+ +)*(?:sudo (?:-E )?)?softmrc [a-z-].*)$")
SOFTMRC = [sys.executable, "-c", "from softmrc.cli import main; main()"]
LIMIT_S = 600  # a bound, not a measurement

# Of a page, what begins so, and why it is not run here.
LEFT = {
    ("tutorials/design-a-fabric.md", ""): "tests/cli/test_fabric_docs.py compares every word",
    ("tutorials/find-the-cable.md", ""): "tests/docs/test_find_the_cable.py runs it",
    ("tutorials/read-a-capture.md", ""): "tests/cli/test_wire_docs.py compares every word",
    ("tutorials/two-hosts.md", ""): "tests/docs/test_two_hosts.py runs it between two namespaces",
    ("reference/wire.md", ">>>"): "tests/cli/test_wire_docs.py compares every word",
    ("guides/study.md", ""): "tests/cli/test_fabric_docs.py compares every word",
    (
        "guides/lab.md",
        "sudo ",
    ): "tests/cli/test_fabric_docs.py runs the session, tests/lab/test_mrc.py what goes over it",
    ("guides/connections.md", "from softmrc import connect"): "tests/docs/test_pages.py has both ends",
    ("evidence/scenario-answers.md", ""): "below, all in one process",
    ("guides/mapper.md", "sudo "): "tests/mapper/test_lab.py has a lab of its own",
    ("guides/monitoring.md", "sudo "): "tests/agent/test_page.py clicks through it",
    ("guides/monitoring.md", "softmrc dashboard"): "tests/agent/test_page.py clicks through it",
    ("guides/slow-job.md", "softmrc explain -d"): "tests/nccl/test_bursts.py asks a job",
    ("guides/encryption.md", "SOFTMRC_IDENTITY"): "tests/hostile/test_identity.py has both ends",
    ("guides/training-jobs.md", "softmrc sim"): "minutes; tests/sim/test_jobs.py asks for less",
    ("evidence/retries.md", ""): "minutes; tests/sim/test_retries.py asks for less",
}
# In a command or a snippet of a page: what stands there, and what is run instead.
INSTEAD = [
    (r"--seeds \d+", "--seeds 1"),
    (r"0\.\.20", "0,20"),  # links that a sweep takes
    (r"HOST:PORT", "127.0.0.1:{port}"),
    (r"^softmrc top.*", r"\g<0> --duration 0.5s"),
    (r"^softmrc explain 812", "softmrc explain 8"),
    (r"^softmrc perf$", "softmrc perf --port 0"),
    (r"^softmrc exporter$", "softmrc exporter --listen 127.0.0.1:0"),
    (r'"10\.0\.0\.2", 7000, planes=.*?, secret="…"', '"127.0.0.1", {port}'),
    (r'planes=\["10\.0\.0\.1%eth0", .*?\]', 'planes=["127.0.0.1", "127.0.0.2"]'),
    (r'"/tmp/job"', '"job"'),
    (r"scenarios/paper/incast-victim", "scenarios/slow-link"),
    (r'"mine"', '"snippet{pid}"'),
    (r"qpn=0x22", "qpn=node.queue_pairs()[0]['qpn']"),
    (r"-d 30264-0", "-d {device}"),
]
# Snippets that begin so need something before them.
ONE_RANK = "import os, torch.distributed as dist, softmrc.torch\n" + "".join(
    f"os.environ[{name!r}] = {value!r}\n"
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items()
)
BEFORE = {
    "dist.init_process_group": ONE_RANK,
    "from softmrc.torch import device_of": ONE_RANK + "dist.init_process_group('mrc')\n",
    "device.set_faults": "from softmrc import Device\ndevice = Device([f'127.0.0.{n}' for n in range(1, 5)])\n",
    "connect(": "from softmrc import connect\n",
    "import numpy as np\nfrom softmrc.collectives": "rank, size = 0, 1\n",
    "from softmrc import sim": "class pandas:\n    DataFrame = list\n",
    "from softmrc.fabric.host": "import atexit\nfrom softmrc.lab import Lab\n"
    "lab = Lab.up(open('examples/lab.toml').read(), 'host{pid}')\natexit.register(lab.down)\n",
}
ENDLESS = ("softmrc perf --port", "softmrc exporter")  # until Ctrl-C, after the first line
NEEDS_JOB = ("softmrc ctl", "softmrc top", "softmrc explain", "from softmrc.ops import control")
NEEDS_LAB = ("from softmrc.lab", "from softmrc.fabric.host")

# One device that has a queue pair and a recording, and another in a separate folder; until its input ends.
JOB = """
import os, sys, threading
import numpy as np
from softmrc.collectives import DirectoryStore, Group

def rank(number):
    with Group.join(DirectoryStore("store"), number, 2, planes=[f"127.0.0.{n}" for n in range(1, 5)]) as group:
        turn = np.zeros(1, np.float32)
        for step in range(1_000_000):
            group.all_reduce(np.ones(1000, np.float32)).wait(20)
            turn[0] = is_over.is_set()
            group.all_reduce(turn).wait(20)
            if turn[0]:
                return
            if step == 20 and number == 0:
                print("runs", flush=True)
            is_over.wait(0.01)

is_over = threading.Event()
number = int(sys.argv[1])
thread = threading.Thread(target=rank, args=(number,))
thread.start()
sys.stdin.read()
is_over.set()
thread.join(30)
"""


class Code(NamedTuple):
    """A block of a page's code: a snippet, or commands that follow each other."""

    page: str
    line: int
    is_python: bool
    parts: tuple[str, ...]

    def to_run(self) -> list[str]:
        return [part for part in self.parts if reason(self.page, part) is None]


def reason(page: str, part: str) -> str | None:
    """Why it is not run."""
    return next((why for (name, start), why in LEFT.items() if name == page and part.startswith(start)), None)


def blocks(page: Path) -> Iterator[tuple[int, str, str]]:
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        end = at + 1
        if fence := re.match(r"^```(\w*)$", lines[at]):
            end = next(n for n in range(at + 1, len(lines)) if lines[n].startswith("```"))
            yield at + 1, fence[1], "\n".join(lines[at + 1 : end])
            end += 1
        elif lines[at].startswith("    "):
            end = next((n for n in range(at, len(lines)) if not lines[n].startswith("    ")), len(lines))
            yield at + 1, "", "\n".join(line[4:] for line in lines[at:end])
        at = end


def commands_in(text: str) -> list[str]:
    """Without their comments."""
    found = [
        re.split(r" {2,}| +#", shown[1])[0].removesuffix(" &")
        for line in text.splitlines()
        if (shown := SHOWN.match(line))
    ]
    return [one.strip() for words in found for one in words.split("&&")]


def name_of(page: Path) -> str:
    """As it stands in `LEFT`: from docs/."""
    return str(page.relative_to(ROOT)).removeprefix("docs/")


def all_code() -> list[Code]:
    found = []
    for page in PAGES:
        for line, kind, text in blocks(page):
            if kind == "python":
                found.append(Code(name_of(page), line, True, (text,)))
            elif not kind and (commands := commands_in(text)):
                # Those of a session belong together; those of a list do not.
                parts = [commands] if "$ " in text else [[one] for one in commands]
                found += [Code(name_of(page), line, False, tuple(part)) for part in parts]
    return found


CODE = all_code()


class World:
    """A folder with what a clone has, a separate home, and other files that a command may need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("examples", "scenarios"):
            (folder / name).symlink_to(ROOT / name)
        for name in ("home", "run", "elsewhere"):
            (folder / name).mkdir(mode=0o700)
        self._behind: list[subprocess.Popen[str]] = []
        self.device = ""  # of the job

    def env(self, runtime: str = "run", **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SOFTMRC_")}
        told = {"HOME": str(self.folder / "home"), "XDG_RUNTIME_DIR": str(self.folder / runtime), "COLUMNS": "80"}
        return {**kept, **told, **more}

    def start(self, words: list[str], **more: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(words, cwd=self.folder, env=self.env(**more), text=True, **pipes)
        self._behind.append(process)
        return process

    def first_line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline()

    def serve(self) -> str:
        """A server of `softmrc perf`; its port."""
        line = self.first_line(self.start([*SOFTMRC, "perf", "--port", "0"], runtime="elsewhere"))
        found = re.search(r"127\.0\.0\.1\S*:(\d+)|port (\d+)", line)
        assert found, line
        return found[1] or found[2]

    def run_job(self) -> None:
        ranks = [
            self.start(
                [sys.executable, "-c", JOB, str(number)], runtime=runtime, SOFTMRC_RECORD="1", OMP_NUM_THREADS="1"
            )
            for number, runtime in enumerate(("run", "elsewhere"))
        ]
        assert self.first_line(ranks[0]) == "runs\n"
        self.device = f"{ranks[0].pid}-0"

    def close(self) -> None:
        for process in self._behind:
            process.kill()
            process.communicate()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.close()


def run(world: World, text: str, is_python: bool) -> None:
    words = [sys.executable, "-c", text] if is_python else [*SOFTMRC, *shlex.split(text)[1:]]
    if not text.startswith(ENDLESS):
        env = world.env()
        done = subprocess.run(words, cwd=world.folder, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        code = 3 if text.startswith("softmrc mapper sim") and "--break" in text else 0  # something is broken
        assert done.returncode == code and "Traceback" not in done.stdout + done.stderr, (
            f"{text}\n{done.stdout}{done.stderr}"
        )
        return
    process = world.start(words)
    line = world.first_line(process)
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=LIMIT_S)[0]
    assert line and process.returncode in (0, 130) and "Traceback" not in rest, line + rest


@pytest.mark.parametrize("code", [one for one in CODE if one.to_run()], ids=lambda one: f"{one.page}:{one.line}")
def test_it_runs(code: Code, world: World) -> None:
    parts = code.to_run()
    if parts[0].startswith(NEEDS_LAB) and (skip := needs.LAB[1]).args[0]:
        pytest.skip(skip.kwargs["reason"])
    if parts[0].startswith(NEEDS_JOB):
        world.run_job()
    for part in parts:
        short = next((text for start, text in BEFORE.items() if part.startswith(start)), "") + part
        for there, here in INSTEAD:
            short = re.sub(there, here, short)
        short = short.replace("{pid}", str(os.getpid())).replace("{device}", world.device)
        run(world, short.replace("{port}", world.serve()) if "{port}" in short else short, code.is_python)


@pytest.mark.parametrize(
    "command",
    [part for one in CODE if one.page == "evidence/scenario-answers.md" for part in one.parts],
    ids=lambda c: c.split()[2],
)
def test_questions_can_be_asked_again(command: str) -> None:
    """For a moment of the fabric's time: that there is an answer then is not to be expected."""
    words = [*shlex.split(command.replace("--seeds 3", "--seeds 1"))[1:], "--quiet", "--set", "run.until_ms=0.02"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 3 and "time is up" in done.output and "Traceback" not in done.output, done.output


def test_the_table_has_nothing_that_is_gone() -> None:
    known = [(one.page, part) for one in CODE for part in one.parts]
    for (page, start), why in LEFT.items():
        assert any(name == page and part.startswith(start) for name, part in known), (page, start)
        for file in re.findall(r"tests/\S+\.py", why):
            assert (ROOT / file).exists(), file
    for there, _ in INSTEAD:
        assert any(re.search(there, part) for _, part in known), there
    assert len([one for one in CODE if one.to_run()]) > 15
