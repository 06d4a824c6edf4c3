"""What people debug with: the profiler, sequence numbers, durations, the flight recorder, DETAIL."""

from __future__ import annotations

import argparse
import os
import pickle
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from tests.torch.world import Rank, World, started
from torch.nn.parallel import DistributedDataParallel as DDP

from softmrc.torch import dump_flight_recorder

pytestmark = pytest.mark.process


def shown(profile: Any) -> list[Any]:
    return [one for one in profile.events() if one.name.startswith("mrc:")]


def profiled(here: Rank) -> None:
    size, right, left = here.size, (here.rank + 1) % here.size, (here.rank - 1) % here.size
    tensor, many = torch.ones(3, 2), [torch.empty(3, 2) for _ in range(here.size)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 1)
        dist.all_gather(many, tensor)
        dist.all_gather_into_tensor(torch.empty(3 * size, 2), tensor)
        dist.reduce_scatter(tensor, many)
        dist.barrier()
        dist.all_reduce(torch.eye(2).to_sparse())
        work = dist.irecv(many[0], left)
        dist.send(tensor, right)
        work.wait()
        works = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(20)]
        for one in works:
            one.get_future().wait()
    found = shown(profile)
    names = Counter(one.name for one in found)
    assert names.pop("mrc:wait") == 9
    assert names == {
        "mrc:all_reduce": 21,
        "mrc:broadcast": 1,
        "mrc:all_gather": 1,
        "mrc:_all_gather_base": 1,
        "mrc:reduce_scatter": 1,
        "mrc:barrier": 1,
        "mrc:sparse_all_reduce": 1,
        "mrc:send": 1,
        "mrc:recv": 1,
    }, names
    assert all(one.cpu_time >= 0 for one in found)


def test_the_profiler_shows_operations(world: World) -> None:
    world.run(profiled)


def stopped_early(here: Rank) -> None:
    """Operations that are under way when the profiler stops are cut there, and end well later on."""
    for _ in range(10):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            receives = [dist.irecv(torch.empty(3), (here.rank - 1) % here.size, tag=tag) for tag in range(30)]
        assert Counter(one.name for one in shown(profile)) == {"mrc:recv": 30}
        sends = [dist.isend(torch.ones(3), (here.rank + 1) % here.size, tag=tag) for tag in range(30)]
        for work in (*receives, *sends):
            work.wait()


def test_the_profiler_may_stop_before_operations_end(world: World) -> None:
    world.run(stopped_early)


def profiled_training(here: Rank) -> None:
    net = DDP(nn.Linear(10, 10))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        net(torch.ones(2, 10)).sum().backward()
    assert Counter(one.name for one in shown(profile))["mrc:all_reduce"] == 1
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)  # refused: its range has ended all the same
        dist.all_reduce(torch.ones(3))
    assert 1 <= Counter(one.name for one in shown(profile))["mrc:all_reduce"] <= 2


def test_the_profiler_shows_those_of_training(world: World) -> None:
    world.run(profiled_training)


def numbered(here: Rank) -> list[int]:
    from torch._C._distributed_c10d import OpType

    group = dist.new_group(list(range(here.size)))
    begun = group._get_sequence_number_for_group()
    assert begun == 0
    works = [group.allreduce([torch.ones(3)]), group.barrier(), group.broadcast(torch.ones(2), root=1)]
    numbers = [work._get_sequence_number() for work in works]
    for work in works:
        work.wait()
        assert work._get_duration() > 0
    assert [work._get_op_type() for work in works] == [OpType.ALLREDUCE, OpType.BARRIER, OpType.BROADCAST]
    with pytest.raises(RuntimeError):
        group.broadcast(torch.ones(2), root=-1)  # no operation, no number
    if here.rank < 2:
        (group.send if here.rank else group.recv)([torch.ones(1)], 1 - here.rank, 0).wait()
    assert group._get_sequence_number_for_group() == 3
    late = group.barrier()
    if not late.is_completed():
        with pytest.raises(RuntimeError, match="wait"):
            late._get_duration()
    late.wait()
    return numbers


def test_works_have_numbers_kinds_and_durations(world: World) -> None:
    assert world.run(numbered) == [[1, 2, 3]] * 4


def recorded(here: Rank, folder: str) -> None:
    group = dist.new_group(list(range(here.size)), group_desc="recorded")
    dist.all_reduce(torch.ones(4, 2), group=group)
    dist.all_gather([torch.empty(2) for _ in range(here.size)], torch.ones(2), group=group)
    dist.broadcast(torch.ones(2, dtype=torch.int32), 1, group=group)
    if here.rank < 2:
        dist.send(torch.ones(3), 1, group=group) if here.rank == 0 else dist.recv(torch.ones(3), 0, group=group)
    left_alone = dist.barrier(group=group, async_op=True)
    while not left_alone.is_completed():  # without a wait
        time.sleep(0.001)
    found = dump_flight_recorder(f"{folder}/rank_{here.rank}")
    mine = [one for one in found["entries"] if one["process_group"][1] == "recorded"]
    names = [one["profiling_name"].removeprefix("gloo:").split(" ")[0] for one in mine]
    message = ["send"] if here.rank == 0 else ["recv"] if here.rank == 1 else []
    assert names == ["all_reduce", "all_gather", "broadcast", *message, "barrier"]
    assert all(one["state"] == "completed" for one in mine), mine
    assert mine[0]["input_sizes"] == [[4, 2]] and mine[0]["input_dtypes"] == ["Float32"]
    assert [one["collective_seq_id"] for one in mine if not one["is_p2p"]] == [1, 2, 3, 4]
    assert all(one["duration_ms"] > 0 for one in mine[:3])


def test_the_flight_recorder_is_read_by_torchs_own_tool(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.flight_recorder.components.builder")
    with started(3, tmp_path) as world:
        world.run(recorded, str(tmp_path))
    from torch.distributed.flight_recorder.components import builder, config_manager, loader

    arguments = config_manager.JobConfig().parse_args([str(tmp_path), "-p", "rank_", "--allow-incomplete-ranks"])
    details, version = loader.read_dir(arguments)
    database = builder.build_db(details, arguments, version)
    ours = [one for one in database.collectives if "recorded" in one.pg_desc]
    assert {one.collective_name for one in ours} >= {"gloo:all_reduce", "gloo:broadcast", "gloo:barrier"}
    assert all(one.pass_check for one in ours), ours
    assert isinstance(arguments, argparse.Namespace)


def hangs(here: Rank) -> str:
    dist.all_reduce(torch.ones(2))
    group = dist.new_group(list(range(here.size)), group_desc="hasty")
    dist.barrier()
    group.set_timeout(timedelta(seconds=1))  # joining may take longer than that
    if here.rank == 1:
        return ""
    with pytest.raises(RuntimeError, match="timed out") as raised:
        dist.all_reduce(torch.ones(7), group=group)
    return str(raised.value)


def test_what_failed_is_written_down(tmp_path: Path) -> None:
    with started(2, tmp_path, env={"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_")}) as world:
        said, _ = world.run(hangs)
        assert "rank 1" in said
        world.is_broken = True
    dump = pickle.loads((tmp_path / "trace_0").read_bytes())
    last = dump["entries"][-1]
    assert last["process_group"][1] == "hasty" and last["input_sizes"] == [[7]] and last["state"] == "started"
    assert "rank 1" in last["error"] and dump["entries"][0]["state"] == "completed"


def detailed(here: Rank) -> list[str]:
    """Ranks that disagree hear of it at the call, all of them, and can go on."""
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        group = dist.new_group(list(range(here.size)))
    finally:
        dist.set_debug_level(before)
    odd = here.rank == 2
    said = []
    for call in (
        lambda: group.allreduce([torch.ones(2, 4) if odd else torch.ones(8)]),  # of the same length
        lambda: group.allreduce([torch.ones(8, dtype=torch.float64 if odd else torch.float32)]),
        lambda: group.allreduce(torch.ones(8), op=dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM),
        lambda: group.broadcast(torch.ones(8), root=int(odd)),
        lambda: group.barrier() if odd else group.broadcast(torch.ones(8), root=0),
        lambda: group.allgather([[torch.ones(4 if odd else 2) for _ in range(4)]], [torch.ones(4 if odd else 2)]),
    ):
        with pytest.raises(RuntimeError, match="Detected mismatch between collectives on ranks") as raised:
            call()
        said.append(str(raised.value))
    tensor = torch.ones(8)
    works = [dist.all_reduce(tensor, group=group, async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    assert tensor[0] == 64
    every = [torch.empty(rank) for rank in range(here.size)]
    dist.all_gather(every, torch.full((here.rank,), 1.0), group=group)  # lengths may differ here
    assert every[3].tolist() == [1.0] * 3
    assert group._get_sequence_number_for_group() == 4
    return said


def test_detail_compares_what_ranks_do(world: World) -> None:
    sayings = world.run(detailed)
    assert all(one == sayings[0] for one in sayings), "every rank says the same"
    shapes, *_ = sayings[0]
    assert "float32 [8]" in shapes and "Rank 2" in shapes and "float32 [2, 4]" in shapes, shapes


def test_detail_is_switched_on_by_torchs_variable(tmp_path: Path) -> None:
    with started(2, tmp_path, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) as world:
        for said in world.run(other_shape):
            assert "Rank 1 is running collective: all_reduce" in said
        assert world.run(ddp_steps)[0]


def other_shape(here: Rank) -> str:
    assert os.environ["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
    with pytest.raises(RuntimeError) as raised:
        dist.all_reduce(torch.ones(3, 2) if here.rank else torch.ones(2, 3))
    return str(raised.value)


def ddp_steps(here: Rank) -> bool:
    net = DDP(nn.Linear(4, 4))
    for _ in range(3):
        net(torch.ones(2, 4)).sum().backward()
    return True
