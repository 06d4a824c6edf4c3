"""Ranks of one machine whose bulk data goes through memory: the same numbers, and nothing of them on the wire."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import ranks, values_of

import needs
import parts
from softmrc import _core
from softmrc.collectives import DirectoryStore, Group, shm
from softmrc.config import DeviceConfig
from softmrc.errors import ConfigError

SIZES = (3, 50_000, 1_000_001, 9_000_000)


@pytest.fixture
def through_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shm.SHARED_MEMORY, "on")


def sums(group: Group) -> list[np.ndarray]:
    draw = np.random.default_rng(group.rank)
    found = [draw.standard_normal(size).astype(np.float32) for size in SIZES]
    for work in [group.all_reduce(values) for values in found]:
        work.wait()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("seal", ["off", "on"])
def test_results_are_those_of_the_wire(monkeypatch: pytest.MonkeyPatch, lanes: int, seal: str) -> None:
    if seal == "on" and not _core.can_seal():
        pytest.skip("built without libcrypto")
    monkeypatch.setenv("SOFTMRC_SECRET", "known to all")
    found: dict[str, list[Any]] = {}
    for choice in ("off", "on"):
        monkeypatch.setenv(shm.SHARED_MEMORY, choice)
        with ranks(3, lanes=lanes, device_config=DeviceConfig(seal=seal, lanes=lanes)) as group:
            found[choice] = values_of(group(sums))
            stats = [one._native.stats() for one in group.groups]
            assert all(one["slices"] > 10 for one in stats)
            assert all(one["slices_shared"] == (one["slices"] if choice == "on" else 0) for one in stats)
    for plain, shared in zip(found["off"], found["on"], strict=True):
        for one, other in zip(plain, shared, strict=True):
            np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


@pytest.mark.usefixtures("through_memory")
def test_all_kinds_with_more_than_a_pipe_holds() -> None:
    many = 3 * parts.Pipe.CAPACITY // 8

    def work(group: Group) -> None:
        values = np.full(many, group.rank, np.float64)
        gathered = np.empty((4, many))
        group.all_gather(values, gathered).wait()
        assert all((gathered[rank] == rank).all() for rank in range(4))
        swapped = np.empty((4, many))
        group.all_to_all(np.repeat(np.arange(4.0) + 10 * group.rank, many).reshape(4, many), swapped).wait()
        assert all((swapped[rank] == group.rank + 10 * rank).all() for rank in range(4))
        group.broadcast(values, 2).wait()
        assert (values == 2).all()

    with ranks(4) as group:
        values_of(group(work))
        assert all(one._native.stats()["slices_shared"] > 0 for one in group.groups)


MISTAKEN = """
import sys
import numpy as np
from softmrc.collectives import DirectoryStore, Group, shm

shm.memory_of_this_process = lambda: "the same"
rank = int(sys.argv[1])
with Group.join(DirectoryStore(sys.argv[2]), rank, 2, planes=["127.0.0.1"]) as group:
    values = np.full(3_000_000, rank + 1, np.float32)
    group.all_reduce(values).wait()
    assert (values == 3).all()
    print(group._native.stats()["slices_shared"])
"""


# Real processes: each in a separate PID namespace.
@pytest.mark.process
@needs.ROOT
@needs.tools("unshare")
def test_who_cannot_see_the_other_process_uses_the_wire(tmp_path: Path) -> None:
    """They take each other for neighbours, but the numbers of processes mean others there."""
    command = [sys.executable, "-c", MISTAKEN]
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs permission to make a namespace of processes, and to mount /proc")
    apart = [*alone, *command]
    environment = {**os.environ, shm.SHARED_MEMORY: "on"}
    both = [
        subprocess.Popen([*one, str(rank), str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True)
        for rank, one in enumerate([command, apart])
    ]
    try:
        assert [one.communicate(timeout=300)[0] for one in both] == ["0\n", "0\n"]
    finally:
        for one in both:
            one.kill()
            one.communicate()


@pytest.mark.parametrize("is_apart", [True, False])
def test_ranks_in_other_memory_and_on_loopback_planes_use_the_wire(
    monkeypatch: pytest.MonkeyPatch, is_apart: bool
) -> None:
    """Loopback planes are for looking at the protocol, unless it is said that memory is to be used."""
    names = iter(["here", "there"])
    if is_apart:
        monkeypatch.setattr(shm, "memory_of_this_process", lambda: next(names))
        monkeypatch.setenv(shm.SHARED_MEMORY, "on")
    else:
        monkeypatch.delenv(shm.SHARED_MEMORY, raising=False)
    with ranks(2) as group:
        values_of(group(sums))
        assert all(one._native.stats()["slices_shared"] == 0 for one in group.groups)


def test_a_choice_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shm.SHARED_MEMORY, "yes")
    with pytest.raises(ConfigError, match=r"SOFTMRC_SHARED_MEMORY.*'auto', 'on' or 'off'"), ranks(2):
        pass


@pytest.mark.parametrize(
    ("memories", "many"),
    [
        ("aabb", 2),
        ("aaaabbbb", 4),
        ("abab", 1),
        ("aab", 1),
        ("aabbb", 1),
        ("aabbaa", 1),
        ("aaaa", 1),
        ("abcd", 1),
        ("a", 1),
    ],
)
def test_ranks_side_by_side(memories: str, many: int) -> None:
    assert shm.share_memory_pairs(list(memories)) == many
    assert shm.share_memory_pairs([""] * len(memories)) == 1


@pytest.mark.usefixtures("through_memory")
def test_a_row_of_a_grid_is_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks on two machines: nothing but what a machine has added up goes from one to the other."""
    places, count = threading.local(), 250_000
    monkeypatch.setattr(shm, "memory_of_this_process", lambda: places.name)

    def join(rank: int) -> Group:
        places.name = "here" if rank < 4 else "there"
        return Group.join(store, rank, 8, planes=["127.0.0.1"], timeout_s=20.0, lanes=1)

    def crossing(group: Group) -> int:
        here = range(4) if group.rank < 4 else range(4, 8)
        there = [pair for peer, pairs in group.pairs.items() if peer not in here for pair in pairs]
        return sum(pair.bulk.stats()["bytes_sent"] for pair in there)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(8) as pool:
        store = DirectoryStore(folder)
        groups = list(pool.map(join, range(8)))
        for group in groups:
            group._native.force("grid")
        arrays = [np.full(count, rank + 1.0, np.float32) for rank in range(8)]
        list(pool.map(lambda rank: groups[rank].all_reduce(arrays[rank]).wait(), range(8)))
        assert all((array == 36).all() for array in arrays)
        sent = list(pool.map(crossing, groups))
        list(pool.map(Group.close, groups))
    assert all(0 < one <= 1.1 * count * 4 / 4 for one in sent)  # a quarter for each of four, whatever the others do


def mappings() -> set[str]:
    """Of this process, those that are a pipe's."""
    return {line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:softmrc" in line}


def descriptors() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:softmrc" in os.readlink(link):
                found.add(link.name)
    return found


@pytest.mark.usefixtures("through_memory")
def test_a_pipe_in_use_takes_no_descriptor_and_one_of_a_closed_group_no_memory() -> None:
    """Descriptors are few: with many ranks, lanes and groups pipes would use up the application's."""
    others = mappings(), descriptors()  # of groups that earlier tests broke
    with ranks(3, lanes=2) as group:
        values_of(group(sums))
        assert len(mappings() - others[0]) >= 2 * 3, "both ends of a pipe are here"
        assert not descriptors() - others[1]
        kept = list(group.groups)
    assert kept and not mappings() - others[0], "an object that is kept keeps no memory"
