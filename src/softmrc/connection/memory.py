"""Memory that peers are offered, and when it is taken back."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Self

from softmrc.device import Device, MemoryRegion, ProtectionDomain
from softmrc.errors import ConfigError, UsageError


class OfferedMemory:
    """Regions out of a buffer, or several. Those registered here are deregistered when the last user stops offering
    them: a listener and the connections that it accepted offer the same. Regions of the caller stay registered."""

    def __init__(self, device: Device, memory: Any) -> None:
        self._lock = threading.Lock()
        self._holders = 1
        self._own: list[MemoryRegion] = []
        buffers = [] if memory is None else memory if isinstance(memory, list | tuple) else [memory]
        given = [one for one in buffers if isinstance(one, MemoryRegion)]
        self.domain = _domain_of(device, given) if given else device.create_domain()
        regions: list[MemoryRegion] = []
        try:
            for one in buffers:
                regions.append(one if isinstance(one, MemoryRegion) else self._registered(device, one))
        except BaseException:
            self.release()
            raise
        self.regions = tuple(regions)

    def _registered(self, device: Device, buffer: Any) -> MemoryRegion:
        region = device.register(buffer, remote_write=True, domain=self.domain)
        self._own.append(region)
        return region

    def hold(self) -> Self:
        """One more offers it."""
        with self._lock:
            self._holders += 1
        return self

    def release(self) -> None:
        """One offers it no more."""
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
        for region in self._own:
            with suppress(UsageError):  # the device is closed, or another connection still sends from it
                region.deregister()


def _domain_of(device: Device, regions: list[MemoryRegion]) -> ProtectionDomain:
    """Whose queue pairs may write to all of them."""
    first = regions[0].domain
    for region in regions:
        if region.device is not device:
            raise ConfigError("memory", region, "must be memory that is registered with the connection's own device")
        if region.domain is None or first is None or region.domain.number != first.number:
            raise ConfigError("memory", region, "must be regions registered with remote_write=True, all in one domain")
    assert first is not None
    return first
