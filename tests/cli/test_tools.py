"""ping, perf and top: a server here, a client there, on loopback."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from rich.console import Console

from in_process import softmrc_here, unseen
from softmrc.cli import perf
from softmrc.cli.ping import seen
from softmrc.connection import listen
from softmrc.engine import EvState
from softmrc.errors import ConfigError, MrcError

PLANES = ["--planes", "127.0.0.1,127.0.0.2"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a `softmrc perf` that a thread of this process runs."""
    with unseen():
        listener = listen(memory=bytearray(perf.MEMORY), planes=PLANES[1].split(","))
    monkeypatch.setattr(perf, "listen", lambda *_, **__: listener)

    def serve() -> None:
        with suppress(MrcError):  # it is closed in the end
            perf.serve("127.0.0.1", 0, False, Console(file=io.StringIO()))

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{listener.port}"
    listener.close()
    thread.join(60)
    assert not thread.is_alive()


@contextmanager
def a_server_process() -> Iterator[str]:
    command = [sys.executable, "-m", "softmrc", "perf", "--port", "0", *PLANES]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"port (\d+)", process.stdout.readline())
        assert found
        yield f"127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.communicate()


# Real processes: it is between two that they measure.
@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [
        ("ping", "--count", "2", "--interval", "20ms"),
        ("perf", "--duration", "0.05", "--size", "64"),
        ("top", "--duration", "0.5", "--load"),
    ],
    ids=lambda words: words[0],
)
def test_a_server_and_a_client_are_two_processes(words: tuple[str, ...]) -> None:
    with a_server_process() as address:
        command = [sys.executable, "-m", "softmrc", *words, address, *PLANES]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "" and "127.0.0.2" in done.stdout, done


def test_ping_perf_and_top(server: str) -> None:
    ping = softmrc_here("ping", server, *PLANES, "--count", "3", "--interval", "20ms")
    assert ping.returncode == 0, ping
    assert "8 paths" in ping.stdout and ping.stdout.count("answers") == 8
    assert ping.stdout.count(" 0%") == 8
    found = softmrc_here("perf", server, *PLANES, "--duration", "0.05")
    assert found.returncode == 0, found
    assert "16,777,216" in found.stdout
    assert max(map(len, found.stdout.splitlines())) <= 80
    rows = softmrc_here("perf", server, *PLANES, "--duration", "0.05", "--size", "1000", "--size", "64", "--json")
    assert [json.loads(line)["bytes"] for line in rows.stdout.splitlines()] == [1000, 64], rows
    wide = softmrc_here("perf", server, *PLANES, "--duration", "0.05", "--threads", "3", "--size", "16777216")
    assert wide.returncode == 0, wide
    assert "16,777,216" in wide.stdout
    top = softmrc_here("top", "--load", server, *PLANES, "--duration", "1", "--loss", "0.01")
    assert top.returncode == 0, top
    assert "127.0.0.2" in top.stdout and "window" in top.stdout and "● good" in top.stdout


def test_the_commands_honour_the_planes_of_the_environment(server: str) -> None:
    planes = "127.0.0.1,127.0.0.2"
    done = softmrc_here("ping", server, "--count", "2", "--interval", "20ms", "--json", SOFTMRC_PLANES=planes)
    paths = json.loads(done.stdout)["paths"]
    assert done.returncode == 0 and {path["plane"] for path in paths} == {0, 1}
    assert all(path["answered"] == path["sent"] == 2 and path["median_us"] > 0 for path in paths)


def test_ping_tells_by_its_status_that_a_path_loses() -> None:
    with listen(memory=bytearray(64), planes=PLANES[1].split(",")) as listener:
        listener.device.set_faults(1, drop=0.5)
        done = softmrc_here("ping", f"127.0.0.1:{listener.port}", *PLANES, "--count", "40", "--interval", "2ms")
    assert done.returncode == 3 and "loses" in done.stdout and done.stdout.count("answers") == 4, done


def test_ping_says_what_it_saw() -> None:
    for state in EvState:
        words = [seen(answered, 10, state) for answered in range(11)]
        assert words[0].startswith("silent") and words[10].startswith("answers")
        assert all(word.startswith("loses") for word in words[1:10])
        assert all((state.name in word) == (state != EvState.GOOD) for word in words)


def test_a_mistake_is_one_line() -> None:
    for arguments, words in (
        (("ping", "nowhere"), "HOST:PORT"),
        (("ping", "127.0.0.1:1"), "nothing listens on 127.0.0.1 port 1"),
        (("ping", "nosuchhost.invalid:7999"), "cannot resolve nosuchhost.invalid"),
        (("perf", "--host", "0.0.0.0", "--port", "0"), "secret"),
        (("perf", "--planes", "nosuch0"), "no interface nosuch0"),
    ):
        done = softmrc_here(*arguments)
        assert done.returncode == (2 if isinstance(done.error, ConfigError) else 1) and words in done.stderr, done
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
