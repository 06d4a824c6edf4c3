"""Which planes a rank uses: what `softmrc.environment` says, or found by where the ranks are.

A host of a fabric (`softmrc.fabric.host`) has that fabric's planes and SRv6 paths. Where nothing is said, ranks that
share a host use four planes on loopback; others the links that `softmrc.links` finds.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from softmrc import links
from softmrc.environment import Settings, read

__all__ = ["LOOPBACK", "Settings", "chosen", "host_identity", "read"]

LOOPBACK = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")


def host_identity() -> str:
    """The same for two processes exactly if loopback connects them: one boot, one network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return socket.gethostname()
    return f"{boot}/{network}"


def chosen(settings: Settings, hosts: Sequence[str]) -> links.Found:
    """The planes to use and why, by what was asked for and on which hosts the ranks are."""
    if settings.planes:
        return links.Found(settings.planes, settings.why)
    if len(set(hosts)) == 1:
        return links.Found(LOOPBACK, "all ranks are on this host")
    return links.found()
