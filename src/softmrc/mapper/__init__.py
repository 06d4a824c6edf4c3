"""The mapper: packets over every path of a fabric that return to their sender, and the names of what is broken.

`Mapper(fabric).step()` sends and judges; `softmrc.mapper.simulated` and `softmrc.mapper.lab` are fabrics to map.
"""

from __future__ import annotations

from softmrc.mapper.inference import Finding, State
from softmrc.mapper.mapper import Mapper, Settings, denylist_of
from softmrc.mapper.things import Kind, Thing, Things

__all__ = ["Finding", "Kind", "Mapper", "Settings", "State", "Thing", "Things", "denylist_of"]
