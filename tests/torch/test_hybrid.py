"""Ours together with another backend in one group."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from tests.torch.world import Rank, World

from softmrc.torch import group_of

pytestmark = pytest.mark.process


def beside_gloo(here: Rank) -> tuple[int, int]:
    """Gloo has the CPU, ours another device: an all-reduce of CPU tensors is none of ours."""
    group = dist.new_group(list(range(here.size)), backend="cpu:gloo,cuda:mrc")
    tensor = torch.full((5,), float(here.rank))
    dist.all_reduce(tensor, group=group)
    assert torch.equal(tensor, torch.full((5,), 6.0))
    box: list[object] = [None] * here.size
    dist.all_gather_object(box, here.rank, group=group)
    assert box == [0, 1, 2, 3]
    theirs = group_of(group).stats()["operations"]
    mixed = dist.new_group(list(range(here.size)), backend="cpu:mrc,xpu:gloo")
    tensor = torch.full((5,), float(here.rank))
    dist.all_reduce(tensor, group=mixed)
    dist.broadcast(tensor, 0, group=mixed)
    assert torch.equal(tensor, torch.full((5,), 6.0))
    return theirs, group_of(mixed).stats()["operations"]


def test_each_device_has_its_backend(world: World) -> None:
    for theirs, ours in world.run(beside_gloo):
        assert theirs == 0 and ours == 2


def without_rest(here: Rank) -> None:
    """Gloo's threads let go of tensors that Python has forgotten, while the next operation is issued."""
    group = dist.new_group(list(range(here.size)), backend="cpu:gloo,cuda:mrc")
    for number in range(1000):
        all_ranks = [torch.empty(1) for _ in range(here.size)]
        dist.all_gather(all_ranks, torch.full((1,), float(number)), group=group)
        dist.all_reduce(torch.ones(1), group=group)
    assert [one.item() for one in all_ranks] == [999.0] * here.size


def with_another_limit(here: Rank) -> float:
    group = dist.new_group(list(range(here.size)), backend="cpu:gloo,cuda:mrc")
    group.set_timeout(timedelta(seconds=7))
    assert group_of(group).timeout_s == 7.0
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def test_a_timeout_is_every_backends(world: World) -> None:
    assert world.run(with_another_limit) == [7.0] * 4


def test_another_backend_and_the_interpreter_never_wait_for_each_other(world: World) -> None:
    world.run(without_rest)


def only_cpu(here: Rank) -> None:
    group = dist.new_group(list(range(here.size)), backend="cpu:mrc")
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert torch.equal(tensor, torch.full((3,), 4.0)) and group_of(group).size == 4


def test_a_device_can_be_named(world: World) -> None:
    world.run(only_cpu)


def named(here: Rank) -> list[str]:
    """What is requested by name is not limited by what is there: the device need not be, until a tensor lies on it."""
    devices = []
    for text in ("cpu:mrc,cuda:mrc", "cpu:gloo,cuda:mrc", "cuda:mrc,cpu:mrc"):
        group = dist.new_group(list(range(here.size)), backend=text)
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [4.0, 4.0], text
        devices.append(",".join(sorted(dist.distributed_c10d._world.pg_backend_config[group].split(","))))
        dist.destroy_process_group(group)
    if not dist.is_nccl_available():
        try:
            dist.new_group(list(range(here.size)), backend="cpu:mrc,cuda:nccl")
        except RuntimeError as error:
            devices.append(str(error))
    return devices


def test_devices_by_name(world: World) -> None:
    for devices in world.run(named):
        assert devices[:3] == ["cpu:mrc,cuda:mrc", "cpu:gloo,cuda:mrc", "cpu:mrc,cuda:mrc"]
        assert all("nccl" in one for one in devices[3:]), devices
