"""No way of holding an AsyncWork loses it, in Python or in C++, and when it has ended, so has its future."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn as nn
from tests.torch.world import Rank, World
from torch._C._distributed_c10d import _register_work
from torch.nn.parallel import DistributedDataParallel as DDP

pytestmark = pytest.mark.process


class Litter:
    """Collects garbage all the time, so that unreferenced objects are gone at once."""

    def __enter__(self) -> None:
        self._threshold = gc.get_threshold()
        gc.set_threshold(1, 1, 1)

    def __exit__(self, *_: object) -> None:
        gc.set_threshold(*self._threshold)


def joined(here: Rank, uneven: bool) -> None:
    """DDP passes an AsyncWork to C++, drops it, and C++ waits for it in `backward`."""
    outcomes = []
    for backend in ("mrc", "gloo"):
        torch.manual_seed(3)
        net = DDP(nn.Linear(7, 3), process_group=here.group(backend=backend))
        steps = 3 + (here.rank if uneven else 0)
        with net.join(divide_by_initial_world_size=False), Litter():
            for step in range(steps):
                net(torch.full((2, 7), float(here.rank + step))).square().sum().backward()
                gc.collect()
        outcomes.append([one.grad.clone() for one in net.parameters()])
    for ours, theirs in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("uneven", [False, True])
def test_ddp_that_joins(world: World, uneven: bool) -> None:
    world.run(joined, uneven)


def by_cpp_alone(here: Rank) -> None:
    """Three ways in which C++ holds an AsyncWork that Python has forgotten, before it has ended and long after."""
    for is_over in (False, True):
        for size in (3, 100_000):
            tensor, strided = torch.ones(size), torch.ones(size, 2)[:, 0]
            for one in (tensor, strided):
                work = dist.all_reduce(one, async_op=True)
                if is_over:
                    work.wait()
                _register_work(one, work)
                del work
                gc.collect()
                torch.ops._c10d_functional.wait_tensor(one)
                assert torch.equal(one, torch.full((size,), 4.0))
                box = dist.all_reduce(one, async_op=True).boxed()
                gc.collect()
                unboxed = dist.Work.unbox(box)
                unboxed.wait()
                assert torch.equal(unboxed.get_future().value()[0], torch.full((size,), 16.0))


def test_works_that_only_cpp_holds(world: World) -> None:
    world.run(by_cpp_alone)


def hooked(here: Rank) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def chained(_, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations, and these would be texts
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        gc.collect()
        return future.then(lambda done: done.value()[0] / here.size)

    for hook in (None, chained, default_hooks.fp16_compress_hook, powerSGD_hook.powerSGD_hook):
        net = DDP(nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 4)), bucket_cap_mb=1e-3)
        if hook is powerSGD_hook.powerSGD_hook:
            net.register_comm_hook(powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), hook)
        elif hook is not None:
            net.register_comm_hook(None, hook)
        with Litter():
            for _ in range(4):
                net(torch.full((2, 30), float(here.rank))).sum().backward()
        grads = torch.cat([one.grad.flatten() for one in net.parameters()])
        everybody = [torch.empty_like(grads) for _ in range(here.size)]
        dist.all_gather(everybody, grads)
        assert all(torch.equal(one, grads) for one in everybody), hook


def test_buckets_and_hooks(world: World) -> None:
    world.run(hooked)


def functional(here: Rank) -> None:
    with Litter():
        total = fc.all_reduce(torch.ones(5), "sum", dist.group.WORLD)
        gathered = fc.all_gather_tensor(torch.full((2,), float(here.rank)), 0, dist.group.WORLD)
        several = fc.all_reduce_coalesced([torch.ones(3), torch.ones(4)], "sum", dist.group.WORLD)
        gc.collect()
        assert total.tolist() == [4.0] * 5 and gathered.tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
        assert [one.sum().item() for one in several] == [12.0, 16.0]
        right, left = (here.rank + 1) % here.size, (here.rank - 1) % here.size
        sent, got = torch.full((9,), float(here.rank)), torch.empty(9)
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)])
        futures = [one.get_future() for one in works]
        del works
        gc.collect()
        torch.futures.wait_all(futures)
        assert got.tolist() == [float(left)] * 9
        with dist._coalescing_manager(async_ops=True) as several_at_once:
            for one in (sent, got):
                dist.all_reduce(one)
        gc.collect()
        several_at_once.wait()
        assert sent[0] == got[0] == 6.0


def test_functional_collectives_and_batches(world: World) -> None:
    world.run(functional)


def sharded(here: Rank) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with Litter():
        fully_shard(net)
        for _ in range(2):
            net(torch.full((2, 8), float(here.rank))).sum().backward()
        full = [one.grad.full_tensor() for one in net.parameters()]
    assert all(torch.isfinite(one).all() for one in full)


def test_fully_sharded(world: World) -> None:
    world.run(sharded)


def operations(rank: int, size: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """One of each, with tensors that are plain and tensors that are not."""
    for kind, make in (("plain", torch.ones), ("strided", lambda n: torch.ones(n, 2)[:, 1])):
        peer = rank ^ 1
        yield f"all_reduce {kind}", lambda make=make: dist.all_reduce(make(6), async_op=True)
        yield f"broadcast {kind}", lambda make=make: dist.broadcast(make(6), 0, async_op=True)
        yield (
            f"all_gather {kind}",
            lambda make=make: dist.all_gather([make(6) for _ in range(size)], make(6), async_op=True),
        )
        yield f"isend {kind}", lambda make=make, peer=peer: dist.isend(make(6), peer)
        yield f"irecv {kind}", lambda make=make, peer=peer: dist.irecv(make(6), peer)
    yield "barrier", lambda: dist.barrier(async_op=True)
    group = dist.group.WORLD
    yield "coalesced", lambda: group.allreduce_coalesced([torch.ones(2), torch.ones(3)])


def ended(here: Rank) -> None:
    """When `wait` returns or `is_completed` is true, the future is done, whenever it was requested."""
    for _ in range(10):
        for name, begin in operations(here.rank, here.size):
            early = begin()
            future = early.get_future()
            early.wait()
            assert future.done() and early.is_completed() and early.is_success() and early.exception() is None, name
            assert isinstance(future.value(), list), name
        for name, begin in operations(here.rank, here.size):
            late = begin()
            late.wait()
            assert late.get_future().done() and isinstance(late.get_future().value(), list), name
        for name, begin in operations(here.rank, here.size):
            polled = begin()
            future = polled.get_future()
            while not polled.is_completed():
                pass
            assert future.done(), name


def test_a_work_that_has_ended_has_a_future_that_is_done(world: World) -> None:
    world.run(ended)


def failed(here: Rank) -> str:
    """The same where it ends badly; and the error is one that C++ can pass on, again and again."""
    group = dist.new_group([0, 1, 2, 3])
    if here.rank == 0:
        dist.barrier()
        group.abort()
        return "rank 0 aborted"
    work = dist.all_reduce(torch.ones(4), group=group, async_op=True)
    future = work.get_future()
    chained = future.then(lambda done: done.value())
    dist.barrier()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="rank 0"):
            work.wait()
        assert future.done() and work.is_completed() and not work.is_success() and work.exception() is not None
        with pytest.raises(RuntimeError, match="rank 0"):
            future.wait()
        with pytest.raises(RuntimeError, match="rank 0"):
            chained.wait()
    box = work.boxed()
    del work
    gc.collect()
    with pytest.raises(RuntimeError, match="rank 0"):
        dist.Work.unbox(box).wait()
    late = dist.all_reduce(torch.ones(4), group=group, async_op=True)
    with pytest.raises(RuntimeError, match="rank 0"):
        late.get_future().value()
    return "told"


def test_a_work_that_has_failed_has_a_future_that_has(world: World) -> None:
    assert world.run(failed) == ["rank 0 aborted", "told", "told", "told"]


def living() -> int:
    """Works and handles of ours that are referenced."""
    from softmrc.torch import handle, work

    gc.collect()
    return len(handle._works) + sum(isinstance(one, work.AsyncWork) for one in gc.get_objects())


def forgotten(here: Rank) -> None:
    before = living()
    for _ in range(50):
        dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(4, 2)[:, 0], async_op=True).get_future().wait()
        dist.all_reduce(torch.ones(4), async_op=True).boxed()
    dist.barrier()
    for _ in range(1000):  # threads that told of the last ones let go of them in their own time
        if living() <= before:
            return
        time.sleep(0.01)
    raise AssertionError(f"{living()} are held, {before} were")


def test_nothing_is_held_for_ever(world: World) -> None:
    world.run(forgotten)
