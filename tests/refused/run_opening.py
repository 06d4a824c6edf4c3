"""What a caller asks for while the system refuses something: it is told in a sentence, or gets all that it asked for.

Each call that is made is refused once, one after another: the first, the second, until none is left. Afterwards
nothing is lost, and the same works.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import calls
from loopback import connect, drain
from refusing import descriptors, refused, said, threads, times_refused, until

from softmrc.device import Device
from softmrc.errors import MrcError

PLANES = ["127.0.0.1", "127.0.0.2"]
KEPT = ("is_up", "is_link_up", "has_gro", "has_gso", "interface", "receive_buffer_bytes", "send_buffer_bytes")
MOST = 400  # calls of one kind
KEPT_BY_THE_LAST = 2  # descriptors, until its objects are collected; what each attempt lost would be many


def a_device() -> Any:
    """A device with two lanes, a queue pair in each, a descriptor to wait for, and a control socket; and one that it
    writes to. They answer nobody once they are closed."""
    with contextlib.ExitStack() as stack:

        def opened(lanes: int) -> Device:
            made = Device(PLANES, lanes=lanes)
            stack.callback(made._native.cut_short)
            return stack.enter_context(made)

        stack.callback(lambda: until(lambda: "softmrc" not in threads(), "lanes end"))
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
    """Sockets of this process that the kernel sends messages about links."""
    with open("/proc/net/netlink") as file:
        inodes = {line.split()[-1] for line in file}
    found = 0
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{one}").removeprefix("socket:[").removesuffix("]") in inodes
    return found


def main(made: Callable[[], Any], table: dict[str, tuple[int, ...]]) -> None:
    whole = made()
    gc.collect()
    until(lambda: descriptors() < 10, "devices that are closed let go")
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


less: list[Any] = []
main(a_device, calls.OPENING if len(sys.argv) == 1 else {sys.argv[1]: calls.OPENING[sys.argv[1]]})
