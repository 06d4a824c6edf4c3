"""Ranks for tests: processes that are started once and run one function after another, all together.

A test sends every rank the same function of its module and gets back what each returned:

    world.run(some_function, argument)      # some_function(here, argument), on each rank

`here` is a `Rank`: its number, the groups, and helpers. Ranks that outlive a test (`world`) must be left as they were
found; a test that kills ranks starts its own with `started`.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
PR_SET_PDEATHSIG = 1


class Rank:
    """What a function of a test is given, in its rank."""

    def __init__(self, number: int, size: int) -> None:
        self.rank, self.size = number, size
        self._groups: dict[Any, Any] = {}

    def group(self, size: int | None = None, backend: str = "mrc") -> Any:
        """A group of the first `size` ranks, made once. All ranks must ask."""
        import torch.distributed as dist

        key = (size or self.size, backend)
        if key not in self._groups:
            whole = key == (self.size, "mrc")
            self._groups[key] = dist.group.WORLD if whole else dist.new_group(list(range(key[0])), backend=backend)
        return self._groups[key]

    def abort(self) -> None:
        """End what the other ranks may be waiting for."""
        from softmrc.torch import group_of

        for key, group in self._groups.items():
            if key[1] == "mrc" and self.rank < key[0]:
                group_of(group).abort(f"a test failed on rank {self.rank}")
        group_of().abort(f"a test failed on rank {self.rank}")


def _serve(number: int, size: int, store_path: str, timeout_s: float, env: dict[str, str], pipe: Connection) -> None:
    faulthandler.enable()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a test run that is killed leaves no process behind
    os.environ.update(env)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        store = dist.FileStore(store_path, size)
        dist.init_process_group("mrc", store=store, rank=number, world_size=size, timeout=timedelta(seconds=timeout_s))
        here = Rank(number, size)
        pipe.send((True, None))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
        return
    while (order := pipe.recv()) is not None:
        function, arguments = order
        faulthandler.dump_traceback_later(PATIENCE_S, file=sys.__stderr__)
        try:
            pipe.send((True, function(here, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
            here.abort()
        faulthandler.cancel_dump_traceback_later()
    dist.destroy_process_group()
    pipe.send((True, None))


class RankError(AssertionError):
    """What ranks raised, all of it."""


class World:
    """Some ranks on this machine."""

    def __init__(self, size: int, folder: Path, timeout_s: float = 60.0, env: dict[str, str] | None = None) -> None:
        self.size = size
        self.is_broken = False
        spawn = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self.processes = []
        for number in range(size):
            ours, theirs = spawn.Pipe()
            arguments = (number, size, str(folder / "store"), timeout_s, env or {}, theirs)
            process = spawn.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)
        self.collect()

    def send(self, function: Callable[..., Any], *arguments: Any, ranks: list[int] | None = None) -> None:
        for number in range(self.size) if ranks is None else ranks:
            self._pipes[number].send((function, arguments))

    def collect(self, ranks: list[int] | None = None) -> list[Any]:
        """What each rank returned; raises what any of them raised, or that one is silent."""
        results, errors = [], []
        for number in range(self.size) if ranks is None else ranks:
            try:
                if not self._pipes[number].poll(PATIENCE_S):
                    raise EOFError("is silent")
                went_well, value = self._pipes[number].recv()
            except (EOFError, OSError) as error:
                went_well, value = False, f"no answer ({error or 'died'})"
            results.append(value)
            if not went_well:
                errors.append(f"rank {number}: {value}")
        if errors:
            self.is_broken = True  # ranks that failed no longer keep step with the others
            raise RankError("\n".join(errors))
        return results

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        self.send(function, *arguments)
        return self.collect()

    def stop(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(0.1 if self.is_broken else 20)
            if process.is_alive():
                process.kill()
                process.join()


@contextlib.contextmanager
def started(size: int, folder: Path, **more: Any) -> Iterator[World]:
    """Ranks of a test's own."""
    world = World(size, folder, **more)
    try:
        yield world
    finally:
        world.stop()
