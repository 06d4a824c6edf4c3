"""What unauthenticated hosts and clients can show at a user's terminal: only their name."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from liar import REFUSAL, frame

from in_process import softmrc_here, unseen
from softmrc import wire
from softmrc.cli import perf
from softmrc.cli.perf import ECHO, MEMORY
from softmrc.connection import Connection, Listener, connect, listen
from softmrc.errors import MrcError, RemoteError

COMMAND = [sys.executable, "-P", "-c", "from softmrc.cli import main; main()"]
WIDEST = 2_000  # characters that one refusal may put on a terminal
# Markup that closes what was never opened, a link, a command to the terminal, a flood, and nothing.
SAID = ["[/x]", "[link=file:///]here", "\x1b[2J\x1b]0;x\x07", "x" * 500, "", "\r\n" * 9]


def refusal(said: str) -> bytes:
    return frame(REFUSAL, b"\0" + said.encode())


def is_fit_for_a_terminal(text: str) -> bool:
    return len(text) < WIDEST and all(c.isprintable() or c == "\n" for c in text)


class Server:
    """A `softmrc perf` of its own process, and what it has said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process, self.output = process, process.stdout
        self.port = int(re.search(r"port (\d+)", self.line())[1])  # type: ignore[index]

    def line(self) -> str:
        found = self.output.readline()
        assert found, f"the server ended with {self.process.wait(60)}"
        return found

    def text_until(self, words: str) -> str:
        said = self.line()
        while words not in said.replace("\n", " "):
            said += self.line()
        return said


@contextmanager
def perf_server(*more: str) -> Iterator[Server]:
    command = [*COMMAND, "perf", "--port", "0", "--planes", "127.0.0.1", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield Server(process)
    finally:
        process.kill()
        process.communicate()


def is_served(server: Server) -> bool:
    """Whether an honest client still gets an echo."""
    with connect("127.0.0.1", server.port, memory=bytearray(64)) as connection:
        connection.write(connection.remote[0], 0, b"hello", imm=ECHO)
        return connection.recv(30).imm == ECHO


# A real process: it is one that must not end.
@pytest.mark.process
def test_a_stranger_cannot_end_a_server_or_write_on_its_terminal() -> None:
    with perf_server() as server:
        for said in SAID:
            for words in (refusal(said), said.encode()):
                with socket.create_connection(("127.0.0.1", server.port), 10) as stranger, suppress(ConnectionError):
                    stranger.sendall(words)
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(1 << 16):
                        pass
        assert is_served(server)
        heard = server.text_until("serving 127.0.0.1")
        assert all(is_fit_for_a_terminal(line) for line in heard.splitlines())


@contextmanager
def fake_listener(said: str) -> Iterator[int]:
    """A port that sends the same text to every client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.sendall(refusal(said))
                client.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(30)


@pytest.mark.parametrize("said", SAID, ids=lambda said: repr(said)[:20])
def test_a_fake_listener_gets_one_line(said: str) -> None:
    with fake_listener(said) as port:
        done = softmrc_here("ping", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert is_fit_for_a_terminal(done.stderr) and len(done.stderr.splitlines()) == 1, done.stderr[:1000]


def test_an_error_of_a_peer_is_one_short_printable_line() -> None:
    for said in SAID:
        text = str(RemoteError(f"10.0.0.2 port 7 refused: {said}"))
        assert text.startswith("10.0.0.2 port 7 refused: ") and is_fit_for_a_terminal(text) and "\n" not in text
    assert str(RemoteError("zwölf\nAffen")) == "zwölf\\nAffen"


def asked(command: str) -> list[str]:
    """The words before an address."""
    return [command, "--duration", "30", "--load"] if command == "top" else [command]


def test_a_capture_cannot_write_on_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "capture.pcapng"
    with wire.PcapngWriter(file) as capture:
        plane = capture.add_interface("\x1b[2Jeth0\nx")
        capture.write(plane, time_ns=1_000, frame=bytes(60), comment="\x1b]0;x\x07\nmore")
    for more in ((), ("--summary",)):
        done = softmrc_here("dissect", file, *more)
        assert done.returncode == 0 and is_fit_for_a_terminal(done.stdout) and "eth0" in done.stdout


def test_a_listener_without_memory_is_an_error_of_one_line() -> None:
    for command in ("perf", "top"):
        with listen("127.0.0.1") as listener:
            thread = threading.Thread(target=lambda listener=listener: listener.accept(30).close())
            thread.start()
            done = softmrc_here(*asked(command), f"127.0.0.1:{listener.port}")
            thread.join(30)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
        assert "no memory" in done.stderr


def served_by(serve: Callable[[Connection], None]) -> Callable[[Listener], None]:
    """In a thread: one client, and then no longer."""

    def run(listener: Listener) -> None:
        with suppress(MrcError), listener.accept(30) as connection:
            serve(connection)

    return run


def answer_otherwise(connection: Connection) -> None:
    while True:
        connection.recv(30)
        connection.post(connection.remote[0], 0, b"x", imm=77)


# Servers that are something else: what they offer, what they do, what `perf` and `top` then say.
OTHERS: dict[str, tuple[int, Callable[[Connection], Any], dict[str, str]]] = {
    "little memory": (64, lambda connection: connection.recv(30), dict.fromkeys(("perf", "top"), "64 bytes")),
    "another answer": (MEMORY, answer_otherwise, {"perf": "answers otherwise"}),
    "leaves": (MEMORY, lambda connection: connection.close(), dict.fromkeys(("perf", "top"), "has left")),
    "takes it back": (MEMORY, lambda connection: take_back(connection), {"top": "refused the address or the key"}),
}


def take_back(connection: Connection) -> None:
    for region in connection._memory.regions:
        region.deregister()
    connection.recv(30)


@pytest.mark.parametrize(("kind", "command"), [(kind, command) for kind in OTHERS for command in OTHERS[kind][2]])
def test_a_server_that_is_not_perf_is_told_from_it_in_one_line(kind: str, command: str) -> None:
    memory, serve, words = OTHERS[kind]
    with unseen():
        listener = listen("127.0.0.1", memory=bytearray(memory))
    with listener:
        thread = threading.Thread(target=served_by(serve), args=(listener,))
        thread.start()
        with tempfile.TemporaryDirectory() as own:  # where no device of an earlier test is found
            done = softmrc_here(*asked(command), f"127.0.0.1:{listener.port}", XDG_RUNTIME_DIR=own)
        listener.device.close()
        thread.join(30)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert words[command] in done.stderr and "<" not in done.stderr


def test_a_server_that_returns_nothing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf, "ANSWER_S", 0.3)
    with (
        listen(memory=bytearray(64)) as listener,
        connect("127.0.0.1", listener.port) as client,
        listener.accept(30),
        pytest.raises(RemoteError, match="returns no echo: is it `softmrc perf`"),
    ):
        perf.latency_us(client, 64, 1)


# A real process: the server of a user.
@pytest.mark.process
def test_a_client_that_does_nothing_keeps_nobody_from_being_served() -> None:
    with perf_server() as server, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connect("127.0.0.1", server.port, memory=bytearray(64)))
        assert is_served(server)


def test_a_client_that_does_nothing_is_shown_out_and_one_that_writes_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen(memory=bytearray(64)) as listener, connect("127.0.0.1", listener.port) as client:
        connection, waits = listener.accept(60), 0

        def in_vain(limit_s: float) -> None:
            """The time passes without a message; the first three times with a write."""
            nonlocal waits
            assert limit_s == perf.IDLE_S
            waits += 1
            if waits <= 3:
                client.write(client.remote[0], 0, b"x")
            raise TimeoutError

        monkeypatch.setattr(connection, "recv", in_vain)
        with pytest.raises(RemoteError, match="has sent nothing for 60 s"):
            perf.echo(connection, listener.device.register(bytearray(64)))
        assert waits == 4


# A real process: it is one that must not end.
@pytest.mark.process
def test_a_client_that_asks_for_too_much_is_refused_and_the_next_is_served() -> None:
    with perf_server() as server:
        with connect("127.0.0.1", server.port, memory=bytearray(64)) as greedy:
            greedy.post(greedy.remote[0], 0, bytearray(20 << 20), imm=ECHO)
            assert "20,971,520 bytes" in server.text_until("at most")
        assert is_served(server)
        # As many small ones as it likes, without ever taking an answer.
        with connect("127.0.0.1", server.port, memory=bytearray(64)) as hurried, pytest.raises(MrcError):
            for _ in range(200):
                numbers = [hurried.post(hurried.remote[0], 0, b"", imm=ECHO) for _ in range(50)]
                for number in numbers:
                    hurried.wait(number, 30)
        assert is_served(server)


# A real process: it is one that ends.
@pytest.mark.process
def test_a_server_for_one_client_stays_when_somebody_has_only_looked() -> None:
    with perf_server("--once") as server:
        done = softmrc_here("ping", f"127.0.0.1:{server.port}", "--count", "2", "--interval", "10ms")
        assert done.returncode == 0, done.stderr
        assert is_served(server)
        assert server.process.wait(120) == 0


LEAVING = """
import os, signal, threading, time
from softmrc.connection import connect, listen

listener = listen(memory=bytearray(64))
peer = connect("127.0.0.1", listener.port)
other = listener.accept(20)
peer.device.set_faults(black_hole=True)
peer.post(peer.remote[0], 0, b"never arrives")
threading.Thread(target=lambda: (time.sleep(1.0), os.kill(os.getpid(), signal.SIGINT)), daemon=True).start()
"""


# A real process: SIGINT ends it.
@pytest.mark.process
def test_a_second_ctrl_c_ends_a_goodbye_without_a_word() -> None:
    """The first has ended the program; the second meets what is said in the end."""
    done = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == "", done.stderr
