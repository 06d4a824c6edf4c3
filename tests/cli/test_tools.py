"""ping, perf and top, as a user runs them: a server here, a client there, on loopback."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from softmrc.cli.ping import seen
from softmrc.engine import EvState

COMMAND = [sys.executable, "-c", "from softmrc.cli import main; main()"]
PLANES = ["--plane", "127.0.0.1", "--plane", "127.0.0.2"]


@contextmanager
def server() -> Iterator[str]:
    """The address of a running `softmrc perf`."""
    process = subprocess.Popen([*COMMAND, "perf", "--port", "0", *PLANES], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"port (\d+)", process.stdout.readline())
        assert found
        yield f"127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def softmrc(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120)


def test_ping_perf_and_top() -> None:
    with server() as address:
        ping = softmrc("ping", address, *PLANES, "--count", "3", "--interval-ms", "20")
        assert ping.returncode == 0, ping.stderr
        assert "8 paths" in ping.stdout and ping.stdout.count("answers") == 8
        assert ping.stdout.count(" 0%") == 8
        perf = softmrc("perf", address, *PLANES, "--seconds", "0.05")
        assert perf.returncode == 0, perf.stderr
        assert "16,777,216" in perf.stdout
        wide = softmrc("perf", address, *PLANES, "--seconds", "0.05", "--lanes", "3")
        assert wide.returncode == 0, wide.stderr
        assert "16,777,216" in wide.stdout and "3 of 3 lanes open" in " ".join(wide.stdout.split())
        top = softmrc("top", address, *PLANES, "--seconds", "1", "--loss", "0.01")
        assert top.returncode == 0, top.stderr
        assert "127.0.0.2" in top.stdout and "window" in top.stdout


def test_ping_says_what_it_saw() -> None:
    for state in EvState:
        words = [seen(answered, 10, state) for answered in range(11)]
        assert words[0].startswith("silent") and words[10].startswith("answers")
        assert all(word.startswith("loses") for word in words[1:10])
        assert all((state.name in word) == (state != EvState.GOOD) for word in words)


def test_a_mistake_is_one_line() -> None:
    for arguments, words in (
        (("ping", "nowhere"), "HOST:PORT"),
        (("ping", "127.0.0.1:1"), "does not answer"),
        (("perf", "--host", "0.0.0.0", "--port", "0"), "secret"),
        (("perf", "--plane", "nosuch0"), "no interface nosuch0"),
    ):
        done = softmrc(*arguments)
        assert done.returncode == 1 and words in done.stderr, done
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
