"""A device follows interfaces that are made again and an address that moves, whatever system calls fail.

In a separate network namespace: `unshare -n`.
"""

from __future__ import annotations

import subprocess

import calls
from refusing import refused, said, times_refused, until

from softmrc.device import Device

TIMES = 3


def ip(*lines: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


def make(name: str) -> list[str]:
    return [f"link add {name} type veth peer name {name}x", f"link set {name}x up", f"link set {name} up"]


def main() -> None:
    ip("link set lo up", *make("p0"), *make("p1"), *make("p2"))
    ip("addr add 10.9.0.1/24 dev p0", "addr add 10.9.1.1/24 dev p1")
    here = ["p1", "p2"]
    with Device(["10.9.0.1%p0", "10.9.1.1"], lanes=1) as device:

        def up() -> list[bool]:
            return [row["is_up"] for row in device.planes()]

        until(lambda: up() == [True, True], "both are up")
        for (thread, call), errors in calls.LINKS.items():
            for error in errors:
                print(said(call, error, thread), flush=True)
                old, new = here
                with refused(call, error, thread, times=TIMES):
                    ip("link del p0", *make("p0"), "addr add 10.9.0.1/24 dev p0")
                    ip(f"addr del 10.9.1.1/24 dev {old}", f"addr add 10.9.1.1/24 dev {new}")
                    until(lambda: times_refused(call) > 0, "it is refused")  # noqa: B023
                    until(lambda: up() == [True, True], "both are up again")
                # And it knows which they are now.
                ip(f"link set {new} down")
                until(lambda: up() == [True, False], "the address is where it has moved to")
                ip("link set p0 down")
                until(lambda: up() == [False, False], "the new interface is the plane's")
                ip("link set p0 up", f"link set {new} up")
                until(lambda: up() == [True, True], "both are up in the end")
                here.reverse()
    print("done")


main()
