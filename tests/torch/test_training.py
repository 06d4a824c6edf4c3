"""What people run on a backend: DDP, FSDP, tensor parallelism, compiled graphs, checkpoints, pipelines."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from tests.torch.world import Rank, World
from torch.nn.parallel import DistributedDataParallel as DDP

pytestmark = pytest.mark.process


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 4))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, 12, generator=generator)
    return inputs, inputs[:, :4]


def trained(net: Any, rank: int, steps: int) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and weights after so many steps of SGD with momentum."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        inputs, targets = batch(step, rank)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [one.detach().clone() for one in net.parameters()]


def as_gloo(here: Rank) -> None:
    outcome = []
    for backend in ("mrc", "gloo"):
        group = here.group(2, backend)
        if here.rank < 2:
            outcome.append(trained(DDP(model(), process_group=group, bucket_cap_mb=0.001), here.rank, 50))
    if here.rank < 2:
        (our_losses, ours), (their_losses, theirs) = outcome
        assert our_losses == their_losses
        assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
        assert our_losses[-1] < 0.5 * our_losses[0]


def test_ddp_gives_what_gloo_gives_bit_for_bit(world: World) -> None:
    world.run(as_gloo)


def kinds(here: Rank, kind: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    settings: dict[str, Any] = {"static_graph": True} if kind == "static" else {}
    settings |= {"find_unused_parameters": True} if kind == "unused" else {}
    settings |= {"gradient_as_bucket_view": True} if kind == "view" else {}
    net = DDP(model(), **settings)
    if kind == "fp16":
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "powersgd":
        net.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
    losses, weights = trained(net, here.rank, 6)
    expected, _ = trained(DDP(model(), process_group=here.group(backend="gloo")), here.rank, 6)
    assert losses == pytest.approx(expected, rel=0.5 if kind == "powersgd" else 0.01)
    for one in weights:
        everybody = [torch.empty_like(one) for _ in range(here.size)]
        dist.all_gather(everybody, one)
        assert all(torch.equal(one, other) for other in everybody), "replicas differ"


@pytest.mark.parametrize("kind", ["plain", "static", "unused", "view", "fp16", "powersgd"])
def test_kinds_of_ddp(world: World, kind: str) -> None:
    world.run(kinds, kind)


def uneven_inputs(here: Rank) -> int:
    net = DDP(model()[0])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    steps = 0
    with net.join():
        for step in range(3 + here.rank):
            optimizer.zero_grad()
            net(batch(step, here.rank)[0]).sum().backward()
            optimizer.step()
            steps += 1
    weight = net.module.weight.detach().clone()
    dist.broadcast(weight, 3)
    assert torch.equal(weight, net.module.weight)
    return steps


def test_ddp_with_join(world: World) -> None:
    assert world.run(uneven_inputs) == [3, 4, 5, 6]


def fsdp2(here: Rank, kind: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")) if kind == "hsdp" else None
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float16) if kind == "fp16" else MixedPrecisionPolicy()
    plain = nn.Sequential(nn.Linear(12, 30), nn.Tanh(), nn.Linear(30, 4))
    torch.manual_seed(7)
    for one in plain.parameters():
        nn.init.normal_(one, std=0.2)
    sharded = copy.deepcopy(plain)
    for layer in (sharded[0], sharded[2]):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(sharded, mesh=mesh, mp_policy=policy)
    if kind == "factor":
        for part in (sharded[0], sharded[2], sharded):
            part.set_gradient_divide_factor(8.0)
    inputs, targets = batch(0, here.rank)
    nn.functional.mse_loss(sharded(inputs), targets).backward()
    nn.utils.clip_grad_norm_(sharded.parameters(), 1e6)
    for rank in range(here.size):
        inputs, targets = batch(0, rank)
        (nn.functional.mse_loss(plain(inputs), targets) / (8.0 if kind == "factor" else here.size)).backward()
    for mine, other in zip(sharded.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            mine.grad.full_tensor(), other.grad, rtol=1e-2 if kind == "fp16" else 1e-5, atol=1e-3
        )


@pytest.mark.parametrize("kind", ["plain", "hsdp", "fp16", "factor"])
def test_fsdp2(world: World, kind: str) -> None:
    world.run(fsdp2, kind)


def fsdp1(here: Rank) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    net = FSDP(nn.Sequential(nn.Linear(12, 30), nn.Tanh(), nn.Linear(30, 4)), device_id=torch.device("cpu"))
    losses, _ = trained(net, here.rank, 30)
    assert losses[-1] < losses[0]
    assert {name: tuple(one.shape) for name, one in net.state_dict().items()}["0.weight"] == (30, 12)


def test_fsdp1(world: World) -> None:
    world.run(fsdp1)


def functional(here: Rank) -> None:
    import torch.distributed._functional_collectives as fc

    group = dist.group.WORLD
    ones = torch.ones(4, 2) * (here.rank + 1)
    assert torch.equal(fc.all_reduce(ones, "sum", group) * 1, torch.full((4, 2), 10.0))
    gathered = torch.arange(1.0, 5).repeat_interleave(4)[:, None].expand(16, 2)
    assert torch.equal(fc.all_gather_tensor(ones, 0, group) * 1, gathered)
    assert torch.equal(fc.reduce_scatter_tensor(ones, "avg", 0, group) * 1, torch.full((1, 2), 2.5))
    assert torch.equal(fc.all_to_all_single(ones, None, None, group) * 1, torch.arange(1.0, 5)[:, None].expand(4, 2))
    assert torch.equal(fc.broadcast(ones, 3, group) * 1, torch.full((4, 2), 4.0))
    reduced = fc.all_reduce_coalesced([ones, ones[:1] * 2], "sum", group)
    assert torch.equal(reduced[0] * 1, torch.full((4, 2), 10.0)) and torch.equal(
        reduced[1] * 1, torch.full((1, 2), 20.0)
    )


def test_functional_collectives(world: World) -> None:
    world.run(functional)


def compiled(here: Rank) -> None:
    import torch.distributed._functional_collectives as fc

    def step(x: torch.Tensor) -> torch.Tensor:
        y = fc.all_reduce(torch.sin(x), "sum", dist.group.WORLD)
        return fc.all_gather_tensor(y * 2, 0, dist.group.WORLD)

    inputs = torch.full((3,), 0.1 * here.rank)
    expected = step(inputs) * 1
    fast = torch.compile(step, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        assert torch.equal(fast(inputs), expected)
    net = DDP(model())
    losses, _ = trained(torch.compile(net, backend="aot_eager"), here.rank, 3)
    same, _ = trained(DDP(model()), here.rank, 3)
    assert losses == pytest.approx(same)


def test_compiled_graphs(world: World) -> None:
    world.run(compiled)


def tensor_parallel(here: Rank) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (here.size,))
    torch.manual_seed(3)
    whole = torch.randn(8, 12)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    assert isinstance(columns, DTensor) and columns.to_local().shape == (8, 3)
    assert torch.equal(columns.redistribute(mesh, [Replicate()]).to_local(), whole)
    torch.testing.assert_close(
        (rows @ distribute_tensor(whole.t(), mesh, [Replicate()])).full_tensor(), whole @ whole.t()
    )
    plain = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        for one in plain.parameters():
            dist.broadcast(one, 0)
    split = parallelize_module(copy.deepcopy(plain), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    inputs = whole.clone()
    torch.testing.assert_close(split(inputs), plain(inputs))
    split(inputs).sum().backward()
    plain(inputs).sum().backward()
    torch.testing.assert_close(split[0].weight.grad.full_tensor(), plain[0].weight.grad)


def test_dtensor_and_tensor_parallelism(world: World) -> None:
    world.run(tensor_parallel)


def checkpoint(here: Rank, folder: str) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    def made(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(12, 30), nn.Linear(30, 4))
        fully_shard(net)
        return net

    saved, loaded = made(1), made(2)
    dcp.save({"net": saved.state_dict()}, checkpoint_id=folder)
    state = {"net": loaded.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    loaded.load_state_dict(state["net"])
    for mine, other in zip(saved.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(mine.full_tensor(), other.full_tensor())


def test_checkpoints(world: World, tmp_path: Path) -> None:
    world.run(checkpoint, str(tmp_path / "saved"))


def pipeline(here: Rank) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(5)
    layers = [nn.Linear(12, 12) for _ in range(here.size)]
    whole = nn.Sequential(*copy.deepcopy(layers))
    stage = PipelineStage(layers[here.rank], here.rank, here.size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 8, loss_fn=nn.functional.mse_loss)
    inputs, targets = torch.randn(16, 12), torch.randn(16, 12)
    for one in (inputs, targets):
        dist.broadcast(one, 0)
    losses: list[torch.Tensor] = []
    if here.rank == 0:
        schedule.step(inputs)
    elif here.rank == here.size - 1:
        output = schedule.step(target=targets, losses=losses)
        torch.testing.assert_close(output, whole(inputs))
    else:
        schedule.step()
    nn.functional.mse_loss(whole(inputs), targets).backward()
    torch.testing.assert_close(layers[here.rank].weight.grad, whole[here.rank].weight.grad)


def test_pipelines(world: World) -> None:
    world.run(pipeline)
