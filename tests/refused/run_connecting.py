"""A connector succeeds although the system refuses something, or gets an error that says why. The listener serves the
next client, and nothing is lost at either end."""

from __future__ import annotations

import contextlib
import gc

import calls
from refusing import LIMIT_S, descriptors, name_thread, refused, said, times_refused, until

from softmrc import _core
from softmrc._core import DialCandidate, HandshakeEvent
from softmrc.connection import Listener, connect, listen
from softmrc.device import Device
from softmrc.errors import MrcError

MOST = 400  # calls of one kind


def attempt(listener: Listener, device: Device) -> bool:
    """Connect, and send something. False: it got an error message."""
    try:
        with (
            connect("127.0.0.1", listener.port, device=device, timeout_s=LIMIT_S) as peer,
            listener.accept(LIMIT_S) as other,
        ):
            peer.write(peer.remote[0], 0, b"hello", imm=7)
            assert other.recv(LIMIT_S).imm == 7
            return True
    except (MrcError, TimeoutError, MemoryError) as failure:
        print("  not connected:", failure, flush=True)
        assert "\n" not in str(failure)
    with contextlib.suppress(TimeoutError):  # the listener took it for connected
        while True:
            listener.accept(0).close(0.0)
    return False


def go_another_way(listener: Listener) -> None:
    """Where a source address cannot be had, the next way is taken."""
    here = bytes([127, 0, 0, 1])
    ways = [DialCandidate(here, listener.port, 0, bytes([127, 0, 0, 9])), DialCandidate(here, listener.port)]
    for call, errors in calls.SOURCE.items():
        for error in errors:
            with refused(call, error, "caller"):
                native = _core.Connector(ways, _core.Credentials.none())
                until(lambda native=native: native.poll() is HandshakeEvent.IDENTIFIED, "it is connected")
                assert times_refused(call) == 1 and native.local_address == here
            native.close()
            print(said(call, error), flush=True)


def main() -> None:
    with (
        Device(["127.0.0.1"]) as device,
        Device(["127.0.0.3"]) as theirs,
        listen("127.0.0.1", device=device, memory=bytearray(64)) as listener,
    ):
        name_thread(listener._acceptor._thread, "softmrc-listen")
        assert attempt(listener, theirs)
        go_another_way(listener)
        before = descriptors()
        for call, errors in calls.CONNECTOR.items():
            for error in errors:
                for skip in range(MOST):
                    with refused(call, error, "caller", skip=skip):
                        attempt(listener, theirs)
                        was_hit = times_refused(call)
                    if not was_hit:
                        break
                print(said(call, error), skip, flush=True)
                assert skip, f"{said(call, error)} was never refused"
                assert attempt(listener, theirs)
        gc.collect()
        until(lambda: _core.handshake_counts() == (0, 0, 0), "all handshakes end")
        until(lambda: descriptors() <= before, "no descriptor is lost")
    print("done")


main()
