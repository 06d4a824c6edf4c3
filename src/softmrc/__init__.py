"""SoftMRC: MRC (Multipath Reliable Connection) in software.

    import softmrc

    with softmrc.listen("127.0.0.1", 7000, memory=bytearray(1 << 20)) as listener:      # one process
        print(listener.accept().recv())

    with softmrc.connect("127.0.0.1", 7000) as connection:                              # another
        connection.write(connection.remote[0], 0, b"hello", imm=1)

What most programs need is here, and is imported when it is first used. docs/reference/api.md says where the rest is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from softmrc.errors import ConfigError, DeviceError, InternalError, MrcError, RemoteError, UsageError

if TYPE_CHECKING:
    from softmrc.collectives import DirectoryStore, Group
    from softmrc.config import DeviceConfig
    from softmrc.connection import Connection, Listener, connect, connect_async, listen
    from softmrc.device import Device
    from softmrc.engine.pair import Pair

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "Connection",
    "Device",
    "DeviceConfig",
    "DeviceError",
    "DirectoryStore",
    "Group",
    "InternalError",
    "Listener",
    "MrcError",
    "Pair",
    "RemoteError",
    "UsageError",
    "__version__",
    "connect",
    "connect_async",
    "listen",
]

_HOMES = {
    "Connection": "softmrc.connection",
    "Device": "softmrc.device",
    "DeviceConfig": "softmrc.config",
    "DirectoryStore": "softmrc.collectives",
    "Group": "softmrc.collectives",
    "Listener": "softmrc.connection",
    "Pair": "softmrc.engine.pair",
    "connect": "softmrc.connection",
    "connect_async": "softmrc.connection",
    "listen": "softmrc.connection",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'softmrc' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
