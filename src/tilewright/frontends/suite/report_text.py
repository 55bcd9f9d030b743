"""A suite's report: Markdown to read, JSON to compute with, pictures, and KernelBench's own files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tilewright.frontends.gpu_turns import GpuUse, gpu_use
from tilewright.frontends.run_words import microseconds, seconds_words, time_words
from tilewright.frontends.suite.pictures import fast_picture, speedup_picture
from tilewright.frontends.terminal import finite
from tilewright.records import Measured, Precision, to_json
from tilewright.store import write_text
from tilewright.suites import Status, Suite, SuiteFolder, Summary, TaskRecord, summarise
from tilewright.suites.kernelbench_results import BASELINE_FILES, EVALUATION, baseline_times, evaluation
from tilewright.suites.statistics import BETTER, COMPILED, EAGER, baseline_us, speedup

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
    files = {DATA: _json(to_json(report)), MARKDOWN: markdown(report)}
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


# -- Markdown --


def markdown(report: SuiteReport) -> str:
    suite, summary = report.suite, report.summary
    parts = [f"# {suite.title}", _heading(report), *_figures(summary)]
    if summary.against:
        parts += [f"![speedup of each kernel]({SPEEDUPS})", f"![fast_p]({CURVES})"]
    parts += ["## Tasks", _tasks(report)]
    reasons = [one for one in report.tasks if one.status is not Status.MADE]
    if reasons:
        parts += ["## Tasks without a kernel", _reasons(reasons)]
    return "\n\n".join([*parts, _legend(report)]) + "\n"


def _heading(report: SuiteReport) -> str:
    suite, summary, gpu = report.suite, report.summary, report.gpu
    times = "modelled, not measured" if suite.emulated else "measured"
    found = sum(one.from_library for one in report.tasks)
    lines = [
        f"{len(suite.tasks)} tasks by {suite.settings.author} on {suite.device}; times are {times}. "
        f"tilewright {suite.tilewright}, {suite.created[:16].replace('T', ' ')} UTC.",
        f"{counts_words(summary)}. All tasks together took {seconds_words(summary.seconds)} of work."
        + (f" {found} kernels were in the library already." if found else "")
        + (
            f" The GPU was in use for {seconds_words(gpu.busy_s)} and idle for {seconds_words(gpu.idle_s)}."
            * bool(gpu.turns)
        ),
    ]
    return "\n".join(lines)


def counts_words(summary: Summary) -> str:
    """`61 of 64 have a kernel, 61 of them verified; 2 unsupported, 1 refused`."""
    made = summary.counts[Status.MADE.value]
    others = [f"{count} {name}" for name, count in summary.counts.items() if count and name != Status.MADE.value]
    said = f"{made} of {summary.tasks} have a kernel, {summary.verified} of them verified at the task's own size"
    return "; ".join([said, ", ".join(others)]) if others else said


def _figures(summary: Summary) -> list[str]:
    median, mean = summary.roofline_median, summary.roofline_geometric_mean
    reached = [f"Of the roofline: median {median:.0%}, geometric mean {mean:.0%}."] if median and mean else []
    if not summary.against:
        return reached
    thresholds = [p for p, _ in summary.against[0].fast]
    rows = [
        [
            f"over {one.name}",
            *(f"{fraction:.1%}" for _, fraction in one.fast),
            _ratio(one.geometric_mean),
            _ratio(one.arithmetic_mean),
            str(one.compared),
            str(len(one.slower)),
        ]
        for one in summary.against
    ]
    heads = ["", *(f"fast_{p:g}" for p in thresholds), "geometric mean", "arithmetic mean", "compared", "below 0.98x"]
    return [_table(heads, rows), *reached]


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def task_cells(report: SuiteReport) -> tuple[list[str], list[list[str]]]:
    """The headings of the table of tasks, and the cells of each task that is done."""
    measured = bool(report.summary.against)
    heads = ["task", "verdict", "time"]
    heads += ["eager", "torch.compile", "x eager", "x compile", "x better"] if measured else []
    heads += ["roofline", "attempts", "s", "how"]
    rows = []
    for one in report.tasks:
        beside = [_time(baseline_us(one, name)) for name in (EAGER, COMPILED)]
        beside += [_ratio(speedup(one, name)) for name in (EAGER, COMPILED, BETTER)]
        fraction = f"{one.measurement.fraction:.0%}" if one.measurement else ""
        time_text = time_words(one.measurement) if one.status is Status.MADE else ""
        rows.append(
            [one.name, verdict(one), time_text]
            + (beside if measured else [])
            + [fraction, str(one.attempts or ""), f"{one.seconds:.0f}", one.summary]
        )
    return heads, rows


def _tasks(report: SuiteReport) -> str:
    heads, rows = task_cells(report)
    for one, row in zip(report.tasks, rows, strict=True):
        row[0] = f"[{one.name}]({one.kernel})" if one.kernel else one.name
    return _table(heads, rows)


def verdict(record: TaskRecord) -> str:
    """A word or two for a table."""
    if record.status is not Status.MADE:
        return str(record.status.value)
    said = "provisional" if record.provisional else "verified"
    return f"{said}, degenerate task" if record.degenerate else said


def _time(time_us: float | None) -> str:
    return "" if time_us is None else f"{microseconds(time_us)} us"


def _reasons(records: Iterable[TaskRecord]) -> str:
    return "\n".join(f"- **{one.name}**: {one.status.value}: {one.reason}" for one in records)


def _table(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; bars within a cell would end it."""
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _legend(report: SuiteReport) -> str:
    lines = [
        "fast_p is the fraction of all tasks whose kernel is right and more than p times as fast as the baseline, as "
        "KernelBench defines it; means are over the tasks that have a kernel and that baseline. A kernel is verified "
        "where every element at the task's own size was judged, provisional where that needs a GPU.",
    ]
    if report.suite.emulated:
        lines.append("No GPU took part: modelled times rank kernels, they are not times, and no baseline has one.")
    else:
        lines.append(
            "Times are medians on a cold cache, taken in turn with the baselines on a GPU that nothing else used."
        )
    held = Counter(one.measurement.precision for one in report.tasks if isinstance(one.measurement, Measured))
    for precision in (one for one in Precision if held[one]):
        lines.append(f"{held[precision]} {'tasks' if held[precision] > 1 else 'task'}: {precision.words}.")
    return "\n".join(["## How to read it", "", *lines])


def closing_words(report: SuiteReport) -> list[str]:
    """What the command says at its end."""
    summary = report.summary
    lines = [counts_words(summary)]
    for one in summary.against:
        fast = ", ".join(f"fast_{p:g} {fraction:.1%}" for p, fraction in one.fast)
        mean = f"geometric mean {_ratio(one.geometric_mean)}, arithmetic {_ratio(one.arithmetic_mean)}"
        lines.append(f"over {one.name}: {mean}; {fast}; {len(one.slower)} below 0.98x")
    if summary.roofline_median is not None:
        lines.append(f"of the roofline: median {summary.roofline_median:.0%}")
    return lines
