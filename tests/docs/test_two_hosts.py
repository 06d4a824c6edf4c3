"""docs/tutorials/two-hosts.md in two namespaces with two NICs each, of which one is set down. Needs root."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs

pytestmark = needs.NAMESPACES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "two-hosts.md").read_text()
STEPS = 3000  # of examples/ddp.py, so that it still runs when `softmrc top` has started on a busy machine


def commands(word: str) -> list[tuple[str, str]]:
    """The page's commands that begin so, with the host that runs them."""
    return re.findall(rf"^    ([ab])\$ ({word}.*)$", PAGE, re.MULTILINE)


class Hosts:
    """`a` and `b`."""

    def __init__(self, folder: Path) -> None:
        self.names = {host: f"two-{host}-{os.getpid()}" for host in "ab"}
        self.folder = folder
        self._left: list[subprocess.Popen[str]] = []

    def build(self) -> None:
        for host in "ab":
            self._ip("netns", "add", self.names[host])
            self.ip(host, "link set lo up")
        for plane in range(2):
            self.ip("a", f"link add eth{plane} type veth peer name eth{plane} netns {self.names['b']}")
            for number, host in enumerate("ab", 1):
                self.ip(host, f"addr add 10.0.{plane}.{number}/24 dev eth{plane}")
                self.ip(host, f"link set eth{plane} up")

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def ip(self, host: str, arguments: str) -> None:
        self._ip("-n", self.names[host], *arguments.split())

    def start(self, host: str, command: str, **more: str) -> subprocess.Popen[str]:
        """A command of the page, in the environment that the page exports."""
        beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        told = {"SOFTMRC_PLANES": "eth0,eth1", "SOFTMRC_SECRET": "0123456789abcdef", "PATH": beside, "COLUMNS": "80"}
        runtime = self.folder / host
        runtime.mkdir(mode=0o700, exist_ok=True)
        env = {**os.environ, **told, "XDG_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        words = ["ip", "netns", "exec", self.names[host], *shlex.split(command)]
        process = subprocess.Popen(
            words, cwd=self.folder, env={**env, **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._left.append(process)
        return process

    def run(self, host: str, command: str, **more: str) -> str:
        process = self.start(host, command, **more)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out
        return out

    def close(self) -> None:
        for process in self._left:
            process.kill()
            process.communicate()
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    try:
        made.build()
        yield made
    finally:
        made.close()


def test_both_planes_are_found_and_answer(hosts: Hosts) -> None:
    (server,) = [words for host, words in commands("softmrc perf") if host == "b"]
    first = hosts.start("b", server).stdout
    assert first is not None and "10.0.0.2%eth0, 10.0.1.2%eth1" in first.readline()
    (ping,) = commands("softmrc ping")
    seen = hosts.run(*ping)
    assert seen.count("answers") == 8 and "0 eth0" in seen and "1 eth1" in seen
    for command in commands("ip link set"):
        hosts.run(*command)
    (perf,) = [(host, words) for host, words in commands("softmrc perf") if host == "a"]
    assert "1,048,576" in hosts.run(*perf)


def carries_nothing(seen: str, plane: str) -> bool:
    """Whether the last row of a plane in what `top` printed has a goodput of 0 in both directions."""
    rows = [line for line in seen.splitlines() if plane in line]
    return bool(rows) and rows[-1].count(" 0.000 ") >= 2


def losses(lines: str) -> list[str]:
    return re.findall(r"step \d+: loss \S+", lines)


def test_a_cable_is_pulled_and_the_job_goes_on(hosts: Hosts) -> None:
    (hosts.folder / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "ddp.py", hosts.folder / "examples")
    ranks = [hosts.start(host, f"{words} {STEPS}") for host, words in commands("torchrun")]
    assert len(ranks) == 2 and ranks[0].stdout is not None
    shown = ""
    while len(losses(shown)) < 3:
        line = ranks[0].stdout.readline()
        assert line, shown
        shown += line
    hosts.ip("b", "link set eth1 down")
    (top,) = commands("softmrc top")
    until, seen = time.monotonic() + 20, ""
    while not carries_nothing(seen, "1 eth1") or carries_nothing(seen, "0 eth0"):
        assert time.monotonic() < until, seen
        seen = hosts.run(top[0], f"{top[1]} --duration 0.3s")
    rest = ranks[0].stdout.read()  # `communicate` would lose lines that `readline` has buffered
    assert [rank.wait(120) for rank in ranks] == [0, 0], rest
    undisturbed = hosts.run(
        "a", f"torchrun --nproc-per-node 2 examples/ddp.py {STEPS}", SOFTMRC_PLANES="127.0.0.1,127.0.0.2"
    )
    assert losses(shown + rest) == losses(undisturbed) and len(losses(undisturbed)) == STEPS // 20
