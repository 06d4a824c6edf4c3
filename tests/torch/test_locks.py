"""Locks of the backend, and those who come in between: a fork, the garbage collector, Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

pytestmark = pytest.mark.process

BEGIN = """
    import gc, os, signal, sys, threading, time
    import torch, torch.distributed as dist

    def alone():
        dist.init_process_group("mrc", store=dist.HashStore(), rank=0, world_size=1)

    def ended(pid):
        until = time.monotonic() + 20
        while time.monotonic() < until:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "it hangs"
"""

FORKED = """
    from contextlib import ExitStack
    from softmrc._support import threads

    alone()
    dist.all_reduce(torch.ones(8), async_op=True).get_future().then(lambda done: None).wait()
    are_held, are_free = threading.Event(), threading.Event()

    def hold():
        with ExitStack() as stack:
            print(len([stack.enter_context(lock) for lock in threads._locks]), "locks", flush=True)
            are_held.set()
            are_free.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    are_held.wait()
    if (pid := os.fork()) == 0:
        dist.destroy_process_group()
        alone()
        x = torch.ones(8)
        dist.all_reduce(x)
        dist.destroy_process_group()
        sys.exit(0)
    status = ended(pid)
    are_free.set()
    holder.join()
    assert status == 0, status
"""

OWN = """
    alone()
    with dist.group.WORLD._issue_lock:
        if (pid := os.fork()) == 0:
            sys.exit(0)
    assert (status := ended(pid)) == 0, status
"""

FINALIZED = """
    alone()

    class Trainer:
        def __init__(self):
            self.group, self.itself = dist.new_group([0]), self
            dist.all_reduce(torch.ones(1), group=self.group)

        def __del__(self):
            dist.destroy_process_group(self.group)

    for _ in range(3):
        Trainer()
        with dist.group.WORLD._issue_lock:
            gc.collect()
    x, many = torch.ones(8), []
    for number in range(400):
        if number % 4 == 0:
            Trainer()
        many = [[] for _ in range(200)]  # so that it collects now and then
        dist.all_reduce(x)
"""

INTERRUPTED = """
    alone()

    class Enough(KeyboardInterrupt):
        pass

    def interrupt(*_):
        raise Enough

    signal.signal(signal.SIGALRM, interrupt)
    x, until = torch.ones(8), time.monotonic() + 4
    while time.monotonic() < until:
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-4 + 1e-6 * (time.monotonic_ns() % 997))
            for _ in range(100):  # where a finalizer was interrupted nothing is raised
                dist.all_reduce(x)
        except Enough:
            pass

    def take():
        assert dist.group.WORLD._issue_lock.acquire(timeout=5)
        dist.group.WORLD._issue_lock.release()
        print("it is free")

    other = threading.Thread(target=take)
    other.start()
    other.join()
"""

RECORDED = """
    os.environ["SOFTMRC_RECORD"] = "1"
    alone()
    group = dist.group.WORLD._group
    with group._recorder._lock:
        dist.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize("story", [FORKED, OWN, FINALIZED, INTERRUPTED, RECORDED])
def test_nobody_waits_for_whoever_came_in_between(story: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BEGIN) + textwrap.dedent(story)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and "Timeout" not in done.stderr, done.stderr[-3000:]
    assert ("it is free" in done.stdout) == (story is INTERRUPTED)


MEANWHILE = """
    import os

    made = []
    os.register_at_fork(before=lambda: made.append(softmrc.Device(["127.0.0.1"])))  # after what is registered later
    import softmrc

    if (pid := os.fork()) == 0:
        try:
            made[0].planes()
        except softmrc.MrcError as error:
            print(error, flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    made[0].close()
"""


def test_a_device_that_is_made_during_a_fork_is_the_parents() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEANWHILE)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "does not survive a fork" in done.stdout, done.stdout + done.stderr


def test_two_threads_that_fork_keep_what_they_hold() -> None:
    """Each until its own fork is over."""
    from softmrc._support import fork

    class Owner:
        _native = None

    owner = Owner()
    fork.disown_in_child(owner, "it")
    fork._hold()
    try:
        other = threading.Thread(target=lambda: (fork._hold(), fork._let_go()))
        other.start()
        other.join()
        assert any(one is owner for one, _ in fork._held.owners)
    finally:
        fork._let_go()


def test_things_may_be_made_while_somebody_forks() -> None:
    from softmrc._support import fork

    class Owner:
        _native = None

    kept: list[Owner] = []
    stop = threading.Event()

    def make() -> None:
        while not stop.is_set():
            kept.append(Owner())
            fork.disown_in_child(kept[-1], "it")
            if len(kept) > 500:
                kept.clear()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    maker = threading.Thread(target=make)
    maker.start()
    try:
        for _ in range(1000):
            fork._hold()
            fork._let_go()
    finally:
        stop.set()
        maker.join()
        sys.setswitchinterval(before)
