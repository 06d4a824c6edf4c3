"""The mapper: packets over every path of a fabric that return to their sender, and the names of what is broken.

`Mapper(fabric).step()` sends and judges. Fabrics to map are in `simulated` and `lab_fabric`.
"""

from __future__ import annotations

from softmrc.ops.mapper.components import Component, ComponentKind, Components
from softmrc.ops.mapper.inference import Finding, State
from softmrc.ops.mapper.mapper import Mapper, MapperSettings, denylist_of

__all__ = ["Component", "ComponentKind", "Components", "Finding", "Mapper", "MapperSettings", "State", "denylist_of"]
