"""The ranks of the demo: processes that are started, told what to do, and ended, whatever happens."""

from __future__ import annotations

import importlib.util
import os
import queue
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from softmrc._support.subprocesses import WorkerProcess, close_workers, python_command
from softmrc.errors import InternalError, UsageError

TIMEOUT_S = 120.0


class RankPlace(NamedTuple):
    """Where a rank runs: its environment, and a context from which a process starts there."""

    env: Mapping[str, str]
    inside: Callable[[], AbstractContextManager[None]] = nullcontext


class RankMessage(NamedTuple):
    """A message from a rank."""

    rank: int
    kind: str
    content: dict[str, Any]


class DemoRanks:
    """Use it as a context: at its end no process is left."""

    def __init__(self, places: Sequence[RankPlace], env: Mapping[str, str]) -> None:
        """One rank in each place. `env`: for all of them."""
        if importlib.util.find_spec("torch") is None:
            raise UsageError("the demo trains with torch, which is not installed: pip install torch")
        self.size = len(places)
        self._folder = tempfile.TemporaryDirectory(prefix="softmrc-demo-")
        self._reports: queue.Queue[RankMessage] = queue.Queue()
        self._workers: list[WorkerProcess] = []
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        self._places = places

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
        place = self._places[rank]
        with place.inside():
            worker = WorkerProcess(
                command,
                env={**self._env, **place.env},
                stderr=self._errors_of(rank),
                new_session=True,  # Ctrl-C reaches us alone, and we end the ranks
                deliver=partial(self._deliver, rank),
            )
        self._workers.append(worker)

    def _errors_of(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank{rank}.err"

    def _deliver(self, rank: int, content: dict[str, Any] | None) -> None:
        kind = "gone" if content is None else content.pop("kind")
        self._reports.put(RankMessage(rank, kind, content or {}))

    def order(self, rank: int | None, what: dict[str, Any]) -> None:
        """Tell a rank, or all."""
        for worker in self._workers if rank is None else [self._workers[rank]]:
            worker.send(**what)

    def next(self, timeout_s: float = TIMEOUT_S) -> RankMessage | None:
        """The next report; None after the timeout. A rank whose training failed reports `failed`; one that ends without
        a word ends the demo."""
        try:
            report = self._reports.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if report.kind == "gone":
            raise self._ended(report.rank)
        return report

    def _ended(self, rank: int) -> Exception:
        last = self._errors_of(rank).read_text().strip().splitlines()
        return InternalError(f"rank {rank} ended early: {last[-1] if last else 'without output'}")

    def stop(self) -> None:
        """Let them go, and end those that do not."""
        close_workers(self._workers)
        self._folder.cleanup()
