"""Tensors on a real GPU, through pinned memory. Not run where there is none; two ranks share one GPU."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch.test_aliasing import Case, memory_of
from tests.torch.world import Rank, started

from softmrc.torch import accelerator, backend, chunks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

STEPS = 20
LARGE = 5 * (1 << 20) + 17  # elements: several chunks, the last one odd
LONG = 1_000_000_000  # clock cycles that a kernel sleeps: about half a second
DEVICE = torch.device("cuda", 0)


def everything(here: Rank) -> None:
    """Each operation right behind the kernel that makes its input, and read by a kernel right after the wait."""
    device = DEVICE
    for count in (1, 1000, 1 << 20, LARGE):
        x = torch.full((count,), float(here.rank + 1), device=device)
        x *= 2
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        assert torch.equal(x + 1, torch.full_like(x, sum(range(1, here.size + 1)) * 2 + 1))
        parts = [torch.empty_like(x) for _ in range(here.size)]
        dist.all_gather(parts, x + here.rank)
        for rank, part in enumerate(parts):
            assert torch.equal(part, x + rank)
        whole = torch.arange(count * here.size, device=device, dtype=torch.float32) % 1000
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


def behind_kernels(here: Rank) -> None:
    """The host goes on while the tensor is computed; streams wait, and results are there for what comes after."""
    for count in (100, LARGE):
        # Pins memory and loads kernels, either of which may wait for kernels that run.
        x = torch.zeros(count, device=DEVICE)
        x += here.rank + 1
        dist.all_reduce(x * 2)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        for count in (100, LARGE):
            with torch.cuda.stream(stream):
                x = torch.zeros(count, device=DEVICE)
                torch.cuda._sleep(LONG)
                x += here.rank + 1
                work = dist.all_reduce(x, async_op=True)
                assert not stream.query(), f"the caller waited for the kernel: {count} elements, {stream}"
                work.wait()
                y = x * 2
            stream.synchronize()
            assert torch.equal(y, torch.full_like(y, here.size * (here.size + 1.0)))


def forgotten(here: Rank) -> None:
    """Tensors that their owner forgets at once, with others made in their place."""
    torch.cuda.synchronize()
    totals = []
    for i in range(6):
        x = torch.full((LARGE,), float(i + here.rank), device=DEVICE)
        parts = torch.empty(here.size * LARGE, device=DEVICE)
        gathered = dist.all_gather_into_tensor(parts, x, async_op=True)
        del x
        junk = torch.full((LARGE,), -1e9, device=DEVICE)
        gathered.wait()
        totals.append((i, parts.view(here.size, LARGE).double().sum(1)))
        del parts, junk
    for i, total in totals:
        assert total.tolist() == [(i + rank) * float(LARGE) for rank in range(here.size)]


def same_bits(here: Rank) -> None:
    """Two ranks: what the CPU gives for the whole, in every kind and layout, twice."""
    made = torch.Generator().manual_seed(here.rank)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int64):
        base = torch.randn(2 * (LARGE // 2), generator=made) * 100
        values = (torch.complex(base, base.flip(0)) if dtype.is_complex else base).to(dtype).view(2, -1)
        for layout in (values, values.t()):
            expected = layout.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(expected)
            for _ in range(2):
                found = values.to(DEVICE, copy=True)
                found = found if layout is values else found.t()
                dist.all_reduce(found)
                assert torch.equal(found.cpu(), expected), (dtype, layout is values)
            spread = torch.empty(expected.numel() // 2, dtype=dtype, device=DEVICE)
            dist.reduce_scatter_tensor(spread, layout.to(DEVICE).contiguous().view(-1))
            assert torch.equal(spread.cpu(), expected.reshape(-1).chunk(2)[here.rank]), dtype


def across(here: Rank) -> None:
    """A message may come from one kind of memory and go to the other."""
    for count in (10, LARGE):
        for sender in (0, 1):
            for there, ours in (("cpu", DEVICE), (DEVICE, "cpu"), (DEVICE, DEVICE)):
                if here.rank == sender:
                    dist.send(torch.arange(float(count), device=there), 1 - sender)
                    continue
                found = torch.empty(count, device=ours)
                dist.recv(found, sender)
                assert torch.equal(found.cpu(), torch.arange(float(count)))


def shared_memory(here: Rank, seeds: range) -> None:
    """Views of one memory, many operations under way, small cells: as if each had been waited for."""
    both, gloo = [here.group(), dist.new_group([0, 1])], here.group(backend="gloo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerator, "CELL_BYTES", 16384)
        patch.setattr(accelerator, "CELLS", 3)
        patch.setattr(chunks, "LEAST_BYTES", 64)
        for group in both:
            backend.find(group)._streams.clear()  # cells of the usual size
        for seed in seeds:
            shared = random.Random(seed)
            cases = [Case(here, seed * 100 + i, exchanges=i == 2) for i in range(shared.randint(1, 5))]
            groups = [shared.choice(both) for _ in cases]
            second = memory_of(here, seed)
            first = second.to(DEVICE, copy=True)
            torch.cuda._sleep(shared.choice([0, LONG // 200]))
            first += 0
            works: list[Any] = []
            for case, group in zip(cases, groups, strict=True):
                works += case.begin(group, first)
            random.Random(seed + here.rank).shuffle(works)
            for work in works:
                work.wait()
            found = first.clone()
            for case in cases:
                case.run_apart(gloo, second)
            assert torch.equal(found.cpu(), second), [case.text for case in cases]
    for group in both:
        backend.find(group)._streams.clear()
    dist.barrier()
    dist.destroy_process_group(both[1])


def aborted(here: Rank) -> str:
    group = dist.new_group([0, 1])
    work = dist.all_reduce(torch.ones(16 * LARGE, device=DEVICE), group=group, async_op=True)
    if here.rank:
        backend.find(group).abort()
    with pytest.raises(RuntimeError) as caught:
        work.wait()
    return str(caught.value)


@pytest.mark.parametrize("what", [everything, behind_kernels, forgotten, same_bits, across], ids=lambda fn: fn.__name__)
def test_operations_on_a_gpu(tmp_path: Path, what: Any) -> None:
    with started(2, tmp_path) as world:
        world.run(what)


def test_views_of_one_memory_on_a_gpu(tmp_path: Path) -> None:
    with started(2, tmp_path) as world:
        world.run(shared_memory, range(60))


def test_an_abort_reaches_a_gpu(tmp_path: Path) -> None:
    with started(2, tmp_path) as world:
        assert all("rank 1 aborted" in text for text in world.run(aborted))


def test_ddp_on_a_gpu_equals_gloo(tmp_path: Path) -> None:
    with started(2, tmp_path) as world:
        ours = world.run(train, "mrc")
        theirs = world.run(train, "gloo")
    assert ours == theirs
    assert ours[0][1] == ours[1][1]
