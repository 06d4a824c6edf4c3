"""A process that ends while daemon threads wait for something of ours ends as if they were not there: in time, with its
own exit status, and without a word on stderr."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sanitizers import NOT_UNDER_SANITIZERS

pytestmark = pytest.mark.process  # real processes: how they end is what is tested
START = """
    import socket, sys, tempfile, threading, time
    from softmrc.connection import connect, listen
    from softmrc.device import Device

    def start(*functions):
        begun = threading.Barrier(len(functions) + 1)

        def go(function):
            begun.wait()
            function()

        for function in functions:
            threading.Thread(target=go, args=(function,), daemon=True).start()
        begun.wait()
        time.sleep(0.2)

    def forever(function):
        def go():
            while True:
                function()
        return go

    def stubborn(function):
        def go():
            while True:
                try:
                    function()
                except Exception:
                    pass
        return go

    def connected():
        accepted = []
        listener = listen(memory=bytearray(1 << 20))
        thread = threading.Thread(target=lambda: accepted.append(listener.accept()))
        thread.start()
        far = connect("127.0.0.1", listener.port)
        thread.join()
        return listener, accepted[0], far

    def groups():
        from softmrc.collectives import DirectoryStore, Group

        folder, joined = tempfile.mkdtemp(dir=sys.argv[1]), {}
        store = DirectoryStore(folder)
        threads = [
            threading.Thread(target=lambda rank=rank: joined.update({rank: Group.join(store, rank, 2)}))
            for rank in range(2)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return joined[0], joined[1]
"""
WAITS = {
    "a completion queue": "cq = Device().create_cq(); start(*[cq.wait] * 4)",
    "a completion queue, now and then": """
        cq = Device().create_cq()
        start(*[forever(lambda: cq.wait(0.001))] * 4)
    """,
    "a completion queue, whatever it says": """
        cq = Device().create_cq()
        start(*[stubborn(lambda: cq.wait(0.001))] * 4)
    """,
    "counters and events": """
        device = Device()
        start(*[stubborn(lambda: (device.stats(), device.poll_events(), device.set_port(9, True)))] * 3)
    """,
    "a visitor": "listener = listen(); start(listener.accept)",
    "an answer": """
        silent = socket.create_server(("127.0.0.1", 0))
        start(lambda: connect("127.0.0.1", silent.getsockname()[1]))
    """,
    "a message": "listener, near, far = connected(); start(far.recv, near.recv)",
    "a write": """
        listener, near, far = connected()
        far.device.set_faults(black_hole=True)
        start(lambda: far.write(far.remote[0], 0, bytearray(1 << 20)))
    """,
    "writes": """
        listener, near, far = connected()
        start(forever(lambda: far.write(far.remote[0], 0, bytearray(1 << 20))))
    """,
    "a rank that does not come": """
        from softmrc.collectives import DirectoryStore, Group
        start(lambda: Group.join(DirectoryStore(sys.argv[1]), 0, 2))
    """,
    "an operation": """
        one, other = groups()
        work, buffer = one.all_reduce(bytearray(10)), bytearray(10)
        start(work.wait, work.wait, other.recv(buffer, 0).wait)
    """,
    "operations": """
        one, other = groups()
        start(*[forever(lambda group=group: group.all_reduce(bytearray(10)).wait()) for group in (one, other)])
    """,
    "operations, whatever they say": """
        one, other = groups()
        start(*[stubborn(lambda group=group: group.all_reduce(bytearray(10)).wait()) for group in (one, other)])
    """,
}


def ended(program: str, *arguments: str, status: int = 0) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (status, ""), done.stderr[-3000:]


@NOT_UNDER_SANITIZERS
@pytest.mark.parametrize("name", WAITS)
def test_a_process_ends_while_threads_wait_for(name: str, tmp_path: Path) -> None:
    program = textwrap.dedent(START) + textwrap.dedent(WAITS[name].strip("\n"))
    ended(f"{program}\nsys.exit(7)", str(tmp_path), status=7)


def test_what_a_thread_says_on_its_own_account_is_heard(tmp_path: Path) -> None:
    """Only what we do to it at the end is not: an error while the program runs is printed as ever."""
    program = textwrap.dedent(START) + "cq = Device().create_cq()\ncq.device.close()\nstart(cq.wait)\n"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "UsageError: `device`: must be an open device" in done.stderr, done.stderr


def test_a_thread_that_is_joined_at_the_end_ends(tmp_path: Path) -> None:
    """By a function that was registered before ours, and so is called when all devices are closed."""
    program = """
        import atexit
        atexit.register(lambda: (thread.join(20), print("joined" if not thread.is_alive() else "still there")))
    """
    rest = """
        cq = Device().create_cq()
        thread = threading.Thread(target=cq.wait, daemon=True)
        thread.start()
    """
    text = textwrap.dedent(program) + textwrap.dedent(START) + textwrap.dedent(rest)
    done = subprocess.run([sys.executable, "-c", text, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "joined\n", "")


TORCH = """
    import sys, threading, time
    import torch, torch.distributed as dist
    from softmrc.errors import MrcError

    rank, path, leaver = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    dist.init_process_group("mrc", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    dist.barrier()
    if rank != leaver:
        time.sleep(60)
    if rank == 0:
        work = dist.all_reduce(torch.ones(10), async_op=True)
        strided = dist.all_reduce(torch.ones(10, 2)[:, 0], async_op=True)
    else:
        work = strided = dist.irecv(torch.ones(10), 0)
    futures = [work.get_future(), strided.get_future().then(lambda done: done.value())]

    def waiting(wait):
        try:
            wait()
        except RuntimeError as error:
            if isinstance(error, MrcError):
                raise  # a future raises another, which is the thread's own affair

    for wait in (work.wait, strided.wait, *(future.wait for future in futures)):
        threading.Thread(target=waiting, args=(wait,), daemon=True).start()
    time.sleep(0.3)
    sys.exit(7)
"""


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_rank_of_torch_ends_while_threads_wait(tmp_path: Path, leaver: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(TORCH)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store"), str(leaver)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        _, errors = ranks[leaver].communicate(timeout=60)
        assert (ranks[leaver].returncode, errors) == (7, "")
    finally:
        for one in ranks:
            one.kill()
            one.communicate()
