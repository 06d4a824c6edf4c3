"""Two kinds of chart as plain SVG, so that a report is one file and needs nothing to be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, BAR_H, LABEL_W = 760, 26, 240
INK, FAINT, BLUE, RED = "#0f172a", "#64748b", "#2563eb", "#dc2626"


def _svg(height: float, body: Sequence[str]) -> str:
    size = f"viewBox='0 0 {WIDTH} {height}' width='100%' style='max-width:{WIDTH}px'"
    return f"<svg {size} role='img'>{''.join(body)}</svg>"


def _text(x: float, y: float, words: str, anchor: str = "start", fill: str = INK) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' font-size='12' text-anchor='{anchor}' fill='{fill}'>{escape(words)}</text>"


def bars(rows: Sequence[tuple[str, float, str]], colours: Sequence[str] = (), logarithmic: bool = False) -> str:
    """Horizontal bars: name, value, and what to write at its end. A logarithmic scale begins below the least value."""
    if logarithmic:
        least = min((value for _, value, _ in rows if value > 0), default=1.0) / 2
        rows = [(name, math.log(value / least) if value > 0 else 0.0, words) for name, value, words in rows]
    top = max((value for _, value, _ in rows), default=0) or 1
    body = []
    for i, (name, value, words) in enumerate(rows):
        y = i * BAR_H
        width = max(1.0, (WIDTH - LABEL_W - 130) * value / top)
        fill = colours[i] if i < len(colours) else BLUE
        body.append(_text(LABEL_W - 8, y + 17, name, "end"))
        body.append(f"<rect x='{LABEL_W}' y='{y + 4}' width='{width:.1f}' height='{BAR_H - 9}' rx='2' fill='{fill}'/>")
        body.append(_text(LABEL_W + width + 6, y + 17, words, fill=FAINT))
    return _svg(len(rows) * BAR_H + 4, body)


def steps(points: Sequence[tuple[float, float]], x_label: str, y_label: str, x_end: float) -> str:
    """A line that holds its value until the next point; values are shares from 0 to 1."""
    height, left, bottom, right = 220, 52, 32, 12
    low = min((y for _, y in points), default=1.0)
    floor = max(0.0, min(0.95, low - (1 - low) * 0.15))

    def at(x: float, y: float) -> tuple[float, float]:
        along = left + (WIDTH - left - right) * x / x_end
        return along, 12 + (height - 12 - bottom) * (1 - (y - floor) / (1 - floor))

    body = []
    for k in range(5):
        value = floor + (1 - floor) * k / 4
        _, y = at(0, value)
        body.append(f"<line x1='{left}' y1='{y:.1f}' x2='{WIDTH - right}' y2='{y:.1f}' stroke='#e2e8f0'/>")
        body.append(_text(left - 6, y + 4, f"{100 * value:.1f} %", "end", FAINT))
    path, previous = [], None
    for x, y in points:
        px, py = at(x, y)
        path.append(f"M{px:.1f} {py:.1f}" if previous is None else f"L{px:.1f} {previous:.1f}L{px:.1f} {py:.1f}")
        previous = py
    if previous is not None:
        path.append(f"L{WIDTH - right} {previous:.1f}")
    body.append(f"<path d='{''.join(path)}' fill='none' stroke='{BLUE}' stroke-width='1.5'/>")
    body.append(_text(left, height - 8, x_label, fill=FAINT))
    body.append(_text(WIDTH - right, height - 8, y_label, "end", FAINT))
    return _svg(height, body)
