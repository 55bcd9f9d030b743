"""What `bench` says: its record, which the terminal and a picture show and JSON holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.frontends.report import pictures
from tilewright.frontends.report.checks import arguments_line
from tilewright.frontends.report.document import Bar, Block, Cell, Mark, Table, Tone, say, say_each
from tilewright.frontends.report.runs import microseconds, scatter_words
from tilewright.records import Timing
from tilewright.records.measurement import Interval


@dataclass(frozen=True)
class BenchRow:
    """One contender. Without a GPU a time is modelled, and has no samples."""

    name: str
    time_us: float | None  # None: it has none
    times_as_long: float | None = None  # as the kernel takes
    interval: Interval | None = None  # where that lies, where it was measured
    timing: Timing | None = None
    judged: str = ""  # of a kernel file: whether it is right
    note: str = ""


@dataclass(frozen=True)
class BenchReport:
    file: str
    op: str
    gpu: str
    device: str
    measured: bool
    arguments: dict[str, str]
    guessed: bool
    floor_us: float
    rows: tuple[BenchRow, ...]  # the kernel first
    wrong: tuple[str, ...]  # kernel files that are not right
    notes: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        return int(bool(self.wrong) or self.rows[0].time_us is None)


_WIDTH, _ROW, _LEFT, _TOP, _RIGHT = 760, 30, 170, 66, 200
_WRONG = "not right"


def bench_report(report: BenchReport) -> Iterator[Block]:
    kind = "measured" if report.measured else "modelled"
    yield say(f"{report.op}: {kind} times; shorter is better", tone=Tone.STRONG)
    yield from (say(arguments_line(report.arguments, report.guessed)), say(report.device), say(""))
    longest = max((row.time_us or 0.0 for row in report.rows), default=0.0)
    rows: list[tuple[Cell, ...]] = []
    for row in report.rows:
        drawn: Cell = Bar(row.time_us / longest, not rows) if row.time_us and longest else ""
        tone = Tone.BAD if row.name in report.wrong else Tone.GOOD
        judged: Cell = (Mark(row.judged, tone),) if row.judged else ""
        rows.append((row.name, drawn, _row_words(row), judged, row.note))
    if longest:
        rows.append(("roofline", Bar(report.floor_us / longest), f"{microseconds(report.floor_us)} us", "", ""))
    yield Table(("", "", "", "", ""), tuple(rows))
    yield from say_each(report.notes, Tone.FAIR)


def _row_words(row: BenchRow) -> str:
    if row.time_us is None:
        return "no time"
    lying = f" ({scatter_words(row.timing)})" if row.timing is not None else ""
    ratio = ""
    if row.times_as_long is not None:
        between = f" ({row.interval.low:.2f} to {row.interval.high:.2f})" if row.interval is not None else ""
        ratio = f", {row.times_as_long:.2f}x as long{between}"
    return f"{microseconds(row.time_us)} us{lying}{ratio}"


def bench_picture(report: BenchReport) -> str:
    """A bar for each contender, with where its median lies; the roofline dashed."""
    rows = [row for row in report.rows if row.time_us is not None]
    longest = max([row.time_us or 0.0 for row in rows] + [report.floor_us, 1e-3])
    height = _TOP + _ROW * len(rows) + 30

    def x(time_us: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * time_us / longest

    body = []
    for place, row in enumerate(rows):
        y, end = _TOP + _ROW * place, x(row.time_us or 0.0)
        colour = pictures.BAD if row.name in report.wrong else pictures.GOOD if place == 0 else pictures.DOT
        body.append(pictures.text(_LEFT - 8, y + 15, row.name, anchor="end"))
        body.append(pictures.rectangle(_LEFT, y + 3, max(end - _LEFT, 1.0), 16, colour))
        if row.timing is not None:
            low, high = x(row.timing.interval_us.low), x(row.timing.interval_us.high)
            body.append(pictures.line(low, y + 11, high, y + 11, pictures.INK))
        ratio = f"  {row.times_as_long:.2f}x" if row.times_as_long is not None else ""
        wrong = f"  {_WRONG}" if row.name in report.wrong else ""
        body.append(
            pictures.text(end + 8, y + 15, f"{microseconds(row.time_us or 0.0)} us{ratio}{wrong}", anchor="start")
        )
    floor = x(report.floor_us)
    body.append(pictures.line(floor, _TOP - 4, floor, height - 24, pictures.INK, dashes="5 4"))
    body.append(pictures.text(floor, height - 8, f"roofline {microseconds(report.floor_us)} us"))
    kind = "measured" if report.measured else "modelled"
    sizes = ", ".join(f"{name} = {text}" for name, text in report.arguments.items())
    return pictures.page(_WIDTH, height, f"{report.op} on {report.gpu}: {kind} time", sizes, 16, body)
