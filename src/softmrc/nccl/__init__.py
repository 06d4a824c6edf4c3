"""Where NCCL's network plugin is: `NCCL_NET_PLUGIN` takes its path."""

from __future__ import annotations

from pathlib import Path

from softmrc import _core
from softmrc.errors import DeviceError

NAME = "libnccl-net-softmrc.so"
NET = "SoftMRC"  # what NCCL_NET has to be


def plugin_path() -> Path:
    """The plugin that came with this package."""
    path = Path(_core.__file__).parent / NAME
    if not path.exists():
        raise DeviceError(f"this installation has no {NAME} next to {_core.__file__}; install softmrc again")
    return path
