"""Timeouts of every kind: each means what torch's users expect of it, or is refused in words of our own."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch.world import Rank, World, started

from softmrc.collectives import Group
from softmrc.collectives.store import DirectoryStore
from softmrc.errors import ConfigError
from softmrc.torch import timeouts

NOTHING = (timedelta(0), timedelta(seconds=-1), timedelta(microseconds=-1), 0, -3.5)
LONG = (timedelta(days=365 * 400), timedelta.max)


def test_what_they_mean() -> None:
    for timeout in NOTHING:
        with pytest.raises(RuntimeError, match=r"`timeout`: must be a time above 0"):
            timeouts.of_group(timeout)
    for timeout in (timedelta(microseconds=1), 0.25, 3, *LONG):
        s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        assert timeouts.of_group(timeout) == timeouts.of_operation(timeout) == timeouts.of_waiting(timeout) == s
    for timeout in (None, timedelta(0), timedelta(milliseconds=-1), 0):
        assert timeouts.of_operation(timeout) is None
    with pytest.raises(RuntimeError, match="must be a"):
        timeouts.of_operation(timedelta(seconds=-1))
    assert timeouts.of_waiting(timedelta(0)) is None and timeouts.of_waiting(timedelta(seconds=-1)) == 0.0
    for timeout in ("soon", [1], float("nan")):
        with pytest.raises(TypeError, match="a timedelta, or a number of seconds"):
            timeouts.of_waiting(timeout)


def waited(here: Rank) -> None:
    """`wait`: 0 is no limit, as everywhere in torch; below 0 it looks once; the longest time is no error."""
    for timeout in (timedelta(0), timedelta(seconds=30), 30.0, *LONG):
        for tensor in (torch.ones(3), torch.ones(3, 2)[:, 0]):
            assert dist.all_reduce(tensor, async_op=True).wait(timeout)
    box = torch.empty(3)
    if here.rank == 0:
        receive = dist.irecv(box, 1)
        for timeout in (timedelta(seconds=-1), timedelta(microseconds=50), -1.0):
            with pytest.raises(RuntimeError, match="not done"):
                receive.wait(timeout)
        with pytest.raises(TypeError, match="a number of seconds"):
            receive.wait("soon")
    dist.barrier()
    if here.rank == 1:
        dist.send(torch.arange(3.0), 0)
    if here.rank == 0:
        receive.wait(timedelta.max)
        assert receive.wait(timedelta(seconds=-1)) and box.tolist() == [0.0, 1.0, 2.0]


def test_waiting(world: World) -> None:
    world.run(waited)


def operated(here: Rank) -> None:
    """An operation's own: what is no time is refused before anything happens, and the group lives on."""
    group, opts = dist.group.WORLD, dist.AllreduceOptions()
    assert opts.timeout == timeouts.UNSET
    for timeout in (timedelta(0), timedelta(milliseconds=-1), timedelta(microseconds=100), timedelta(days=365 * 400)):
        opts.timeout = timeout
        group.allreduce([torch.ones(2)], opts).wait()
    group.monitored_barrier()
    if here.rank == 0:  # no patience at all, as in torch's own
        with pytest.raises(RuntimeError, match="Rank 0 timed out in monitoredBarrier"):
            group.monitored_barrier(timedelta(0))
    else:
        group._watches += 1  # they stay away
    for timeout in (timedelta(seconds=-1), timedelta.max):  # which torch makes negative
        opts.timeout = timeout
        with pytest.raises(RuntimeError, match="must be a time above 0"):
            group.allreduce([torch.ones(2)], opts)
    for timeout in (timedelta(seconds=-1), timedelta(microseconds=-5)):
        with pytest.raises(RuntimeError, match="must be a time above 0"):
            group.monitored_barrier(timeout)
    group.monitored_barrier(timedelta.max)
    for timeout in NOTHING:
        with pytest.raises(RuntimeError, match="must be a time above 0"):
            group.set_timeout(timeout)
    before = group._group.timeout_s
    for timeout in LONG:
        group.set_timeout(timeout)
        dist.all_reduce(torch.ones(2))
    group._group.timeout_s = before


def test_operations(world: World) -> None:
    world.run(operated)


def made(here: Rank) -> None:
    """A group's: refused on every rank alike; as long as torch can count is fine."""
    for timeout in (timedelta(0), timedelta(seconds=-1), timedelta(microseconds=500), timedelta.max):
        with pytest.raises(RuntimeError, match=r"`timeout`: must be a time above 0|within 0\.0005 s"):
            dist.new_group(list(range(here.size)), timeout=timeout)
            if timeout > timedelta(0):
                raise RuntimeError("within 0.0005 s")  # it may have been enough
    group = dist.new_group(list(range(here.size)), timeout=timedelta(days=365 * 400))
    dist.all_reduce(torch.ones(2), group=group)


def test_groups(tmp_path: Path) -> None:
    with started(2, tmp_path) as world:
        world.run(made)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), "1", None])
def test_groups_without_torch(tmp_path: Path, timeout_s: Any) -> None:
    with pytest.raises(ConfigError, match="timeout_s"):
        Group.join(DirectoryStore(tmp_path / "store"), 0, 1, timeout_s=timeout_s)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), "1"])
def test_operations_without_torch(tmp_path: Path, timeout_s: Any) -> None:
    with Group.join(DirectoryStore(tmp_path / "store"), 0, 1, timeout_s=1e15) as group:
        for call in (group.barrier, lambda timeout_s: group.all_reduce(bytearray(4), timeout_s=timeout_s)):
            with pytest.raises(ConfigError, match="timeout_s"):
                call(timeout_s=timeout_s)
        group.barrier(timeout_s=float("inf")).wait(float("inf"))
