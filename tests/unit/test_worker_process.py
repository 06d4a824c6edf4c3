"""Worker processes, and messages to and from them."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from softmrc._support.subprocesses import WorkerProcess, close_workers
from softmrc.errors import InternalError

pytestmark = pytest.mark.process

ADDER = """
from softmrc._support.subprocesses import serve
print("NCCL version of another library")
print("{nothing")
serve({"add": lambda a, b: {"sum": a + b}, "nothing": lambda: None, "leave": lambda: 1 / 0})
"""


def adder(**options: Any) -> WorkerProcess:
    return WorkerProcess([sys.executable, "-P", "-c", ADDER], **options)


def test_a_worker_answers_and_other_lines_are_passed_over() -> None:
    with adder() as worker:
        assert worker.receive(60) == {"ready": True}
        assert worker.ask(do="add", a=1, b=2) == {"sum": 3}
        assert worker.ask(do="nothing") == {}
        with pytest.raises(TimeoutError, match="did not answer"):
            worker.receive(0.0)
    assert worker.process.returncode == 0, "it ends with its input"


def test_the_end_of_a_worker_is_an_error_of_whoever_waits_for_it(tmp_path: Path) -> None:
    with adder(stderr=tmp_path / "errors") as worker:
        worker.receive(60)
        for _ in range(2):
            with pytest.raises(InternalError, match="ended"):
                worker.ask(do="leave")
    assert "ZeroDivisionError" in (tmp_path / "errors").read_text()


def test_messages_can_be_delivered_by_a_call() -> None:
    delivered: list[dict[str, Any] | None] = []
    has_ended = threading.Event()
    with adder(deliver=lambda message: (delivered.append(message), message or has_ended.set())) as worker:
        worker.send(do="add", a="x", b="y")
    assert has_ended.wait(60) and json.dumps(delivered) == '[{"ready": true}, {"sum": "xy"}, null]'


def test_one_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softmrc._support.subprocesses.EXIT_S", 0.01)
    workers = [WorkerProcess([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(2)]
    close_workers(workers)
    assert [worker.process.returncode for worker in workers] == [-9, -9]
