"""Draws docs/demo.svg, the README's picture, from a run of the demo: goodput by plane while one of them dies."""

from __future__ import annotations

import sys
from pathlib import Path

from softmrc.demo import engine as demo

WIDTH, HEIGHT = 520, 290  # readable on a telephone
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 56, 46
STYLE = """<style>
  .back { fill: #ffffff; } text { fill: #1d2433; } .grid { stroke: #00000022; }
  @media (prefers-color-scheme: dark) { .back { fill: #1b1f2a; } text { fill: #e6eaf2; } .grid { stroke: #ffffff33; } }
</style>"""
COLOURS = ("#4c78a8", "#72b7b2", "#f58518", "#54a24b")


def draw(result: demo.DemoResult) -> str:
    planes, bins = result.goodput_bps.shape
    full = demo.PLANE_RATE_BPS * planes
    plot_w, plot_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(us: float) -> float:
        return LEFT + us / result.simulated_us * plot_w

    def y(bps: float) -> float:
        return TOP + plot_h * (1 - bps / full)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="14">',
        STYLE,
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text x="{LEFT}" y="20" font-size="15" font-weight="bold">'
        f"Plane {demo.LOST_PLANE} fails; the connection goes on</text>",
    ]
    base = [0.0] * bins
    for plane in range(planes):
        top = [b + v for b, v in zip(base, result.goodput_bps[plane], strict=True)]
        edges = [(x(i * result.bin_us), x((i + 1) * result.bin_us)) for i in range(bins)]
        upper = " ".join(f"{px:.1f},{y(top[i]):.1f}" for i, pair in enumerate(edges) for px in pair)
        backwards = reversed(list(enumerate(edges)))
        lower = " ".join(f"{px:.1f},{y(base[i]):.1f}" for i, pair in backwards for px in reversed(pair))
        parts.append(f'<polygon points="{upper} {lower}" fill="{COLOURS[plane % len(COLOURS)]}" fill-opacity="0.9"/>')
        base = top
    for gbps in range(0, full // 10**9 + 1, 100):
        py = y(gbps * 1e9)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py:.1f}" y2="{py:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{py + 4:.1f}" text-anchor="end">{gbps}</text>')
    for us in range(0, int(result.simulated_us) + 1, 400):
        parts.append(f'<text x="{x(us):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{us}</text>')
    cut = x(result.plane_lost_us)
    parts += [
        f'<line x1="{cut:.1f}" x2="{cut:.1f}" y1="{TOP - 8}" y2="{HEIGHT - BOTTOM}" stroke="#c0392b" '
        'stroke-width="1.5" stroke-dasharray="5 3"/>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">simulated time, µs</text>',
        f'<text x="16" y="{TOP + plot_h / 2}" transform="rotate(-90 16 {TOP + plot_h / 2})" '
        'text-anchor="middle">goodput, Gb/s</text>',
    ]
    for plane in range(planes):
        px = LEFT + plane * 96
        parts.append(f'<rect x="{px}" y="32" width="11" height="11" fill="{COLOURS[plane % len(COLOURS)]}"/>')
        parts.append(f'<text x="{px + 16}" y="42">plane {plane}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "docs" / "demo.svg"
    target.write_text(draw(demo.run(bins=160)))
