"""A picture of `bench_model.py`'s rows: modelled over measured time, both logarithmic. Plain SVG, no dependency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

COLOURS = {
    "device memory": "#2563eb",
    "latency": "#d97706",
    "issue slots": "#16a34a",
    "tensor cores": "#7c3aed",
    "L1 and shared memory": "#dc2626",
    "L2 cache": "#0891b2",
}
OTHER = "#71717a"
SIDE, LEFT, TOP = 560, 70, 50


def picture(points: Sequence[tuple[float, float, str]], gpu: str) -> str:
    """Points are measured and modelled microseconds and what binds; the lines are equality and a factor of 1.3."""
    low = math.floor(math.log10(min(min(one[:2]) for one in points)))
    high = math.ceil(math.log10(max(max(one[:2]) for one in points)))

    def at(value: float) -> float:
        return (math.log10(value) - low) / (high - low) * SIDE

    shapes = []
    for power in range(low, high + 1):
        place = at(10.0**power)
        shapes.append(f'<path d="M{LEFT} {TOP + SIDE - place}h{SIDE}M{LEFT + place} {TOP}v{SIDE}" stroke="#e4e4e7"/>')
        shapes.append(f'<text x="{LEFT + place}" y="{TOP + SIDE + 16}" text-anchor="middle">{10**power:g}</text>')
        shapes.append(f'<text x="{LEFT - 6}" y="{TOP + SIDE - place + 4}" text-anchor="end">{10**power:g}</text>')
    for factor, dash in ((1.0, ""), (1.3, "4"), (1 / 1.3, "4")):
        shift = math.log10(factor) / (high - low) * SIDE
        line = f"M{LEFT} {TOP + SIDE - shift}L{LEFT + SIDE} {TOP - shift}"
        shapes.append(f'<path d="{line}" stroke="#a1a1aa" stroke-dasharray="{dash}"/>')
    for measured, modelled, bound in points:
        place = f'cx="{LEFT + at(measured):.1f}" cy="{TOP + SIDE - at(modelled):.1f}"'
        shapes.append(f'<circle {place} r="3" fill="{COLOURS.get(bound, OTHER)}" fill-opacity="0.6"/>')
    for number, (name, colour) in enumerate({**COLOURS, "other": OTHER}.items()):
        y = TOP + 14 + 16 * number
        shapes.append(f'<circle cx="{LEFT + 14}" cy="{y - 4}" r="4" fill="{colour}"/>')
        shapes.append(f'<text x="{LEFT + 24}" y="{y}">{escape(name)}</text>')
    width, height = LEFT + SIDE + 20, TOP + SIDE + 46
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        "<style>text{font-size:12px;fill:#27272a}</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="22">Modelled and measured time, us, {escape(gpu)}: {len(points)} kernels</text>',
        f'<text x="{LEFT + SIDE / 2}" y="{TOP + SIDE + 36}" text-anchor="middle">measured</text>',
        f'<text x="12" y="{TOP - 10}">modelled</text>',
    ]
    return "\n".join([*head, *shapes, "</svg>\n"])
