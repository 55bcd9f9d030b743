"""Pictures as SVG: the charts' common pieces, a run, a roofline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from tilewright.frontends.report.runs import Row, is_measured, kind_words, microseconds, rows
from tilewright.records import Measured, Run

INK, FAINT, GOOD, DOT, BAD, GREY = "#1f2933", "#d5dbe1", "#0b7a4b", "#2f6fb5", "#c2452d", "#5b6770"


def page(width: float, height: float, title: str, subtitle: str, left: float, body: Iterable[str]) -> str:
    """A whole picture, with a title and a line below it."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" font-family="system-ui, sans-serif" font-size="12" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
            text(left, 26, title, size=16, anchor="start"),
            text(left, 44, subtitle, colour=GREY, anchor="start"),
            *body,
            "</svg>\n",
        ]
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashed}/>'


def text(x: float, y: float, what: str, *, colour: str = INK, anchor: str = "middle", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">{escape(what)}</text>'
    )


def rectangle(x: float, y: float, width: float, height: float, colour: str, edge: str = "none") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{colour}" stroke="{edge}"/>'


def dot(x: float, y: float, colour: str, radius: float = 4) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>'


def titled(title: str, *marks: str) -> str:
    """Marks that say something when they are pointed at."""
    return f"<g><title>{escape(title)}</title>{''.join(marks)}</g>"


class Chart:
    """A picture with axes, which go from `x[0]` to `x[1]` and from `y[0]` at the bottom to `y[1]`.

    `margins`: left, right, top and bottom. `logs`: the axes on which equal ratios lie equally far apart.
    """

    def __init__(
        self,
        size: tuple[float, float],
        margins: tuple[float, float, float, float],
        x: tuple[float, float],
        y: tuple[float, float] = (0.0, 1.0),
        logs: str = "",
    ) -> None:
        self.width, self.height = size
        self.left, self.right = margins[0], self.width - margins[1]
        self.top, self.bottom = margins[2], self.height - margins[3]
        self.body: list[str] = []
        self._x, self._y, self._logs = x, y, logs

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * _share(value, *self._x, "x" in self._logs)

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * _share(value, *self._y, "y" in self._logs)

    def upright(self, value: float, label: str = "", colour: str = FAINT, dashes: str = "") -> None:
        """A line across the whole height, with its label below."""
        self.body.append(line(self.x(value), self.top, self.x(value), self.bottom, colour, dashes))
        self.body.append(text(self.x(value), self.bottom + 18, label))

    def level(self, value: float, label: str = "", colour: str = FAINT, dashes: str = "") -> None:
        """A line across the whole width, with its label on the left."""
        self.body.append(line(self.left, self.y(value), self.right, self.y(value), colour, dashes))
        self.body.append(text(self.left - 8, self.y(value) + 4, label, anchor="end"))

    def curve(self, points: Iterable[tuple[float, float]], colour: str) -> None:
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')

    def legend(self, *named: tuple[str, str]) -> None:
        """Names with their colours, in a row below the title."""
        for number, (name, colour) in enumerate(named):
            place = self.left + 150 * number
            self.body += [dot(place, 58, colour), text(place + 10, 62, name, anchor="start")]

    def page(self, title: str, subtitle: str, left: float = 24) -> str:
        return page(self.width, self.height, title, subtitle, left, self.body)


def _share(value: float, low: float, high: float, log: bool) -> float:
    return math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)


# -- a run: the time of each attempt --

_MARGINS = (76, 24, 56, 52)
_MOST_INTERVALS = 80  # of more attempts they would touch each other, and each takes time to work out


def svg_plot(run: Run) -> str:
    """The whole run: a dot for each time, a cross for what was rejected, a line for the best so far, the roofline."""
    shown, best = rows(run), run.best
    floor_us = best.measurement.floor_us if best and best.measurement else 0.0
    kind = kind_words(is_measured(run.attempts))
    count = max(len(shown), 1)
    top_us = 1.08 * max([*(row.time_us or 0.0 for row in shown), floor_us, 1e-3])
    chart = Chart((760, 420), _MARGINS, (0.5, count + 0.5), (0.0, top_us))
    step = _round_step(top_us / 5)
    for tick in range(int(top_us / step) + 1):
        chart.level(tick * step, f"{tick * step:g}")
    for number in range(1, count + 1, max(1, round(count / 20))):
        chart.body.append(text(chart.x(number), chart.bottom + 18, str(number)))
    chart.body.append(text((chart.left + chart.right) / 2, chart.height - 12, "attempt"))
    label = text(0, 0, f"{kind} time, us")
    chart.body.append(f'<g transform="translate(18 {(chart.top + chart.bottom) / 2:.1f}) rotate(-90)">{label}</g>')
    if floor_us:
        chart.level(floor_us, colour=INK, dashes="5 4")
        caption = f"roofline {microseconds(floor_us)} us"
        chart.body.append(text(chart.right, chart.y(floor_us) - 6, caption, anchor="end"))
    kept = [(float(row.attempt.number), row.time_us) for row in shown if row.kept and row.time_us is not None]
    if kept:
        ends = [*(number for number, _ in kept[1:]), count + 0.5]
        steps = (((number, time), (end, time)) for (number, time), end in zip(kept, ends, strict=True))
        chart.curve([point for pair in steps for point in pair], GOOD)
    for row in shown:
        chart.body += _attempt_marks(chart, row, len(shown) <= _MOST_INTERVALS)
    title = f"{run.task.name} on {run.task.gpu}: {kind} time by attempt"
    return chart.page(title, f"run {run.id}, author {run.settings.author}", chart.left)


def _attempt_marks(chart: Chart, row: Row, intervals: bool) -> Iterator[str]:
    attempt, x = row.attempt, chart.x(row.attempt.number)
    caption = f"{attempt.number}: {attempt.stage.value}, {row.verdict}. {attempt.summary}"
    if row.time_us is None:
        y, colour = chart.bottom - 8, DOT if attempt.passed else BAD
        cross = f'<path d="M{x - 5:.1f},{y - 5} l10,10 m0,-10 l-10,10" stroke="{colour}" stroke-width="2"/>'
        yield titled(caption, cross)
        return
    marks = [dot(x, chart.y(row.time_us), GOOD if row.kept else DOT, 6 if row.best else 4)]
    if intervals and isinstance(attempt.measurement, Measured):
        lies = attempt.measurement.kernel.interval_us
        low, high = chart.y(lies.low), chart.y(lies.high)
        marks.append(line(x, low, x, high, INK))
        marks += [line(x - 4, end, x + 4, end, INK) for end in (low, high)]
    yield titled(caption, *marks)
    if row.best:
        yield text(x, chart.y(row.time_us) - 12, f"{microseconds(row.time_us)} us", colour=GOOD)


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, the first not below `rough`."""
    power = 1e-6
    while power * 10 <= rough:
        power *= 10
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough or factor == 10.0)


# -- a kernel under the roofline --


@dataclass(frozen=True)
class Roofline:
    """What was counted of a kernel, and what its GPU could do at best."""

    gpu: str
    bandwidth_gbs: float
    peaks: tuple[tuple[str, float], ...]  # kind of arithmetic, TFLOP/s; those that the kernel uses
    operations: float
    bytes: float
    time_us: float
    time_is: str  # "measured" or "modelled"
    floor_us: float  # the operation's roofline, which texts tell percentages of: the least work, and one launch

    @property
    def intensity(self) -> float:
        return self.operations / self.bytes

    @property
    def ridge(self) -> float:
        """The intensity from which on arithmetic is the limit."""
        return max(peak for _, peak in self.peaks) * 1e3 / self.bandwidth_gbs

    @property
    def roof(self) -> float:
        """The same operations in the time of the roofline, in TFLOP/s."""
        return self.operations / (self.floor_us * 1e6)

    @property
    def share_words(self) -> str:
        """`12%`, and never `0%`: as texts tell it, so that picture and text cannot differ."""
        share = self.floor_us / self.time_us
        return f"{share:.0%}" if share >= 0.01 else "less than 1%"

    @property
    def tflops(self) -> float:
        return self.operations / (self.time_us * 1e6)


def roofline_picture(roofline: Roofline) -> str:
    """Slanted: what the memory lets through. Level: what each kind of arithmetic can do. The dot is the kernel.

    The mark over it is the roofline of its operation: below the lines, because it counts one launch.
    """
    here, bandwidth = roofline.intensity, roofline.bandwidth_gbs / 1e3
    low, high = min(here, roofline.ridge) / 10, max(here, roofline.ridge) * 10
    top = 2.5 * max(roofline.roof, *(peak for _, peak in roofline.peaks))
    bottom = min(roofline.tflops / 4, low * bandwidth)
    chart = Chart((620, 380), _MARGINS, (low, high), (bottom, top), logs="xy")
    for tick in _decades(low, high):
        chart.upright(tick, f"{tick:g}")
    for tick in _decades(bottom, top):
        chart.level(tick, f"{tick:g}")
    x, y, body = chart.x(here), chart.y, chart.body
    middle = (chart.left + chart.right) / 2
    body.append(text(middle, chart.height - 12, "operations for each byte of device memory"))
    for name, peak in roofline.peaks:
        chart.curve([(low, low * bandwidth), (peak / bandwidth, peak), (high, peak)], DOT)
        body.append(text(chart.right, y(peak) - 6, f"{name}: {peak:g} TFLOP/s", anchor="end"))
    body.append(line(x, y(roofline.tflops), x, y(roofline.roof), INK, dashes="5 4"))
    body.append(line(x - 9, y(roofline.roof), x + 9, y(roofline.roof), INK))
    body.append(text(x - 14, y(roofline.roof) + 4, f"roofline {microseconds(roofline.floor_us)} us", anchor="end"))
    caption = f"{roofline.tflops:.3g} TFLOP/s in {microseconds(roofline.time_us)} us {roofline.time_is}"
    body.append(titled(caption, dot(x, y(roofline.tflops), GOOD, 6)))
    share = f"{roofline.share_words} of the roofline"
    body.append(text(x + 12, y(roofline.tflops) + 5, share, colour=GOOD, anchor="start"))
    under = f"{roofline.bandwidth_gbs:,.0f} GB/s; time {roofline.time_is}, counts emulated"
    return chart.page(f"Roofline of {roofline.gpu}", f"TFLOP/s by operations a byte, {under}", chart.left)


def _decades(low: float, high: float) -> list[float]:
    """The powers of ten in between."""
    return [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
