"""The progress of a run as a plot: bars of text for a terminal, or an SVG. Shorter and lower is better."""

from __future__ import annotations

from html import escape

from tilewright.frontends import svg
from tilewright.frontends.run_words import Row, is_measured, microseconds, rows, scatter_words
from tilewright.records import Measured, Run, Timing

BAR_CELLS = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def text_plot(run: Run) -> list[str]:
    """One bar for each attempt that has a time, as long as the time; none where no attempt has one."""
    timed = [row for row in rows(run) if row.time_us is not None]
    longest = max((row.time_us or 0.0 for row in timed), default=0.0)
    if not longest:
        return []
    lines = [f"{_kind(run)} time of each attempt that passed; shorter is better"]
    for row in timed:
        time_us = row.time_us or 0.0
        note = "best" if row.best else "kept" if row.kept else ""
        drawn = bar(time_us / longest)
        lying = f" ({scatter_words(timing)})" if (timing := _timing(row)) is not None else ""
        shown = f"{microseconds(time_us)} us{lying}"
        lines.append(f"{row.attempt.number:>4}  {drawn:<{BAR_CELLS}}  {shown}  {note}".rstrip())
    floor_us = _floor_us(run)
    if floor_us:
        lines.append(f"      {bar(floor_us / longest):<{BAR_CELLS}}  {microseconds(floor_us)} us  roofline")
    return lines


def _timing(row: Row) -> Timing | None:
    """The times of a measured attempt, which scatter."""
    measurement = row.attempt.measurement
    return measurement.kernel if isinstance(measurement, Measured) else None


def bar(fraction: float) -> str:
    eighths = max(1, round(min(fraction, 1.0) * BAR_CELLS * 8))
    return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _kind(run: Run) -> str:
    return "measured" if is_measured(run.attempts) else "modelled"


def _floor_us(run: Run) -> float:
    best = run.best
    return best.measurement.floor_us if best and best.measurement else 0.0


# -- as an SVG --

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
    return svg.page(WIDTH, HEIGHT, title, f"run {run.id}, author {run.settings.author}", LEFT, body)


def _grid(run: Run, frame: _Frame) -> list[str]:
    parts = []
    step = _round_step(frame.top_us / 5)
    for tick in range(int(frame.top_us / step) + 1):
        y = frame.y(tick * step)
        parts.append(svg.line(LEFT, y, WIDTH - RIGHT, y, svg.FAINT))
        parts.append(svg.text(LEFT - 8, y + 4, f"{tick * step:g}", anchor="end"))
    every = max(1, round(frame.attempts / 20))
    for number in range(1, frame.attempts + 1, every):
        parts.append(svg.text(frame.x(number), HEIGHT - BOTTOM + 18, str(number)))
    parts.append(svg.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "attempt"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    label = escape(f"{_kind(run)} time, us")
    parts.append(
        f'<text x="18" y="{middle:.1f}" fill="{svg.INK}" text-anchor="middle" '
        f'transform="rotate(-90 18 {middle:.1f})">{label}</text>'
    )
    return parts


def _roofline(run: Run, frame: _Frame) -> list[str]:
    floor_us = _floor_us(run)
    if not floor_us:
        return []
    y = frame.y(floor_us)
    return [
        svg.line(LEFT, y, WIDTH - RIGHT, y, svg.INK, dashes="5 4"),
        svg.text(WIDTH - RIGHT, y - 6, f"roofline {microseconds(floor_us)} us", anchor="end"),
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
    return [svg.polyline(points, svg.GOOD)]


def _marks(shown: tuple[Row, ...], frame: _Frame) -> list[str]:
    parts = []
    for row in shown:
        x = frame.x(row.attempt.number)
        label = escape(f"{row.attempt.number}: {row.attempt.stage.value}, {row.verdict}. {row.attempt.summary}")
        if row.time_us is None:
            y = HEIGHT - BOTTOM - 8
            colour = svg.DOT if row.attempt.passed else svg.BAD
            mark = f'<path d="M{x - 5:.1f},{y - 5} l10,10 m0,-10 l-10,10" stroke="{colour}" stroke-width="2"/>'
        else:
            colour = svg.GOOD if row.kept else svg.DOT
            mark = f'<circle cx="{x:.1f}" cy="{frame.y(row.time_us):.1f}" r="{6 if row.best else 4}" fill="{colour}"/>'
            timing = _timing(row) if len(shown) <= MOST_INTERVALS else None
            if timing is not None:
                low, high = frame.y(timing.interval_us.low), frame.y(timing.interval_us.high)
                mark += svg.line(x, low, x, high, svg.INK) + svg.line(x - 4, low, x + 4, low, svg.INK)
                mark += svg.line(x - 4, high, x + 4, high, svg.INK)
        parts.append(f"<g><title>{label}</title>{mark}</g>")
        if row.best and row.time_us is not None:
            parts.append(svg.text(x, frame.y(row.time_us) - 12, f"{microseconds(row.time_us)} us", colour=svg.GOOD))
    return parts


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, the first not below `rough`."""
    power = 1e-6
    while power * 10 <= rough:
        power *= 10
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough or factor == 10.0)
