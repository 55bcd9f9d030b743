"""A bench for a terminal, with bars of text, and as a picture."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from tilewright.frontends import svg
from tilewright.frontends.bench.report import BenchReport, BenchRow
from tilewright.frontends.build_report import arguments_line
from tilewright.frontends.progress_plot import BAR_CELLS, bar
from tilewright.frontends.run_words import microseconds, scatter_words

_WIDTH, _ROW, _LEFT, _TOP, _RIGHT = 760, 30, 170, 66, 200
_WRONG = "not right"


def show_bench(console: Console, report: BenchReport) -> None:
    kind = "measured" if report.measured else "modelled"
    console.print(Text(f"{report.op}: {kind} times; shorter is better", style="bold"))
    console.print(arguments_line(report.arguments, report.guessed))
    console.print(Text(f"{report.device}\n"))
    width = max(len("roofline"), *(len(row.name) for row in report.rows))
    longest = max((row.time_us or 0.0 for row in report.rows), default=0.0)
    for row in report.rows:
        drawn = bar(row.time_us / longest) if row.time_us and longest else ""
        wrong = row.name in report.wrong
        said = f"{row.name:<{width}}  {drawn:<{BAR_CELLS}}  {_row_words(row)}"
        console.print(Text.assemble(said, (f"  {row.judged}", "bold red" if wrong else "green")))
        if row.note:
            console.print(Text(f"{'':<{width}}  {row.note}", style="dim"))
    if longest:
        drawn = bar(report.floor_us / longest)
        console.print(Text(f"{'roofline':<{width}}  {drawn:<{BAR_CELLS}}  {microseconds(report.floor_us)} us"))
    for note in report.notes:
        console.print(Text(note, style="yellow"))


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
        colour = svg.BAD if row.name in report.wrong else svg.GOOD if place == 0 else svg.DOT
        body.append(svg.text(_LEFT - 8, y + 15, row.name, anchor="end"))
        body.append(svg.rectangle(_LEFT, y + 3, max(end - _LEFT, 1.0), 16, colour))
        if row.timing is not None:
            low, high = x(row.timing.interval_us.low), x(row.timing.interval_us.high)
            body.append(svg.line(low, y + 11, high, y + 11, svg.INK))
        ratio = f"  {row.times_as_long:.2f}x" if row.times_as_long is not None else ""
        wrong = f"  {_WRONG}" if row.name in report.wrong else ""
        body.append(svg.text(end + 8, y + 15, f"{microseconds(row.time_us or 0.0)} us{ratio}{wrong}", anchor="start"))
    floor = x(report.floor_us)
    body.append(svg.line(floor, _TOP - 4, floor, height - 24, svg.INK, dashes="5 4"))
    body.append(svg.text(floor, height - 8, f"roofline {microseconds(report.floor_us)} us"))
    kind = "measured" if report.measured else "modelled"
    sizes = ", ".join(f"{name} = {text}" for name, text in report.arguments.items())
    return svg.page(_WIDTH, height, f"{report.op} on {report.gpu}: {kind} time", sizes, 16, body)
