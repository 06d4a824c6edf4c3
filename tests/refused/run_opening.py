"""A caller's request while the system refuses something: it gets an error message, or everything it requested.

Each call that is made is refused once, one after another: the first, the second, until none is left. Afterwards
nothing is lost, and the same works.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import calls
import numpy as np
from loopback import connect, drain
from refusing import LIMIT_S, descriptors, refused, said, times_refused, until

from softmrc.collectives import DirectoryStore, Group
from softmrc.connection import listen
from softmrc.device import Device
from softmrc.errors import MrcError

PLANES = ["127.0.0.1", "127.0.0.2"]
KEPT = ("is_up", "is_link_up", "has_gro", "has_gso", "interface", "receive_buffer_bytes", "send_buffer_bytes")
MOST = 400  # calls of one kind
MOST_DESCRIPTORS = 10 if sys.argv[1] == "device" else 30  # that are left; of the others' own devices, too
KEPT_BY_THE_LAST = 2  # descriptors, until its objects are collected; what each attempt lost would be many


def a_device() -> Any:
    """A device with two lanes, a queue pair in each, a descriptor to wait for, and a control socket; and one that it
    writes to. They answer no requests once they are closed."""
    with contextlib.ExitStack() as stack:

        def opened(lanes: int) -> Device:
            made = Device(PLANES, lanes=lanes)
            # A lane's thread has its name only once it runs, and closes the descriptors as it ends.
            stack.callback(until, lambda: made._native.is_over, "lanes end")
            stack.callback(made._native.cut_short)
            return stack.enter_context(made)

        device, other = opened(2), opened(1)
        near, _ = connect(device, other)
        near.send_cq.fileno()
        device.create_qp(device.create_cq())
        source, target = device.register(bytearray(8)), other.register(bytearray(8), remote_write=True)
        near.post_write(source, 0, 8, remote_va=0, rkey=target.rkey)
        assert [c.ok for c in drain(near.send_cq, 1)] == [True]
        planes = [[row[key] for key in KEPT] for row in device.planes()]
        return (
            planes,
            f"{sum(bool(one.control) for one in (device, other))} control sockets",
            f"{link_watches()} link watches",
        )


def link_watches() -> int:
    """Sockets of this process that the kernel sends messages about links. A lane that asks for addresses opens one for
    a moment, which is in no group."""
    with open("/proc/net/netlink") as file:
        fields = [line.split() for line in list(file)[1:]]
    inodes = {one[-1] for one in fields if int(one[3], 16)}
    found = 0
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{one}").removeprefix("socket:[").removesuffix("]") in inodes
    return found


def main(made: Callable[[], Any], table: dict[str, tuple[int, ...]]) -> None:
    whole = made()
    gc.collect()
    until(lambda: descriptors() < MOST_DESCRIPTORS, "devices that are closed let go")
    before = descriptors()
    for call, errors in table.items():
        for error in errors:
            for skip in range(MOST):
                with refused(call, error, skip=skip):
                    found = None
                    try:
                        found = made()
                    except (MrcError, MemoryError) as failure:
                        print(" ", said(call, error), skip, str(failure), flush=True)
                        assert "\n" not in str(failure)
                    was_hit = times_refused(call)
                if found is not None and found != whole:
                    print(" ", said(call, error), skip, "made something else:", found, whole, flush=True)
                    less.append((call, error, skip))
                gc.collect()
                if not was_hit:
                    break
            until(lambda: descriptors() <= before + KEPT_BY_THE_LAST, "no descriptor is lost")
            assert skip, f"{said(call, error)} was never refused"
            assert made() == whole
    assert not less, less
    print("done")


def visit(address: str, port: int) -> None:
    """Also where it is this side's own call that is refused once."""
    try:
        socket.create_connection((address, port), LIMIT_S).close()
    except ConnectionRefusedError:
        raise
    except OSError:
        socket.create_connection((address, port), LIMIT_S).close()


def a_listener(device: Device) -> Any:
    """At the addresses of two planes: its sockets, and that it has a port and can be reached."""
    with listen("127.0.0.1", device=device, memory=bytearray(8)) as listener:
        for address in PLANES:
            visit(address, listener.port)
        until(lambda: listener.refused.count >= 2, "both are received")
        return "received at both"


def a_group(ranks: ThreadPoolExecutor) -> Any:
    """Of two ranks with separate devices, which reduce. Both give a reason where it does not form."""

    def live(folder: str, rank: int) -> float:
        with Group.join(DirectoryStore(folder), rank, 2, planes=PLANES, lanes=1, timeout_s=LIMIT_S) as group:
            group.device._native.cut_short()
            values = np.ones(10, np.float32)
            group.all_reduce(values).wait(LIMIT_S)
            return float(values[0])

    with tempfile.TemporaryDirectory() as folder:
        ends = [ranks.submit(live, folder, rank) for rank in range(2)]
        errors = [error for error in [one.exception(2 * LIMIT_S) for one in ends] if error is not None]
        for error in errors:
            assert isinstance(error, MrcError | MemoryError) and "\n" not in str(error), error
        if errors:
            raise errors[0]
        return [one.result() for one in ends]


less: list[Any] = []
if sys.argv[1] == "device":
    main(a_device, calls.OPENING)
elif sys.argv[1] == "listener":
    with Device(PLANES) as device:
        main(partial(a_listener, device), calls.LISTENING)
else:
    with ThreadPoolExecutor(2) as ranks:
        main(partial(a_group, ranks), calls.JOINING)
