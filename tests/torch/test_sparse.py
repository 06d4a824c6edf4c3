"""Sparse tensors: summed as Gloo sums them, in order with everything else, also as gradients under DDP."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from tests.torch.world import Rank, World
from torch.nn.parallel import DistributedDataParallel as DDP

SHAPES = (((7,), 1), ((5, 6), 2), ((5, 6, 3), 1), ((4, 3, 2, 2), 2), ((2, 0, 3), 1))  # sizes, sparse dimensions


def made(rank: int, seed: int, sizes: tuple[int, ...], sparse_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """With places that come twice, or none at all."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    room = min(sizes[:sparse_dim])
    count = int(torch.randint(0, 9, (), generator=generator)) if room else 0
    indices = torch.stack([torch.randint(0, size or 1, (count,), generator=generator) for size in sizes[:sparse_dim]])
    values = torch.randn(count, *sizes[sparse_dim:], generator=generator)
    return torch.sparse_coo_tensor(indices, (values * 10).to(dtype), sizes, check_invariants=False)


def sums(here: Rank, seed: int) -> None:
    gloo = here.group(backend="gloo")
    for sizes, sparse_dim in SHAPES:
        for dtype in (torch.float32, torch.float64, torch.int64):
            ours = made(here.rank, seed, sizes, sparse_dim, dtype)
            theirs, dense = ours.clone(), ours.to_dense()
            dist.all_reduce(ours)
            dist.all_reduce(dense)
            torch.testing.assert_close(ours.to_dense(), dense)
            assert ours.is_coalesced()
            if dense.numel():
                dist.all_reduce(theirs, group=gloo)
                assert torch.equal(ours.indices(), theirs.coalesce().indices())
                torch.testing.assert_close(ours.to_dense(), theirs.to_dense())
            every = [torch.empty_like(ours.to_dense()) for _ in range(here.size)]
            dist.all_gather(every, ours.to_dense())
            assert all(torch.equal(one, every[0]) for one in every), "ranks differ"


def on_memory_in_use(here: Rank, is_strided: bool) -> None:
    """The sparse sum begins when the dense one has written the same values."""
    count = 1 << 18
    for _ in range(5):
        values = torch.full((8, count), here.rank + 1.0)
        dense = values.view(count, 8).t() if is_strided else values
        tensor = torch.sparse_coo_tensor(torch.arange(8)[None], values, (8, count), check_invariants=False)
        dist.barrier()
        for work in [dist.all_reduce(dense, async_op=True), dist.all_reduce(tensor, async_op=True)]:
            work.wait()
        total = sum(range(1, here.size + 1))
        assert torch.equal(tensor.to_dense(), torch.full((8, count), float(total * here.size)))


@pytest.mark.parametrize("is_strided", [False, True])
def test_sums_wait_for_what_still_writes_their_values(world: World, is_strided: bool) -> None:
    world.run(on_memory_in_use, is_strided)


@pytest.mark.parametrize("seed", range(3))
def test_sums_are_those_of_gloo(world: World, seed: int) -> None:
    world.run(sums, seed)


def in_order(here: Rank) -> None:
    """Dense ones before and after, none waited for in between; the second sum starts from the first one's result."""
    tensor = torch.sparse_coo_tensor([[here.rank]], [1.0], (here.size,), check_invariants=False)
    first, last = torch.ones(100_000), torch.ones(3)
    works = [
        dist.all_reduce(first, async_op=True),
        dist.all_reduce(tensor, async_op=True),
        dist.all_reduce(tensor, async_op=True),
        dist.all_reduce(last, async_op=True),
    ]
    futures = [work.get_future() for work in works]
    assert torch.equal(futures[3].wait()[0], torch.full((3,), 4.0))
    works[1].wait()
    works[2].wait()
    assert torch.equal(tensor.to_dense(), torch.full((here.size,), 4.0)) and first[-1] == 4
    assert futures[2].wait()[0] is tensor


def test_they_keep_their_place_among_others(world: World) -> None:
    world.run(in_order)


def refused(here: Rank) -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(RuntimeError, match="unsupported reduction"):
        dist.all_reduce(sparse, dist.ReduceOp.MAX)
    with pytest.raises(RuntimeError, match="sparse_csr"):
        dist.all_reduce(torch.eye(3).to_sparse_csr())
    with pytest.raises(RuntimeError, match="dense"):
        dist.broadcast(sparse, 0)
    with pytest.raises(RuntimeError, match=r"\[3, 3\].*rank 2 \[3, 4\]"):
        dist.all_reduce(torch.ones(3, 4 if here.rank == 2 else 3).to_sparse())
    dist.all_reduce(sparse)  # the group lives on
    assert torch.equal(sparse.to_dense(), here.size * torch.eye(3))


def test_what_cannot_be_summed(world: World) -> None:
    world.run(refused)


class Words(nn.Module):
    """A bag of words, and what it means."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 6, sparse=True)
        self.out = nn.Linear(6, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(words).mean(1))


def trained(here: Rank, backend: str) -> list[torch.Tensor]:
    torch.manual_seed(4)
    net = DDP(Words(), process_group=here.group(backend=backend))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    generator = torch.Generator().manual_seed(here.rank)
    for _ in range(5):
        optimizer.zero_grad()
        words = torch.randint(0, 50, (8, 3), generator=generator)
        net(words).square().mean().backward()
        assert net.module.table.weight.grad.is_sparse
        optimizer.step()
    return [one.detach() for one in net.parameters()]


def embeddings(here: Rank) -> None:
    for ours, theirs in zip(trained(here, "mrc"), trained(here, "gloo"), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_sparse_embeddings_under_ddp(world: World) -> None:
    world.run(embeddings)
