"""What a caller asks for while the system refuses something: it is told in a sentence, or gets all that it asked for.

Each call that is made is refused once, one after another: the first, the second, until none is left. Afterwards nothing is
lost, and the same works.
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
from refusing import descriptors, refused, said, times_refused, until

from softmrc import control
from softmrc.errors import MrcError
from softmrc.verbs import Device

PLANES = ["127.0.0.1", "127.0.0.2"]
KEPT = ("is_up", "is_link_up", "has_gro", "has_gso", "interface", "receive_buffer_bytes", "send_buffer_bytes")
MOST = 400  # calls of one kind


def a_device() -> Any:
    """A device with two lanes, a queue pair in each, a descriptor to wait for, and a control socket."""
    with Device(PLANES, lanes=2) as device, Device(PLANES, lanes=1) as other:
        near, far = connect(device, other)
        near.send_cq.fileno()
        device.create_qp(device.create_cq())
        source, target = device.register(bytearray(8)), other.register(bytearray(8), remote_write=True)
        near.post_write(source, 0, 8, remote_va=0, rkey=target.rkey)
        assert [c.ok for c in drain(near.send_cq, 1)] == [True]
        planes = [[row[key] for key in KEPT] for row in device.planes()]
        nodes = control.devices()
        for node in nodes:
            node.close()
        return planes, f"{len(nodes)} control sockets", f"{link_watches()} link watches"


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
    for call, errors in table.items():
        for error in errors:
            for skip in range(MOST):
                gc.collect()
                before = descriptors()
                with refused(call, error, skip=skip):
                    found = None
                    try:
                        found = made()
                    except MrcError as failure:
                        print(" ", said(call, error), skip, str(failure), flush=True)
                        assert "\n" not in str(failure)
                    was_hit = times_refused(call)
                if found is not None and found != whole:
                    print(" ", said(call, error), skip, "made something else:", found, whole, flush=True)
                    less.append((call, error, skip))
                gc.collect()
                until(lambda: descriptors() <= before, "no descriptor is lost")  # noqa: B023
                if not was_hit:
                    break
            assert skip, f"{said(call, error)} was never refused"
            assert made() == whole
    assert not less, less
    print("done")


less: list[Any] = []
main(a_device, calls.OPENING if len(sys.argv) == 1 else {sys.argv[1]: calls.OPENING[sys.argv[1]]})
