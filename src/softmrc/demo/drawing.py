"""The planes, drawn once for each fault with what broke."""

from __future__ import annotations

import html

from softmrc.demo.script import ScriptedFault
from softmrc.demo.story import TrainingRun

WIDTH, ROW, TOP = 200, 26, 16
LEFT, RIGHT = 62, 140  # where links begin and end
COLUMNS = "grid-template-columns:repeat(auto-fit,minmax(130px,1fr))"


def faults(run: TrainingRun, planes: int, ranks: int) -> str:
    """A row of drawings."""
    parts = []
    for number, (fault, start, end) in enumerate(run.bands, 1):
        when = f"from step {fault.step + 1}, for {end - start:.1f} s"
        words = f"<b>{number}.</b> {html.escape(fault.label)}<br>{when}"
        parts.append(f"<figure>{drawing(fault, planes, ranks)}<figcaption>{words}</figcaption></figure>")
    return f'<div class="row" style="{COLUMNS}">{"".join(parts)}</div>' if parts else ""


def drawing(fault: ScriptedFault, planes: int, ranks: int) -> str:
    """Ranks on the left, planes on the right; what is broken is red and dashed."""
    height = 2 * TOP + ROW * (max(planes, ranks) - 1)
    links: list[str] = []
    boxes: list[str] = []
    for plane in range(planes):
        is_hit = plane in fault.planes
        for rank in range(ranks):
            is_cut = is_hit and fault.rank in (None, rank)
            style = "stroke:var(--fault-ink);stroke-width:2;stroke-dasharray:4 3" if is_cut else "stroke:var(--grid)"
            ends = f'x1="{LEFT}" y1="{TOP + ROW * rank}" x2="{RIGHT}" y2="{TOP + ROW * plane}"'
            links.insert(len(links) if is_cut else 0, f'<line {ends} style="{style}"/>')  # the red ones on top
        is_whole = is_hit and fault.rank is None
        boxes.append(_box(RIGHT, TOP + ROW * plane, f"plane {plane}", is_whole))
    boxes += [_box(LEFT - 54, TOP + ROW * rank, f"rank {rank}", False) for rank in range(ranks)]
    kind = f'class="plot" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"'
    return f"<svg {kind}><title>{html.escape(fault.label)}</title>{''.join(links + boxes)}</svg>"


def _box(x: int, y: int, text: str, is_broken: bool) -> str:
    ink = "var(--fault-ink)" if is_broken else "var(--grid)"
    fill = "var(--fault)" if is_broken else "var(--bg)"
    box = f'<rect x="{x}" y="{y - 10}" width="54" height="20" rx="5" style="fill:{fill};stroke:{ink}"/>'
    return f'{box}<text class="name" x="{x + 27}" y="{y + 4}" text-anchor="middle">{html.escape(text)}</text>'
