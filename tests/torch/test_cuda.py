"""Tensors on a real GPU, through pinned memory. Not run where there is none; two ranks share one GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.torch.world import Rank, started

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

STEPS = 20


def everything(here: Rank) -> None:
    """Each operation right behind the kernel that makes its input, and read by a kernel right after the wait."""
    device = torch.device("cuda", 0)
    for count in (1, 1000, 1 << 20):
        x = torch.full((count,), float(here.rank + 1), device=device)
        x *= 2
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        assert torch.equal(x + 1, torch.full_like(x, sum(range(1, here.size + 1)) * 2 + 1))
        parts = [torch.empty_like(x) for _ in range(here.size)]
        dist.all_gather(parts, x + here.rank)
        for rank, part in enumerate(parts):
            assert torch.equal(part, x + rank)
        whole = torch.arange(count * here.size, device=device, dtype=torch.float32)
        mine = torch.empty(count, device=device)
        dist.reduce_scatter_tensor(mine, whole)
        assert torch.equal(mine, whole[here.rank * count : (here.rank + 1) * count] * here.size)
        y = torch.full((count,), float(here.rank), device=device)
        dist.broadcast(y, 1)
        assert torch.equal(y, torch.ones_like(y))
    future = dist.all_reduce(torch.ones(8, device=device), async_op=True).get_future()
    future.wait()
    assert torch.equal(future.value()[0], torch.full((8,), float(here.size), device=device))


def train(here: Rank, backend: str) -> tuple[list[float], float]:
    """Losses and a sum of the weights after some steps of DDP on the GPU."""
    group = here.group(backend=backend)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).cuda()
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0], process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    torch.manual_seed(here.rank)
    losses = []
    for _ in range(STEPS):
        loss = ddp(torch.randn(32, 64, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, sum(p.double().sum().item() for p in model.parameters())


def test_operations_on_a_gpu(tmp_path: Path) -> None:
    with started(2, tmp_path) as world:
        world.run(everything)


def test_ddp_on_a_gpu_equals_gloo(tmp_path: Path) -> None:
    with started(2, tmp_path) as world:
        ours = world.run(train, "mrc")
        theirs = world.run(train, "gloo")
    assert ours == theirs
    assert ours[0][1] == ours[1][1]
