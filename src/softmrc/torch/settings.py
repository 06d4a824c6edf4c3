"""Which planes a rank uses: what `softmrc.config.environment` says, or found by where the ranks are.

A host of a fabric (`softmrc.fabric.host`) has that fabric's planes and SRv6 paths. Where nothing is said, ranks that
share a host use four planes on loopback; others the links that `softmrc.config.interfaces` finds.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from softmrc.config import DeviceConfig, interfaces
from softmrc.config.environment import EnvSettings, of_process, read
from softmrc.device.width import processes_here

__all__ = ["LOOPBACK", "EnvSettings", "chosen", "likely", "of_process", "read"]

LOOPBACK = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")


def likely(settings: EnvSettings, size: int) -> interfaces.DetectedPlanes | None:
    """What it will be in all likelihood, before it is known where the ranks are; None where the launcher says that some
    are on another host."""
    if settings.planes or processes_here(unless_said=size) >= size:
        return chosen(settings, ["here"])
    return None


def chosen(settings: EnvSettings, hosts: Sequence[object]) -> interfaces.DetectedPlanes:
    """The planes to use and why, from the settings and the hosts of the ranks."""
    if settings.planes:
        return interfaces.DetectedPlanes(settings.planes, settings.why)
    if len(set(hosts)) == 1:
        return interfaces.DetectedPlanes(LOOPBACK, "all ranks are on this host")
    return interfaces.detect_planes()


@functools.lru_cache(8)
def device_here(config: DeviceConfig) -> DeviceConfig:
    """How a device on `LOOPBACK` is set: nothing there hashes source ports, so that one for each plane is enough. Who
    said how many means it."""
    is_said = config.sockets_per_plane != DeviceConfig.sockets_per_plane
    return config if is_said else replace(config, sockets_per_plane=1)
