"""Memory that is registered with a device."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from softmrc import _core
from softmrc.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from softmrc.device.device import Device

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
        raise ConfigError("buffer", type(buffer).__name__, f"must be {ACCEPTED_MEMORY}") from error
    owner = getattr(buffer, "data_ptr", None)
    if array.dtype == object or owner is None or owner() != array.__array_interface__["data"][0]:
        raise ConfigError("buffer", type(buffer).__name__, f"must be {ACCEPTED_MEMORY}")
    return array


class ProtectionDomain:
    """Queue pairs, and memory that their peers may write to: what is in one domain is out of reach for all others."""

    def __init__(self, device: Device, number: int) -> None:
        self.device = device
        self.number = number

    def __repr__(self) -> str:
        return f"<ProtectionDomain {self.number} of {self.device!r}>"


class MemoryRegion:
    """Memory that writes are taken from and, if it was registered so, that peers may write to. It is used in place."""

    def __init__(self, device: Device, buffer: Any, domain: ProtectionDomain | None) -> None:
        try:
            held = _core.Buffer(writable_memory(buffer), domain is not None)
        except (BufferError, ValueError) as error:
            needed = "contiguous" if domain is None else "writable and contiguous"
            raise ConfigError("buffer", type(buffer).__name__, f"must be {needed} ({error})") from None
        if held.size == 0:
            raise ConfigError("buffer", "0 bytes", "must be at least one byte")
        self._buffer: Any = held  # None: taken back
        self.device = device
        self.domain = domain  # whose queue pairs may write here; None: no queue pair may
        self.va = 0
        self.length: int = held.size
        self._rkey: int | None = None
        while domain is not None and self._rkey is None:
            rkey = secrets.randbits(32)
            if device.native.add_region(rkey, self.va, held, domain.number):
                self._rkey = rkey

    @property
    def buffer(self) -> Any:
        """The memory itself. A reader holds a reference, so that releasing a region frees nothing that is in use."""
        if self._buffer is None:
            self.device.check_open()
            raise UsageError(f"{self!r}: register the memory again to use it")
        return self._buffer

    @property
    def rkey(self) -> int:
        """What a peer needs to write here."""
        if self._rkey is None:
            raise UsageError(f"{self!r} has no key: register it with remote_write=True for peers to write to")
        return self._rkey

    def deregister(self) -> None:
        """Take it back. Refused while a write still reads from it."""
        self.device.deregister(self)
        self.let_go()

    def let_go(self) -> None:
        """The owner may do with the memory what he likes."""
        self._buffer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.has_region(self):
            self.deregister()

    def __repr__(self) -> str:
        state = "" if self.device.has_region(self) else ", deregistered"
        use = "to send from" if self._rkey is None else f"at va {self.va:#x}, rkey {self._rkey:#010x}"
        return f"<MemoryRegion {self.length:,} bytes {use}{state}>"
