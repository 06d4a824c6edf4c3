"""Plots as SVG text, drawn by hand: nothing to install, nothing to fetch, the same bytes for the same numbers.

Colours are CSS variables, so that one plot fits a light and a dark page; `standalone` adds them for a separate file.
What was not measured is not drawn: a line has gaps, a distribution ends below 1.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WIDTH, HEIGHT = 860, 280
NARROW = 350  # what a page has inside its cards on a telephone 400 pixels wide
LEFT, RIGHT, TOP, BOTTOM = 74, 30, 14, 42
NAME_ROW = 14  # of what was broken, above the plot
NAME_ROWS = 3
MAX_POINTS = 600
MAX_BANDS = 400

STYLE = """\
:root{--bg:#fff;--card:#f7f8fa;--ink:#1c2330;--soft:#667085;--grid:#e4e7ec;--fault:#d92d2026;--fault-ink:#b42318;
--c0:#2563eb;--c1:#ea580c;--c2:#16a34a;--c3:#9333ea;--c4:#0891b2;--c5:#ca8a04;--c6:#db2777;--c7:#64748b;
--good:#84cc8f;--skip:#f5c451;--bad:#e5484d;--denied:#8b8d98;--heat:37,99,235}
@media(prefers-color-scheme:dark){:root{--bg:#0f141c;--card:#171e29;--ink:#e6eaf2;--soft:#98a2b3;--grid:#2a3342;
--fault:#f9706633;--fault-ink:#fda29b;--c0:#6ea0ff;--c1:#ff9a57;--c2:#5fd08a;--c3:#c084fc;--c4:#4fc3d9;--c5:#e0b84a;
--c6:#f472b6;--c7:#94a3b8;--good:#4f9a5f;--skip:#c9973a;--bad:#e5666b;--denied:#6f7280;--heat:110,160,255}}
svg.plot{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;max-width:100%;height:auto;display:block}
svg.plot text{fill:var(--soft)} svg.plot .name{fill:var(--ink)} svg.plot .grid{stroke:var(--grid);stroke-width:1}
svg.plot .line{fill:none;stroke-width:1.8;stroke-linejoin:round} svg.plot .fault{fill:var(--fault)}
svg.plot .fault-edge{stroke:var(--fault-ink);stroke-width:1;stroke-dasharray:3 3}
svg.plot .fault-name{fill:var(--fault-ink)}
svg.plot .spread{opacity:.22}
.at-narrow{display:none}
@media(max-width:700px){svg.plot.wide{min-width:640px}.at-wide{display:none}.at-narrow{display:block}}
"""


@dataclass(frozen=True)
class Series:
    name: str
    x: np.ndarray
    y: np.ndarray
    color: str = ""
    spread: tuple[np.ndarray, np.ndarray] | None = None  # an area around the line: its lower and its upper edge


@dataclass(frozen=True)
class Band:
    """A span of the x axis during which something was broken."""

    start: float
    end: float
    label: str


def color(i: int) -> str:
    return f"var(--c{i % 8})"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover a range."""
    if not math.isfinite(low) or not math.isfinite(high) or high <= low:
        return [low]
    raw = (high - low) / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    if value and abs(value) < 0.01:
        return f"{value:.1e}"
    text = f"{value:,.2f}".rstrip("0").rstrip(".") if abs(value) < 10 else f"{value:,.6g}"
    return text if abs(value) < 10 or "." not in text else f"{value:,.1f}".rstrip("0").rstrip(".")


class _Axes:
    """Where a number lies on the picture."""

    def __init__(
        self, x: tuple[float, float], y: tuple[float, float], width: int, height: int, log_x: bool = False,
        log_y: bool = False,
    ) -> None:  # fmt: skip
        self.log_x, self.log_y = log_x, log_y
        self.x0, self.x1 = (math.log10(x[0]), math.log10(x[1])) if log_x else x
        self.y0, self.y1 = (math.log10(y[0]), math.log10(y[1])) if log_y else y
        self.width, self.height = width, height
        self.inner = width - LEFT - RIGHT
        self.depth = height - TOP - BOTTOM

    def at_x(self, value: Any) -> Any:
        value = np.log10(np.maximum(value, 1e-12)) if self.log_x else np.asarray(value, dtype=float)
        return LEFT + (value - self.x0) / ((self.x1 - self.x0) or 1) * self.inner

    def at_y(self, value: Any) -> Any:
        value = np.log10(np.maximum(value, 1e-12)) if self.log_y else np.asarray(value, dtype=float)
        return TOP + (self.y1 - value) / ((self.y1 - self.y0) or 1) * self.depth

    def frame(self, x_label: str, y_label: str, whole_x: bool = False) -> str:
        parts = []
        for value in _log_ticks(self.y0, self.y1) if self.log_y else ticks(self.y0, self.y1):
            y = float(self.at_y(value))
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
        marks = _log_ticks(self.x0, self.x1) if self.log_x else ticks(self.x0, self.x1, 7)
        for value in [one for one in marks if not whole_x or float(one).is_integer()]:
            x = float(self.at_x(value))
            parts.append(
                f'<text x="{x:.1f}" y="{self.height - BOTTOM + 18}" text-anchor="middle">{short(value)}</text>'
            )
        base = self.height - BOTTOM
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{base}" y2="{base}"/>')
        middle = LEFT + self.inner / 2
        parts.append(f'<text x="{middle:.0f}" y="{self.height - 6}" text-anchor="middle">{html.escape(x_label)}</text>')
        spot = f'x="14" y="{TOP + self.depth / 2:.0f}" transform="rotate(-90 14 {TOP + self.depth / 2:.0f})"'
        parts.append(f'<text {spot} text-anchor="middle">{html.escape(y_label)}</text>')
        return "".join(parts)


def _log_ticks(low: float, high: float) -> list[float]:
    found = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
    return [value for value in found if low - 1e-9 <= math.log10(value) <= high + 1e-9]


def at_both_widths(draw: Callable[[int], str]) -> str:
    """A plot drawn twice: as wide as a page, and as narrow as a telephone; the style shows one of them."""
    return f'<div class="at-wide">{draw(WIDTH)}</div><div class="at-narrow">{draw(NARROW)}</div>'


def _open(width: int, height: int, extra: str = "") -> str:
    """A plot as wide as a page scrolls on a telephone: shrunk to that width it would be unreadable."""
    kind = "plot wide" if width >= WIDTH else "plot"
    return f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"{extra}>'


def _thin(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fewer points with the same shape: of each stretch its least and its most, in their order."""
    if len(x) <= MAX_POINTS:
        return x, y
    keep: list[int] = []
    for part in np.array_split(np.arange(len(x)), MAX_POINTS // 2):
        known = part[np.isfinite(y[part])]
        keep += (
            sorted({int(known[np.argmin(y[known])]), int(known[np.argmax(y[known])])}) if len(known) else [int(part[0])]
        )
    return x[keep], y[keep]


def _path(axes: _Axes, x: np.ndarray, y: np.ndarray) -> str:
    """A line through all points that are numbers, with a gap where one is not."""
    strokes: list[list[str]] = [[]]
    for a, b in zip(axes.at_x(x).tolist(), axes.at_y(y).tolist(), strict=True):
        if math.isfinite(b):
            strokes[-1].append(f"{a:.1f},{b:.1f}")
        elif strokes[-1]:
            strokes.append([])
    return "".join("M" + "L".join(points) for points in strokes if points)


def _union(bands: Sequence[Band]) -> list[tuple[float, float]]:
    """The stretches in which at least one of them holds: shades that add up would hide the lines."""
    stretches: list[tuple[float, float]] = []
    for start, end in sorted((band.start, band.end) for band in bands):
        if stretches and start <= stretches[-1][1]:
            stretches[-1] = (stretches[-1][0], max(stretches[-1][1], end))
        else:
            stretches.append((start, end))
    return stretches


def _bands(axes: _Axes, bands: Sequence[Band], unit: str, is_shaded: bool = True) -> tuple[str, int]:
    """Shade what was broken, with a line where each began, and its name above the plot if there is room for it. Returns
    how high the names are too. Layers of colour are not shaded: that would make colours that no legend has."""
    bands = [band for band in bands if band.start <= axes.x1][:MAX_BANDS]
    right = LEFT + axes.inner
    parts = []
    for start, end in _union(bands) if is_shaded else []:
        a, b = (float(axes.at_x(min(max(x, axes.x0), axes.x1))) for x in (start, end))
        spot = f'x="{a:.1f}" y="{TOP}" width="{max(b - a, 1):.1f}" height="{axes.depth}"'
        parts.append(f'<rect class="fault" {spot}/>')
    free_from = [0.0] * NAME_ROWS  # of each row of names
    named: set[str] = set()
    for band in bands:
        a = float(axes.at_x(max(band.start, axes.x0)))
        when = f"{short(band.start)} to {short(band.end)} {unit}"
        about = f"<title>{html.escape(f'{band.label}: {when}')}</title>"
        edge = f'x1="{a:.1f}" x2="{a:.1f}" y1="{TOP}" y2="{TOP + axes.depth}"'
        parts.append(f'<line class="fault-edge" {edge}>{about}</line>')
        # Without room to the right of its line a name ends with the plot: on the left it would be in another band.
        width = 4 + 6.5 * len(band.label)
        x = min(a + 4, right - width)
        rows = [row for row, free in enumerate(free_from) if free <= x]
        if band.label in named or not rows:
            continue
        named.add(band.label)
        free_from[rows[0]] = x + width
        y = TOP - 4 - NAME_ROW * rows[0]
        parts.append(f'<text class="fault-name" x="{x:.1f}" y="{y}">{html.escape(band.label)}</text>')
    return "".join(parts), NAME_ROW * sum(free > 0 for free in free_from)


def _legend(names: Sequence[str], colors: Sequence[str], width: int) -> tuple[str, int]:
    """Names above the plot, in as many rows as they need."""
    parts, x, y = [], LEFT, 12
    for name, ink in zip(names, colors, strict=True):
        size = 34 + 7 * len(name)
        if x + size > width and x > LEFT:
            x, y = LEFT, y + 18
        parts.append(f'<rect x="{x}" y="{y - 9}" width="12" height="10" rx="2" style="fill:{ink}"/>')
        parts.append(f'<text class="name" x="{x + 17}" y="{y}">{html.escape(name)}</text>')
        x += size
    return "".join(parts), y + 8


def line_chart(
    series: Sequence[Series], x_label: str, y_label: str, bands: Sequence[Band] = (), *,
    y_max: float | None = None, log_x: bool = False, log_y: bool = False, whole_x: bool = False, height: int = HEIGHT,
    width: int = WIDTH,
) -> str:  # fmt: skip
    """Lines over a common x axis, from zero (`log_y`: from their least value), with what was broken behind them."""
    series = [one for one in series if len(one.x)]
    if not series:
        return ""
    low = min(float(one.x.min()) for one in series)
    high = max(float(one.x.max()) for one in series)
    drawn = [edge for one in series for edge in (one.y, *(one.spread or ()))]
    known = [y[np.isfinite(y)] for y in drawn]
    top = y_max or max((float(y.max()) for y in known if len(y)), default=0.0) * 1.06 or 1.0
    base = min((float(y.min()) for y in known if len(y)), default=0.1) if log_y else 0.0
    axes = _Axes((max(low, 1e-9) if log_x else low, high), (base, top), width, height, log_x, log_y)
    inks = [one.color or color(i) for i, one in enumerate(series)]
    legend, room = _legend([one.name for one in series], inks, width)
    shades, names = _bands(axes, bands, x_label)
    room += names
    labels = [label + (", logarithmic" if is_log else "") for label, is_log in ((x_label, log_x), (y_label, log_y))]
    body = axes.frame(labels[0], labels[1], whole_x) + shades
    data = []
    for one, ink in zip(series, inks, strict=True):
        if one.spread is not None:
            lower, upper = one.spread
            outline = _path(axes, np.concatenate([one.x, one.x[::-1]]), np.concatenate([upper, lower[::-1]]))
            body += f'<path class="spread" style="fill:{ink}" d="{outline}Z"/>'
        x, y = _thin(one.x, one.y)
        body += f'<path class="line" style="stroke:{ink}" d="{_path(axes, x, y)}"/>'
        heights = [None if not math.isfinite(value) else round(value, 4) for value in y.tolist()]
        data.append({"name": one.name, "x": np.round(x, 3).tolist(), "y": heights})
    about = {
        "x0": axes.x0,
        "x1": axes.x1,
        "log": log_x,
        "left": LEFT,
        "inner": axes.inner,
        "unit": x_label,
        "series": data,
    }
    return (
        _open(width, height + room, _exported(about)) + legend + f'<g transform="translate(0 {room})">{body}</g></svg>'
    )


def cdf_chart(series: Sequence[Series], x_label: str) -> str:
    """The share of all flows that were done by then; one that never was is none, and the line ends below 1. `y` of the
    series is not used."""
    lines = []
    for i, one in enumerate(series):
        values = np.sort(one.x[np.isfinite(one.x)])
        if len(values):
            share = np.arange(1, len(values) + 1) / len(one.x)
            x = np.concatenate([[values[0]], np.repeat(values, 2)[1:], [values[-1]]])
            y = np.concatenate([[0.0], np.repeat(share, 2)[:-1], [share[-1]]])
            lines.append(Series(one.name, x, y, one.color or color(i)))
    if not lines:
        return ""
    low, high = min(line.x.min() for line in lines), max(line.x.max() for line in lines)
    log_x = bool(low > 0 and high / low > 12)
    if not log_x:  # from 0, or the fastest would lie on the axis
        lines = [Series(one.name, np.r_[0.0, one.x], np.r_[0.0, one.y], one.color) for one in lines]
    return line_chart(lines, x_label, "share of flows", y_max=1.0, log_x=log_x)


def stacked_chart(
    x: np.ndarray, parts: Sequence[tuple[str, np.ndarray, str]], x_label: str, y_label: str, bands: Sequence[Band] = (),
    *, width: int = WIDTH,
) -> str:  # fmt: skip
    """Layers that add up."""
    if not len(x):
        return ""
    total = np.sum([part for _, part, _ in parts], axis=0)
    axes = _Axes((float(x.min()), float(x.max())), (0.0, float(total.max()) or 1.0), width, HEIGHT)
    legend, room = _legend([name for name, _, _ in parts], [ink for _, _, ink in parts], width)
    body = ""
    below = np.zeros(len(x))
    for _, part, ink in parts:
        above = below + part
        outline = _path(axes, np.concatenate([x, x[::-1]]), np.concatenate([above, below[::-1]]))
        body += f'<path style="fill:{ink}" d="{outline}Z"/>'
        below = above
    edges, names = _bands(axes, bands, x_label, is_shaded=False)
    body += axes.frame(x_label, y_label) + edges
    room += names
    return _open(width, HEIGHT + room) + legend + f'<g transform="translate(0 {room})">{body}</g></svg>'


def bar_chart(
    names: Sequence[str], values: Sequence[float], unit: str, colors: Sequence[str] = (), words: Sequence[str] = ()
) -> str:
    """Bars one below the other, from zero, each with its name and its number, or with these words for it."""
    top = max(values, default=0.0) or 1.0
    row, left = 26, 16 + 7 * max((len(name) for name in names), default=0)
    height = row * len(names) + 8
    parts = []
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        y = 4 + i * row
        width = (WIDTH - left - 110) * value / top
        ink = colors[i] if i < len(colors) else color(0)
        said = words[i] if i < len(words) else f"{short(value)} {unit}"
        parts.append(f'<text class="name" x="{left - 8}" y="{y + 16}" text-anchor="end">{html.escape(name)}</text>')
        parts.append(f'<rect x="{left}" y="{y + 3}" width="{width:.1f}" height="18" rx="3" style="fill:{ink}"/>')
        parts.append(f'<text x="{left + width + 8:.1f}" y="{y + 16}">{html.escape(said)}</text>')
    series = [
        {"name": name, "x": [i], "y": [float(value)]} for i, (name, value) in enumerate(zip(names, values, strict=True))
    ]
    return _open(WIDTH, height, _exported({"unit": unit, "series": series})) + "".join(parts) + "</svg>"


def scatter_chart(
    groups: Sequence[tuple[str, Sequence[float], Sequence[float], Sequence[str]]], x_label: str, y_label: str
) -> str:
    """Points of several kinds, each with its name; both axes begin at zero."""
    groups = [one for one in groups if len(one[1])]
    if not groups:
        return ""
    right, top = (1.06 * max(max(one[1]) for one in groups) or 1.0, 1.06 * max(max(one[2]) for one in groups) or 1.0)
    axes = _Axes((0.0, right), (0.0, top), WIDTH, HEIGHT)
    inks = [color(i) for i in range(len(groups))]
    legend, room = _legend([one[0] for one in groups], inks, WIDTH)
    body, series = axes.frame(x_label, y_label), []
    for (name, xs, ys, words), ink in zip(groups, inks, strict=True):
        for x, y, text in zip(xs, ys, words, strict=True):
            spot = f'cx="{float(axes.at_x(x)):.1f}" cy="{float(axes.at_y(y)):.1f}"'
            about = html.escape(f"{text}: {short(x)} {x_label}; {short(y)} {y_label}")
            body += f'<circle {spot} r="5" style="fill:{ink};opacity:.8"><title>{about}</title></circle>'
        series.append({"name": name, "x": [float(x) for x in xs], "y": [float(y) for y in ys]})
    start = _open(WIDTH, HEIGHT + room, _exported({"unit": x_label, "series": series}))
    return start + legend + f'<g transform="translate(0 {room})">{body}</g></svg>'


def step_chart(x: Sequence[float], y: Sequence[float], name: str, x_label: str, y_label: str, x_end: float) -> str:
    """A line that holds its value until the next point."""
    at, value = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    along = np.append(np.repeat(at, 2)[1:], x_end)
    return line_chart([Series(name, along, np.repeat(value, 2))], x_label, y_label, y_max=max(1.0, float(value.max())))


def _exported(about: dict[str, Any]) -> str:
    """The figures of a plot, for the script that shows them and for other programs."""
    return f" data-plot='{html.escape(json.dumps(about), quote=True)}'"


def heat_map(values: np.ndarray, row_name: str, column_name: str, cell_names: Sequence[str] | None = None) -> str:
    """A cell for each link, the darker the more it carried. Large tables are averaged down to what an eye can see."""
    names = list(cell_names) if cell_names is not None and values.shape[0] <= 64 and values.shape[1] <= 64 else None
    values = _pooled(_pooled(values, 64).T, 64).T
    rows, columns = values.shape
    size = min(22, max(4, 330 // max(rows, columns)))
    left, top = 34, 20
    parts = [f'<text x="{left}" y="13">{html.escape(column_name)} →</text>']
    middle = top + rows * size / 2
    spot = f'x="14" y="{middle:.0f}" transform="rotate(-90 14 {middle:.0f})" text-anchor="middle"'
    parts.append(f"<text {spot}>← {html.escape(row_name)}</text>")
    for r in range(rows):
        for c in range(columns):
            load = float(values[r, c])
            about = names[r * columns + c] if names else f"{row_name} {r}, {column_name} {c}"
            parts.append(
                f'<rect x="{left + c * size}" y="{top + r * size}" width="{size - 1}" height="{size - 1}" rx="2" '
                f'style="fill:rgba(var(--heat),{min(max(load, 0.02), 1):.3f})">'
                f"<title>{html.escape(about)}: {load * 100:.1f} %</title></rect>"
            )
    return _open(left + columns * size + 6, top + rows * size + 6) + "".join(parts) + "</svg>"


def heat_scale() -> str:
    """The legend of the colours of heat maps, shown once for all of them."""
    shades = [0.02, 0.25, 0.5, 0.75, 1.0]
    parts = []
    for i, share in enumerate(shades):
        x = 4 + i * 62
        parts.append(f'<rect x="{x}" y="4" width="14" height="14" rx="2" style="fill:rgba(var(--heat),{share})"/>')
        parts.append(f'<text x="{x + 19}" y="15">{"0" if i == 0 else round(100 * share)} %</text>')
    return _open(4 + 62 * len(shades), 22) + "".join(parts) + "</svg>"


def _pooled(values: np.ndarray, most: int) -> np.ndarray:
    if values.shape[0] <= most:
        return values
    return np.array([part.mean(axis=0) for part in np.array_split(values, most)])


def standalone(svg: str) -> str:
    """The plot as a separate file."""
    svg = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    start = svg.index(">") + 1
    head = svg[:start]
    if (at := head.find(" data-plot='")) >= 0:
        head = head[:at] + ">"
    back = '<rect width="100%" height="100%" style="fill:var(--bg)"/>'
    return f"{head}<style>{STYLE}</style>{back}{svg[start:]}\n"
