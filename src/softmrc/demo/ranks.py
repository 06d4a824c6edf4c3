"""The processes of the demo: started, spoken to in lines of JSON, and ended, whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from softmrc._support.subprocesses import python_command
from softmrc.errors import InternalError, UsageError

TIMEOUT_S = 120.0
LEAVE_S = 5.0


class RankMessage(NamedTuple):
    """A line that a rank said."""

    rank: int
    kind: str
    content: dict[str, Any]


class DemoRanks:
    """Use it as a context: at its end no process is left."""

    def __init__(self, size: int, env: Mapping[str, str], prefixes: Sequence[Sequence[str]] | None = None) -> None:
        """`prefixes`: for each rank, a command that runs the rest of its line somewhere else."""
        self.size = size
        self._folder = tempfile.TemporaryDirectory(prefix="softmrc-demo-")
        self._reports: queue.Queue[RankMessage] = queue.Queue()
        self._processes: list[subprocess.Popen[str]] = []
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        self._prefixes = prefixes or [()] * size

    def __enter__(self) -> Self:
        try:
            for rank in range(self.size):
                self._start(rank)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, rank: int) -> None:
        command = python_command("softmrc.demo.rank", str(rank), str(self.size), f"{self._folder.name}/store")
        with open(self._errors_of(rank), "w") as errors:
            # A session of its own: Ctrl-C reaches us alone, and we end the ranks.
            process = subprocess.Popen(
                [*self._prefixes[rank], *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                text=True, env=self._env, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        threading.Thread(target=self._read, args=(rank, process), daemon=True).start()

    def _errors_of(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank{rank}.err"

    def _read(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(json.JSONDecodeError):  # what libraries print is not for us
                content = json.loads(line)
                self._reports.put(RankMessage(rank, content.pop("kind"), content))
        self._reports.put(RankMessage(rank, "gone", {}))

    def order(self, rank: int | None, what: dict[str, Any]) -> None:
        """Tell a rank, or all."""
        for process in self._processes if rank is None else [self._processes[rank]]:
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # a rank that is gone says so itself
                process.stdin.write(json.dumps(what) + "\n")
                process.stdin.flush()

    def next(self, timeout_s: float = TIMEOUT_S) -> RankMessage | None:
        """The next report; None after the timeout. A rank that fails ends the demo."""
        try:
            report = self._reports.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if report.kind == "failed":
            raise InternalError(f"rank {report.rank} failed: {report.content['why']}")
        if report.kind == "gone":
            raise self._ended(report.rank)
        return report

    def _ended(self, rank: int) -> Exception:
        last = self._errors_of(rank).read_text().strip().splitlines()
        if last and "No module named 'torch'" in last[-1]:
            return UsageError("the demo trains with torch, which is not installed: pip install torch")
        return InternalError(f"rank {rank} ended early: {last[-1] if last else 'without output'}")

    def stop(self) -> None:
        """Let them go, and end those who do not."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        for process in self._processes:
            try:
                process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()
