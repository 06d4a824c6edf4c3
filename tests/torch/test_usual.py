"""What programs do besides training itself: meshes, optimizers and checkpoints that communicate, threads, questions."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from tests.torch.world import Rank, World
from torch.nn.parallel import DistributedDataParallel as DDP


def questions(here: Rank) -> None:
    group = dist.group.WORLD
    assert dist.get_backend() == "mrc" and dist.get_process_group_ranks(group) == [0, 1, 2, 3]
    assert [one.type for one in group._device_types] == ["cpu", "cuda"][: 1 + torch.cuda.is_available()]
    assert dist.distributed_c10d._get_pg_default_device(group) == torch.device("cpu")
    assert group._get_backend(torch.device("cpu")) is group
    assert group.supports_splitting
    for feature in ("coalescing", "time_estimate", "shrinking", "reconfigure", "window"):
        assert getattr(group, f"supports_{feature}") is False
    named = dist.new_group([0, 1], group_desc="a pair", backend="cpu:mrc")
    if here.rank < 2:
        assert named.group_desc == "a pair" and named.size() == 2 and named.rank() == here.rank
        assert named._device_types == [torch.device("cpu")]
    with pytest.raises(RuntimeError, match="split"):  # torch's own: a group that no accelerator was given for
        dist.split_group(split_ranks=[[0, 1], [2, 3]])


def test_what_torch_asks_of_a_group(world: World) -> None:
    world.run(questions)


def split(here: Rank) -> None:
    """As `dist.split_group` asks for it, with the CPU in the place of the accelerator that it wants."""
    from unittest import mock

    group = dist.group.WORLD
    cpu = torch.device("cpu")
    with (
        mock.patch.object(torch.accelerator, "is_available", lambda: True),
        mock.patch.object(torch.accelerator, "current_accelerator", lambda: cpu),
        mock.patch.object(type(group), "bound_device_id", cpu),
    ):
        part = dist.split_group(split_ranks=[[0, 2], [1, 3]], group_desc="halves")
        again = dist.split_group(split_ranks=[[0, 2]])
    assert part is not None and dist.get_process_group_ranks(part) == [here.rank % 2, here.rank % 2 + 2]
    assert part.group_desc == "halves" and dist.get_backend(part) == "mrc" and part.rank() == here.rank // 2
    tensor = torch.tensor([float(here.rank)])
    dist.all_reduce(tensor, group=part)
    assert tensor.item() == 2 + 2 * (here.rank % 2)
    assert (again is None) == bool(here.rank % 2)
    dist.destroy_process_group(part)


@pytest.mark.skipif(not hasattr(dist.ProcessGroup, "split_group"), reason="this torch splits groups of NCCL alone")
def test_groups_that_torch_splits(world: World) -> None:
    world.run(split)


def split_directly(here: Rank) -> None:
    direct = dist.group.WORLD.split_group([3, 1])
    assert (direct is None) == (here.rank % 2 == 0)
    if direct is not None:
        assert direct.rank() == (here.rank == 1) and direct.size() == 2
        direct.barrier().wait()
        direct.shutdown()
    dist.barrier()


def test_groups_that_are_split(world: World) -> None:
    world.run(split_directly)


def sharded_tensor(here: Rank) -> None:
    """Torch makes tensors on a device of the backend here, which must be one that there is."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    places = [f"rank:{rank}/cpu" for rank in range(here.size)]
    whole = torch.zeros(8, 3) if here.rank == 0 else None
    sharded = sharded_tensor.full(ChunkShardingSpec(0, places), (8, 3), 2.5)
    sharded.gather(0, whole)
    assert whole is None or torch.equal(whole, torch.full((8, 3), 2.5))


def test_sharded_tensors(world: World) -> None:
    world.run(sharded_tensor)


def mesh(here: Rank) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    for name, peers in (("rows", [here.rank % 2, here.rank % 2 + 2]), ("columns", [here.rank & 2, here.rank | 1])):
        group = whole[name].get_group()
        tensor = torch.tensor([float(here.rank)])
        dist.all_reduce(tensor, group=group)
        assert dist.get_process_group_ranks(group) == peers and tensor.item() == sum(peers)
    flat = torch.ones(2)
    dist.all_reduce(flat, group=whole[("rows", "columns")]._flatten("all").get_group())
    assert flat.tolist() == [4.0, 4.0]


def test_meshes(world: World) -> None:
    world.run(mesh)


def sharded_optimizer(here: Rank) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    outcome = []
    for backend in ("mrc", "gloo"):
        torch.manual_seed(0)
        net = DDP(nn.Linear(10, 20), process_group=here.group(backend=backend))
        optimizer = ZeroRedundancyOptimizer(
            net.parameters(), torch.optim.Adam, lr=0.01, process_group=here.group(backend=backend)
        )
        for step in range(4):
            optimizer.zero_grad()
            with net.no_sync():
                net(torch.full((4, 10), float(step))).square().sum().backward()
            net(torch.full((4, 10), float(here.rank))).square().sum().backward()
            optimizer.step()
        optimizer.consolidate_state_dict(0)
        outcome.append([one.detach() for one in net.parameters()])
    for ours, theirs in zip(*outcome, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_sharded_optimizer_and_accumulated_gradients(world: World) -> None:
    world.run(sharded_optimizer)


def checkpoint_beside(here: Rank, folder: str) -> None:
    import torch.distributed.checkpoint as dcp

    saved = {"weight": torch.full((5,), 3.0), "step": 7}
    dcp.async_save(saved, checkpoint_id=folder).result(60)
    loaded = {"weight": torch.zeros(5), "step": 0}
    dcp.load(loaded, checkpoint_id=folder)
    assert torch.equal(loaded["weight"], saved["weight"]) and loaded["step"] == 7


def test_checkpoints_that_are_saved_in_the_background(world: World, tmp_path: Path) -> None:
    world.run(checkpoint_beside, str(tmp_path / "saved"))


def differentiable(here: Rank) -> None:
    import torch.distributed._functional_collectives as fc

    group = dist.group.WORLD
    for operation, gradient in (
        (lambda x: fc.all_gather_tensor_autograd(x, 0, group), 4.0),
        (lambda x: fc.reduce_scatter_tensor_autograd(x, "sum", 0, group), 1.0),
        (lambda x: fc.all_to_all_single_autograd(x, None, None, group), 1.0),
    ):
        x = torch.ones(8, requires_grad=True)
        (operation(x * 1) * torch.ones(1)).sum().backward()
        assert torch.equal(x.grad, torch.full((8,), gradient))


def test_collectives_with_gradients(world: World) -> None:
    world.run(differentiable)


def from_threads(here: Rank) -> None:
    groups = [dist.new_group(list(range(here.size))) for _ in range(3)]
    failures: list[BaseException] = []

    def collectives(number: int) -> None:
        for count in range(1, 40):
            tensor = torch.full((97 * count,), float(number))
            dist.all_reduce(tensor, group=groups[number])
            assert tensor[-1] == 4 * number

    def messages(number: int) -> None:
        for count in range(1, 40):
            got = torch.empty(371 * count)
            work = dist.irecv(got, (here.rank - 1) % here.size, tag=number)
            dist.send(torch.full((371 * count,), float(number)), (here.rank + 1) % here.size, tag=number)
            work.wait()
            assert got[-1] == number

    def kept(function: object, number: int) -> None:
        try:
            function(number)  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=kept, args=(fn, i)) for fn in (collectives, messages) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_threads_beside_each_other(world: World) -> None:
    world.run(from_threads)


def odd_tensors(here: Rank) -> None:
    parts = [torch.empty(rank) for rank in range(here.size)]  # lengths differ, one is empty
    dist.all_gather(parts, torch.full((here.rank,), float(here.rank)))
    assert [one.tolist() for one in parts] == [[float(rank)] * rank for rank in range(here.size)]
    square = torch.ones(4, 4)
    dist.all_reduce(square[:, 1])
    dist.all_reduce(square.t())
    assert square.tolist() == [[4.0, 16.0, 4.0, 4.0]] * 4
    flags = torch.tensor([here.rank == 0, True, False])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    assert flags.tolist() == [True, True, False]
    same = torch.ones(1).expand(5)  # may be sent, not written to
    dist.broadcast(same if here.rank == 0 else torch.empty(5), 0)
    with pytest.raises(RuntimeError, match="single memory location"):
        dist.all_reduce(same)


def test_tensors_that_are_not_plain(world: World) -> None:
    world.run(odd_tensors)


def watched_barrier(here: Rank) -> list[str]:
    from softmrc.torch import monitored_barrier

    monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)
    group = dist.new_group(list(range(here.size)))
    group.monitored_barrier(timedelta(seconds=20))
    said = []
    if here.rank in (0, 3):
        for names_all in (False, True):
            with pytest.raises(RuntimeError) as raised:
                monitored_barrier(group, timedelta(seconds=0.5), names_all)
            said.append(str(raised.value))
            store_barrier(f"watched {names_all}", 2)
    dist.barrier(group=group)  # it does the group no harm
    if here.rank in (1, 2):  # a rank that comes when all is over learns it
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"Ranks? 1.* failed"):
                group.monitored_barrier(timedelta(seconds=20))
    group.monitored_barrier(timedelta(seconds=20))  # and all are together again
    pair = dist.new_group([0, 1])
    monitored_barrier(pair, timedelta(seconds=20))  # nothing to do for the others
    return said


def store_barrier(name: str, size: int) -> None:
    store = dist.group.WORLD.get_group_store()
    dist.distributed_c10d._store_based_barrier(0, store, name, size, timedelta(seconds=30))


def test_a_monitored_barrier_names_who_is_missing(world: World) -> None:
    (first, everybody), _, _, others = world.run(watched_barrier)
    assert "Rank 1 failed to pass monitoredBarrier in 500 ms" in first and "timed out" in first
    assert "Ranks 1, 2 failed to pass monitoredBarrier in 500 ms" in everybody
    for said in others:
        assert "Rank 3 successfully reached monitoredBarrier, but received errors" in said
