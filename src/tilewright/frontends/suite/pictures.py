"""A suite as two pictures: every kernel beside its baselines, and the fraction of tasks beyond each speedup."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.frontends import svg
from tilewright.suites.statistics import BASELINES, COMPILED, EAGER, fast_p, speedup
from tilewright.suites.suite_records import Suite, TaskRecord

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 860, 300, 40, 72, 40
_ROW = 18
_CURVES = (700, 420, 60, 40)  # width, height, left, right
_COLOURS = dict(zip(BASELINES, (svg.DOT, svg.BAD, svg.GOOD), strict=True))
Across = Callable[[float], float]  # from a speedup to a place
_MOST, _LEAST = 64.0, 0.125  # speedups that a picture tells apart


def speedup_picture(suite: Suite, records: tuple[TaskRecord, ...]) -> str:
    """A row for each kernel with baselines: how many times as fast as eager and as torch.compile, on a log scale."""
    rows = [(one, {name: speedup(one, name) for name in (EAGER, COMPILED)}) for one in records]
    rows = [(one, ratios) for one, ratios in rows if any(ratios.values())]
    found = [_bounded(ratio) for _, ratios in rows for ratio in ratios.values() if ratio is not None]
    low = 2.0 ** math.floor(math.log2(min([*found, 0.5])))
    high = 2.0 ** math.ceil(math.log2(max([*found, 2.0])))
    height = TOP + _ROW * max(len(rows), 1) + BOTTOM

    def x(ratio: float) -> float:
        place = math.log(_bounded(ratio) / low) / math.log(high / low)
        return LEFT + (WIDTH - LEFT - RIGHT) * place

    body = _scale(x, low, high, height)
    for number, (record, ratios) in enumerate(rows):
        body += _row(record, ratios, TOP + _ROW * (number + 0.5), x)
    title = f"{suite.title} on {suite.gpu}: speedup of each kernel"
    return svg.page(WIDTH, height, title, f"author {suite.settings.author}; further right is faster", 24, body)


def _bounded(ratio: float) -> float:
    return min(max(ratio, _LEAST), _MOST)


def _scale(x: Across, low: float, high: float, height: float) -> list[str]:
    parts = []
    ratio = low
    while ratio <= high:
        colour, dashes = (svg.INK, "5 4") if ratio == 1.0 else (svg.FAINT, "")
        parts.append(svg.line(x(ratio), TOP, x(ratio), height - BOTTOM, colour, dashes))
        parts.append(svg.text(x(ratio), height - BOTTOM + 18, f"{ratio:g}x"))
        ratio *= 2.0
    for number, name in enumerate((EAGER, COMPILED)):
        place = LEFT + 150 * number
        parts += [svg.dot(place, 58, _COLOURS[name]), svg.text(place + 10, 62, f"over {name}", anchor="start")]
    return parts


def _row(record: TaskRecord, ratios: dict[str, float | None], y: float, x: Across) -> list[str]:
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    said = ", ".join(f"{ratio:.2f}x {name}" for name, ratio in known.items())
    marks = [svg.line(x(1.0), y, x(max(known.values(), key=lambda one: abs(math.log(one)))), y, svg.FAINT)]
    marks += [svg.dot(x(ratio), y, _COLOURS[name]) for name, ratio in known.items()]
    label = svg.text(LEFT - 12, y + 4, record.name[:44], anchor="end", size=11)
    return [label, svg.titled(f"{record.name}: {said}", *marks)]


def fast_picture(suite: Suite, records: tuple[TaskRecord, ...]) -> str:
    """fast_p from 0 to 4: the fraction of all tasks whose kernel is right and more than p times as fast."""
    width, height, left, right = _CURVES
    tasks, most = len(suite.tasks), 4.0

    def across(p: float) -> float:
        return left + (width - left - right) * p / most

    def up(fraction: float) -> float:
        return height - BOTTOM - (height - TOP - BOTTOM) * fraction

    body = []
    for tenth in range(0, 11, 2):
        body.append(svg.line(left, up(tenth / 10), width - right, up(tenth / 10), svg.FAINT))
        body.append(svg.text(left - 8, up(tenth / 10) + 4, f"{tenth * 10}%", anchor="end"))
    body += [svg.text(across(p / 2), height - BOTTOM + 18, f"{p / 2:g}x") for p in range(9)]
    body.append(svg.line(across(1.0), TOP, across(1.0), height - BOTTOM, svg.INK, "5 4"))
    for number, name in enumerate(BASELINES):
        ratios = [ratio for one in records if (ratio := speedup(one, name)) is not None]
        points = [(across(step / 50), up(fast_p(ratios, step / 50, tasks))) for step in range(int(50 * most) + 1)]
        place = left + 150 * number
        body += [svg.polyline(points, _COLOURS[name]), svg.dot(place, 58, _COLOURS[name])]
        body.append(svg.text(place + 10, 62, f"over {name}", anchor="start"))
    title = f"{suite.title} on {suite.gpu}: fraction of {tasks} tasks beyond each speedup"
    return svg.page(width, height, title, f"author {suite.settings.author}", 24, body)
