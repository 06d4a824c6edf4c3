"""Memory that is registered with a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from softmrc import _core
from softmrc.errors import ConfigError

if TYPE_CHECKING:
    from softmrc.verbs.device import Device

ACCEPTED_MEMORY = "memory with the buffer protocol, or a CPU tensor"


def writable_memory(buffer: Any) -> Any:
    """What the buffer protocol can see of it: itself, or the same memory as an array (a torch tensor, for one)."""
    try:
        memoryview(buffer).release()
        return buffer
    except TypeError:
        pass
    try:
        array = np.asarray(buffer)
    except Exception as error:
        raise ConfigError("buffer", type(buffer).__name__, ACCEPTED_MEMORY) from error
    owner = getattr(buffer, "data_ptr", None)
    if array.dtype == object or owner is None or owner() != array.__array_interface__["data"][0]:
        raise ConfigError("buffer", type(buffer).__name__, ACCEPTED_MEMORY)
    return array


class MemoryRegion:
    """Memory that peers who know its key may write to, and that writes are taken from. It is used in place."""

    def __init__(self, device: Device, buffer: Any, rkey: int, va: int) -> None:
        try:
            self.buffer = _core.Buffer(writable_memory(buffer), True)
        except (BufferError, ValueError) as error:
            raise ConfigError("buffer", type(buffer).__name__, f"writable and contiguous ({error})") from None
        if self.buffer.size == 0:
            raise ConfigError("buffer", "0 bytes", "at least one byte")
        self.device = device
        self.rkey = rkey
        self.va = va
        self.length: int = self.buffer.size

    def deregister(self) -> None:
        """Take it back. Refused while a write still reads from it."""
        self.device._forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.rkey in self.device._regions:
            self.deregister()

    def __repr__(self) -> str:
        state = "" if self.rkey in self.device._regions else ", deregistered"
        return f"<MemoryRegion {self.length:,} bytes at va {self.va:#x}, rkey {self.rkey:#010x}{state}>"
