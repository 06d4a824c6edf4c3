"""Control of running devices, from outside their processes: what there is, how it does, and what it shall do.

`devices()` finds those of this user; a `Node` asks and tells one of them, over the socket that docs/control.md
describes.
"""

from __future__ import annotations

from softmrc.control.client import EVENT_TYPES, Batch, Failed, Node, Silent, Told, devices, folder, the_device
from softmrc.control.probing import MOST_PROBES, Answer, probe
from softmrc.control.profiles import Profiles
from softmrc.control.push import Pushed, push

__all__ = [
    "EVENT_TYPES", "MOST_PROBES", "Answer", "Batch", "Failed", "Node", "Profiles", "Pushed", "Silent", "Told",
    "devices", "folder", "probe", "push", "the_device",
]  # fmt: skip
