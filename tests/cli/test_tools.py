"""ping, perf and top, as a user runs them: a server here, a client there, on loopback."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from softmrc.cli.ping import seen
from softmrc.connection import listen
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
        assert max(map(len, perf.stdout.splitlines())) <= 80
        rows = softmrc("perf", address, *PLANES, "--seconds", "0.05", "--size", "1000", "--size", "64", "--json")
        assert [json.loads(line)["bytes"] for line in rows.stdout.splitlines()] == [1000, 64], rows
        wide = softmrc("perf", address, *PLANES, "--seconds", "0.05", "--lanes", "3")
        assert wide.returncode == 0, wide.stderr
        assert "16,777,216" in wide.stdout
        top = softmrc("top", "--load", address, *PLANES, "--seconds", "1", "--loss", "0.01")
        assert top.returncode == 0, top.stderr
        assert "127.0.0.2" in top.stdout and "window" in top.stdout and "● good" in top.stdout


def test_the_commands_honour_the_planes_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with server() as address:
        monkeypatch.setenv("SOFTMRC_PLANES", "127.0.0.1,127.0.0.2")
        done = softmrc("ping", address, "--count", "2", "--interval-ms", "20", "--json")
        paths = json.loads(done.stdout)["paths"]
        assert done.returncode == 0 and {path["plane"] for path in paths} == {0, 1}
        assert all(path["answered"] == path["sent"] == 2 and path["median_us"] > 0 for path in paths)


def test_ping_tells_by_its_status_that_a_path_loses() -> None:
    with listen(memory=bytearray(64), planes=PLANES[1::2]) as listener:
        listener.device.set_faults(1, drop=0.5)
        done = softmrc("ping", f"127.0.0.1:{listener.port}", *PLANES, "--count", "40", "--interval-ms", "2")
    assert done.returncode == 1 and "loses" in done.stdout and done.stdout.count("answers") == 4, done


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
        (("ping", "nosuchhost.invalid:7999"), "nobody knows the address of nosuchhost.invalid"),
        (("perf", "--host", "0.0.0.0", "--port", "0"), "secret"),
        (("perf", "--plane", "nosuch0"), "no interface nosuch0"),
    ):
        done = softmrc(*arguments)
        assert done.returncode == 1 and words in done.stderr, done
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
