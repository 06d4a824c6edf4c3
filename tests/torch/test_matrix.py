"""Every operation, for every dtype and many shapes, compared with Gloo in the same processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch.world import Rank, World

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *UNSIGNED]
# What Gloo does not know is compared with the same numbers in a type that it knows.
FOR_GLOO = dict.fromkeys([torch.int16, *UNSIGNED], torch.int64)
FOR_GLOO |= {torch.complex64: torch.float32, torch.complex128: torch.float64}
MOVED = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]
SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (1000,), (129, 257)]
OPS = ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
BITWISE = {"BAND", "BOR", "BXOR"}


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small whole numbers, so that every order of summing gives the same."""
    numbers = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(seed))
    if dtype.is_complex:
        numbers = torch.complex(numbers.double(), numbers.double())
    return (numbers % 2).bool() if dtype == torch.bool else numbers.to(dtype)


def in_all_layouts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The same numbers: contiguous, transposed in memory, and with gaps."""
    found = [tensor.clone()]
    if tensor.dim() >= 2:
        found.append(tensor.transpose(0, 1).contiguous().transpose(0, 1))
    if tensor.dim() >= 1:
        gaps = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)[..., 0]
        found.append(gaps.copy_(tensor))
    return found


def same(ours: Any, theirs: Any, about: Any) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        if mine.is_complex():
            assert torch.equal(mine.real, mine.imag), about
            mine = mine.real
        if mine.dtype in FOR_GLOO:
            mine = mine.to(FOR_GLOO[mine.dtype])
        assert mine.dtype == other.dtype and mine.shape == other.shape, about
        torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{about}: {m}")


def reductions(here: Rank, op: str, dtype: torch.dtype, size: int) -> None:
    groups = here.group(size), here.group(size, "gloo")
    if here.rank >= size:
        return
    kind = getattr(dist.ReduceOp, op)
    dtypes = dtype, FOR_GLOO.get(dtype, dtype)
    for seed, shape in enumerate(SHAPES):
        for layout in range(3):
            outcome = []
            for group, dtype in zip(groups, dtypes, strict=True):
                copies = in_all_layouts(values(shape, dtype, 100 * seed + here.rank))
                tensor = copies[layout % len(copies)]
                if group is groups[1]:
                    tensor = tensor.contiguous()
                dist.all_reduce(tensor, kind, group=group)
                rooted = values(shape, dtype, 200 * seed + here.rank)
                dist.reduce(rooted, size - 1, kind, group=group)
                parts = [values(shape, dtype, 300 * seed + 10 * r + here.rank) for r in range(size)]
                mine = torch.empty(shape, dtype=dtype)
                dist.reduce_scatter(mine, parts, kind, group=group)
                outcome.append([tensor, mine] + ([rooted] if here.rank == size - 1 else []))
            same(*outcome, (op, dtype, shape, layout))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_reductions(world: World, op: str, dtype: torch.dtype) -> None:
    if op in BITWISE and dtype.is_floating_point:
        pytest.skip("bits of floating-point numbers are not combined")
    world.run(reductions, op, dtype, 3)


def single_forms(here: Rank, dtype: torch.dtype, size: int) -> None:
    groups = here.group(size), here.group(size, "gloo")
    if here.rank >= size:
        return
    dtypes = dtype, FOR_GLOO.get(dtype, dtype)
    for rows in (0, 1, 5, 300):
        outcome = []
        for group, dtype in zip(groups, dtypes, strict=True):
            gathered = torch.empty((rows * size, 3), dtype=dtype)
            dist.all_gather_into_tensor(gathered, values((rows, 3), dtype, here.rank), group=group)
            received = torch.empty((rows * size, 3), dtype=dtype)
            dist.all_to_all_single(received, values((rows * size, 3), dtype, here.rank + 50), group=group)
            outcome.append([gathered, received])
        same(*outcome, (dtype, rows))


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_single_tensors(world: World, dtype: torch.dtype) -> None:
    world.run(single_forms, dtype, 4)


def movements(here: Rank, dtype: torch.dtype, size: int) -> None:
    groups = here.group(size), here.group(size, "gloo")
    if here.rank >= size:
        return
    dtypes = dtype, FOR_GLOO.get(dtype, dtype)
    for seed, shape in enumerate(SHAPES):
        for layout in range(3):
            outcome = []
            for group, dtype in zip(groups, dtypes, strict=True):
                copies = in_all_layouts(values(shape, dtype, 100 * seed + here.rank))
                tensor = copies[layout % len(copies)] if group is groups[0] else copies[0]
                given = tensor.clone()
                dist.broadcast(tensor, 1, group=group)
                gathered = [torch.empty(shape, dtype=dtype) for _ in range(size)]
                dist.all_gather(gathered, given, group=group)
                at_root = [torch.empty(shape, dtype=dtype) for _ in range(size)] if here.rank == 0 else None
                dist.gather(given, at_root, 0, group=group)
                parts = [values(shape, dtype, 7 * seed + r) for r in range(size)] if here.rank == 1 else None
                part = torch.empty(shape, dtype=dtype)
                dist.scatter(part, parts, 1, group=group)
                outcome.append([tensor, *gathered, *(at_root or []), part])
            same(*outcome, (dtype, shape, layout))


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_movements(world: World, dtype: torch.dtype) -> None:
    world.run(movements, dtype, 2)


def averages(here: Rank, dtype: torch.dtype) -> None:
    whole = here.group()
    tensor = torch.full((33,), float(here.rank), dtype=dtype)
    dist.all_reduce(tensor, dist.ReduceOp.AVG, group=whole)
    assert torch.equal(tensor, torch.full((33,), 1.5, dtype=dtype))
    output = torch.empty(4, dtype=dtype)
    dist.reduce_scatter_tensor(output, torch.arange(16).to(dtype) * (here.rank + 1), dist.ReduceOp.AVG, group=whole)
    assert torch.equal(output, (torch.arange(4) + 4 * here.rank).to(dtype) * 2.5)
    scaled = torch.full((5,), 8.0, dtype=dtype)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.25), group=whole)
    assert torch.equal(scaled, torch.full((5,), 8.0, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_averages_and_factors(world: World, dtype: torch.dtype) -> None:
    world.run(averages, dtype)


def uneven(here: Rank) -> None:
    size, rank = here.size, here.rank
    counts = [[(source + 2 * target) % 5 for target in range(size)] for source in range(size)]
    sends, receives = counts[rank], [counts[source][rank] for source in range(size)]
    outcome = []
    for group in (here.group(), here.group(backend="gloo")):
        source = (torch.arange(sum(sends) * 3).reshape(-1, 3) + 1000 * rank).float()
        target = torch.empty((sum(receives), 3))
        dist.all_to_all_single(target, source, receives, sends, group=group)
        outcome.append([target])
    same(*outcome, "uneven")
    parts = [torch.full((n,), float(rank)) for n in sends]
    outputs = [torch.empty(n) for n in receives]
    dist.all_to_all(outputs, parts, group=here.group())
    for number, one in enumerate(outputs):
        assert torch.equal(one, torch.full_like(one, float(number)))


def test_uneven_all_to_all(world: World) -> None:
    world.run(uneven)


def complex_sum(here: Rank) -> None:
    tensor = torch.complex(torch.ones(9), torch.full((9,), float(here.rank)))
    dist.all_reduce(tensor, group=here.group())
    assert torch.equal(tensor, torch.full((9,), 4 + 6j))


def test_complex_numbers(world: World) -> None:
    world.run(complex_sum)


def group_sizes(here: Rank) -> None:
    for size in (1, 2, 3, 4):
        group = here.group(size)
        if here.rank < size:
            tensor = torch.tensor([float(here.rank)])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == size * (size - 1) / 2
            dist.barrier(group=group)


def test_groups_of_every_size(world: World) -> None:
    world.run(group_sizes)
