"""Settings one by one, as torch's own classes take them, and calls that make no sense: refused where they are made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch.world import Rank, World

MAX, SUM = dist.ReduceOp.MAX, dist.ReduceOp.SUM
SOON = timedelta(seconds=30)


def one_by_one(here: Rank) -> None:
    group, rank, size = dist.group.WORLD, here.rank, here.size

    def mine() -> torch.Tensor:
        return torch.full((2,), float(rank))

    def after(call: Callable[[torch.Tensor], Any]) -> float:
        tensor = mine()
        call(tensor).wait()
        return tensor[1].item()

    assert after(lambda t: group.broadcast(t, root=1)) == 1
    assert after(lambda t: group.broadcast(t, 2)) == 2
    assert after(lambda t: group.broadcast(t, 3, SOON)) == 3
    assert after(lambda t: group.broadcast([t])) == 0
    assert after(lambda t: group.allreduce(t)) == 6
    assert after(lambda t: group.allreduce(t, op=MAX)) == 3
    assert after(lambda t: group.allreduce(t, MAX, SOON)) == 3
    assert after(lambda t: group.allreduce([t], op=MAX, timeout=SOON)) == 3
    assert after(lambda t: group.reduce(t, root=1)) == (6 if rank == 1 else rank)
    assert after(lambda t: group.reduce(t, 2, MAX)) == (3 if rank == 2 else rank)
    assert after(lambda t: group.reduce(t, 2, op=MAX, timeout=SOON)) == (3 if rank == 2 else rank)
    everybody = [torch.empty(2) for _ in range(size)]
    group.gather(everybody if rank == 1 else [], mine(), root=1).wait()
    assert rank != 1 or [one[0].item() for one in everybody] == [0, 1, 2, 3]
    parts = [torch.full((2,), 10.0 * i) for i in range(size)]
    assert after(lambda t: group.scatter(t, parts if rank == 1 else [], root=1)) == 10 * rank
    assert after(lambda t: group.scatter(t, parts if rank == 1 else [], 1, SOON)) == 10 * rank
    group.allgather(everybody, mine(), timeout=SOON).wait()
    assert [one[0].item() for one in everybody] == [0, 1, 2, 3]
    assert after(lambda t: group.reduce_scatter(t, parts, op=MAX)) == 10 * rank
    assert after(lambda t: group.reduce_scatter(t, parts, SUM, SOON)) == 40 * rank
    swapped = torch.empty(size)
    group.all_to_all_single(
        swapped, torch.full((size,), float(rank)), output_split_sizes=[], input_split_sizes=[], timeout=SOON
    ).wait()
    assert swapped.tolist() == [0, 1, 2, 3]
    group.barrier(timeout=SOON).wait()


def test_settings_one_by_one(world: World) -> None:
    world.run(one_by_one)


def settings(here: Rank) -> None:
    group = dist.new_group(list(range(here.size)), timeout=timedelta(seconds=77))
    backend = group._get_backend(torch.device("cpu"))
    assert backend.options._timeout == timedelta(seconds=77) and backend.options.backend == "mrc"
    for change in (group.set_timeout, backend._set_default_timeout):
        change(timedelta(seconds=55))
        assert copy.deepcopy(backend.options)._timeout == timedelta(seconds=55)
    dist.all_reduce(torch.ones(1), group=group)


def test_options_can_be_asked_and_changed(world: World) -> None:
    world.run(settings)


def nonsense(here: Rank) -> None:
    group, rank, size = dist.group.WORLD, here.rank, here.size
    t, others = torch.ones(2), [torch.ones(2) for _ in range(here.size)]
    odd = [*others[1:], torch.ones(2, dtype=torch.int32)]
    root = (rank + 1) % size  # no rank is its own
    for call, said in (
        (lambda: group.broadcast(t, root=-1), "invalid root rank: -1"),
        (lambda: group.broadcast(t, root=size), f"invalid root rank: {size}"),
        (lambda: group.reduce(t, root=-1), "invalid root rank: -1"),
        (lambda: group.gather([], t, root=-1), "invalid root rank: -1"),
        (lambda: group.scatter(t, [], root=size), f"invalid root rank: {size}"),
        (lambda: group.broadcast([]), "non-empty tensor list"),
        (lambda: group.allreduce([]), "non-empty tensor list"),
        (lambda: group.allreduce([t, t]), "single-element tensor list"),
        (lambda: group.allreduce_coalesced([]), "non-empty tensor list"),
        (lambda: group.allreduce_coalesced([t, t.int()]), "invalid tensor type"),
        (lambda: group.allgather_coalesced([[] for _ in range(size)], []), "non-empty tensor list"),
        (lambda: group.allgather_coalesced([[t]], [t]), f"expected {size}"),
        (lambda: group.allgather([others[1:]], [t]), f"expected length {size}"),
        (lambda: group.allgather([odd], [t]), "invalid tensor type"),
        (lambda: group.reduce_scatter([t], [others[1:]]), f"expected length {size}"),
        (lambda: group.reduce_scatter([t], [odd]), "invalid tensor type"),
        (lambda: group.gather([others], [t], root), "empty output on non-root"),
        (lambda: group.gather([others[1:]], [t], rank), f"expected length {size}"),
        (lambda: group.gather([odd], [t], rank), "invalid tensor type"),
        (lambda: group.scatter([t], [others], root), "empty input on non-root"),
        (lambda: group.scatter([t], [[]], rank), f"expected length {size}"),
        (lambda: group.scatter([t], [odd], rank), "invalid tensor type"),
        (lambda: group.alltoall(others, others[1:]), f"expected length {size}"),
        (lambda: group.alltoall(others[1:], others), f"expected length {size}"),
        (lambda: group.alltoall(others, odd), "invalid tensor type"),
        (lambda: group.alltoall(others, [torch.ones(3) for _ in range(size)]), f"invalid tensor size at index {rank}"),
        (lambda: group.all_to_all_single(t, t, [1], [1]), "split sizes"),
    ):
        with pytest.raises(ValueError, match=said) as raised:
            call().wait()
        assert isinstance(raised.value, RuntimeError)
    dist.all_reduce(t)  # none of it has begun
    assert t[0] == size


def test_calls_that_make_no_sense(world: World) -> None:
    world.run(nonsense)
