"""A run in words: its task, a table of its attempts, a plot of its progress, and one attempt in full."""

from __future__ import annotations

import difflib

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.frontends.progress_plot import text_plot
from tilewright.frontends.run_rows import (
    dollars_words,
    gain_words,
    is_measured,
    microseconds,
    rows,
    seconds_words,
    spend_words,
    time_words,
)
from tilewright.frontends.runs_text import when
from tilewright.frontends.task_words import task_words
from tilewright.prompts.verdict_text import verdict_text
from tilewright.records import Attempt, Measured, Measurement, Modelled, Passed, Run, Task, TuneResult
from tilewright.store import RunFolder

_MARKS = {True: "best", False: "kept"}


def show_run(console: Console, run: Run, worker: str = "") -> None:
    """Everything about a run that fits on a page. `worker`: the process that works on it now."""
    console.print(Text.assemble((run.id, "bold"), f"  {when(run.created)}  by {run.settings.author}"))
    show_task(console, run.task)
    console.print(Text(f"on {run.environment.device}"))
    for made, hint in run.settings.hints:
        console.print(Text(f"hint after attempt {made}: {hint}"))
    console.print()
    show_attempts(console, run)
    console.print()
    console.print(Text(f"{state_words(run, worker)}; {spend_words(run)}"))


def show_attempts(console: Console, run: Run) -> None:
    """The table of attempts, and a plot of their times below it."""
    if not run.attempts:
        console.print(Text("no attempt is finished yet"))
        return
    console.print(_table(run))
    plot = text_plot(run)
    if plot:
        console.print()
        console.print(Text("\n".join(plot)))


def _table(run: Run) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    kind = "measured us" if is_measured(run.attempts) else "modelled us"
    for heading in ("#", "stage", "verdict", kind, "vs best", "", "cost", "summary"):
        table.add_column(heading, justify="right" if heading in ("#", kind, "vs best", "cost") else "left")
    for row in rows(run):
        style = "bold green" if row.best else "" if row.kept else "dim"
        table.add_row(
            str(row.attempt.number),
            row.attempt.stage.value,
            row.verdict,
            "" if row.time_us is None else microseconds(row.time_us),
            gain_words(row.gain),
            _MARKS[row.best] if row.kept else "",
            dollars_words(row.attempt.dollars) if row.attempt.replies else "",
            Text(row.summary),
            style=style,
        )
    return table


def state_words(run: Run, worker: str = "") -> str:
    if worker:
        return f"being worked on by {worker}"
    if run.ending is None:
        return f"it may go on: tilewright resume {run.id}"
    return f"ended: {run.ending.words}"


def show_task(console: Console, task: Task) -> None:
    """What must be computed, in a few lines."""
    asked = f": {' '.join(task.words.split())}" if task.words else ""
    console.print(Text(f"{task.name} for {task.gpu}{asked}"))
    for line in task_words(task):
        console.print(Text(f"  {line}", style="dim"))
    if task.degenerate:
        console.print(Text(f"  degenerate, so passing proves nothing: {task.degenerate}", style="yellow"))


# -- one attempt --


def show_attempt(console: Console, run: Run, attempt: Attempt, source: str) -> None:
    """One attempt: what was asked, what it cost, the verdict in full with lines of its `source`, its times."""
    parent = f" from attempt {attempt.parent}" if attempt.parent else ""
    console.print(Text(f"attempt {attempt.number} of {run.id}: {attempt.stage.value}{parent}", style="bold"))
    console.print(Text(attempt.summary))
    tokens = attempt.usage.all_input_tokens + attempt.usage.output_tokens
    replies = "1 reply" if attempt.replies == 1 else f"{attempt.replies} replies"
    cost = f"{replies}, {tokens:,} tokens, {dollars_words(attempt.dollars)}, "
    console.print(Text(f"{cost if attempt.replies else ''}{seconds_words(attempt.seconds)}", style="dim"))
    console.print()
    console.print(Text(verdict_text(attempt.verdict, source)))
    if attempt.tune is not None and len(attempt.tune.tried) > 1:
        console.print()
        _show_tune(console, attempt.tune)
    if attempt.measurement is not None:
        console.print()
        show_measurement(console, attempt.measurement)


def _show_tune(console: Console, tune: TuneResult) -> None:
    console.print(Text("constants tried", style="bold"))
    for choice, time_us in sorted(tune.tried, key=lambda one: one[1]):
        constants = ", ".join(f"{name}={value}" for name, value in choice)
        chosen = "  chosen" if choice == tune.choice else ""
        console.print(Text(f"  {microseconds(time_us):>9} us  {constants}{chosen}"))
    left = [f"{count} {what}" for count, what in ((tune.skipped, "not tried"), (tune.failed, "failed")) if count]
    if left:
        console.print(Text(f"  {', '.join(left)}", style="dim"))


def show_measurement(console: Console, measurement: Measurement) -> None:
    sizes = ", ".join(f"{name}={size}" for name, size in measurement.sizes.items())
    of_roofline = f"{measurement.fraction:.0%} of the roofline ({microseconds(measurement.floor_us)} us)"
    console.print(Text(f"{time_words(measurement)} on {measurement.gpu} at {sizes}, {of_roofline}", style="bold"))
    if isinstance(measurement, Measured):
        for timing in measurement.baselines:
            gain = timing.median_us / measurement.time_us
            console.print(Text(f"  {timing.name:<14} {microseconds(timing.median_us):>9} us  {gain:.2f}x"))
        for note in measurement.notes:
            console.print(Text(f"  {note}", style="dim"))
    else:
        _show_model(console, measurement)


def _show_model(console: Console, measurement: Modelled) -> None:
    for term in measurement.terms:
        console.print(Text(f"  {term.name:<20} {microseconds(term.time_us):>9} us  {term.detail}"))
    sampled = f"{measurement.sampled_blocks} of {measurement.grid_blocks:,} blocks sampled"
    rest = f"occupancy {measurement.occupancy:.0%}, {measurement.spill_bytes} bytes spilled"
    console.print(Text(f"  {rest}, {sampled}; a modelled time ranks candidates and is no measurement", style="dim"))


def show_notes(console: Console, best: Attempt) -> None:
    """What the referee could not cover of a kernel that passed."""
    for note in best.verdict.notes if isinstance(best.verdict, Passed) else ():
        console.print(Text(f"not covered: {note}", style="yellow"))


def show_diff(console: Console, text: str) -> None:
    """A difference, no line of it cut, in colours that can be read on light and on dark."""
    for line in text.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        console.print(Text(line, style=style), soft_wrap=True)


def diff_text(folder: RunFolder, attempt: Attempt) -> str:
    """What an attempt changed in the file its author was given; the whole file where it was given none."""
    new = folder.attempt(attempt.number).find_text("kernel.cu") or ""
    old = folder.attempt(attempt.parent).find_text("kernel.cu") or "" if attempt.parent else ""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        f"attempt {attempt.parent}" if attempt.parent else "nothing",
        f"attempt {attempt.number}",
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
