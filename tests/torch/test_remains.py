"""What is left of a group that failed: nothing, whatever its survivors did with the bad news.

Every way of asking how an operation ended raises, and an exception holds the frames that it went through. Once the
caller lets go of it, tensors, Works and the device must die; and a process that ends must not say that it leaked.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
    import gc, os, sys, time, weakref
    from datetime import timedelta
    import torch, torch.distributed as dist
    from torch._C._distributed_c10d import _register_work
    from softmrc.torch import device_of, handle, work

    rank, path, fate, last_words = int(sys.argv[1]), *sys.argv[2:5]
    timeout = timedelta(seconds=2 if fate == "sleeps" else 30)
    dist.init_process_group("mrc", store=dist.FileStore(path, 3), rank=rank, world_size=3, timeout=timeout)
    watched = {}
    kept = []

    def watch(name, one):
        watched[name] = weakref.ref(one)
        return one

    def begun(name, tensor, begin=lambda tensor: dist.all_reduce(tensor, async_op=True)):
        made = begin(watch(f"tensor of {name}", tensor))
        watch(f"work of {name}", handle._works[made])
        return made

    def fails(call):
        try:
            call()
        except RuntimeError as error:
            assert "rank 1" in str(error), error
            kept.append(error)
            return
        raise AssertionError("it did not fail")

    def everything():
        watch("device", device_of())
        shared = torch.ones(40, 2)
        works = {
            "plain": begun("plain", torch.ones(40)),
            "strided": begun("strided", torch.ones(40, 2)[:, 0]),
            "first of two": begun("first of two", shared),
            "second of two": begun("second of two", shared[:, 1]),  # begins when the first has ended
            "receive": begun("receive", torch.ones(40), lambda tensor: dist.irecv(tensor, 1)),
            "with a future": begun("with a future", torch.ones(40)),
            "in C++": begun("in C++", torch.ones(40)),
            "forgotten": begun("forgotten", torch.ones(40)),
        }
        future = works["with a future"].get_future()
        chained = future.then(lambda done: done.value())
        box = works["in C++"].boxed()
        del works["forgotten"], works["in C++"]
        for _ in range(2):
            for one in works.values():
                fails(one.wait)
                error = one.exception()
                assert one.is_completed() and not one.is_success() and error is not None
                kept.append(error)
        for one in (future, chained):
            fails(one.wait)
            fails(one.value)
        fails(works["plain"].get_future().wait)
        fails(dist.Work.unbox(box).wait)
        fails(lambda: dist.all_reduce(watch("tensor of a late one", torch.ones(3))))
        fails(lambda: (_ for _ in ()).throw(works["plain"].exception()))
        error = dist.group.WORLD.errored()
        fails(lambda: (_ for _ in ()).throw(error))

    dist.all_reduce(torch.ones(3))
    if rank == 1 and fate == "dies":
        time.sleep(0.5)  # until the others have what it sent them
        os._exit(9)
    if rank == 1:
        time.sleep(60)
    everything()
    if last_words == "kept":
        sys.exit(0)
    kept.clear()
    if last_words == "raised":
        dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    for _ in range(100):  # threads that told of the ends let go in their own time
        gc.collect()
        held = sorted(name for name, reference in watched.items() if reference() is not None)
        if not held:
            break
        time.sleep(0.01)
    print(held)
"""


@pytest.mark.parametrize(
    ("fate", "last_words"), [("dies", "none"), ("dies", "kept"), ("dies", "raised"), ("sleeps", "none")]
)
def test_survivors_leave_nothing_behind(tmp_path: Path, fate: str, last_words: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), fate, last_words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(3)
    ]  # fmt: skip
    try:
        for number in (0, 2):
            out, errors = ranks[number].communicate(timeout=60)
            assert "leak" not in errors and "terminate" not in errors, errors[-3000:]
            if last_words == "raised":
                assert ranks[number].returncode == 1 and "rank 1" in errors.splitlines()[-1], errors[-3000:]
            else:
                assert ranks[number].returncode == 0 and "Traceback" not in errors, errors[-3000:]
            if last_words == "none":
                assert out.strip() == "[]", out
    finally:
        for one in ranks:
            one.kill()
            one.communicate()
