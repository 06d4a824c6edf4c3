"""Memory that peers are offered, and when it is taken back."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Self

from softmrc.errors import ConfigError, UsageError
from softmrc.verbs import Device, MemoryRegion


class OfferedMemory:
    """Regions out of a buffer, or several. Those registered here are deregistered when nobody offers them any more: a
    listener and the connections that it accepted offer the same. Regions of the caller's own stay registered."""

    def __init__(self, device: Device, memory: Any) -> None:
        self._lock = threading.Lock()
        self._holders = 1
        self._own: list[MemoryRegion] = []
        regions: list[MemoryRegion] = []
        try:
            for buffer in [] if memory is None else memory if isinstance(memory, list | tuple) else [memory]:
                regions.append(self._region(device, buffer))
        except BaseException:
            self.release()
            raise
        self.regions = tuple(regions)

    def _region(self, device: Device, buffer: Any) -> MemoryRegion:
        if not isinstance(buffer, MemoryRegion):
            region = device.register(buffer)
            self._own.append(region)
            return region
        if buffer.device is not device:
            raise ConfigError("memory", buffer, "memory that is registered with the connection's own device")
        return buffer

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
