"""The network itself: what it costs, how it is addressed, how its switches are configured, how it breaks.

`load` reads a fabric file; `AddressPlan` turns hosts and entropy values into addresses and back; `table_of` is what a
switch knows; `softmrc.planner.plan` compares designs, `softmrc.planner.assess` judges one.
"""

from __future__ import annotations

from softmrc.fabric.address import AddressPlan
from softmrc.fabric.description import Addressing, Description, load, parse
from softmrc.fabric.routes import Action, RouteEntry, RoutingTable, RoutingTables, Walk, table_of, walk
from softmrc.fabric.shape import Cable, Node, Shape, Tier, cable_name, link_name

__all__ = [
    "Action",
    "AddressPlan",
    "Addressing",
    "Cable",
    "Description",
    "Node",
    "RouteEntry",
    "RoutingTable",
    "RoutingTables",
    "Shape",
    "Tier",
    "Walk",
    "cable_name",
    "link_name",
    "load",
    "parse",
    "table_of",
    "walk",
]  # fmt: skip
