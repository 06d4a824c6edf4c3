"""What goes wrong, on every rank, in words that say which rank and what; never a hang."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from tests.torch.world import Rank, World, started
from torch.nn.parallel import DistributedDataParallel as DDP

from softmrc.errors import ConfigError
from softmrc.torch import device_of

pytestmark = pytest.mark.process


def failing(work: object) -> str:
    """What a call raises, which must be a RuntimeError."""
    try:
        work()  # type: ignore[operator]
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def mismatch(here: Rank, kind: str) -> str:
    group = dist.new_group([0, 1, 2, 3], timeout=timedelta(seconds=10))
    odd = here.rank == 2
    tensors = {
        "shape": lambda: torch.ones(8 + odd),
        "dtype": lambda: torch.ones(8, dtype=torch.float64 if odd else torch.float32),
        "operation": lambda: torch.ones(8),
        "root": lambda: torch.ones(8),
    }
    tensor = tensors[kind]()

    def call() -> None:
        if kind == "operation" and odd:
            dist.broadcast(tensor, 0, group=group)
        elif kind == "root":
            dist.broadcast(tensor, int(odd), group=group)
        else:
            dist.all_reduce(tensor, group=group)
        dist.barrier(group=group)  # a rank that was done before the mismatch was seen fails here

    said = failing(call)
    failing(lambda: dist.all_reduce(torch.ones(1), group=group))  # the group is of no use now
    return said


@pytest.mark.parametrize("kind", ["shape", "dtype", "operation", "root"])
def test_ranks_that_disagree(world: World, kind: str) -> None:
    for said in world.run(mismatch, kind):
        assert re.search(r"rank \d", said), said


def unsupported(here: Rank) -> list[str]:
    return [
        failing(lambda: dist.all_reduce(torch.ones(3).to(torch.float8_e4m3fn))),
        failing(lambda: dist.broadcast(torch.eye(3).to_sparse(), 0)),
        failing(lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)),
        failing(lambda: dist.group.WORLD.all_to_all_single(torch.ones(4), torch.ones(4), [1, 1, 1, 2], [1] * 4)),
    ]


def test_what_is_not_supported_says_so_and_does_no_harm(world: World) -> None:
    for dtype, sparse, bits, splits in world.run(unsupported):
        assert "float8" in dtype and "bfloat16" in dtype
        assert "sparse" in sparse or "dense" in sparse
        assert "float32" in bits or "band" in bits.lower()
        assert "[1, 1, 1, 2]" in splits
    world.run(still_works)


def still_works(here: Rank) -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((3,), float(here.size)))


def wait_long(here: Rank) -> str:
    return failing(lambda: dist.all_reduce(torch.ones(1000)))


def backward(here: Rank) -> str:
    net = DDP(nn.Linear(2000, 100))
    if here.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return failing(lambda: [net(torch.ones(4, 2000)).sum().backward() for _ in range(2)])


@pytest.mark.parametrize("function", [wait_long, backward])
def test_a_rank_that_dies(tmp_path: Path, function: object) -> None:
    with started(3, tmp_path, timeout_s=40) as world:
        if function is wait_long:
            world.send(function, ranks=[0, 2])
            time.sleep(0.3)
            world.processes[1].kill()
        else:
            world.send(function)  # type: ignore[arg-type]
        for said in world.collect([0, 2]):
            assert "rank 1" in said and "40 s" not in said, said  # noticed, not waited for
        world.is_broken = True


def join_hasty(here: Rank) -> None:
    """When all are there already: processes may start further apart than this group's patience."""
    dist.barrier()
    here.hasty = dist.new_group(timeout=timedelta(seconds=2))  # type: ignore[attr-defined]
    dist.barrier()


def wait_hastily(here: Rank) -> str:
    return failing(lambda: dist.all_reduce(torch.ones(1000), group=here.hasty))  # type: ignore[attr-defined]


def test_a_rank_that_does_not_take_part(tmp_path: Path) -> None:
    with started(2, tmp_path) as world:
        world.run(join_hasty)
        world.send(wait_hastily, ranks=[0])
        (said,) = world.collect([0])
        assert "rank 1" in said and "2 s" in said, said
        world.is_broken = True


NEVER_JOINS = """
    from datetime import timedelta
    import torch.distributed as dist
    store = dist.FileStore(r"{path}", 3)
    try:
        dist.init_process_group("mrc", store=store, rank={rank}, world_size=3, timeout=timedelta(seconds=1.5))
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize("planes", ["", "127.0.0.1,127.0.0.2"])
@pytest.mark.parametrize(("rank", "missing"), [(0, "rank 1, rank 2"), (1, "rank 0")])
def test_ranks_that_never_join(tmp_path: Path, planes: str, rank: int, missing: str) -> None:
    """Rank 0 knows of whom nothing is there; the others wait for rank 0 first."""
    program = textwrap.dedent(NEVER_JOINS).format(path=tmp_path / "store", rank=rank)
    env = {**os.environ, "SOFTMRC_PLANES": planes}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=env)
    assert f"{missing} did not join the group of 3" in done.stdout, (done.stdout, done.stderr[-2000:])


def no_planes(here: Rank) -> str:
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    store = dist.group.WORLD.get_group_store()
    dist.distributed_c10d._store_based_barrier(here.rank, store, "gone", here.size, timedelta(seconds=30))
    device = device_of()
    for plane in range(len(device.local_planes)):
        device.set_faults(plane, black_hole=True)
    return failing(lambda: [dist.all_reduce(tensor) for _ in range(3)])


def test_all_planes_gone(tmp_path: Path) -> None:
    with started(2, tmp_path, timeout_s=5) as world:
        for said in world.run(no_planes):
            assert re.search(r"rank \d", said), said
        world.is_broken = True


def aborted(here: Rank) -> str:
    work = dist.all_reduce(torch.ones(10), async_op=True) if here.rank else None
    if work is None:
        time.sleep(0.2)
        dist.distributed_c10d._abort_process_group()
        return "rank 0 aborted"
    return failing(work.wait)


def test_abort_ends_what_others_wait_for(tmp_path: Path) -> None:
    with started(3, tmp_path) as world:
        for said in world.run(aborted):
            assert "rank 0" in said and "abort" in said, said
        world.is_broken = True


FORGETFUL = """
    import os, sys, torch, torch.distributed as dist
    store = dist.FileStore(r"{path}", 2)
    dist.init_process_group("mrc", store=store, rank=int(sys.argv[1]), world_size=2)
    tensor = torch.ones(1 << 20)
    dist.all_reduce(tensor, async_op=True).get_future().wait()
    dist.all_reduce(torch.ones(1 << 20), async_op=True)  # still under way at the end
    print(float(tensor[0]))
"""


def test_a_program_that_forgets_to_leave_ends_cleanly(tmp_path: Path) -> None:
    program = textwrap.dedent(FORGETFUL).format(path=tmp_path / "store")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for rank in ranks:
        out, errors = rank.communicate(timeout=60)
        assert rank.returncode == 0 and out.strip() == "2.0", errors[-2000:]
        assert "leak" not in errors and "Traceback" not in errors, errors[-2000:]


def test_a_tensor_without_memory_is_refused_by_name() -> None:
    from softmrc.torch.accelerator import Streams

    with pytest.raises(ConfigError, match="`tensor`: must have its memory on cpu or on a GPU"):
        Streams(torch.empty(3, device="meta").device)
