"""Tensors that share memory: an operation gives what Gloo gives, or says what is wrong, and never another number.

Cases are drawn from a seed: views of one memory, plain, strided, overlapping, the same one twice, as inputs and outputs
of every collective, in one call and in many of a group that are under way at once. What is right is what Gloo makes of
tensors that share nothing: copies of the inputs go in, and what comes out is copied to the outputs in their order.
Where Gloo itself copies, it is also asked about the very same views.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch.world import Rank, World

from softmrc.torch.transport_op import span_of

SIZES = (6, 2000, 40_000)  # so that they go by messages, in slices, along rings
ROOM = 6  # how many times that the memory has
GLOO_COPIES = ("allreduce_coalesced", "all_gather")
Tensors = list[torch.Tensor]
Call = Callable[[Any, Tensors, Tensors], list[Any]]


def calls(here: Rank) -> dict[str, tuple[int, int, Call]]:
    """By name: how many tensors of `n` elements go in and come out (0: those that went in), and the call."""
    size, is_root = here.size, here.rank == 1

    return {
        "allreduce_coalesced": (3, 0, lambda g, i, o: [g.allreduce_coalesced(i)]),
        "all_reduce": (1, 0, lambda g, i, o: [dist.all_reduce(i[0], group=g, async_op=True)]),
        "broadcast": (1, 0, lambda g, i, o: [dist.broadcast(i[0], 1, group=g, async_op=True)]),
        "all_gather": (1, size, lambda g, i, o: [dist.all_gather(o, i[0], group=g, async_op=True)]),
        "reduce_scatter": (size, 1, lambda g, i, o: [dist.reduce_scatter(o[0], i, group=g, async_op=True)]),
        "all_to_all": (size, size, lambda g, i, o: [dist.all_to_all(o, i, group=g, async_op=True)]),
        "gather": (1, size * is_root, lambda g, i, o: [dist.gather(i[0], o or None, 1, group=g, async_op=True)]),
        "scatter": (size * is_root, 1, lambda g, i, o: [dist.scatter(o[0], i or None, 1, group=g, async_op=True)]),
    }


def view(memory: torch.Tensor, rng: random.Random, n: int, kinds: list[str]) -> torch.Tensor:
    at = rng.choice([0, 0, 1, n // 2, n, 2 * n])
    kind = rng.choice(kinds)
    if kind == "strided":
        return memory[at : at + 2 * n : 2]
    if kind == "turned":
        return memory[at : at + n].view(2, n // 2).t()
    return memory[at : at + n]


class Case:
    """One call, as this rank makes it: the same call on all ranks, on views of each rank's own choice."""

    def __init__(self, here: Rank, seed: int) -> None:
        shared = random.Random(seed)
        self.n = shared.choice(SIZES)
        self.name = shared.choice(list(calls(here)))
        self.kinds = shared.choice([["plain"], ["plain", "plain", "strided", "turned"]])
        self.ins, self.outs, self.call = calls(here)[self.name]
        self.seed = seed * here.size + here.rank
        self.text = f"{self.name} of {self.n}, seed {seed}, rank {here.rank}"

    def views(self, memory: torch.Tensor) -> tuple[Tensors, Tensors]:
        rng = random.Random(self.seed)

        def some(count: int) -> Tensors:
            one = view(memory, rng, self.n, self.kinds)
            return (
                [one] * count if rng.random() < 0.2 else [view(memory, rng, self.n, self.kinds) for _ in range(count)]
            )

        ins = some(self.ins)
        is_in_place = self.name in ("allreduce_coalesced", "all_reduce", "broadcast")
        return ins, ins if is_in_place else some(self.outs)

    def begin(self, group: Any, memory: torch.Tensor) -> list[Any]:
        return self.call(group, *self.views(memory))

    def run_apart(self, group: Any, memory: torch.Tensor) -> None:
        """The reference."""
        ins, outs = self.views(memory)
        sent = [one.flatten().clone() for one in ins]
        got = sent if ins is outs else [one.flatten().clone() for one in outs]
        if self.name == "all_to_all":  # of lists, Gloo has none before torch 2.13
            whole = torch.empty(sum(one.numel() for one in got))
            dist.all_to_all_single(whole, torch.cat(sent), group=group)
            got = list(whole.split(self.n))
        else:
            for work in self.call(group, sent, got):
                work.wait()
        for one, value in zip(outs, got, strict=True):
            one.copy_(value.view(one.shape))


def memory_of(here: Rank, seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed * here.size + here.rank)
    return torch.randint(-4, 5, (ROOM * max(SIZES),), generator=made).float()


def one_at_a_time(here: Rank, seeds: range) -> None:
    ours, gloo = here.group(), here.group(backend="gloo")
    for seed in seeds:
        case, first, second, third = Case(here, seed), *(memory_of(here, seed) for _ in range(3))
        for work in case.begin(ours, first):
            work.wait()
        case.run_apart(gloo, second)
        assert torch.equal(first, second), case.text
        ins, outs = case.views(third)
        if case.name in GLOO_COPIES and case.kinds == ["plain"]:
            for work in case.call(gloo, ins, outs):
                work.wait()
            assert torch.equal(first, third), f"{case.text}: what Gloo makes of the views themselves"
    dist.barrier()


@pytest.mark.parametrize("block", range(4))
def test_views_of_one_memory(world: World, block: int) -> None:
    world.run(one_at_a_time, range(block * 40, block * 40 + 40))


def all_at_once(here: Rank, seeds: range) -> None:
    """There is no wait before the last has been issued: the result is as if each had been waited for."""
    ours, gloo = here.group(), here.group(backend="gloo")
    for seed in seeds:
        cases = [Case(here, seed * 100 + i) for i in range(random.Random(seed).randint(2, 6))]
        first, second = memory_of(here, seed), memory_of(here, seed)
        works = [work for case in cases for work in case.begin(ours, first)]
        random.Random(seed + here.rank).shuffle(works)
        for work in works:
            work.wait()
        for case in cases:
            case.run_apart(gloo, second)
        assert torch.equal(first, second), [case.text for case in cases]
    dist.barrier()


@pytest.mark.parametrize("block", range(4))
def test_operations_under_way_on_one_memory(world: World, block: int) -> None:
    world.run(all_at_once, range(block * 20, block * 20 + 20))


def in_place(here: Rank) -> None:
    """What a rank keeps for itself may lie where it comes from, as FSDP has it, and nothing is copied for that."""
    n, rank, size = 5000, here.rank, here.size
    memory = torch.full((n * size,), -1.0)
    memory[rank * n : (rank + 1) * n] = rank
    dist.all_gather_into_tensor(memory, memory[rank * n : (rank + 1) * n])
    assert torch.equal(memory, torch.arange(float(size)).repeat_interleave(n))
    dist.reduce_scatter_tensor(memory[rank * n : (rank + 1) * n], memory)
    assert torch.equal(memory[rank * n : (rank + 1) * n], torch.full((n,), float(size * rank)))
    doubled = torch.tensor([1.0 + rank])
    dist.group.WORLD.allreduce_coalesced([doubled, doubled]).wait()
    assert doubled.item() == 10.0


def test_in_place(world: World) -> None:
    world.run(in_place)


def expanded(here: Rank) -> None:
    """Read, they are as many elements as they say; nothing can be written to them, and the group lives on."""
    same = torch.full((1,), float(here.rank)).expand(50)
    parts = [torch.empty(50) for _ in range(here.size)]
    dist.all_gather(parts, same)
    assert [one.tolist() for one in parts] == [[float(rank)] * 50 for rank in range(here.size)]
    ours = torch.empty(50)
    work = dist.isend(same, here.rank ^ 1)
    dist.recv(ours, here.rank ^ 1)
    work.wait()
    assert torch.equal(ours, torch.full((50,), float(here.rank ^ 1)))
    for call in (
        lambda: dist.all_reduce(same),
        lambda: dist.group.WORLD.allreduce_coalesced([same, same]).wait(),
        lambda: dist.all_gather([same] * here.size, torch.ones(50)),
    ):
        with pytest.raises(RuntimeError, match="single memory location"):
            call()
        assert same[0] == here.rank
    dist.barrier()


def test_expanded_tensors(world: World) -> None:
    world.run(expanded)


def halo(here: Rank) -> None:
    """Columns of one matrix share no byte, however they interleave: nothing waits for anything, or this would hang."""
    matrix = torch.full((300, 8), float(here.rank))
    peer = here.rank ^ 1
    works = [dist.irecv(matrix[:, i], peer, tag=i) for i in (0, 2, 4)]
    works += [dist.isend(matrix[:, i + 1], peer, tag=i) for i in (0, 2, 4)]
    for work in works:
        work.wait()
    assert matrix[0].tolist() == [peer, here.rank] * 3 + [here.rank] * 2


def test_columns_of_one_matrix(world: World) -> None:
    world.run(halo)


def test_spans_reach_from_the_first_byte_to_the_last() -> None:
    rng = random.Random(7)
    memory = torch.zeros(400)
    for _ in range(600):
        source = memory.view(rng.choice([torch.float32, torch.int8, torch.int64]))
        sizes = [rng.randint(0, 4) for _ in range(rng.randint(0, 3))]
        tensor = source.as_strided(sizes, [rng.randint(0, 9) for _ in sizes], rng.randint(0, 40))
        places = [tensor.data_ptr()]
        for n, step in zip(tensor.shape, tensor.stride(), strict=True):
            places = [at + i * step * tensor.element_size() for at in places for i in range(n)]
        span = span_of(tensor)
        if not places:
            assert span.begin == span.end
        else:
            assert span == (min(places), max(places) + tensor.element_size())
