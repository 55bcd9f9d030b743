"""A picture of `bench_examples.py`'s results: how near each example and its alternatives come to the hardware's floor.

    python benchmarks/plot_examples.py benchmarks/results/FILE.json docs/pictures/FILE.svg

Plain SVG, no dependency. A bar of 100% would move every byte once at the memory's full rate, or do every operation at
the tensor cores' full rate; nothing is faster than that.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.sax.saxutils import escape

CONTENDERS = {"ours": "#2563eb", "eager": "#d4d4d8", "compiled": "#a1a1aa", "library": "#52525b"}
LABELS = {"ours": "kernel file", "eager": "PyTorch eager", "compiled": "torch.compile", "library": "vendor library"}
LABEL_WIDTH, BAR_WIDTH, BAR_HEIGHT, ROW_GAP, TOP = 330, 520, 9, 9, 64


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} RESULTS.json PICTURE.svg")
    results = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(picture(results))


def picture(results: dict[str, object]) -> str:
    measurements = next(value for value in results.values() if isinstance(value, list))
    shapes: list[str] = []
    y = TOP
    for measurement in measurements:
        medians = measurement["median_us"]
        contenders = [name for name in CONTENDERS if medians.get(name)]
        title = f"{measurement['case']}  {measurement['size']}"
        middle = y + len(contenders) * BAR_HEIGHT / 2 + 4
        shapes.append(f'<text x="{LABEL_WIDTH - 8}" y="{middle:.0f}" text-anchor="end">{escape(title)}</text>')
        for name in contenders:
            fraction = measurement["floor_us"] / medians[name]
            width = max(fraction * BAR_WIDTH, 1)
            place = f'x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT - 1}"'
            shapes.append(f'<rect {place} fill="{CONTENDERS[name]}"/>')
            if name == "ours":
                label = f"{medians[name]:.0f} us"
                shapes.append(f'<text x="{LABEL_WIDTH + width + 4:.0f}" y="{y + 8}" class="small">{label}</text>')
            y += BAR_HEIGHT
        y += ROW_GAP
    return _page(results, shapes, y)


def _page(results: dict[str, object], shapes: list[str], height: int) -> str:
    width = LABEL_WIDTH + BAR_WIDTH + 60
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 20}" font-family="sans-serif">',
        "<style>text{font-size:12px;fill:#27272a}.small{font-size:9px}.title{font-size:14px;font-weight:bold}</style>",
        f'<rect width="{width}" height="{height + 20}" fill="white"/>',
        f'<text x="12" y="22" class="title">Share of the hardware floor reached, {escape(str(results["gpu"]))}, '
        f"{escape(str(results['date'])[:10])}</text>",
    ]
    x = LABEL_WIDTH
    for name, colour in CONTENDERS.items():
        head.append(f'<rect x="{x}" y="34" width="10" height="10" fill="{colour}"/>')
        head.append(f'<text x="{x + 14}" y="43">{LABELS[name]}</text>')
        x += 130
    for percent in (25, 50, 75, 100):
        at = LABEL_WIDTH + percent / 100 * BAR_WIDTH
        head.append(f'<line x1="{at}" y1="58" x2="{at}" y2="{height}" stroke="#e4e4e7"/>')
        head.append(f'<text x="{at}" y="{height + 14}" text-anchor="middle" class="small">{percent}%</text>')
    return "\n".join([*head, *shapes, "</svg>\n"])


if __name__ == "__main__":
    main()
