"""Processes around a group: those that are forked from a rank, started again by `torchrun`, or join a second time."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

FORKING = """
    import os, sys, torch, torch.distributed as dist
    from torch.utils.data import DataLoader

    rank, path = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("mrc", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    x = torch.ones(100_000)
    dist.all_reduce(x, async_op=True).get_future().wait()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(x)
        except RuntimeError as error:
            print("refused:", error, flush=True)
        dist.destroy_process_group()
        dist.init_process_group("mrc", store=dist.FileStore(path + "-child", 2), rank=rank, world_size=2)
        own = torch.ones(3)
        dist.all_reduce(own, async_op=True).get_future().wait()
        print("own:", own[0].item(), flush=True)
        sys.exit(7)  # through everything that the parent registered for its exit
    for _ in range(50):
        dist.all_reduce(x)
    print("child ended:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    loader = DataLoader(list(range(40)), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for numbers in loader:
        x = torch.full((100_000,), float(numbers.sum()))
        dist.all_reduce(x)
        assert x[0] == 2 * numbers.sum()
    print("parent:", x[0].item())
    dist.destroy_process_group()
"""


def test_a_fork_does_no_harm(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(FORKING)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path / "store")], **pipes) for rank in range(2)]
    for number, rank in enumerate(ranks):
        out, errors = rank.communicate(timeout=60)
        assert rank.returncode == 0, errors[-2000:]
        refused, own, child, parent = out.splitlines()
        assert f"rank {number}" in refused and "forked" in refused
        assert own == "own: 2.0" and child == "child ended: 7" and parent == "parent: 300.0"
        assert "leak" not in errors


RESTARTED = """
    import os, torch, torch.distributed as dist

    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    for again in range(2):  # leaves and joins again, on the same store
        dist.init_process_group("mrc")
        rank = dist.get_rank()
        x = torch.ones(1000)
        dist.all_reduce(x)
        if attempt == 0 and rank == 1 and again:
            os.kill(os.getpid(), 9)
        if attempt == 1 and rank == 0:
            raise SystemExit(3)
        dist.barrier()
        dist.destroy_process_group()
    os.write(1, f"rank {rank} at last: {x[0].item()}\\n".encode())
"""


def test_torchrun_restarts_ranks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(RESTARTED))
    command = "--standalone --nproc-per-node 3 --max-restarts 2"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command.split(), str(program)],
        capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} at last: 3.0" for rank in range(3)]


FAILING = """
    import os, sys, torch.distributed as dist
    from datetime import timedelta

    rank, path = int(sys.argv[1]), sys.argv[2]
    if rank == 1:
        os.environ.update([sys.argv[3:]])
    try:
        dist.init_process_group(
            "mrc", store=dist.FileStore(path, 2), rank=rank, world_size=2, timeout=timedelta(seconds=50)
        )
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [("SOFTMRC_SHARED_MEMORY", "1"), ("SOFTMRC_PLANES", "eth99"), ("SOFTMRC_CONFIG", "/nowhere.toml")],
)
def test_a_rank_that_cannot_join_tells_the_others_why(tmp_path: Path, name: str, value: str) -> None:
    """They would wait for it until their time is up."""
    command = [sys.executable, "-c", textwrap.dedent(FAILING)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store"), name, value], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert said[0].startswith("CollectiveError rank 1 did not get ready: ") and name in said[0]
    assert not said[1].startswith("CollectiveError") and name in said[1]


ELSEWHERE = """
    import sys, torch, torch.distributed as dist
    from softmrc.config import interfaces
    from softmrc.collectives import rank_info
    from softmrc.torch import device_of, settings

    rank, path = int(sys.argv[1]), sys.argv[2]
    rank_info.boot = lambda: f"host {rank}"
    elsewhere = interfaces.DetectedPlanes(("127.0.0.1", "127.0.0.2"), "as if they led to the other host")
    interfaces.detect_planes = lambda: elsewhere
    assert settings.likely(settings.of_process(), 2).planes == settings.LOOPBACK
    dist.init_process_group("mrc", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    second = dist.new_group()
    for group in (None, second):
        x = torch.ones(1000)
        dist.all_reduce(x, group=group)
        print(x[0].item(), len(device_of(group).local_planes))
    dist.destroy_process_group()
"""


def two_hosts(code: str, store: Path) -> None:
    """Both ranks join over what leads to the other host: pretended, since both are here."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen([*command, str(rank), str(store)], **pipes) for rank in range(2)]
    for rank in ranks:
        out, errors = rank.communicate(timeout=60)
        assert rank.returncode == 0, errors[-2000:]
        assert out.splitlines() == ["2.0 2", "2.0 2"]


def test_ranks_that_are_not_all_on_one_host_say_where_they_are_once_more(tmp_path: Path) -> None:
    """Each takes the others to be here, and learns that they are not."""
    two_hosts(ELSEWHERE, tmp_path / "store")


BROKEN = """\
    from softmrc.errors import DeviceError
    from softmrc.torch import rendezvous as joining

    take = joining._take

    def taken(key, *more):
        if rank == 0 and key[1] == settings.LOOPBACK:
            raise DeviceError("loopback is down")
        return take(key, *more)

    joining._take = taken
    dist.init"""


def test_a_rank_that_cannot_open_its_guess_joins_those_of_other_hosts(tmp_path: Path) -> None:
    """It is for ranks of one host; what connects several is opened when they are known."""
    two_hosts(ELSEWHERE.replace("    dist.init", BROKEN, 1), tmp_path / "store")
