"""What goes wrong: every rank learns of it, in words that say which rank and what, and no rank hangs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.ranks import PLANES, ranks
from softmrc.collectives import CollectiveError, DirectoryStore, Group, ReduceOp, Work
from softmrc.config import DeviceConfig
from softmrc.errors import MrcError

SMALL, LARGE = 10, 100_000
IMPATIENT = DeviceConfig(timeout=13, retry_linear=3, retry_exponential=2)  # a silent peer is given up in 0.2 s


def calls(rank: Group, first: Callable[[Group], Work], others: Callable[[Group], Work]) -> Any:
    return (first if rank.rank == 0 else others)(rank).wait()


def zeros(count: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(count, dtype)


MISMATCHES: dict[str, tuple[Callable[[Group], Work], Callable[[Group], Work], str]] = {
    "length": (
        lambda g: g.all_reduce(zeros(SMALL)),
        lambda g: g.all_reduce(zeros(SMALL + 1)),
        "10 float32.*11|11 float32.*10",
    ),
    "large length": (lambda g: g.all_reduce(zeros(LARGE)), lambda g: g.all_reduce(zeros(LARGE + 1)), "100001 float32"),
    "small and large": (lambda g: g.all_reduce(zeros(SMALL)), lambda g: g.all_reduce(zeros(LARGE)), "100000 float32"),
    "nothing": (lambda g: g.all_reduce(zeros(0)), lambda g: g.all_reduce(zeros(LARGE)), "100000 float32"),
    "type": (lambda g: g.all_reduce(zeros(LARGE)), lambda g: g.all_reduce(zeros(LARGE, np.int32)), "int32"),
    "reduction": (
        lambda g: g.all_reduce(zeros(LARGE)),
        lambda g: g.all_reduce(zeros(LARGE), op=ReduceOp.MAX),
        r"\(max\)|barrier",
    ),
    "factor": (
        lambda g: g.all_reduce(zeros(SMALL), op=ReduceOp.PREMUL_SUM, factor=0.5),
        lambda g: g.all_reduce(zeros(SMALL), op=ReduceOp.PREMUL_SUM, factor=0.25),
        "premul_sum",
    ),
    "operation": (lambda g: g.barrier(), lambda g: g.broadcast(zeros(LARGE), 0), "barrier"),
    "root": (lambda g: g.broadcast(zeros(SMALL), 0), lambda g: g.broadcast(zeros(SMALL), 1), "root 1"),
    "parts": (
        lambda g: g.all_to_all(zeros(3 * SMALL), zeros(3 * SMALL)),
        lambda g: g.all_to_all(zeros(3 * LARGE), zeros(3 * LARGE)),
        "bytes",
    ),
    "gathered": (
        lambda g: g.gather(zeros(SMALL), [zeros(SMALL)] * 3, 0),
        lambda g: g.gather(zeros(SMALL + g.rank), None, 0),
        "expects 40 bytes.* sends 4[48]",
    ),
}


@pytest.mark.parametrize("what", MISMATCHES)
def test_ranks_that_do_not_mean_the_same(what: str) -> None:
    first, others, words = MISMATCHES[what]
    with ranks(3) as three:
        # A rank whose own part went well learns of it with the next operation.
        results = three(lambda rank: [calls(rank, first, others), rank.barrier().wait()])
        assert all(isinstance(error, CollectiveError) for error in results), results
        assert all(re.search(words, str(error)) and "rank" in str(error) for error in results), results
        assert all(rank.error is not None for rank in three.groups)


def test_a_receive_of_the_wrong_length() -> None:
    with ranks(2) as two:
        results = two(lambda g: (g.send(zeros(LARGE), 1) if g.rank == 0 else g.recv(zeros(SMALL), 0)).wait())
        assert [str(error) for error in results] == ["rank 0 sends 100000 float32 where rank 1 receives 10 float32"] * 2


def refused(folder: Path, size: int, timeout_s: float, planes: dict[int, list[str]]) -> list[str]:
    """What these ranks, each on its own planes, raise when they join."""

    def join(rank: int) -> str:
        with pytest.raises(CollectiveError) as error:
            Group.join(DirectoryStore(folder), rank, size, planes=planes[rank], timeout_s=timeout_s)
        return str(error.value)

    with ThreadPoolExecutor(len(planes)) as pool:
        return list(pool.map(join, planes))


def test_a_rank_that_never_joins(tmp_path: Path) -> None:
    for error in refused(tmp_path, 4, 0.3, {0: PLANES, 2: PLANES}):
        assert error.startswith("timed out: rank 1, rank 3 did not join the group of 4 within 0.3 s"), error


def test_ranks_with_different_settings_do_not_join(tmp_path: Path) -> None:
    for error in refused(tmp_path, 2, 1.0, {0: PLANES[:1], 1: PLANES}):
        assert "set SOFTMRC_PLANES alike" in error and ("has 1 plane," in error or "has 1 plane;" in error)


@pytest.mark.parametrize(("lanes", "count"), [(1, LARGE), (3, 10 * LARGE)])
def test_a_rank_that_stays_away_from_one_operation(lanes: int, count: int) -> None:
    with ranks(3, lanes=lanes) as three:
        results = three(lambda g: g.all_reduce(zeros(count), timeout_s=0.5).wait() if g.rank != 1 else None)
        assert results[1] is None
        for error in (results[0], results[2]):
            assert isinstance(error, CollectiveError)
            assert "within 0.5 s: rank 1 did not take part" in str(error)
        with pytest.raises(CollectiveError, match="rank 1"):
            three.groups[1].barrier().wait()


@pytest.mark.parametrize("kind", ["send", "recv", "any"])
def test_a_send_or_receive_without_its_counterpart(kind: str) -> None:
    with ranks(2) as two:
        group = two.groups[0]
        if kind == "send":
            work = group.send(zeros(LARGE), 1, tag=5, timeout_s=0.3)
        else:
            work = group.recv(zeros(LARGE), -1 if kind == "any" else 1, tag=5, timeout_s=0.3)
        who = "no rank sent it" if kind == "any" else "rank 1 did not"
        with pytest.raises(CollectiveError, match=f"tag 5 of rank 0 did not end within 0.3 s: {who}"):
            work.wait()


def test_abort_wakes_everybody() -> None:
    with ranks(3) as three:

        def run(rank: Group) -> None:
            if rank.rank == 2:
                threading.Timer(0.2, rank.abort, ["cable pulled"]).start()
                rank.recv(zeros(SMALL), 0).wait()
            rank.all_reduce(zeros(LARGE)).wait()

        results = three(run)
        assert [str(error) for error in results] == ["rank 2 aborted: cable pulled"] * 3


def test_an_error_in_the_body_reaches_the_others() -> None:
    with ranks(2) as two:

        def run(rank: Group) -> None:
            if rank.rank == 0:
                with rank:
                    raise KeyError("lost")
            rank.all_reduce(zeros(LARGE)).wait()

        results = two(run)
        assert isinstance(results[0], KeyError)
        assert str(results[1]) == "rank 0 aborted: KeyError: 'lost'"


def test_a_rank_that_has_left_is_missed_at_once() -> None:
    with ranks(2) as two:
        two.groups[0].close()
        with pytest.raises(CollectiveError, match="rank 0 has left"):
            two.groups[1].all_reduce(zeros(LARGE)).wait()
        with pytest.raises(CollectiveError, match="rank 0 has left"):
            two.groups[1].barrier().wait()
        with pytest.raises(CollectiveError, match="closed"):
            two.groups[0].barrier().wait()


@pytest.mark.parametrize("count", [3, 300, 300_000])
def test_close_lingers_until_everything_has_arrived(count: int) -> None:
    """The sender leaves at once, through loss; the receiver looks only later."""
    for _ in range(5):
        with ranks(2) as two:
            for rank in two.groups:
                rank.device.set_faults(drop=0.2)

            def run(rank: Group) -> np.ndarray | None:
                array = np.full(count, 7.0)
                if rank.rank == 0:
                    rank.send(array, 1).wait()
                    rank.close()
                    return None
                array[:] = 0
                rank.recv(array, 0).wait()
                return array

            assert (two(run)[1] == 7.0).all()


def test_an_operation_under_way_ends_with_its_group() -> None:
    with ranks(2) as two:
        work = two.groups[0].all_reduce(zeros(LARGE))
        two.groups[0].close()
        with pytest.raises(CollectiveError, match="rank 0 left the group in the middle"):
            work.wait()
        with pytest.raises(CollectiveError, match="rank 0 left the group in the middle"):
            two.groups[1].all_reduce(zeros(LARGE)).wait()


def test_all_planes_gone() -> None:
    with ranks(2, device_config=IMPATIENT) as two:

        def run(rank: Group) -> None:
            for turn in range(100):
                if rank.rank == 0 and turn == 2:
                    rank.device.set_faults(black_hole=True)
                rank.all_reduce(zeros(LARGE)).wait()

        results = two(run)
        for error, other in zip(results, (1, 0), strict=True):
            words = str(error)
            assert words.startswith(f"rank {other} stopped answering: silence is borne for 0.1")
            assert "`retry_exponential` of DeviceConfig (2)" in words
            assert "; nothing came back over plane 0 (127.0.0.1 → " in words


VICTIM = """
import sys, numpy as np
from softmrc.collectives import *
with Group.join(DirectoryStore(sys.argv[1]), 1, 2, planes=["127.0.0.1", "127.0.0.2"]) as group:
    group.barrier().wait()
    print("here", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_rank_that_dies(is_killed: bool) -> None:
    """Killed, or gone with an uncaught exception: by a timer, and at once."""
    with tempfile.TemporaryDirectory() as folder:
        program = VICTIM if is_killed else VICTIM.replace("sys.stdin.readline()", "raise KeyError")
        command = [sys.executable, "-c", program, folder]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, text=True, **pipes)
        try:
            with Group.join(DirectoryStore(folder), 0, 2, planes=PLANES, device_config=IMPATIENT) as group:
                group.barrier().wait()
                assert process.stdout and process.stdout.readline() == "here\n"
                if is_killed:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
                words = "rank 1 stopped answering" if is_killed else "rank 1 aborted: KeyError"
                with pytest.raises(CollectiveError, match=words):
                    group.all_reduce(zeros(LARGE)).wait()
        finally:
            process.kill()
            process.communicate()


def test_collective_errors_are_runtime_errors_and_ours() -> None:
    assert issubclass(CollectiveError, RuntimeError) and issubclass(CollectiveError, MrcError)
