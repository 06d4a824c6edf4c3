"""What torch promises about Work and Future: order, waiting, chaining, keeping tensors alive."""

from __future__ import annotations

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from tests.torch.world import Rank, World


def several_in_flight(here: Rank) -> None:
    tensors = [torch.full((1000 + i,), float(i + here.rank)) for i in range(40)]
    works = [dist.all_reduce(one, async_op=True) for one in tensors]
    for i in reversed(range(40)):  # in another order than they were issued
        works[i].wait()
        assert works[i].is_completed() and works[i].is_success()
        assert torch.equal(tensors[i], torch.full((1000 + i,), 4.0 * i + 6))


def test_many_operations_at_once(world: World) -> None:
    world.run(several_in_flight)


def dropped(here: Rank) -> None:
    """Without a wait, without a reference to the Work or the tensor; the next barrier comes after it all the same."""
    results = [torch.full((100_000,), float(here.rank)) for _ in range(8)]
    views = [one.reshape(-1, 2)[:, 0] for one in results]  # with gaps, so there is something left to do at the end
    for one in views:
        dist.all_reduce(one, async_op=True)
    for _ in range(8):
        dist.all_reduce(torch.ones(50_000), async_op=True)
    gc.collect()
    last = dist.all_reduce(views[0].clone(), async_op=True)
    last.wait()
    dist.barrier()


def test_works_that_are_dropped(world: World) -> None:
    world.run(dropped)


def futures(here: Rank) -> None:
    tensor = torch.full((7,), 1.0 + here.rank)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert torch.equal(doubled.wait(), torch.full((7,), 20.0))
    value = future.wait()
    assert isinstance(value, list) and value[0].data_ptr() == tensor.data_ptr()
    done = dist.barrier(async_op=True)
    done.wait()
    assert done.get_future().wait() == [] and done.get_future().done()


def test_the_future_holds_the_tensors(world: World) -> None:
    world.run(futures)


def chained(here: Rank) -> None:
    """A callback that begins an operation and waits for it, as PowerSGD's hook does."""

    def again(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    futures = []
    for _ in range(3):
        first = dist.all_reduce(torch.ones(10), async_op=True).get_future()
        futures.append(first.then(again).then(lambda done: done.value() + 1).wait())
    assert all(torch.equal(one, torch.full((10,), 17.0)) for one in futures)


def test_a_callback_may_wait_for_another_operation(world: World) -> None:
    world.run(chained)


def outside_order(here: Rank) -> None:
    """A receive that is issued first and matched last holds nothing up, not even futures."""
    incoming = torch.zeros(4)
    receive = dist.irecv(incoming, 0) if here.rank == 1 else None
    waiting = receive.get_future() if receive else None
    tensor = torch.ones(4)
    dist.all_reduce(tensor, async_op=True).get_future().wait()
    assert torch.equal(tensor, torch.full((4,), 4.0))
    if here.rank == 0:
        dist.send(torch.arange(4.0), 1)
    if waiting is not None:
        waiting.wait()
        assert torch.equal(incoming, torch.arange(4.0))


def test_a_late_message_holds_nothing_up(world: World) -> None:
    world.run(outside_order)


def messages(here: Rank) -> None:
    rank, size = here.rank, here.size
    right, left = (rank + 1) % size, (rank - 1) % size
    sent, got = torch.full((300, 3), float(rank)), torch.empty(300, 3)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)]):
        work.wait()
    assert torch.equal(got, torch.full((300, 3), float(left)))
    columns = torch.zeros(4, 6).t()  # not contiguous
    requests = [dist.isend(torch.full((6, 4), rank + 10.0 * tag), right, tag=tag) for tag in (2, 1)]
    dist.recv(columns, left, tag=1)
    assert torch.equal(columns, torch.full((6, 4), left + 10.0))
    dist.recv(columns, left, tag=2)
    assert torch.equal(columns, torch.full((6, 4), left + 20.0))
    for request in requests:
        request.wait()
    dist.barrier()
    if rank == 0:
        senders = []
        for _ in range(size - 1):
            box = torch.empty(1)
            senders.append(dist.recv(box))
            assert box.item() == senders[-1]
        assert sorted(senders) == [1, 2, 3]
    else:
        dist.send(torch.tensor([float(rank)]), 0)
    dist.barrier()


def test_messages_between_ranks(world: World) -> None:
    world.run(messages)


def objects(here: Rank) -> None:
    rank, size = here.rank, here.size
    everybody: list[object] = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "text": "é" * rank})
    assert everybody == [{"rank": i, "text": "é" * i} for i in range(size)]
    shared = [rank, "x"] if rank == 2 else [None, None]
    dist.broadcast_object_list(shared, 2)
    assert shared == [2, "x"]
    gathered: list[object] | None = [None] * size if rank == 1 else None
    dist.gather_object(rank**2, gathered, 1)
    assert gathered is None or gathered == [0, 1, 4, 9]
    received: list[object] = [None]
    dist.scatter_object_list(received, [f"for {i}" for i in range(size)] if rank == 0 else None, 0)
    assert received == [f"for {rank}"]
    if rank == 3:
        dist.send_object_list([{"from": 3}], 0)
    elif rank == 0:
        box: list[object] = [None]
        dist.recv_object_list(box, 3)
        assert box == [{"from": 3}]


def test_objects(world: World) -> None:
    world.run(objects)


def groups(here: Rank) -> None:
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = pairs[here.rank % 2]
    tensor, everybody = torch.tensor([float(here.rank)]), torch.tensor([1.0])
    works = [dist.all_reduce(tensor, group=mine, async_op=True), dist.all_reduce(everybody, async_op=True)]
    for work in works:
        work.wait()
    assert tensor.item() == 2 + 2 * (here.rank % 2) and everybody.item() == 4
    assert dist.get_backend(mine) == "mrc" and dist.get_rank(mine) == here.rank // 2
    source = torch.tensor([float(here.rank)])
    dist.broadcast(source, group_src=1, group=mine)
    assert source.item() == 2 + here.rank % 2
    dist.destroy_process_group(mine)
    dist.barrier()


def test_groups_beside_each_other(world: World) -> None:
    world.run(groups)


def coalesced(here: Rank) -> None:
    tensors = [torch.full((n,), float(here.rank)) for n in (1, 5, 900)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for one in tensors:
            dist.all_reduce(one)
    manager.wait()
    assert all(torch.equal(one, torch.full_like(one, 6.0)) for one in tensors)
    outputs = [torch.empty(4 * n) for n in (2, 3)]
    with dist._coalescing_manager():
        for n, output in zip((2, 3), outputs, strict=True):
            dist.all_gather_into_tensor(output, torch.full((n,), float(here.rank)))
    for n, output in zip((2, 3), outputs, strict=True):
        assert torch.equal(output, torch.arange(4.0).repeat_interleave(n))


def test_coalesced_operations(world: World) -> None:
    world.run(coalesced)


def patience(here: Rank) -> None:
    """The caller's patience ends, the operation does not."""
    tensor = torch.ones(3)
    if here.rank != 0:
        work = dist.all_reduce(tensor, async_op=True)
        try:
            work.wait(timedelta(milliseconds=50))
            raise AssertionError("rank 0 has not even called it")
        except RuntimeError as error:
            assert not isinstance(error, AssertionError), error
        assert not work.is_completed()
    dist.distributed_c10d._store_based_barrier(
        here.rank, dist.group.WORLD.get_group_store(), "patience", here.size, timedelta(seconds=30)
    )
    if here.rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
    assert work.wait(timedelta(seconds=30))
    assert torch.equal(tensor, torch.full((3,), 4.0))


def test_waiting_with_a_timeout(world: World) -> None:
    world.run(patience)
