"""Ours beside another backend in one group."""

from __future__ import annotations

import torch
import torch.distributed as dist
from tests.torch.world import Rank, World

from softmrc.torch import group_of


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


def only_cpu(here: Rank) -> None:
    group = dist.new_group(list(range(here.size)), backend="cpu:mrc")
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert torch.equal(tensor, torch.full((3,), 4.0)) and group_of(group).size == 4


def test_a_device_can_be_named(world: World) -> None:
    world.run(only_cpu)
