"""Two network namespaces joined by veth links, one a plane: a machine to measure on without a second machine.

Everything is made here, named after this process, and removed at the end. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from softmrc._support.subprocesses import python_command
from softmrc.errors import DeviceError
from softmrc_bench.figures import loads

# A busy machine is late to hand tokens out, so there are at least a millisecond's; the queue holds three times as many.
BURST_BYTES = 128 * 1024
QUEUE_BURSTS = 3


def address_of(side: int, plane: int) -> str:
    return f"10.77.{plane}.{side + 1}"


def link_of(side: int, plane: int) -> str:
    return f"p{plane}{'ab'[side]}"


def planes_of(side: int, count: int) -> list[str]:
    """How a device in this namespace names its planes."""
    return [f"{address_of(side, plane)}%{link_of(side, plane)}" for plane in range(count)]


def run(*command: str, check: bool = True, text: str | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, input=text)
    except FileNotFoundError:
        raise DeviceError(f"{command[0]} is not installed") from None
    if check and done.returncode:
        raise DeviceError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


@dataclass(frozen=True)
class VethPair:
    """Two namespaces; side 0 sends by convention."""

    names: tuple[str, str]
    planes: int

    def ip(self, side: int, *arguments: str) -> None:
        run("ip", "-n", self.names[side], *arguments)

    def set_link(self, side: int, plane: int, up: bool) -> None:
        self.ip(side, "link", "set", link_of(side, plane), "up" if up else "down")

    def inside(self, side: int, module: str, *arguments: str) -> Any:
        """Run a module in a namespace and return the JSON it prints last."""
        command = ["ip", "netns", "exec", self.names[side], *python_command(module, *arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise DeviceError(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")
        return loads(done.stdout.strip().splitlines()[-1])


@contextlib.contextmanager
def veth_planes(planes: int, mtu: int = 1500, rate_mbps: int | Sequence[int] = 0) -> Iterator[VethPair]:
    """Build the lab; with a rate, or one for each plane, links are shaped to it in both directions."""
    rates = [rate_mbps] * planes if isinstance(rate_mbps, int) else rate_mbps
    if os.geteuid() != 0:
        raise DeviceError("network namespaces need root")
    lab = VethPair((f"mrc{os.getpid()}a", f"mrc{os.getpid()}b"), planes)
    try:
        for name in lab.names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        for plane in range(planes):
            near, far = link_of(0, plane), link_of(1, plane)
            lab.ip(0, "link", "add", near, "type", "veth", "peer", "name", far, "netns", lab.names[1])
            for side in (0, 1):
                link = link_of(side, plane)
                lab.ip(side, "addr", "add", f"{address_of(side, plane)}/24", "dev", link)
                lab.ip(side, "link", "set", link, "mtu", str(mtu), "up")
                if rates[plane]:
                    shape(lab, side, plane, rates[plane])
        yield lab
    finally:
        for name in lab.names:
            run("ip", "netns", "del", name, check=False)


def shape(lab: VethPair, side: int, plane: int, rate_mbps: int) -> None:
    """A token bucket on the way out; links then behave like cables of that speed."""
    burst = max(BURST_BYTES, rate_mbps * 125)
    tbf = ("tbf", "rate", f"{rate_mbps}mbit", "burst", str(burst), "limit", str(QUEUE_BURSTS * burst))
    run("tc", "-n", lab.names[side], "qdisc", "replace", "dev", link_of(side, plane), "root", *tbf)
