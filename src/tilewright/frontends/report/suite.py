"""The reports of a suite and of an exam: Markdown to read, JSON to compute with, pictures, KernelBench's own files."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tilewright.frontends.api.judges import GpuUse, gpu_use
from tilewright.frontends.cli.terminal import json_text
from tilewright.frontends.report import document as doc
from tilewright.frontends.report import pictures, runs
from tilewright.frontends.report.rendering import markdown
from tilewright.records import Measured, Precision
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
from tilewright.teaching.exam import FEWEST_PAIRS, PASS_RATE, SPEED, TOKENS, Exam, Figure, Sitting

_COLOURS = dict(zip(BASELINES, (pictures.DOT, pictures.BAD, pictures.GOOD), strict=True))
_MOST, _LEAST = 64.0, 0.125  # speedups that a picture tells apart
_EVEN = (pictures.INK, "5 4")  # the line of what is as fast
_ROW = 18


def speedup_picture(suite: Suite, records: tuple[TaskRecord, ...]) -> str:
    """A row for each kernel with baselines: how many times as fast as eager and as torch.compile, on a log scale."""
    rows = []
    for one in records:
        ratios = {name: ratio for name in (EAGER, COMPILED) if (ratio := speedup(one, name))}
        rows += [(one, ratios)] if ratios else []
    bounded = [_bounded(ratio) for _, ratios in rows for ratio in ratios.values()]
    low = 2.0 ** math.floor(math.log2(min([*bounded, 0.5])))
    high = 2.0 ** math.ceil(math.log2(max([*bounded, 2.0])))
    count = max(len(rows), 1)
    chart = pictures.Chart((860, 112 + _ROW * count), (300, 40, 72, 40), (low, high), (count, 0.0), logs="x")
    for power in range(round(math.log2(low)), round(math.log2(high)) + 1):
        chart.upright(2.0**power, f"{2.0**power:g}x", *(_EVEN if power == 0 else ()))
    chart.legend(*((f"over {name}", _COLOURS[name]) for name in (EAGER, COMPILED)))
    for number, (record, ratios) in enumerate(rows):
        y, farthest = chart.y(number + 0.5), max(ratios.values(), key=lambda one: abs(math.log(one)))
        marks = [pictures.line(chart.x(1.0), y, chart.x(_bounded(farthest)), y, pictures.FAINT)]
        marks += [pictures.dot(chart.x(_bounded(ratio)), y, _COLOURS[name]) for name, ratio in ratios.items()]
        speeds = ", ".join(f"{runs.speedup_words(ratio)} {name}" for name, ratio in ratios.items())
        label = pictures.text(chart.left - 12, y + 4, record.name[:44], anchor="end", size=11)
        chart.body += [label, pictures.titled(f"{record.name}: {speeds}", *marks)]
    title = f"{suite.title} on {suite.gpu}: speedup of each kernel"
    return chart.page(title, f"author {suite.settings.author}; further right is faster")


def _bounded(ratio: float) -> float:
    return min(max(ratio, _LEAST), _MOST)


def fast_picture(suite: Suite, records: tuple[TaskRecord, ...]) -> str:
    """fast_p from 0 to 4: the fraction of all tasks whose kernel is right and more than p times as fast."""
    tasks, most = len(suite.tasks), 4.0
    chart = pictures.Chart((700, 420), (60, 40, 72, 40), (0.0, most))
    for tenth in range(0, 11, 2):
        chart.level(tenth / 10, f"{tenth * 10}%")
    for half in range(9):
        chart.body.append(pictures.text(chart.x(half / 2), chart.bottom + 18, f"{half / 2:g}x"))
    chart.upright(1.0, "", *_EVEN)
    chart.legend(*((f"over {name}", _COLOURS[name]) for name in BASELINES))
    for name in BASELINES:
        ratios = [ratio for one in records if (ratio := speedup(one, name)) is not None]
        steps = (step / 50 for step in range(int(50 * most) + 1))
        chart.curve([(p, fast_p(ratios, p, tasks)) for p in steps], _COLOURS[name])
    title = f"{suite.title} on {suite.gpu}: fraction of {tasks} tasks beyond each speedup"
    return chart.page(title, f"author {suite.settings.author}")


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
    files = {DATA: json_text(report), MARKDOWN: markdown(suite_report(report), "")}
    if report.summary.against:
        files |= {SPEEDUPS: speedup_picture(suite, records), CURVES: fast_picture(suite, records)}
    if suite.level is not None:
        files[EVALUATION] = json_text(evaluation(suite, records))
        for name, file in BASELINE_FILES.items() if report.summary.against else ():
            files[file] = json_text(baseline_times(suite, records, name))
    for file, text in files.items():
        write_text(folder.path / file, f"{text.rstrip()}\n")
    return report, tuple(folder.path / file for file in files)


def suite_report(report: SuiteReport, pages: Mapping[str, str] | None = None) -> doc.Document:
    """`pages`: the address of each task's run, by the task's id; without them names lead to kernel files."""
    suite, summary = report.suite, report.summary
    short = [*doc.say_each(_heading(report)), *_figures(summary)]
    if summary.against:
        for name, picture in ((SPEEDUPS, speedup_picture), (CURVES, fast_picture)):
            short.append(doc.Picture(name.removesuffix(".svg"), picture(suite, report.tasks), ""))
    sections = [doc.Section("", tuple(short)), doc.Section("Tasks", (_tasks(report, pages),))]
    failed = [one for one in report.tasks if one.status is not Status.MADE]
    if failed:
        reasons = tuple((doc.Mark(one.name), f": {one.status.value}: {one.reason}") for one in failed)
        sections.append(doc.Section("Tasks without a kernel", (doc.Items(reasons),)))
    sections.append(doc.Section("How to read it", tuple(doc.say_each(_legend(report)))))
    return doc.Document(suite.title, tuple(sections))


def _heading(report: SuiteReport) -> Iterator[str]:
    suite, summary, gpu = report.suite, report.summary, report.gpu
    times = "modelled, not measured" if suite.emulated else "measured"
    reused = sum(one.from_library for one in report.tasks)
    yield (
        f"{len(suite.tasks)} tasks by {suite.settings.author} on {suite.device}; times are {times}. "
        f"tilewright {suite.tilewright}, {suite.created[:16].replace('T', ' ')} UTC."
    )
    sentences = [f"{counts_words(summary)}. All tasks together took {runs.seconds_words(summary.seconds)} of work."]
    sentences += [f"{reused} kernels were in the library already."] if reused else []
    if gpu.turns:
        busy, idle = map(runs.seconds_words, (gpu.busy_s, gpu.idle_s))
        sentences.append(f"The GPU was in use for {busy} and idle for {idle}.")
    yield " ".join(sentences)


def counts_words(summary: Summary) -> str:
    """`61 of 64 have a kernel, 61 of them verified; 2 unsupported, 1 refused`."""
    made = summary.counts[Status.MADE.value]
    others = [f"{count} {name}" for name, count in summary.counts.items() if count and name != Status.MADE.value]
    kernels = f"{made} of {summary.tasks} have a kernel, {summary.verified} of them verified at the task's own size"
    return "; ".join([kernels, ", ".join(others)]) if others else kernels


def _figures(summary: Summary) -> Iterator[doc.Block]:
    if summary.against:
        rows = tuple(
            (
                f"over {one.name}",
                *(f"{fraction:.1%}" for _, fraction in one.fast),
                runs.speedup_words(one.geometric_mean),
                runs.speedup_words(one.arithmetic_mean),
                str(one.compared),
                str(len(one.slower)),
            )
            for one in summary.against
        )
        fast = (f"fast_{p:g}" for p, _ in summary.against[0].fast)
        yield doc.Table(("", *fast, "geometric mean", "arithmetic mean", "compared", "below 0.98x"), rows)
    median, mean = summary.roofline_median, summary.roofline_geometric_mean
    if median and mean:
        yield doc.say(f"Of the roofline: median {median:.0%}, geometric mean {mean:.0%}.")


def _task_cells(report: SuiteReport) -> tuple[list[str], list[list[str]]]:
    """The headings of the table of tasks, and the cells of each task that is done."""
    measured = bool(report.summary.against)
    heads = ["task", "verdict", "time"]
    heads += ["eager", "torch.compile", "x eager", "x compile", "x better"] if measured else []
    heads += ["roofline", "attempts", "s", "how"]
    rows = []
    for one in report.tasks:
        times = (baseline_us(one, name) for name in (EAGER, COMPILED))
        beside = ["" if time_us is None else f"{runs.microseconds(time_us)} us" for time_us in times]
        beside += [runs.speedup_words(speedup(one, name)) for name in (EAGER, COMPILED, BETTER)]
        fraction = f"{one.measurement.fraction:.0%}" if one.measurement else ""
        time_text = runs.time_words(one.measurement) if one.status is Status.MADE else ""
        rows.append(
            [one.name, verdict(one), time_text]
            + (beside if measured else [])
            + [fraction, str(one.attempts or ""), f"{one.seconds:.0f}", one.summary]
        )
    return heads, rows


def _tasks(report: SuiteReport, pages: Mapping[str, str] | None) -> doc.Table:
    heads, cells = _task_cells(report)
    files = {one.id: one.kernel for one in report.tasks} if pages is None else pages
    rows: list[tuple[doc.Cell, ...]] = []
    for one, (name, *others) in zip(report.tasks, cells, strict=True):
        file = files.get(one.id)
        rows.append(((doc.Link(name, file=file),) if file else name, *others))
    if pages is not None:
        done = {one.id for one in report.tasks}
        waiting = [one for one in report.suite.tasks if one.id not in done]
        rows += [(one.name, "waiting", *[""] * (len(heads) - 2)) for one in waiting]
    return doc.Table(tuple(heads), tuple(rows))


def verdict(record: TaskRecord) -> str:
    """A word or two for a table."""
    if record.status is not Status.MADE:
        return str(record.status.value)
    words = "provisional" if record.provisional else "verified"
    return f"{words}, degenerate task" if record.degenerate else words


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
        means = runs.speedup_words(one.geometric_mean), runs.speedup_words(one.arithmetic_mean)
        mean = "geometric mean {}, arithmetic {}".format(*means)
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
            line.append(f"{runs.time_words(record.measurement):>20}")
            for name in (EAGER, COMPILED):
                ratio = speedup(record, name)
                line.append(f"  {runs.speedup_words(ratio)} {name}" if ratio is not None else "")
            line.append(f"  {runs.seconds_words(record.seconds)}", style="dim")
        else:
            line.append(f"  {record.reason}")
        self._console.print(line, soft_wrap=True)

    def _status(self) -> Group:
        took = time.monotonic() - self._began
        head = f"{self._done} of {self._tasks} tasks done, {len(self._running)} at work, {runs.seconds_words(took)}"
        lines = [Text(head, style="bold")]
        for id, (task, began) in list(self._running.items()):
            what = f"  {task.name:<40.40}  {runs.seconds_words(time.monotonic() - began):>8}  {self._doing.get(id, '')}"
            lines.append(Text(what, style="dim", overflow="ellipsis", no_wrap=True))
        return Group(*lines)


# -- an exam --


def exam_report(exam: Exam) -> doc.Document:
    """The whole report."""
    times = "Times are modelled, not measured." if exam.emulated else "Times are measured."
    held = "They are held out: none is a task, or has the reference, of a run the skill was made of."
    if not exam.held_out:
        held = "Nobody knows whether they are held out: the skill has no record of its runs."
    budget = exam.budget
    each = f"{budget.attempts} attempts, {budget.tokens:,} tokens, {runs.dollars_words(budget.dollars)}"
    opening = (
        doc.say(
            f"{runs.number_of(len(exam.tasks), 'task')} on {exam.device}, each sat with the skill and without, with "
            f"the same budget: {each} and {runs.seconds_words(budget.seconds)} a task. {held} {times} {exam.created}, "
            f"tilewright {exam.tilewright}."
        ),
        doc.say(
            f"A change is by task, with a {exam.confidence:.0%} interval by bootstrap over tasks. From {FEWEST_PAIRS} "
            "tasks on, one whose interval leaves out no change is marked *; of many figures some are marked by chance. "
            "A task without a right kernel counts one attempt more than were allowed. Speed is the geometric mean, "
            "over tasks solved both ways, of the time without the skill over the time with it."
        ),
    )
    students = (doc.Section(one, tuple(_figure_blocks(exam.figures[one]))) for one in exam.students)
    heads = ("student", "task", "skill", "outcome", "right after", "attempts", "tokens", "cost", "time", "run")
    sittings = doc.Section("Sittings", (doc.Table(heads, tuple(map(_sitting_cells, exam.sittings))),))
    return doc.Document(f"Exam of the skill {exam.skill}", (doc.Section("", opening), *students, sittings))


def _figure_blocks(figures: tuple[Figure, ...]) -> Iterator[doc.Block]:
    if not figures:
        yield doc.say("No task was sat both ways, so there is nothing to compare.")
        return
    rows = tuple(
        (
            one.name,
            str(one.pairs),
            _figure_words(one, one.without),
            _figure_words(one, one.with_skill),
            f"{_change(one, one.change)}{' *' if one.is_clear else ''}",
            _interval_words(one),
        )
        for one in figures
    )
    yield doc.Table(("", "tasks", "without", "with", "change", "interval"), rows)
    if figures[0].pairs < FEWEST_PAIRS:
        yield doc.say(f"Fewer than {FEWEST_PAIRS} tasks: the intervals say little.")


# How a figure's values are written, and their change.
_FORMATS = {PASS_RATE: ("{:.0%}", "{:+.0f} points"), TOKENS: ("{:,.0f}", "{:+,.0f}"), SPEED: ("{:,.4g} us", "{:.2f}x")}
_PLAIN = "{:.2f}", "{:+.2f}"


def _figure_words(figure: Figure, value: float) -> str:
    return _FORMATS.get(figure.name, _PLAIN)[0].format(value)


def _change(figure: Figure, value: float) -> str:
    return _FORMATS.get(figure.name, _PLAIN)[1].format(100 * value if figure.name == PASS_RATE else value)


def _interval_words(figure: Figure) -> str:
    if figure.interval is None:
        return "none: one task"
    return f"{_change(figure, figure.interval.low)} to {_change(figure, figure.interval.high)}"


def _sitting_cells(one: Sitting) -> tuple[str, ...]:
    return (
        one.student,
        one.task,
        one.arm.value,
        f"not held: {' '.join(one.fault.split())[:160]}" if one.fault else one.verdict,
        str(one.right_after or "never"),
        str(one.attempts),
        f"{one.tokens:,}",
        "" if one.dollars is None else runs.dollars_words(one.dollars),
        runs.time_words(one.measurement) if one.measurement else "",
        one.run,
    )
