"""Ranks of a measurement: processes that do all-reduces on order, one JSON object a line.

python -m softmrc_bench.ranks STORE RANK SIZE PLANE...       ours
python -m softmrc_bench.gloo_rank STORE RANK SIZE            Gloo's, for comparison
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from softmrc.collectives import DirectoryStore, Group
from softmrc.config import DeviceConfig
from softmrc.errors import InternalError


def serve(make: Callable[[int], Any], all_reduce: Callable[[Any], Any], orders: dict[str, Callable[..., Any]]) -> None:
    """Carry out orders until the input ends. `make` gives a float32 buffer of so many elements."""
    buffers: dict[int, Any] = {}

    def times(elements: int, count: int, meanwhile: Sequence[tuple[float, dict[str, Any]]] = ()) -> dict[str, Any]:
        """How long each of `count` all-reduces took here, with other orders carried out so many seconds after."""
        if elements not in buffers:
            buffers.clear()
            buffers[elements] = make(elements)
        buffer = buffers[elements]
        timers = [threading.Timer(after_s, _carry_out, [known, order]) for after_s, order in meanwhile]
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

    known = {"times": times, **orders}
    obey(known)


def _carry_out(known: dict[str, Callable[..., Any]], order: dict[str, Any]) -> Any:
    return known[order["do"]](**{key: value for key, value in order.items() if key != "do"})


def obey(known: dict[str, Callable[..., Any]]) -> None:
    """Carry out orders, one a line, until the input ends."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_carry_out(known, json.loads(line)) or {}), flush=True)


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
        serve(lambda elements: np.zeros(elements, np.float32), all_reduce, orders)


def _sum(rows: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row)
    return dict(total)


class BenchRanks:
    """All ranks of one kind, from the side that orders."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for command in commands
        ]
        for process in self.processes:
            self._hear(process)

    def _hear(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise InternalError(f"a rank of the measurement died: {process.args!r}")
        return json.loads(line)

    def _say(self, process: subprocess.Popen[str], order: dict[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()

    def order(self, do: str, only: int | None = None, **values: Any) -> list[dict[str, Any]]:
        """The same order to all (or one); their answers."""
        told = self.processes if only is None else [self.processes[only]]
        for process in told:
            self._say(process, {"do": do, **values})
        return [self._hear(process) for process in told]

    def times(self, nbytes: int, count: int, meanwhile: Sequence[tuple[float, dict[str, Any]]] = ()) -> list[float]:
        """Of each all-reduce, how long the slowest rank took. `meanwhile` is for rank 0."""
        order = {"do": "times", "elements": nbytes // 4, "count": count}
        for rank, process in enumerate(self.processes):
            self._say(process, order if rank else {**order, "meanwhile": meanwhile})
        rows = [self._hear(process)["times"] for process in self.processes]
        return [max(step) for step in zip(*rows, strict=True)]

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> BenchRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
