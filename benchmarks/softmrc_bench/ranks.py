"""Ranks of a measurement: processes that do all-reduces on order.

python -m softmrc_bench.ranks STORE RANK SIZE PLANE...       ours
python -m softmrc_bench.gloo_rank STORE RANK SIZE            Gloo's, for comparison
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from softmrc._support.subprocesses import WorkerProcess, call_handler, close_workers, serve
from softmrc.collectives import DirectoryStore, Group
from softmrc.config import DeviceConfig


def serve_rank(
    make: Callable[[int], Any], all_reduce: Callable[[Any], Any], orders: dict[str, Callable[..., Any]]
) -> None:
    """Carry out orders until the input ends. `make` gives a float32 buffer of so many elements."""
    buffers: dict[int, Any] = {}

    def times(elements: int, count: int, meanwhile: Sequence[tuple[float, dict[str, Any]]] = ()) -> dict[str, Any]:
        """How long each of `count` all-reduces took here, with other orders carried out so many seconds after."""
        if elements not in buffers:
            buffers.clear()
            buffers[elements] = make(elements)
        buffer = buffers[elements]
        timers = [threading.Timer(after_s, call_handler, [handlers, order]) for after_s, order in meanwhile]
        for timer in timers:
            timer.start()
        took = []
        for _ in range(count):
            start = time.perf_counter()
            all_reduce(buffer)
            took.append(time.perf_counter() - start)
        for timer in timers:
            timer.join()
        return {"times": took}

    handlers = {"times": times, **orders}
    serve(handlers)


def main(store: str, rank: str, size: str, settings: str, *planes: str) -> None:
    """One rank of ours."""
    config = DeviceConfig(**json.loads(settings))
    with Group.join(DirectoryStore(store), int(rank), int(size), planes=planes, device_config=config) as group:

        def all_reduce(buffer: np.ndarray) -> None:
            group.all_reduce(buffer).wait()

        orders: dict[str, Callable[..., Any]] = {
            "faults": lambda plane, **faults: group.device.set_faults(plane, **faults),
            "force": lambda algorithm: group._native.force(algorithm),
            "stats": group.device.stats,
            "pairs": lambda: {"bulk": _sum(pair.bulk.stats() for pairs in group.pairs.values() for pair in pairs)},
        }
        serve_rank(lambda elements: np.zeros(elements, np.float32), all_reduce, orders)


def _sum(rows: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row)
    return dict(total)


class BenchRanks:
    """All ranks of one kind, from the side that orders."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self.workers = [WorkerProcess(command) for command in commands]
        try:
            for worker in self.workers:
                worker.receive()
        except BaseException:
            self.close()
            raise

    def order(self, do: str, only: int | None = None, **values: Any) -> list[dict[str, Any]]:
        """The same order to all (or one); their answers."""
        told = self.workers if only is None else [self.workers[only]]
        for worker in told:
            worker.send(do=do, **values)
        return [worker.receive() for worker in told]

    def times(self, nbytes: int, count: int, meanwhile: Sequence[tuple[float, dict[str, Any]]] = ()) -> list[float]:
        """Of each all-reduce, how long the slowest rank took. `meanwhile` is for rank 0."""
        for rank, worker in enumerate(self.workers):
            more = {} if rank else {"meanwhile": meanwhile}
            worker.send(do="times", elements=nbytes // 4, count=count, **more)
        rows = [worker.receive()["times"] for worker in self.workers]
        return [max(step) for step in zip(*rows, strict=True)]

    def close(self) -> None:
        close_workers(self.workers)

    def __enter__(self) -> BenchRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
