"""The pieces that pictures are drawn of: lines, texts, a page. Nothing here knows what is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from tilewright.frontends.report.runs import Row, is_measured, microseconds, rows
from tilewright.records import Measured, Run, Timing

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


def text(x: float, y: float, said: str, *, colour: str = INK, anchor: str = "middle", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">{escape(said)}</text>'
    )


def rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def polyline(points: Iterable[tuple[float, float]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>'


def dot(x: float, y: float, colour: str, radius: float = 4) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>'


def titled(title: str, *marks: str) -> str:
    """Marks that say something when they are pointed at."""
    return f"<g><title>{escape(title)}</title>{''.join(marks)}</g>"


def _timing(row: Row) -> Timing | None:
    """The times of a measured attempt, which scatter."""
    measurement = row.attempt.measurement
    return measurement.kernel if isinstance(measurement, Measured) else None


def _kind(run: Run) -> str:
    return "measured" if is_measured(run.attempts) else "modelled"


def _floor_us(run: Run) -> float:
    best = run.best
    return best.measurement.floor_us if best and best.measurement else 0.0


WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 56, 52
MOST_INTERVALS = 80  # of more attempts they would touch each other, and each takes time to work out


class _Frame:
    """From attempts and microseconds to places on the page."""

    def __init__(self, attempts: int, top_us: float) -> None:
        self.attempts = max(attempts, 1)
        self.top_us = top_us

    def x(self, number: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (number - 0.5) / self.attempts

    def y(self, time_us: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(time_us, self.top_us) / self.top_us


def svg_plot(run: Run) -> str:
    """The whole run: a dot for each time, a cross for what was rejected, a line for the best so far, the roofline."""
    shown = rows(run)
    times = [row.time_us for row in shown if row.time_us is not None]
    frame = _Frame(len(shown), 1.08 * max([*times, _floor_us(run), 1e-3]))
    body = [*_grid(run, frame), *_roofline(run, frame), *_best_line(shown, frame), *_marks(shown, frame)]
    title = f"{run.task.name} on {run.task.gpu}: {_kind(run)} time by attempt"
    return page(WIDTH, HEIGHT, title, f"run {run.id}, author {run.settings.author}", LEFT, body)


def _grid(run: Run, frame: _Frame) -> list[str]:
    parts = []
    step = _round_step(frame.top_us / 5)
    for tick in range(int(frame.top_us / step) + 1):
        y = frame.y(tick * step)
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, FAINT))
        parts.append(text(LEFT - 8, y + 4, f"{tick * step:g}", anchor="end"))
    every = max(1, round(frame.attempts / 20))
    for number in range(1, frame.attempts + 1, every):
        parts.append(text(frame.x(number), HEIGHT - BOTTOM + 18, str(number)))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "attempt"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    label = escape(f"{_kind(run)} time, us")
    parts.append(
        f'<text x="18" y="{middle:.1f}" fill="{INK}" text-anchor="middle" '
        f'transform="rotate(-90 18 {middle:.1f})">{label}</text>'
    )
    return parts


def _roofline(run: Run, frame: _Frame) -> list[str]:
    floor_us = _floor_us(run)
    if not floor_us:
        return []
    y = frame.y(floor_us)
    return [
        line(LEFT, y, WIDTH - RIGHT, y, INK, dashes="5 4"),
        text(WIDTH - RIGHT, y - 6, f"roofline {microseconds(floor_us)} us", anchor="end"),
    ]


def _best_line(shown: tuple[Row, ...], frame: _Frame) -> list[str]:
    points: list[tuple[float, float]] = []
    for row in shown:
        if row.kept and row.time_us is not None:
            if points:
                points.append((frame.x(row.attempt.number), points[-1][1]))
            points.append((frame.x(row.attempt.number), frame.y(row.time_us)))
    if not points:
        return []
    points.append((frame.x(frame.attempts + 0.5), points[-1][1]))
    return [polyline(points, GOOD)]


def _marks(shown: tuple[Row, ...], frame: _Frame) -> list[str]:
    parts = []
    for row in shown:
        x = frame.x(row.attempt.number)
        label = escape(f"{row.attempt.number}: {row.attempt.stage.value}, {row.verdict}. {row.attempt.summary}")
        if row.time_us is None:
            y = HEIGHT - BOTTOM - 8
            colour = DOT if row.attempt.passed else BAD
            mark = f'<path d="M{x - 5:.1f},{y - 5} l10,10 m0,-10 l-10,10" stroke="{colour}" stroke-width="2"/>'
        else:
            colour = GOOD if row.kept else DOT
            mark = f'<circle cx="{x:.1f}" cy="{frame.y(row.time_us):.1f}" r="{6 if row.best else 4}" fill="{colour}"/>'
            timing = _timing(row) if len(shown) <= MOST_INTERVALS else None
            if timing is not None:
                low, high = frame.y(timing.interval_us.low), frame.y(timing.interval_us.high)
                mark += line(x, low, x, high, INK) + line(x - 4, low, x + 4, low, INK)
                mark += line(x - 4, high, x + 4, high, INK)
        parts.append(f"<g><title>{label}</title>{mark}</g>")
        if row.best and row.time_us is not None:
            parts.append(text(x, frame.y(row.time_us) - 12, f"{microseconds(row.time_us)} us", colour=GOOD))
    return parts


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, the first not below `rough`."""
    power = 1e-6
    while power * 10 <= rough:
        power *= 10
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough or factor == 10.0)


_ROOFLINE_SIZE = (620, 380)


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
    def share(self) -> float:
        """The fraction of the roofline that texts tell, so that picture and text cannot differ."""
        return self.floor_us / self.time_us

    @property
    def share_words(self) -> str:
        """`12%`, and never `0%`."""
        return f"{self.share:.0%}" if self.share >= 0.01 else "less than 1%"

    @property
    def tflops(self) -> float:
        return self.operations / (self.time_us * 1e6)


def roofline_picture(found: Roofline) -> str:
    """Slanted: what the memory lets through. Level: what each kind of arithmetic can do. The dot is the kernel.

    The mark over it is the roofline of its operation: below the lines, because it counts one launch.
    """
    width, height = _ROOFLINE_SIZE
    ridge = found.ridge
    low, high = min(found.intensity, ridge) / 10, max(found.intensity, ridge) * 10
    top = 2.5 * max(found.roof, *(peak for _, peak in found.peaks))
    bottom = min(found.tflops / 4, low * found.bandwidth_gbs / 1e3)

    def x(intensity: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * math.log(intensity / low) / math.log(high / low)

    def y(tflops: float) -> float:
        return height - BOTTOM - (height - TOP - BOTTOM) * math.log(tflops / bottom) / math.log(top / bottom)

    body = []
    for tick in _decades(low, high):
        body.append(line(x(tick), TOP, x(tick), height - BOTTOM, FAINT))
        body.append(text(x(tick), height - BOTTOM + 18, f"{tick:g}"))
    for tick in _decades(bottom, top):
        body.append(line(LEFT, y(tick), width - RIGHT, y(tick), FAINT))
        body.append(text(LEFT - 8, y(tick) + 4, f"{tick:g}", anchor="end"))
    body.append(text((LEFT + width - RIGHT) / 2, height - 12, "operations for each byte of device memory"))
    for name, peak in found.peaks:
        corner = peak * 1e3 / found.bandwidth_gbs
        body.append(polyline([(x(low), y(low * found.bandwidth_gbs / 1e3)), (x(corner), y(peak))], DOT))
        body.append(polyline([(x(corner), y(peak)), (x(high), y(peak))], DOT))
        body.append(text(width - RIGHT, y(peak) - 6, f"{name}: {peak:g} TFLOP/s", anchor="end"))
    here = x(found.intensity)
    body.append(line(here, y(found.tflops), here, y(found.roof), INK, dashes="5 4"))
    body.append(line(here - 9, y(found.roof), here + 9, y(found.roof), INK))
    body.append(text(here - 14, y(found.roof) + 4, f"roofline {microseconds(found.floor_us)} us", anchor="end"))
    said = f"{found.tflops:.3g} TFLOP/s in {microseconds(found.time_us)} us {found.time_is}"
    body.append(titled(said, dot(here, y(found.tflops), GOOD, 6)))
    share = f"{found.share_words} of the roofline"
    body.append(text(here + 12, y(found.tflops) + 5, share, colour=GOOD, anchor="start"))
    subtitle = (
        f"TFLOP/s against operations a byte, {found.bandwidth_gbs:,.0f} GB/s; time {found.time_is}, counts emulated"
    )
    return page(width, height, f"Roofline of {found.gpu}", subtitle, LEFT, body)


def _decades(low: float, high: float) -> list[float]:
    """The powers of ten in between."""
    return [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
