"""Tensors on a device, chunk by chunk: right whatever the streams do, and in the order that makes it fast.

The device is a pretended one (`pretended`), whose copies happen late and out of order across streams; the transport is
the real one, between ranks.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch.pretended import Device, PretendedStreams, pretended
from tests.torch.test_aliasing import Case, memory_of
from tests.torch.told import Told
from tests.torch.world import Rank, World, started

from softmrc.torch import backend, device_pipeline
from softmrc.torch.chunks import LINE, cuts
from softmrc.torch.device_pipeline import DevicePipeline
from softmrc.torch.staging import StagedTensor
from softmrc.torch.thread_pool import ThreadPool
from softmrc.torch.transport_op import TransportOp

pytestmark = pytest.mark.process

CELL, CELLS = 4096, 3


def made_late(device: Device, values: torch.Tensor) -> torch.Tensor:
    """A tensor that a kernel on the caller's stream has still to compute."""
    tensor = torch.full_like(values, -1000)
    device.kernel(lambda: tensor.copy_(values))
    return tensor


def read_late(device: Device, tensor: torch.Tensor) -> torch.Tensor:
    """What a kernel on the caller's stream finds there."""
    found = torch.zeros_like(tensor)
    device.kernel(lambda: found.copy_(tensor))
    return found


# Any collectives on memory that they share, without a wait before the last: the result is that of one after another.


def under_way(here: Rank, seeds: range) -> None:
    ours, gloo = here.group(), here.group(backend="gloo")
    for seed in seeds:
        shared = random.Random(seed)
        cases = [Case(here, seed * 100 + i) for i in range(shared.randint(1, 5))]
        eager, cell = shared.choice([0.0, 0.2, 0.8]), shared.choice([4096, 60_000])
        second = memory_of(here, seed)
        with pretended(seed, cell, shared.randint(1, 4), eager=eager) as device:
            first = made_late(device, memory_of(here, seed))
            works = [work for case in cases for work in case.begin(ours, first)]
            random.Random(seed + here.rank).shuffle(works)
            for work in works:
                work.wait()
            found = read_late(device, first)
            device.synchronize()
        for case in cases:
            case.run_apart(gloo, second)
        assert torch.equal(found, second), [case.text for case in cases]
    dist.barrier()


@pytest.mark.parametrize("block", range(4))
def test_operations_under_way_on_a_device(world: World, block: int) -> None:
    world.run(under_way, range(block * 15, block * 15 + 15))


def in_a_row(here: Rank, seeds: range) -> None:
    """Each result goes into the next operation by a kernel, with no wait of the host between."""
    for seed in seeds:
        rng = random.Random(seed)
        count = rng.choice([1, 900, 5000, 20_000])
        with pretended(seed, CELL, rng.randint(1, 4), eager=rng.choice([0.0, 0.3])) as device:
            x = made_late(device, torch.arange(count, dtype=torch.float32) % 7 + here.rank)
            for _ in range(4):
                dist.all_reduce(x)
                device.kernel(lambda x=x: x.sub_(1))
            found = read_late(device, x)
            device.synchronize()
        expected = torch.arange(count, dtype=torch.float32) % 7 * here.size + sum(range(here.size)) - 1
        for _ in range(3):
            expected = expected * here.size - 1
        assert torch.equal(found, expected), (seed, count)


def test_results_are_used_on_the_callers_stream(world: World) -> None:
    world.run(in_a_row, range(24))


# The same bits.


def bits(here: Rank, seed: int) -> list[list[int]]:
    """The result of each chunk is that of a tensor of its length, wherever it lies; with two ranks, of the whole."""
    results = []
    for size in (2, here.size):
        group = here.group(size)
        if here.rank >= size:
            continue
        values = torch.randn(7001, generator=torch.Generator().manual_seed(seed + here.rank))
        with pretended(seed, CELL, CELLS) as device:
            x = made_late(device, values)
            dist.all_reduce(x, group=group)
            found = read_late(device, x)
            device.synchronize()
            spans = cuts([StagedTensor(values)], CELL)
        whole = values.clone()
        dist.all_reduce(whole, group=group)
        by_chunk = [values[a // 4 : b // 4].clone() for a, b in spans]
        assert len(by_chunk) > CELLS
        for chunk in by_chunk:
            dist.all_reduce(chunk, group=group)
        assert torch.equal(found, torch.cat(by_chunk))
        assert size > 2 or torch.equal(found, whole)
        results.append(found.view(torch.int32).tolist())
    dist.barrier()
    return results


def test_the_same_bits_as_chunks_of_that_length(world: World) -> None:
    first, second = world.run(bits, 1), world.run(bits, 1)
    assert first == second
    assert all(rank[-1] == first[0][-1] for rank in first)


# Who waits for whom.


def message_beside(here: Rank) -> None:
    """A message from a device goes, though a collective before it waits for cells, and those for the peer."""
    peer = here.rank ^ 1
    with pretended(here.rank, CELL, CELLS) as device:
        x, y = made_late(device, torch.ones(20_000)), made_late(device, torch.full((3000,), float(here.rank)))
        if here.rank % 2:
            dist.recv(y, peer)
            dist.all_reduce(x)
        else:
            work = dist.all_reduce(x, async_op=True)
            dist.send(y, peer)
            work.wait()
        found = read_late(device, y)
        device.synchronize()
    assert torch.equal(x, torch.full((20_000,), float(here.size)))
    assert torch.equal(found, torch.full((3000,), float(here.rank & ~1)))


def test_a_message_does_not_wait_for_cells(world: World) -> None:
    world.run(message_beside)


def much(here: Rank) -> int:
    """How much memory it pins when a thousand times a cell travels, from several groups at once."""
    with pretended(here.rank, CELL, CELLS) as device:
        tensors = [made_late(device, torch.full((40_000,), float(i))) for i in range(6)]
        works = [dist.all_reduce(one, async_op=True) for one in tensors]
        whole = torch.empty(here.size * 20_000)
        works.append(dist.all_gather_into_tensor(whole, made_late(device, torch.ones(20_000)), async_op=True))
        for work in works:
            work.wait()
        device.synchronize()
        assert all(torch.equal(one, torch.full((40_000,), 4.0 * i)) for i, one in enumerate(tensors))
        assert torch.equal(whole, torch.ones(here.size * 20_000))
        return sum(device.pinned.values())


def test_pinned_memory_is_bounded(world: World) -> None:
    assert set(world.run(much)) == {CELL * CELLS}


def short(here: Rank) -> None:
    """What is small and complete at once begins in the caller's thread: no other is woken for it."""
    member = backend.find(None)
    with pretended(here.rank, eager=0.9) as device, pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_pipeline, "SHORT_S", 10.0)  # whatever else the machine does
        before = len(member._collective_queue._threads)
        for i in range(20):
            x = torch.full((100,), float(i))
            work = dist.all_reduce(x, async_op=True)
            assert not member._collective_queue.is_busy
            work.wait()
            device.synchronize()
            assert torch.equal(x, torch.full((100,), 4.0 * i))
        assert len(member._collective_queue._threads) == before


def test_small_tensors_go_the_short_way(world: World) -> None:
    world.run(short)


# What goes wrong.


def stays_away(here: Rank) -> str:
    """Rank 1 takes part in two chunks of twenty."""
    group = dist.new_group([0, 1])
    chunk = torch.ones(CELL // 4)
    how = dist.AllreduceOptions()
    how.timeout = timedelta(seconds=0.5)
    with pretended(here.rank, CELL, CELLS) as device:
        if here.rank:
            dist.all_reduce(made_late(device, chunk.repeat(2)), group=group)
            until(lambda: group.errored() is not None)
        work = group.allreduce([made_late(device, chunk.repeat(20))], how)
        with pytest.raises(RuntimeError) as caught:
            work.wait()
        device.synchronize()
    return str(caught.value)


def test_a_timeout_of_any_chunk_is_that_of_the_whole(tmp_path: Path) -> None:
    with started(2, tmp_path) as world:
        ours, theirs = world.run(stays_away)
        assert ours == theirs
        assert "of rank 0 did not end within 0.5 s: rank 1 did not take part" in ours


def breaks(here: Rank) -> str:
    """The device of rank 0 fails after some chunks: the others wait for more, and must not pair it with another."""
    group = dist.new_group([0, 1])
    with pretended(here.rank, CELL, CELLS) as device:
        x = made_late(device, torch.ones(20_000))
        device.breaks_after = None if here.rank else 5
        with pytest.raises(RuntimeError) as caught:
            dist.all_reduce(x, group=group)
        device.breaks_after = None
        with pytest.raises(RuntimeError):
            dist.all_reduce(x, group=group)
        device.synchronize()
    return str(caught.value)


def test_a_device_that_fails_in_the_middle_ends_the_group(tmp_path: Path) -> None:
    with started(2, tmp_path) as world:
        ours, theirs = world.run(breaks)
        assert "the device is broken" in ours
        assert "rank 0" in theirs and "the device is broken" in theirs


def killed(here: Rank, number: int) -> str:
    with pretended(here.rank, CELL, CELLS) as device:
        x = made_late(device, torch.ones(2_000_000))
        work = dist.all_reduce(x, async_op=True)
        if here.rank == number:
            time.sleep(0.05)
            backend.find(None).abort()
        with pytest.raises(RuntimeError) as caught:
            work.wait()
        assert work.is_completed() and not work.is_success()
        device.synchronize()
    return str(caught.value)


def test_an_abort_ends_all_chunks_with_the_same_words(tmp_path: Path) -> None:
    with started(2, tmp_path) as world:
        for text in world.run(killed, 1):
            assert "rank 1 aborted" in text


def half(here: Rank) -> str:
    """One rank's tensor lies on a device, the other's does not: they do not cut alike."""
    where = pretended(here.rank, CELL, CELLS) if here.rank else contextlib.nullcontext()
    with where, pytest.raises(RuntimeError) as caught:
        dist.all_reduce(torch.ones(20_000))
    return str(caught.value)


def test_ranks_that_do_not_cut_alike_are_told(tmp_path: Path) -> None:
    with started(2, tmp_path) as world:
        for text in world.run(half):
            assert (
                "called all_reduce(sum) of 20000 float32" in text and "called all_reduce(sum) of 1008 float32" in text
            )


def refused(here: Rank) -> None:
    """What makes no sense is refused before any chunk has gone, and the group lives on."""
    with pretended(here.rank, CELL, CELLS) as device:
        with pytest.raises(RuntimeError, match="makes no sense"):
            dist.all_reduce(torch.ones(20_000, dtype=torch.bool), dist.ReduceOp.AVG)
        with pytest.raises(RuntimeError, match="cannot reduce"):
            dist.all_reduce(torch.ones(20_000).to(torch.float8_e5m2))
        with pytest.raises(RuntimeError, match="single memory location"):
            dist.all_reduce(torch.ones(1).expand(20_000))
        x = torch.ones(20_000)
        dist.all_reduce(x)
        device.synchronize()
    assert torch.equal(x, torch.full((20_000,), float(here.size)))


def test_what_is_refused_is_refused_whole(world: World) -> None:
    world.run(refused)


def let_go(here: Rank) -> None:
    """Works that are kept keep no memory but their results'."""
    with pretended(here.rank, CELL, CELLS) as device:
        source, whole = torch.ones(20_000), torch.empty(here.size * 20_000)
        before = [holders(one) for one in (source, whole)]
        works = [dist.broadcast(source, 0, async_op=True), dist.all_gather_into_tensor(whole, source, async_op=True)]
        for work in works:
            work.wait()
        device.synchronize()
        cells = [cell for streams in backend.find(None)._streams.values() for cell in streams._cells]
        until(lambda: all(cell.tenant is None for cell in cells))
        until(lambda: [holders(one) for one in (source, whole)] == before)
        assert cells
        del works


def holders(tensor: torch.Tensor) -> int:
    """How many tensors lie on its memory."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def test_nothing_is_kept_that_is_over(world: World) -> None:
    world.run(let_go)


# In which order things happen, with an operation that ends on request.


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_chunks_are_copied_while_others_travel() -> None:
    """Off the device as far as there are cells, before the first has come; and back before the last has begun."""
    crew, starter = ThreadPool("done"), ThreadPool("start", most=1)
    begun: list[Told] = []
    with pretended(1, CELL, CELLS) as device:
        tensor = torch.arange(5 * CELL // 4, dtype=torch.float32)
        slot = StagedTensor(tensor)
        slot.on_device = slot.is_staged = True

        def begin(ins: list[Any], outs: list[Any]) -> Told:
            assert ins[0].data_ptr() == outs[0].data_ptr()
            ins[0].mul_(2)  # what the network brings
            begun.append(Told())
            return begun[-1]

        streams = PretendedStreams(torch.device("cpu"), device)
        pipeline = DevicePipeline(streams, [TransportOp([slot], [slot], begin, is_divisible=True)], (), False, True)
        pipeline.begin(starter, crew, lambda reason: None)
        until(lambda: len(begun) == CELLS)
        assert not pipeline.done
        begun[1].end()  # the first to end need not be the first to begin
        until(lambda: bool(streams.onto.tasks) or float(tensor[CELL // 4 + 1]) == 2 * (CELL // 4 + 1))
        assert len(begun) == CELLS or not begun[0].done
        begun[0].end()
        until(lambda: len(begun) == 5)
        for one in begun[2:]:
            one.end()
        pipeline.wait(10)
        pipeline.land_all().synchronize()
        assert torch.equal(tensor, torch.arange(5 * CELL // 4, dtype=torch.float32) * 2)
        device.synchronize()
    starter.close()
    crew.close()


def test_the_callers_thread_goes_on_while_the_tensor_is_computed() -> None:
    """Nothing begins before the event, and only the starter waits for it."""
    crew, starter, begun = ThreadPool("done"), ThreadPool("start", most=1), threading.Event()
    with pretended(1, CELL, CELLS, eager=0.0) as device:
        gate = threading.Event()
        values = torch.ones(100)
        tensor = torch.zeros(100)
        device.kernel(lambda: (gate.wait(10), tensor.copy_(values)))
        slot = StagedTensor(tensor)
        slot.on_device = slot.is_staged = True
        seen: list[float] = []

        def begin(ins: list[Any], outs: list[Any]) -> Told:
            seen.append(float(ins[0].sum()))
            begun.set()
            return Told()

        streams = PretendedStreams(torch.device("cpu"), device)
        pipeline = DevicePipeline(streams, [TransportOp([slot], [], begin)], (), False, True)
        pipeline.begin(starter, crew, lambda reason: None)
        assert not begun.wait(0.05)
        with pytest.raises(TimeoutError):
            pipeline.wait(0.01)
        gate.set()
        assert begun.wait(10) and seen == [100.0]
    starter.close()
    crew.close()


# How it is cut.


def test_cuts_cover_every_part_and_fit_into_a_cell() -> None:
    rng = random.Random(3)
    for _ in range(400):
        width = rng.choice([torch.uint8, torch.float16, torch.float32, torch.complex128])
        parts = rng.choice([1, 1, 2, 3, 16])
        count = rng.choice([0, 1, rng.randint(1, 3000), rng.randint(1, 3_000_000)])
        slots = [StagedTensor(torch.empty(count * parts, dtype=width), parts)]
        if parts > 1:
            slots.append(StagedTensor(torch.empty(count, dtype=width)))
        cell = rng.choice([1 << 20, 4 << 20])
        found = cuts(slots, cell)
        length = count * width.itemsize
        assert [first for first, _ in found] == [0] + [last for _, last in found[:-1]] and found[-1][1] == length
        if len(found) > 1:
            pieces = sum(slot.parts for slot in slots)
            assert all(first % LINE == 0 for first, _ in found)
            assert all((last - first + LINE - 1) // LINE * LINE * pieces <= cell for first, last in found)
            assert min(last - first for first, last in found) > 0
