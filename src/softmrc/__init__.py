"""SoftMRC: MRC (Multipath Reliable Connection) in software."""

from __future__ import annotations

from softmrc.errors import ConfigError, DeviceError, InternalError, MrcError, RemoteError, UsageError

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "DeviceError",
    "InternalError",
    "MrcError",
    "RemoteError",
    "UsageError",
    "__version__",
]
