"""What can break, by name, and which directed links each component carries.

A component is known by its number; a table says for every link which components contain it, one kind a column. So
evidence about thousands of links becomes evidence about components by counting.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from softmrc.errors import ConfigError
from softmrc.fabric import Node, Shape, Tier, cable_name, link_name


class ComponentKind(StrEnum):
    """The order is that of preference where evidence cannot tell: a cable before one of its directions."""

    LINK = "link"  # a cable between two switches
    PORT = "port"  # a NIC's port or its cable
    DIRECTION = "direction"  # one way of a cable
    TRANSCEIVER = "transceiver"  # an optical module at a leaf, that several cables share
    SWITCH = "switch"
    HOST = "host"
    PLANE = "plane"


_COLUMNS = 7  # a link is in one direction, cable, module, plane and host at most, and in two switches


@dataclass(frozen=True)
class Component:
    """Something with a name that breaks as one."""

    kind: ComponentKind
    name: str
    links: tuple[int, ...]


class Components:
    """Every component of a fabric. `lanes` consecutive ports of a leaf share an optical module; with 1 none do."""

    def __init__(self, shape: Shape, lanes: int = 1) -> None:
        if not 1 <= lanes <= 64:
            raise ConfigError("lanes", lanes, "must be 1 to 64 ports of a leaf in one transceiver")
        self.shape = shape
        self.lanes = lanes
        self._keys: list[tuple[ComponentKind, int]] = []
        self.of_link = np.full((shape.links, _COLUMNS), -1, dtype=np.int64)
        self._fill()
        self.of_link = self.of_link.astype(np.int32)
        self.rank = np.array([list(ComponentKind).index(kind) for kind, _ in self._keys])

    def __len__(self) -> int:
        return len(self._keys)

    @cached_property
    def sizes(self) -> np.ndarray:
        """How many links each component carries."""
        return np.bincount(self.of_link[self.of_link >= 0], minlength=len(self))

    def _fill(self) -> None:
        """One column after another: number the groups of a kind by what their links have in common."""
        shape = self.shape
        at = np.arange(shape.links)
        plane, place = np.divmod(at, shape.links_per_plane)
        cables, hosts, leaves, spines, up_switch, down_switch = self._of_places(place)
        cable_key = plane * shape.links_per_plane + cables
        is_port = hosts >= 0
        self._group(0, ComponentKind.DIRECTION, at, np.ones(len(at), dtype=bool))
        self._group(1, ComponentKind.PORT, cable_key, is_port)
        self._group(1, ComponentKind.LINK, cable_key, ~is_port)
        if self.lanes > 1:
            # Modules are numbered down from the leaf's first host, then from its first spine.
            per_leaf = -(-shape.hosts_per_leaf // self.lanes) + -(-shape.spines // self.lanes)
            first_up = -(-shape.hosts_per_leaf // self.lanes)
            module = np.where(
                is_port, hosts % shape.hosts_per_leaf // self.lanes, first_up + np.maximum(spines, 0) // self.lanes
            )
            key = (plane * shape.leaves + np.maximum(leaves, 0)) * per_leaf + module
            self._group(2, ComponentKind.TRANSCEIVER, key, leaves >= 0)
        switches = shape.leaves + shape.t1_switches + shape.t2_switches
        self._group(3, ComponentKind.SWITCH, plane * switches + up_switch, np.ones(len(at), dtype=bool))
        self._group(4, ComponentKind.SWITCH, plane * switches + np.maximum(down_switch, 0), down_switch >= 0)
        if shape.planes > 1:
            self._group(5, ComponentKind.PLANE, plane, np.ones(len(at), dtype=bool))
            self._group(6, ComponentKind.HOST, np.maximum(hosts, 0), is_port)

    def _of_places(self, place: np.ndarray) -> tuple[np.ndarray, ...]:
        """For each place within a plane: its cable, host, leaf, uplink, upper and lower switch; -1 for what is not."""
        s = self.shape
        cable, host, leaf, spine, upper, lower = (np.full(len(place), -1) for _ in range(6))
        start = 0
        for stage, half in enumerate((s.hosts, s.leaves * s.spines, s.t1_switches * s.cores_per_spine)):
            on = (place >= start) & (place < start + 2 * half)
            index = (place[on] - start) % max(half, 1)
            cable[on] = start + index
            if stage == 0:
                host[on], leaf[on], upper[on] = index, index // s.hosts_per_leaf, index // s.hosts_per_leaf
            elif stage == 1:
                leaf[on], spine[on] = np.divmod(index, s.spines)
                pod = leaf[on] // s.leaves_per_pod if s.pods else 0
                lower[on], upper[on] = leaf[on], s.leaves + pod * s.spines + spine[on]
            else:
                t1, up = np.divmod(index, s.cores_per_spine)
                lower[on] = s.leaves + t1
                upper[on] = s.leaves + s.t1_switches + t1 % s.spines * s.cores_per_spine + up
            start += 2 * half
        return cable, host, leaf, spine, upper, lower

    def _group(self, column: int, kind: ComponentKind, key: np.ndarray, on: np.ndarray) -> None:
        numbers = {number: i for i, (known, number) in enumerate(self._keys) if known is kind}
        found = np.unique(key[on])
        for number in found.tolist():
            if number not in numbers:
                numbers[number] = len(self._keys)
                self._keys.append((kind, number))
        table = np.array([numbers[number] for number in found.tolist()], dtype=np.int64)
        if len(found):
            self.of_link[on, column] = table[np.searchsorted(found, key[on])]

    def pairs(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of routes (links, filled up with -1): which row touches which component, each pair once."""
        found = np.where(rows[:, :, None] >= 0, self.of_link[rows], -1).reshape(len(rows), rows.shape[1] * _COLUMNS)
        found.sort(axis=1)
        is_new = found >= 0
        is_new[:, 1:] &= found[:, 1:] != found[:, :-1]
        row, column = np.nonzero(is_new)
        return row, found[row, column]

    def touched(self, rows: np.ndarray) -> np.ndarray:
        """By component: how many of these routes touch it."""
        return np.bincount(self.pairs(rows)[1], minlength=len(self)).astype(np.int32)

    def component(self, number: int) -> Component:
        """A component by its number."""
        kind, key = self._keys[number]
        links = np.flatnonzero((self.of_link == number).any(axis=1)).tolist()
        return Component(kind, self._name(kind, key, links), tuple(links))

    def _name(self, kind: ComponentKind, key: int, links: list[int]) -> str:
        shape = self.shape
        if kind is ComponentKind.DIRECTION:
            return link_name(shape, links[0])
        if kind in (ComponentKind.LINK, ComponentKind.PORT):
            return cable_name(shape, shape.cable_of(links[0]))
        if kind is ComponentKind.PLANE:
            return f"plane {key}"
        if kind is ComponentKind.HOST:
            return f"host{key}"
        if kind is ComponentKind.SWITCH:
            switches = shape.leaves + shape.t1_switches + shape.t2_switches
            plane, index = divmod(key, switches)
            for tier, count in ((Tier.T0, shape.leaves), (Tier.T1, shape.t1_switches), (Tier.T2, shape.t2_switches)):
                if index < count:
                    return shape.name_of(Node(tier, plane, index))
                index -= count
        ends = [shape.cable_of(link) for link in links]
        low, high = ends[0], ends[len(ends) // 2 - 1]
        return f"{cable_name(shape, low)}…{shape.name_of(high.lower if low.lower.tier is Tier.HOST else high.upper)}"

    def named(self, name: str) -> Component:
        """A component by its name, for those who expect it."""
        for number in range(len(self)):
            kind, _ = self._keys[number]
            if (
                kind in (ComponentKind.PLANE, ComponentKind.HOST, ComponentKind.SWITCH, ComponentKind.TRANSCEIVER)
                and self.component(number).name == name
            ):
                return self.component(number)
        if ">" in name:
            number = next((i for i in range(self.shape.links) if link_name(self.shape, i) == name), -1)
            if number >= 0:
                return self.component(int(self.of_link[number, 0]))
        elif "-" in name:
            up, _ = self.shape.links_of(self.shape.parse_cable(name))
            return self.component(int(self.of_link[up, 1]))
        raise ConfigError(
            "component",
            name,
            "no such element of the fabric",
            "Name a link, port, transceiver, switch, host or plane, as p0.leaf1-spine2 or p1.host3>leaf1.",
        )

    def hosts_hit(self, component: Component) -> np.ndarray:
        """The hosts that lose capacity when it is gone."""
        s = self.shape
        hit = np.zeros(s.hosts, dtype=bool)
        for link in component.links:
            cable = s.cable_of(link)
            if cable.lower.tier is Tier.HOST:
                hit[cable.lower.index] = True
            elif cable.lower.tier is Tier.T0:
                hit[cable.lower.index * s.hosts_per_leaf : (cable.lower.index + 1) * s.hosts_per_leaf] = True
            else:
                pod = cable.lower.index // s.spines
                per_pod = s.leaves_per_pod * s.hosts_per_leaf
                hit[pod * per_pod : (pod + 1) * per_pod] = True
        return np.flatnonzero(hit)
