"""A listener accepts the next client, whatever is refused to its thread once, or for a second."""

from __future__ import annotations

import sys
import time

import calls
from refusing import LIMIT_S, UNTIL_ALLOWED, descriptors, name_thread, refused, said, times_refused, until

from softmrc.connection import Listener, connect, listen
from softmrc.device import Device
from softmrc.errors import MrcError

PLANES = {1: ["127.0.0.1"], 2: ["127.0.0.1", "127.0.0.2"]}
THEIRS = {1: ["127.0.0.3"], 2: ["127.0.0.3", "127.0.0.4"]}
SECOND_S = 1.0


def visit(listener: Listener, device: Device) -> bool:
    """Connect, and send something. False: this one was turned away, in words."""
    try:
        peer = connect("127.0.0.1", listener.port, device=device, timeout_s=5.0)
    except (MrcError, TimeoutError) as error:
        print("  turned away:", error, flush=True)
        return False
    with peer:
        try:
            other = listener.accept(5.0)
        except TimeoutError as error:
            print("  not accepted:", error, flush=True)
            return False
        with other:
            peer.write(peer.remote[0], 0, b"hello", imm=7)
            assert other.recv(LIMIT_S).imm == 7
    return True


def main(planes: int, for_a_second: bool) -> None:
    with Device(PLANES[planes]) as device, Device(THEIRS[planes]) as theirs:
        with listen("127.0.0.1", device=device, memory=bytearray(64)) as listener:
            name_thread(listener._acceptor._thread, "softmrc-listen")
            assert visit(listener, theirs)
            before = descriptors()
            for (thread, call), errors in calls.LISTENER.items():
                for error in errors:
                    print(said(call, error, thread), flush=True)
                    end = time.monotonic() + (SECOND_S if for_a_second else 0.0)
                    with refused(call, error, thread, times=UNTIL_ALLOWED if for_a_second else 1):
                        while not times_refused(call) or time.monotonic() < end:
                            assert time.monotonic() < end + LIMIT_S, "it is never refused"
                            visit(listener, theirs)
                    until(lambda: visit(listener, theirs), "somebody is received again")
            until(lambda: visit(listener, theirs) and descriptors() <= before, "no descriptor is lost")
        print("done")


main(int(sys.argv[1]), sys.argv[2] == "second")
