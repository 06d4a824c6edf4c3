"""A control socket answers, whatever is refused to its thread once, or for a second."""

from __future__ import annotations

import os
import sys
import time

import calls
from refusing import LIMIT_S, UNTIL_ALLOWED, refused, said, times_refused, until

from softmrc.device import Device
from softmrc.errors import MrcError
from softmrc.ops import control

SECOND_S = 1.0


def asks(path: str) -> bool:
    """Once more, by a new connection. False: it failed in words."""
    try:
        with control.find_device(path) as node:
            return bool(node.info()["pid"] == os.getpid())
    except MrcError as error:
        print("  ", error, flush=True)
        return False


def main(for_a_second: bool) -> None:
    with Device(["127.0.0.1"]) as device:
        name = f"{os.getpid()}-0"
        until(lambda: asks(name), "it answers")
        for (thread, call), errors in calls.CONTROL.items():
            for error in errors:
                print(said(call, error, thread), flush=True)
                end = time.monotonic() + (SECOND_S if for_a_second else 0.0)
                with refused(call, error, thread, times=UNTIL_ALLOWED if for_a_second else 1):
                    while not times_refused(call) or time.monotonic() < end:
                        assert time.monotonic() < end + LIMIT_S, "it is never refused"
                        asks(name)
                until(lambda: asks(name), "it answers again")
        assert device.planes()
    print("done")


main(sys.argv[1] == "second")
