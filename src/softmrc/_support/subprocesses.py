"""Processes of ours: how they are started, and how they exchange messages, one JSON object a line.

They are started with the packages of this interpreter, and with nothing that lies in the current folder: Python would
otherwise look for modules there first, and a folder may be anybody's.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Self

from softmrc.errors import InternalError

EXIT_S = 5.0  # that a worker has to end by itself
_writing = threading.Lock()


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours in a separate process."""
    return [sys.executable, "-P", "-m", module, *arguments]


@contextmanager
def safe_spawning() -> Iterator[None]:
    """The same for processes that multiprocessing spawns: it takes no options, only this interpreter's and what is in
    the environment."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


class WorkerProcess:
    """A process that reads messages from its standard input until that ends, and writes messages to its output.

    A thread reads what it writes. Lines that begin no JSON object, which libraries print, are passed over.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        stderr: Path | None = None,
        new_session: bool = False,
        deliver: Callable[[dict[str, Any] | None], None] | None = None,
    ) -> None:
        """`stderr`: a file. `new_session`: Ctrl-C does not reach it. `deliver` is called from the thread with each
        message, and with None at the end; without it, messages wait for `receive`."""
        self._command = " ".join(command)
        self._received: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with open(stderr, "w") if stderr else nullcontext() as errors:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=env,
                text=True,
                start_new_session=new_session,
            )
        reader = threading.Thread(target=self._read, args=(deliver or self._received.put,), daemon=True)
        reader.start()

    def _read(self, deliver: Callable[[dict[str, Any] | None], None]) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with suppress(json.JSONDecodeError):
                    if line.startswith("{"):
                        deliver(json.loads(line))
        deliver(None)

    def send(self, **message: Any) -> None:
        """Does nothing if the process has ended; `receive` then raises."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The next message. Raises TimeoutError where none comes in time, InternalError where the process has ended."""
        try:
            message = self._received.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"a worker process did not answer in time: {self._command}") from None
        if message is None:
            self._received.put(None)
            raise InternalError(f"a worker process ended: {self._command}")
        return message

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a message; the next one that comes."""
        self.send(**message)
        return self.receive()

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        """End its input, and kill it where it does not end in time."""
        close_workers([self])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def close_workers(workers: Sequence[WorkerProcess]) -> None:
    """End the input of all, and kill those that do not end in time."""
    for worker in workers:
        assert worker.process.stdin is not None
        with suppress(OSError):
            worker.process.stdin.close()
    for worker in workers:
        try:
            worker.process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


def write_message(**message: Any) -> None:
    """In a worker: send a message to the process that started it."""
    with _writing:
        print(json.dumps(message), flush=True)


def read_messages() -> Iterator[dict[str, Any]]:
    """In a worker: what it is sent, until its input ends."""
    return map(json.loads, sys.stdin)


def serve(handlers: Mapping[str, Callable[..., Any]]) -> None:
    """In a worker: say that it is ready; then answer each message {"do": name, ...} with what that handler returns."""
    write_message(ready=True)
    for message in read_messages():
        write_message(**(call_handler(handlers, message) or {}))


def call_handler(handlers: Mapping[str, Callable[..., Any]], message: Mapping[str, Any]) -> Any:
    return handlers[message["do"]](**{name: value for name, value in message.items() if name != "do"})
