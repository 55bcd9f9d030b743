"""A suite's report: Markdown to read, JSON to compute with, pictures, and KernelBench's own files."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tilewright.frontends.api.judges import GpuUse, gpu_use
from tilewright.frontends.cli.terminal import finite
from tilewright.frontends.report import pictures
from tilewright.frontends.report.document import (
    Block,
    Cell,
    Document,
    Items,
    Link,
    Mark,
    Picture,
    Section,
    Table,
    say,
    say_each,
)
from tilewright.frontends.report.rendering import markdown
from tilewright.frontends.report.runs import microseconds, seconds_words, speedup_words, time_words
from tilewright.records import Measured, Precision, to_json
from tilewright.store import write_text
from tilewright.suites import Status, Suite, SuiteFolder, SuiteTask, Summary, TaskRecord, summarise
from tilewright.suites.figures import (
    BASELINE_FILES,
    BASELINES,
    BETTER,
    COMPILED,
    EAGER,
    EVALUATION,
    baseline_times,
    baseline_us,
    evaluation,
    fast_p,
    speedup,
)

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 860, 300, 40, 72, 40
_ROW = 18
_CURVES = (700, 420, 60, 40)  # width, height, left, right
_COLOURS = dict(zip(BASELINES, (pictures.DOT, pictures.BAD, pictures.GOOD), strict=True))
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
    return pictures.page(WIDTH, height, title, f"author {suite.settings.author}; further right is faster", 24, body)


def _bounded(ratio: float) -> float:
    return min(max(ratio, _LEAST), _MOST)


def _scale(x: Across, low: float, high: float, height: float) -> list[str]:
    parts = []
    ratio = low
    while ratio <= high:
        colour, dashes = (pictures.INK, "5 4") if ratio == 1.0 else (pictures.FAINT, "")
        parts.append(pictures.line(x(ratio), TOP, x(ratio), height - BOTTOM, colour, dashes))
        parts.append(pictures.text(x(ratio), height - BOTTOM + 18, f"{ratio:g}x"))
        ratio *= 2.0
    for number, name in enumerate((EAGER, COMPILED)):
        place = LEFT + 150 * number
        parts += [
            pictures.dot(place, 58, _COLOURS[name]),
            pictures.text(place + 10, 62, f"over {name}", anchor="start"),
        ]
    return parts


def _row(record: TaskRecord, ratios: dict[str, float | None], y: float, x: Across) -> list[str]:
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    said = ", ".join(f"{ratio:.2f}x {name}" for name, ratio in known.items())
    marks = [pictures.line(x(1.0), y, x(max(known.values(), key=lambda one: abs(math.log(one)))), y, pictures.FAINT)]
    marks += [pictures.dot(x(ratio), y, _COLOURS[name]) for name, ratio in known.items()]
    label = pictures.text(LEFT - 12, y + 4, record.name[:44], anchor="end", size=11)
    return [label, pictures.titled(f"{record.name}: {said}", *marks)]


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
        body.append(pictures.line(left, up(tenth / 10), width - right, up(tenth / 10), pictures.FAINT))
        body.append(pictures.text(left - 8, up(tenth / 10) + 4, f"{tenth * 10}%", anchor="end"))
    body += [pictures.text(across(p / 2), height - BOTTOM + 18, f"{p / 2:g}x") for p in range(9)]
    body.append(pictures.line(across(1.0), TOP, across(1.0), height - BOTTOM, pictures.INK, "5 4"))
    for number, name in enumerate(BASELINES):
        ratios = [ratio for one in records if (ratio := speedup(one, name)) is not None]
        points = [(across(step / 50), up(fast_p(ratios, step / 50, tasks))) for step in range(int(50 * most) + 1)]
        place = left + 150 * number
        body += [pictures.polyline(points, _COLOURS[name]), pictures.dot(place, 58, _COLOURS[name])]
        body.append(pictures.text(place + 10, 62, f"over {name}", anchor="start"))
    title = f"{suite.title} on {suite.gpu}: fraction of {tasks} tasks beyond each speedup"
    return pictures.page(width, height, title, f"author {suite.settings.author}", 24, body)


MARKDOWN, DATA = "report.md", "report.json"
SPEEDUPS, CURVES = "speedups.svg", "fast_p.svg"


@dataclass(frozen=True)
class SuiteReport:
    """What `suite --json` prints and `report.json` holds."""

    suite: Suite
    summary: Summary
    tasks: tuple[TaskRecord, ...]
    gpu: GpuUse  # of this machine's, where there is one


def report_of(folder: SuiteFolder) -> SuiteReport:
    suite, records = folder.suite(), folder.records()
    return SuiteReport(suite, summarise(records, len(suite.tasks)), records, gpu_use(folder.gpu_turns))


def write_report(folder: SuiteFolder) -> tuple[SuiteReport, tuple[Path, ...]]:
    """Write the whole report into the suite's folder; returns it, and its files."""
    report = report_of(folder)
    suite, records = report.suite, report.tasks
    files = {DATA: _json(to_json(report)), MARKDOWN: markdown(suite_report(report), "")}
    if report.summary.against:
        files |= {SPEEDUPS: speedup_picture(suite, records), CURVES: fast_picture(suite, records)}
    if suite.level is not None:
        files[EVALUATION] = _json(evaluation(suite, records))
        for name, file in BASELINE_FILES.items() if report.summary.against else ():
            files[file] = _json(baseline_times(suite, records, name))
    for file, text in files.items():
        write_text(folder.path / file, text)
    return report, tuple(folder.path / file for file in files)


def _json(value: object) -> str:
    return json.dumps(finite(value), indent=1, allow_nan=False) + "\n"


def suite_report(report: SuiteReport) -> Document:
    suite, summary = report.suite, report.summary
    short = [*say_each(_heading(report)), *_figures(summary)]
    if summary.against:
        for name, picture in ((SPEEDUPS, speedup_picture), (CURVES, fast_picture)):
            short.append(Picture(name.removesuffix(".svg"), picture(suite, report.tasks), ""))
    sections = [Section("", tuple(short)), Section("Tasks", (_tasks(report),))]
    failed = [one for one in report.tasks if one.status is not Status.MADE]
    if failed:
        reasons = tuple((Mark(one.name), f": {one.status.value}: {one.reason}") for one in failed)
        sections.append(Section("Tasks without a kernel", (Items(reasons),)))
    sections.append(Section("How to read it", tuple(say_each(_legend(report)))))
    return Document(suite.title, tuple(sections))


def _heading(report: SuiteReport) -> Iterator[str]:
    suite, summary, gpu = report.suite, report.summary, report.gpu
    times = "modelled, not measured" if suite.emulated else "measured"
    found = sum(one.from_library for one in report.tasks)
    yield (
        f"{len(suite.tasks)} tasks by {suite.settings.author} on {suite.device}; times are {times}. "
        f"tilewright {suite.tilewright}, {suite.created[:16].replace('T', ' ')} UTC."
    )
    said = [f"{counts_words(summary)}. All tasks together took {seconds_words(summary.seconds)} of work."]
    said += [f"{found} kernels were in the library already."] if found else []
    if gpu.turns:
        said.append(f"The GPU was in use for {seconds_words(gpu.busy_s)} and idle for {seconds_words(gpu.idle_s)}.")
    yield " ".join(said)


def counts_words(summary: Summary) -> str:
    """`61 of 64 have a kernel, 61 of them verified; 2 unsupported, 1 refused`."""
    made = summary.counts[Status.MADE.value]
    others = [f"{count} {name}" for name, count in summary.counts.items() if count and name != Status.MADE.value]
    said = f"{made} of {summary.tasks} have a kernel, {summary.verified} of them verified at the task's own size"
    return "; ".join([said, ", ".join(others)]) if others else said


def _figures(summary: Summary) -> Iterator[Block]:
    if summary.against:
        rows = tuple(
            (
                f"over {one.name}",
                *(f"{fraction:.1%}" for _, fraction in one.fast),
                speedup_words(one.geometric_mean),
                speedup_words(one.arithmetic_mean),
                str(one.compared),
                str(len(one.slower)),
            )
            for one in summary.against
        )
        fast = (f"fast_{p:g}" for p, _ in summary.against[0].fast)
        yield Table(("", *fast, "geometric mean", "arithmetic mean", "compared", "below 0.98x"), rows)
    median, mean = summary.roofline_median, summary.roofline_geometric_mean
    if median and mean:
        yield say(f"Of the roofline: median {median:.0%}, geometric mean {mean:.0%}.")


def task_cells(report: SuiteReport) -> tuple[list[str], list[list[str]]]:
    """The headings of the table of tasks, and the cells of each task that is done."""
    measured = bool(report.summary.against)
    heads = ["task", "verdict", "time"]
    heads += ["eager", "torch.compile", "x eager", "x compile", "x better"] if measured else []
    heads += ["roofline", "attempts", "s", "how"]
    rows = []
    for one in report.tasks:
        times = (baseline_us(one, name) for name in (EAGER, COMPILED))
        beside = ["" if time_us is None else f"{microseconds(time_us)} us" for time_us in times]
        beside += [speedup_words(speedup(one, name)) for name in (EAGER, COMPILED, BETTER)]
        fraction = f"{one.measurement.fraction:.0%}" if one.measurement else ""
        time_text = time_words(one.measurement) if one.status is Status.MADE else ""
        rows.append(
            [one.name, verdict(one), time_text]
            + (beside if measured else [])
            + [fraction, str(one.attempts or ""), f"{one.seconds:.0f}", one.summary]
        )
    return heads, rows


def _tasks(report: SuiteReport) -> Table:
    heads, cells = task_cells(report)
    rows: list[tuple[Cell, ...]] = []
    for one, (name, *others) in zip(report.tasks, cells, strict=True):
        rows.append(((Link(name, file=one.kernel),) if one.kernel else name, *others))
    return Table(tuple(heads), tuple(rows))


def verdict(record: TaskRecord) -> str:
    """A word or two for a table."""
    if record.status is not Status.MADE:
        return str(record.status.value)
    said = "provisional" if record.provisional else "verified"
    return f"{said}, degenerate task" if record.degenerate else said


def _legend(report: SuiteReport) -> Iterator[str]:
    yield (
        "fast_p is the fraction of all tasks whose kernel is right and more than p times as fast as the baseline, as "
        "KernelBench defines it; means are over the tasks that have a kernel and that baseline. A kernel is verified "
        "where every element at the task's own size was judged, provisional where that needs a GPU."
    )
    if report.suite.emulated:
        yield "No GPU took part: modelled times rank kernels, they are not times, and no baseline has one."
    else:
        yield "Times are medians on a cold cache, taken in turn with the baselines on a GPU that nothing else used."
    held = Counter(one.measurement.precision for one in report.tasks if isinstance(one.measurement, Measured))
    for precision in (one for one in Precision if held[one]):
        yield f"{held[precision]} {'tasks' if held[precision] > 1 else 'task'}: {precision.words}."


def closing_words(report: SuiteReport) -> list[str]:
    """What the command says at its end."""
    summary = report.summary
    lines = [counts_words(summary)]
    for one in summary.against:
        fast = ", ".join(f"fast_{p:g} {fraction:.1%}" for p, fraction in one.fast)
        mean = f"geometric mean {speedup_words(one.geometric_mean)}, arithmetic {speedup_words(one.arithmetic_mean)}"
        lines.append(f"over {one.name}: {mean}; {fast}; {len(one.slower)} below 0.98x")
    if summary.roofline_median is not None:
        lines.append(f"of the roofline: median {summary.roofline_median:.0%}")
    return lines


_STYLES = {Status.MADE: "green", Status.UNSUPPORTED: "yellow", Status.REFUSED: "yellow"}


class SuiteDisplay:
    """A `SuiteWatcher` on stderr. `doing` may be called from any thread."""

    def __init__(self, console: Console, tasks: int, done: int) -> None:
        self._console = console
        self._tasks = tasks
        self._done = done
        self._began = time.monotonic()
        self._running: dict[str, tuple[SuiteTask, float]] = {}
        self._doing: dict[str, str] = {}

    @contextmanager
    def live(self) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with Live(get_renderable=self._status, console=self._console, refresh_per_second=4, transient=True):
            yield

    def begun(self, task: SuiteTask) -> None:
        self._running[task.id] = (task, time.monotonic())
        self._doing[task.id] = "starting"

    def doing(self, id: str, what: str) -> None:
        self._doing[id] = what

    def lost(self, task: SuiteTask, why: str) -> None:
        self._running.pop(task.id, None)
        self._console.print(Text(f"{task.name}: {why}; it is tried once more", style="yellow"), soft_wrap=True)

    def done(self, record: TaskRecord) -> None:
        self._running.pop(record.id, None)
        self._done += 1
        line = Text(f"{self._done:>3}/{self._tasks}  {record.name:<44.44}  ")
        line.append(f"{verdict(record):<12}", style=_STYLES.get(record.status, "red"))
        if record.status is Status.MADE:
            line.append(f"{time_words(record.measurement):>20}")
            for name in (EAGER, COMPILED):
                ratio = speedup(record, name)
                line.append(f"  {speedup_words(ratio)} {name}" if ratio is not None else "")
            line.append(f"  {seconds_words(record.seconds)}", style="dim")
        else:
            line.append(f"  {record.reason}")
        self._console.print(line, soft_wrap=True)

    def _status(self) -> Group:
        took = time.monotonic() - self._began
        head = f"{self._done} of {self._tasks} tasks done, {len(self._running)} at work, {seconds_words(took)}"
        lines = [Text(head, style="bold")]
        for id, (task, began) in list(self._running.items()):
            what = f"  {task.name:<40.40}  {seconds_words(time.monotonic() - began):>8}  {self._doing.get(id, '')}"
            lines.append(Text(what, style="dim", overflow="ellipsis", no_wrap=True))
        return Group(*lines)
