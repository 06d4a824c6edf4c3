"""A picture of a fabric, as SVG, that can be read at 8 NICs and at 131 072.

Up to four planes get a panel each; more of them are a stack of which the first is open. A row that is too long shows
its first and last nodes and says how many there are. Broken cables and nodes are red.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from softmrc._support.units import counted, rate_text
from softmrc.fabric.shape import Node, Shape, Tier, cable_name

PANEL_W, ROW_H, LEFT, TOP, GAP, HEAD = 620, 92, 128, 34, 18, 74
MAX_SHOWN, SHOWN_FIRST, SHOWN_LAST = 10, 5, 3
MAX_PANELS = 4
FONT = "font-family='ui-sans-serif,system-ui,sans-serif'"
COLOURS = {Tier.HOST: "#64748b", Tier.T0: "#0f766e", Tier.T1: "#1d4ed8", Tier.T2: "#7c3aed"}
BROKEN = "#dc2626"


@dataclass(frozen=True)
class _Slot:
    """A place in a row: a node, or the gap that stands for those not shown."""

    x: float
    index: int | None


def _row(count: int) -> list[_Slot]:
    if count <= MAX_SHOWN:
        indexes: list[int | None] = list(range(count))
    else:
        indexes = [*range(SHOWN_FIRST), None, *range(count - SHOWN_LAST, count)]
    width = PANEL_W - LEFT - 24
    step = width / len(indexes)
    return [_Slot(LEFT + step * (i + 0.5), index) for i, index in enumerate(indexes)]


def _rows(shape: Shape) -> list[tuple[Tier, int]]:
    """Tiers from the top down, with how many nodes each has in a plane."""
    rows = [(Tier.T2, shape.t2_switches), (Tier.T1, shape.t1_switches), (Tier.T0, shape.leaves)]
    return [row for row in rows if row[1]] + [(Tier.HOST, shape.hosts)]


def draw(shape: Shape, title: str = "", broken: Collection[str] = ()) -> str:
    """The whole picture. `broken` names cables and nodes as `p0.leaf0-spine1` and `p0.spine1`."""
    shown = list(range(shape.planes)) if shape.planes <= MAX_PANELS else [0]
    if shape.planes > MAX_PANELS:
        hit = sorted({int(name.split(".")[0][1:]) for name in broken if name.startswith("p")})
        shown = (hit or [0])[:MAX_PANELS]
    columns = 1 if len(shown) == 1 else 2
    panel_h = TOP + ROW_H * len(_rows(shape)) - 18
    stacked = min(shape.planes - len(shown), 4) if len(shown) == 1 else 0
    width = columns * (PANEL_W + GAP) + GAP + stacked * 7
    height = HEAD + -(-len(shown) // columns) * (panel_h + GAP) + stacked * 7
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' "
        f"{FONT}>",
        f"<rect width='{width}' height='{height}' fill='white'/>",
        f"<text x='{GAP}' y='26' font-size='17' font-weight='600' fill='#0f172a'>{escape(title or 'Fabric')}</text>",
    ]
    for i, line in enumerate(_summary(shape)):
        parts.append(f"<text x='{GAP}' y='{45 + 16 * i}' font-size='12' fill='#475569'>{escape(line)}</text>")
    for i, plane in enumerate(shown):
        x = GAP + (i % columns) * (PANEL_W + GAP)
        y = HEAD + (i // columns) * (panel_h + GAP)
        for card in range(stacked, 0, -1):
            parts.append(_frame(x + 7 * card, y + 7 * card, panel_h, "#f1f5f9"))
        label = f"plane {plane}" if len(shown) == shape.planes else f"plane {plane} of {shape.planes}, all alike"
        parts.append(f"<g transform='translate({x},{y})'>{_panel(shape, plane, label, panel_h, broken)}</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _summary(shape: Shape) -> tuple[str, str]:
    nic = rate_text(shape.planes * shape.host_link_bps)
    farthest = shape.planes * shape.paths(0, shape.hosts - 1)
    return (
        f"{shape.hosts:,} NICs of {nic} · {counted(shape.planes, 'plane')} of {counted(shape.tiers, 'tier')}",
        f"{counted(shape.switches, 'switch', 'es')} · {counted(shape.cables, 'cable')} · {counted(farthest, 'path')} "
        "between the farthest two NICs",
    )


def _frame(x: float, y: float, height: float, fill: str) -> str:
    return f"<rect x='{x}' y='{y}' width='{PANEL_W}' height='{height}' rx='8' fill='{fill}' stroke='#cbd5e1'/>"


def _panel(shape: Shape, plane: int, label: str, height: float, broken: Collection[str]) -> str:
    rows = _rows(shape)
    slots = {tier: _row(count) for tier, count in rows}
    heights = {tier: TOP + ROW_H * i + 34 for i, (tier, _) in enumerate(rows)}
    parts = [
        _frame(0, 0, height, "#f8fafc"),
        f"<text x='14' y='22' font-size='13' font-weight='600' fill='#334155'>{label}</text>",
    ]
    for (upper, _), (lower, _) in pairwise(rows):
        for top in slots[upper]:
            for bottom in slots[lower]:
                parts.append(_cable(shape, plane, upper, lower, top, bottom, heights, broken))
    for tier, count in rows:
        parts.append(_row_label(shape, tier, count, heights[tier]))
        for slot in slots[tier]:
            if slot.index is None:
                parts.append(_gap(slot.x, heights[tier], count))
            else:
                parts.append(_node(shape, Node(tier, plane, slot.index), slot.x, heights[tier], broken))
    return "".join(parts)


def _row_label(shape: Shape, tier: Tier, count: int, y: float) -> str:
    word = {"host": "NICs", "leaf": "leaves"}.get(shape.tier_word(tier), shape.tier_word(tier) + "s")
    up, core_up = shape.spines * shape.cables_per_link, shape.cores_per_spine * shape.cables_per_core_link
    downs = {
        Tier.HOST: f"1 port of {rate_text(shape.host_link_bps)}",
        Tier.T0: f"{shape.hosts_per_leaf} down" + (f", {up} up" if up else ""),
        Tier.T1: f"{shape.leaves_per_pod * shape.cables_per_link} down" + (f", {core_up} up" if core_up else ""),
        Tier.T2: f"{shape.pods * shape.cables_per_core_link} down",
    }
    pods = f" in {shape.pods} pods" if shape.pods and tier in (Tier.T0, Tier.T1) else ""
    return (
        f"<text x='14' y='{y}' font-size='12' font-weight='600' fill='{COLOURS[tier]}'>{count:,} {word}{pods}</text>"
        f"<text x='14' y='{y + 15}' font-size='11' fill='#64748b'>{downs[tier]}</text>"
    )


def _node(shape: Shape, node: Node, x: float, y: float, broken: Collection[str]) -> str:
    name = shape.name_of(Node(node.tier, 0, node.index) if node.tier is Tier.HOST else node)
    fill = BROKEN if name in broken else COLOURS[node.tier]
    size = 11 if node.index < 10000 else 9
    if node.tier is Tier.HOST:
        body = f"<circle cx='{x:.1f}' cy='{y}' r='11' fill='{fill}'/>"
        text = f"<text x='{x:.1f}' y='{y + 24}' font-size='{size}' text-anchor='middle' fill='#475569'>"
    else:
        body = f"<rect x='{x - 20:.1f}' y='{y - 11}' width='40' height='22' rx='4' fill='{fill}'/>"
        text = f"<text x='{x:.1f}' y='{y + 4}' font-size='{size}' text-anchor='middle' fill='white'>"
    return f"<g><title>{escape(name)}</title>{body}{text}{node.index}</text></g>"


def _gap(x: float, y: float, count: int) -> str:
    hidden = count - SHOWN_FIRST - SHOWN_LAST
    return (
        f"<text x='{x:.1f}' y='{y + 3}' font-size='18' text-anchor='middle' fill='#94a3b8'>⋯</text>"
        f"<text x='{x:.1f}' y='{y + 17}' font-size='10' text-anchor='middle' fill='#94a3b8'>+ {hidden:,}</text>"
    )


def _cable(
    shape: Shape, plane: int, upper: Tier, lower: Tier, top: _Slot, bottom: _Slot, heights: dict[Tier, int],
    broken: Collection[str],
) -> str:  # fmt: skip
    """A line where there is a cable; a faint one where either end stands for many."""
    style = "stroke='#cbd5e1' stroke-width='1' stroke-dasharray='2 3'"
    if top.index is not None and bottom.index is not None:
        found = _between(shape, plane, Node(upper, plane, top.index), lower, bottom.index)
        if found is None:
            return ""
        style = "stroke='#94a3b8' stroke-width='1.2'"
        if found in broken:
            style = f"stroke='{BROKEN}' stroke-width='2.5'"
    elif lower is Tier.HOST:
        return ""
    y = heights[upper] + 11, heights[lower] - 11
    return f"<line x1='{top.x:.1f}' y1='{y[0]}' x2='{bottom.x:.1f}' y2='{y[1]}' {style}/>"


def _between(shape: Shape, plane: int, top: Node, lower: Tier, index: int) -> str | None:
    """The name of the cable between two nodes, or None."""
    bottom = Node(lower, 0 if lower is Tier.HOST else plane, index)
    links = [shape.host_up(plane, index)] if lower is Tier.HOST else shape.uplinks(bottom)
    for link in links:
        if shape.ends(link)[1] == top:
            return cable_name(shape, shape.cable_of(link))
    return None
