"""The mapper: packets over every path of a fabric that return to their sender, and the names of what is broken.

`Mapper(fabric).step()` sends and judges; `softmrc.mapper.simulated` and `softmrc.mapper.lab` are fabrics to map.
"""

from __future__ import annotations

from softmrc.mapper.components import Component, ComponentKind, Components
from softmrc.mapper.inference import Finding, State
from softmrc.mapper.mapper import Mapper, MapperSettings, denylist_of

__all__ = ["Component", "ComponentKind", "Components", "Finding", "Mapper", "MapperSettings", "State", "denylist_of"]
