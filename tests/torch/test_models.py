"""Whole small models of the kinds that people train, each twice: on a calm network, and while planes die one after the
other. Not a bit may differ, and nothing may fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from tests.torch.world import Rank, World
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from softmrc.torch import device_of

pytestmark = pytest.mark.process

STEPS = 9
PLANES = 4
Turn = Callable[[int], None]  # called before every step
Outcome = list[torch.Tensor]


class PlaneFaults:
    """Planes fail, return and fail elsewhere; at no time all of them."""

    def __init__(self, rank: int) -> None:
        self._rank, self._device = rank, device_of()

    def turn(self, step: int) -> None:
        device, rank = self._device, self._rank
        if step == 1:
            device.set_faults(2, black_hole=True)  # silently drops everything
        elif step == 3 and rank == 0:
            device.set_port(1, False)  # says that it is down
        elif step == 5:
            device.set_faults()
            device.set_faults(0, drop=0.05, reorder=0.1, duplicate=0.05)
        elif step == 6 and rank == 0:
            device.set_port(1, True)
        elif step == 7:
            device.set_faults(3, black_hole=True)

    def clear(self) -> int:
        """Clear all faults; how many packets were touched."""
        touched = sum(sum(self._device.fault_stats(plane).values()) for plane in range(PLANES))
        self._device.set_faults()
        for plane in range(PLANES):
            self._device.set_port(plane, True)
        return touched


def data(rank: int, step: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 * step + rank))


def whole(net: nn.Module) -> Outcome:
    """All parameters and buffers; sharded ones in one piece."""
    from torch.distributed.tensor import DTensor

    tensors = [*net.parameters(), *net.buffers()]
    return [(one.full_tensor() if isinstance(one, DTensor) else one).detach().clone() for one in tensors]


class SyncNorm(nn.Module):
    """A batch norm over all ranks, with gradients through the all-reduce; torch's own wants an accelerator."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed.nn.functional import all_reduce

        sums = torch.stack([x.mean((0, 2, 3)), x.square().mean((0, 2, 3))])
        mean, square = all_reduce(sums) / dist.get_world_size()
        normal = (x - mean[:, None, None]) * torch.rsqrt(square - mean.square() + 1e-5)[:, None, None]
        return normal * self.scale[:, None, None] + self.shift[:, None, None]


def convolutions(here: Rank, turn: Turn, norm: Callable[[int], nn.Module]) -> Outcome:
    net = DDP(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            norm(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3),
            norm(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 5),
        ),
        bucket_cap_mb=0.005,
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(STEPS):
        turn(step)
        optimizer.zero_grad()
        labels = torch.arange(6) % 5
        F.cross_entropy(net(data(here.rank, step, 6, 3, 10, 10)), labels).backward()
        optimizer.step()
    return whole(net)


def cnn(here: Rank, turn: Turn) -> Outcome:
    return convolutions(here, turn, nn.BatchNorm2d)


def cnn_synchronized(here: Rank, turn: Turn) -> Outcome:
    return convolutions(here, turn, SyncNorm)


class Layer(nn.Module):
    """A block of a transformer that looks back only."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.project(self.first(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, words: int = 40, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.layers = nn.ModuleList([Layer(width, 4) for _ in range(layers)])
        self.out = nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words) + self.places(torch.arange(words.shape[1]))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.out(x)


def transformer(here: Rank, turn: Turn) -> Outcome:
    """Gradients of three batches are added up before one is sent, and activations are computed twice."""
    net = DDP(Transformer(), bucket_cap_mb=0.05, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    generator = torch.Generator().manual_seed(here.rank)
    for step in range(STEPS):
        turn(step)
        optimizer.zero_grad()
        for part in range(3):
            words = torch.randint(0, 40, (2, 13), generator=generator)

            def learn(words: torch.Tensor = words) -> None:
                F.cross_entropy(net(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()).backward()

            if part < 2:
                with net.no_sync():
                    learn()
            else:
                learn()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return whole(net)


def sharded_both_ways(here: Rank, turn: Turn) -> Outcome:
    """FSDP2 over the rows of a 2 by 2 mesh, tensor parallelism over its columns."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "parts"))
    net = nn.ModuleList([nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 12)) for _ in range(2)])
    for block in net:
        parallelize_module(block, mesh["parts"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for step in range(STEPS):
        turn(step)
        x = data(here.rank // 2, step, 4, 12)
        for block in net:
            x = x + block(x)
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return whole(net)


def pipeline(here: Rank, turn: Turn) -> Outcome:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    layers = [nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(here.size)]
    mine = layers[here.rank]
    stage = PipelineStage(mine, here.rank, here.size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 8, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(mine.parameters(), 0.1)
    for step in range(STEPS):
        turn(step)
        optimizer.zero_grad()
        if here.rank == 0:
            schedule.step(data(0, step, 16, 12))
        elif here.rank == here.size - 1:
            schedule.step(target=data(1, step, 16, 12), losses=[])
        else:
            schedule.step()
        optimizer.step()
    return whole(mine)


def sparse_embeddings(here: Rank, turn: Turn) -> Outcome:
    net = DDP(nn.Sequential(nn.EmbeddingBag(200, 8, mode="mean", sparse=True), nn.Linear(8, 3)))
    table, *dense = net.parameters()
    optimizers = [torch.optim.SparseAdam([table], 0.05), torch.optim.Adam(dense, 0.05)]
    generator = torch.Generator().manual_seed(here.rank)
    for step in range(STEPS):
        turn(step)
        for one in optimizers:
            one.zero_grad()
        words = torch.randint(0, 200, (8, 5 + here.rank), generator=generator)
        net(words).square().mean().backward()
        assert table.grad is not None and table.grad.is_sparse
        for one in optimizers:
            one.step()
    return whole(net)


def twice(here: Rank, model: Callable[[Rank, Turn], Outcome]) -> int:
    outcomes, faults = [], PlaneFaults(here.rank)
    try:
        for turn in (lambda step: None, faults.turn):
            torch.manual_seed(11)
            outcomes.append(model(here, turn))
            dist.barrier()
    finally:
        touched = faults.clear()
    dist.barrier()
    calm, broken = outcomes
    assert len(calm) > 1 and not any(torch.isnan(one).any() for one in calm)
    assert all(torch.equal(one, other) for one, other in zip(calm, broken, strict=True)), "not the same bits"
    return touched


@pytest.mark.parametrize(
    "model",
    [cnn, cnn_synchronized, transformer, sharded_both_ways, pipeline, sparse_embeddings],
    ids=lambda model: model.__name__,
)
def test_a_model_learns_the_same_while_planes_die(world: World, model: Callable[[Rank, Turn], Outcome]) -> None:
    assert sum(world.run(twice, model)) > 0, "the faults touched no packet"
