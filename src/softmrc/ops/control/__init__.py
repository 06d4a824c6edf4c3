"""Inspect and control running devices from other processes.

`devices()` finds those of this user; a `DeviceClient` talks to one of them, over the socket that
docs/reference/control.md describes.
"""

from __future__ import annotations

from softmrc._support.files import runtime_folder
from softmrc.ops.control.client import (
    EVENT_TYPES,
    BatchFailure,
    BatchResult,
    DeviceClient,
    DeviceTimeout,
    EventBatch,
    devices,
    find_device,
)
from softmrc.ops.control.probing import MAX_PROBES, ProbeResult, probe
from softmrc.ops.control.profiles import Profiles
from softmrc.ops.control.push import PushResult, push

__all__ = [
    "EVENT_TYPES",
    "MAX_PROBES",
    "BatchFailure",
    "BatchResult",
    "DeviceClient",
    "DeviceTimeout",
    "EventBatch",
    "ProbeResult",
    "Profiles",
    "PushResult",
    "devices",
    "find_device",
    "probe",
    "push",
    "runtime_folder",
]  # fmt: skip
