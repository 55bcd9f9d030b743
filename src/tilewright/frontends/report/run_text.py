"""Runs at a terminal: all of them, one as a table and a plot, one attempt in full, what it came to, who wrote it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright import records
from tilewright.frontends.cli.terminal import plain_table
from tilewright.frontends.report import runs
from tilewright.frontends.report.pictures import text_plot
from tilewright.frontends.report.runs import (
    PROVISIONAL,
    dollars_words,
    microseconds,
    spend_words,
    task_words,
    time_words,
)
from tilewright.prompts.verdict_text import verdict_text, verdict_words
from tilewright.records import Attempt, Ending, Measured, Measurement, Origin, Provenance, Run, Task
from tilewright.store import LibraryKernel, Request, RunFolder, RunList

_MARKS = {True: "best", False: "kept"}
_HASH_SHOWN = 12
_NUMBERS = ("attempts", "best", "cost")
_LEFT_OUT = ("op", "GPU", "cost", "author", "when", "attempts", "state", "best")  # the first goes first
_BREAKABLE = {"author": 20, "state": 20}  # such cells may go over several lines of at least this width


# -- one run --


def show_run(console: Console, run: Run, worker: str = "") -> None:
    """Everything about a run that fits on a page. `worker`: the process that works on it now."""
    console.print(Text.assemble((run.id, "bold"), f"  {when(run.created)}  by {run.settings.author}"))
    show_task(console, run.task, run.best)
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
    console.print(_attempts_table(run))
    plot = text_plot(run)
    if plot:
        console.print()
        console.print(Text("\n".join(plot)))


def _attempts_table(run: Run) -> Table:
    kind = "measured us" if runs.is_measured(run.attempts) else "modelled us"
    headings = ("#", "stage", "verdict", kind, "speedup", "", "cost", "summary")
    table = plain_table(headings, numbers=("#", kind, "speedup", "cost"))
    for row in runs.rows(run):
        style = "bold green" if row.best else "" if row.kept else "dim"
        table.add_row(
            str(row.attempt.number),
            row.attempt.stage.value,
            row.verdict,
            "" if row.time_us is None else microseconds(row.time_us),
            runs.speedup_words(row.speedup),
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
    return f"ended: {run.ending_words}"


def show_task(console: Console, task: Task, best: Attempt | None = None) -> None:
    """What must be computed, in a few lines."""
    asked = f": {' '.join(task.words.split())}" if task.words else ""
    console.print(Text(f"{task.name} for {task.gpu}{asked}"))
    for line in task_words(task, best):
        console.print(Text(f"  {line}", style="dim"))
    if task.degenerate:
        console.print(Text(f"  degenerate, so passing proves nothing: {task.degenerate}", style="yellow"))


# -- one attempt --


def show_attempt(console: Console, run: Run, attempt: Attempt, source: str) -> None:
    """One attempt: what was asked, what it cost, the verdict in full with lines of its `source`, its times."""
    parent = f" from attempt {attempt.parent}" if attempt.parent else ""
    console.print(Text(f"attempt {attempt.number} of {run.id}: {attempt.stage.value}{parent}", style="bold"))
    console.print(Text(attempt.summary))
    for note in attempt.notes:
        console.print(Text(f"by algebra: {note}"))
    tokens = attempt.usage.all_input_tokens + attempt.usage.output_tokens
    replies = "1 reply" if attempt.replies == 1 else f"{attempt.replies} replies"
    cost = f"{replies}, {tokens:,} tokens, {dollars_words(attempt.dollars)}, "
    console.print(Text(f"{cost if attempt.replies else ''}{runs.seconds_words(attempt.seconds)}", style="dim"))
    console.print()
    console.print(Text(verdict_text(attempt.verdict, source)))
    if attempt.tune is not None and len(attempt.tune.tried) > 1:
        console.print()
        _show_tune(console, attempt.tune)
    if attempt.measurement is not None:
        console.print()
        show_measurement(console, attempt.measurement)
    if why := runs.unmeasured_words(attempt):
        console.print(Text(why, style="yellow"), soft_wrap=True)


def _show_tune(console: Console, tune: records.TuneResult) -> None:
    console.print(Text("constants tried by the autotuner", style="bold"))
    for choice, time_us in sorted(tune.tried, key=lambda one: one[1]):
        constants = ", ".join(f"{name}={value}" for name, value in choice)
        refused = next((one.verdict for one in tune.refused if one.choice == choice), None)
        chosen = "  chosen" if choice == tune.choice else f"  {verdict_words(refused)}" if refused else ""
        console.print(Text(f"  {microseconds(time_us):>9} us  {constants}{chosen}"))
    left = [f"{count} {what}" for count, what in ((tune.skipped, "not tried"), (tune.failed, "failed")) if count]
    if left:
        console.print(Text(f"  {', '.join(left)}", style="dim"))


def show_measurement(console: Console, measurement: Measurement) -> None:
    sizes = ", ".join(f"{name}={size}" for name, size in measurement.sizes.items())
    of_roofline = f"{measurement.fraction:.0%} of the roofline ({microseconds(measurement.floor_us)} us)"
    console.print(Text(f"{time_words(measurement)} on {measurement.gpu} at {sizes}, {of_roofline}", style="bold"))
    if isinstance(measurement, Measured):
        _show_measured(console, measurement)
    else:
        _show_model(console, measurement)


def _show_measured(console: Console, measurement: Measured) -> None:
    """Every contender with where its median lies, and its speed beside the kernel's; then under what terms."""
    timings = [measurement.kernel, *measurement.baselines, *([measurement.control] if measurement.control else [])]
    for timing in timings:
        line = f"  {timing.name:<14} {microseconds(timing.median_us):>9} us  ({runs.scatter_words(timing)})"
        if timing is not measurement.kernel:
            ratio = measurement.times_as_long(timing)
            line += f"  {timing.median_us / measurement.time_us:.3f}x ({ratio.low:.3f} to {ratio.high:.3f})"
        console.print(Text(line))
    console.print(Text("  in brackets: where the median, or the ratio to the kernel, lies with 95 %", style="dim"))
    if measurement.precision is not None:
        console.print(Text(f"  kernel and baselines {measurement.precision.words}", style="dim"))
    if measurement.conditions is not None:
        console.print(Text(f"  {runs.conditions_words(measurement.conditions)}", style="dim"))
    for note in measurement.notes:
        console.print(Text(f"  {note}", style="dim"))


def _show_model(console: Console, measurement: records.Modelled) -> None:
    for term in measurement.terms:
        console.print(Text(f"  {term.name:<20} {microseconds(term.time_us):>9} us  {term.detail}"))
    sampled = f"{measurement.sampled_blocks} of {measurement.grid_blocks:,} blocks sampled"
    rest = f"occupancy {measurement.occupancy:.0%}, {measurement.spill_bytes} bytes spilled"
    told = f" (+- {measurement.uncertainty:.0%})" if measurement.uncertainty else ""
    said = f"a modelled time{told} ranks candidates and is no measurement"
    console.print(Text(f"  {rest}, {sampled}; {said}", style="dim"))


def show_notes(console: Console, run: Run) -> None:
    """Whether the kernel kept is verified, what the referee could not cover, which faster one waits for a GPU."""
    best = run.best
    if best is None or not isinstance(best.verdict, records.Passed):
        return
    for note in best.verdict.notes:
        console.print(Text(f"not covered: {note}", style="yellow"))
    if run.task.degenerate:
        console.print(Text("not verified: the task's answers prove nothing", style="yellow"))
    elif best.verdict.is_provisional:
        said = "not verified: at the task's own sizes it does what no judged case did"
        console.print(Text(f"{PROVISIONAL}, {said}", style="yellow"))
    else:
        right = [one for one in best.verdict.cases if one.status is records.CaseStatus.RIGHT]
        console.print(Text(verified_words(len(right), [one.device for one in right if one.device])))
    for sentence in best.verdict.unjudged:
        console.print(Text(f"  {sentence}", style="yellow"))
    if waiting := runs.waiting_words(run):
        console.print(Text(waiting, style="yellow"), soft_wrap=True)


def verified_words(cases: int, devices: Sequence[str]) -> str:
    """`verified: right in 24 cases on H200 (emulated)`."""
    where = f" on {', '.join(dict.fromkeys(devices))}" if devices else ""
    return f"verified: right in {cases} case{'s' if cases != 1 else ''}{where}"


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


# -- what a run came to --


def show_finished(
    console: Console, run: Run, path: Path | None, request: Request | None = None, *, call: bool = True
) -> None:
    """The end of `make`: attempts, the best one's time, and the path of its kernel with a call of it.

    `request`: what the run was asked for, which may name the function to give as reference. `call`: whether a call is
    shown; that of a forward and its backward together comes after both.
    """
    show_attempts(console, run)
    console.print()
    console.print(Text(f"{state_words(run)}; {spend_words(run)}"))
    if run.best is None or path is None:
        console.print(Text("no attempt passed, so there is no kernel", style="bold red"))
        _show_next_commands(console, run)
        return
    if run.best.measurement is not None:
        show_measurement(console, run.best.measurement)
    if why := runs.unmeasured_words(run.best):
        console.print(Text(why, style="yellow"), soft_wrap=True)
    for note in run.best.notes:
        console.print(Text(f"by algebra: {note}"), soft_wrap=True)
    show_notes(console, run)
    if rounding := runs.rounding_words(run.task, path.read_text("utf-8")):
        console.print(Text(rounding, style="yellow"), soft_wrap=True)
    console.print()
    console.print(Text(f"kernel: {path}", style="bold green"))
    if call:
        show_call(console, run.task, path, request)
    console.print(Text(f"more: tilewright show {run.id}", style="dim"))
    if run.ending is Ending.SECONDS:
        console.print(Text(f"go on: tilewright resume {run.id} {runs.addition_words(run)}", style="dim"))


def _show_next_commands(console: Console, run: Run) -> None:
    """What to look at and what to add where no attempt passed."""
    if run.attempts:
        console.print(Text(f"see why: tilewright show {run.id} --attempt {run.attempts[-1].number}"))
    console.print(Text(f"go on: tilewright resume {run.id} {runs.addition_words(run)}"))


def show_found(console: Console, kernel: LibraryKernel, path: Path, wanted: str = "", *, call: bool = True) -> None:
    """A kernel that was made before. `wanted`: the author named for this request, who was not asked."""
    console.print(Text(runs.found_words(kernel.entry, wanted, "--fresh"), style="bold"))
    made = kernel.provenance()
    for note in made.notes if made is not None else ():
        console.print(Text(f"not covered: {note}", style="yellow"))
    if made is not None and made.verified_on and not (made.unjudged or made.degenerate):
        console.print(Text(verified_words(made.right_cases, made.verified_on)))
    if rounding := runs.rounding_words(kernel.task(), kernel.text()):
        console.print(Text(rounding, style="yellow"), soft_wrap=True)
    console.print(Text(f"kernel: {path}", style="bold green"))
    if call:
        show_call(console, kernel.task(), path, kernel.request())


def show_call(
    console: Console, task: Task, path: Path, request: Request | None, backward: tuple[Task, Path] | None = None
) -> None:
    """How a kernel is called in Python; with `backward`, its task and file, so that gradients are a kernel's too."""
    tensors = [one.name for one in task.tensors if not one.optional]
    numbers = [f"{one.name}={one.value!r}" for one in task.numbers if not one.default]
    arguments = ", ".join([*tensors, *numbers])
    results = ", ".join(one.name for one in task.outputs)
    assigned = f"{results} = " if results else ""
    imported = _import_of_reference(task, request)
    joined = _joined_words(*backward) if backward is not None else ""
    if not imported:
        console.print(Text(f'call it: {assigned}tilewright.load("{path}"){joined}({arguments})'), soft_wrap=True)
        return
    changes = any(one.in_place for one in task.tensors)
    why = f"runs where {'no' if joined else 'the'} kernel {'takes' if joined else 'does not take'} a call"
    why += "" if changes or joined else ", and gives gradients"
    call = f'{assigned}tilewright.load("{path}", reference={task.function}){joined}({arguments})'
    for line in ("call it:", "import tilewright", f"{imported}  # {why}", call):
        console.print(Text(line), soft_wrap=True)


def _joined_words(task: Task, path: Path) -> str:
    """`.with_backward(...)` of a file of gradients."""
    derivative = task.derivative
    if derivative is None:
        return ""
    gradients = ", ".join(f'"{a}": "{b}"' for a, b in zip(derivative.results, derivative.gradients, strict=True))
    by = ", ".join(f'"{one}"' for one in derivative.by)
    return f'.with_backward(tilewright.load("{path}"), {{{gradients}}}, [{by}])'


def _import_of_reference(task: Task, request: Request | None) -> str:
    """How Python comes by the person's own function; "" where the task is no function in a file of theirs."""
    if request is None or task.origin is not Origin.FUNCTION or task.derivative is not None:
        return ""
    file = Path(request.text.strip().rsplit(":", 1)[0]).expanduser()
    if file.suffix != ".py" or not file.is_file():
        return ""
    if file.resolve().parent == Path.cwd() and file.stem.isidentifier():
        return f"from {file.stem} import {task.function}"
    return f'import runpy; {task.function} = runpy.run_path("{file}")["{task.function}"]'


# -- where a kernel comes from --


def show_provenance(console: Console, made: Provenance, authors: Sequence[int], kernel: str) -> None:
    """`authors`: for every line of the kernel the attempt that wrote it."""
    licence = "nobody has stated one (--license)" if made.licence == records.UNSTATED else made.licence
    console.print(Text.assemble((made.op, "bold"), f"  run {made.run} of {made.created}, tilewright {made.tilewright}"))
    console.print(Text(f"kernel {made.kernel}, task {made.task_hash}; licence: {licence}"))
    where = f" on {', '.join(made.verified_on)}" if made.verified_on else ""
    worst = "" if made.worst_error is None else f", worst error {made.worst_error:.2f} of what is allowed"
    console.print(Text(f"correct in {made.right_cases} cases{where}{worst}; {time_words(made.measurement)}"))
    for sentence in made.unjudged:
        console.print(Text(f"{PROVISIONAL}, not verified: {sentence}", style="yellow"))
    if made.degenerate:
        console.print(Text(f"passing proves nothing: {made.degenerate}", style="yellow"))
    console.print()
    console.print(_contributions_table(made))
    console.print()
    for number, (author, line) in enumerate(zip(authors, kernel.splitlines(), strict=True), start=1):
        console.print(Text.assemble((f"#{author:<3}{number:>5}  ", "dim"), line), soft_wrap=True)


def _contributions_table(made: Provenance) -> Table:
    table = plain_table(("#", "lines", "stage", "author", "prompt", "summary"), numbers=("#", "lines"))
    for one in made.contributions:
        table.add_row(
            str(one.attempt),
            str(sum(last - first + 1 for first, last in one.lines)),
            one.stage,
            one.author,
            one.prompts[-1][:_HASH_SHOWN] if one.prompts else "",
            Text(" ".join(one.summary.split())),
        )
    return table


# -- all runs --


def show_runs(console: Console, listing: RunList) -> None:
    """One line for each run, newest first, then what waits to be accepted and what cannot be read."""
    if not (listing.runs or listing.waiting or listing.broken):
        console.print(Text('no runs yet; begin with: tilewright make "softmax over the last dimension"'))
        return
    if listing.runs:
        console.print(_runs_table(listing, console.width))
    for one in listing.waiting:
        words = " ".join(one.request.text.split())
        worker = listing.workers.get(one.id)
        state = f"{worker} is on it" if worker else f"tilewright resume {one.id} --yes"
        line = f"{one.id}  {when(one.created)}  has no accepted specification yet: {words[:60]!r}; {state}"
        console.print(Text(line, style="yellow"), soft_wrap=True)
    for broken in listing.broken:
        console.print(Text(f"{broken.path} cannot be read: {broken.problem}", style="red"))


def _runs_table(listing: RunList, width: int) -> Table:
    """Columns are left out until no cell but an author's or a state's must be broken; the run always stays."""
    rows = [_cells(run, listing.workers.get(run.id)) for run in listing.runs]
    headings = list(rows[0])
    for least in _LEFT_OUT:
        if sum(_needed(heading, rows) + 2 for heading in headings) <= width:
            break
        headings.remove(least)
    table = plain_table(headings, _NUMBERS)
    for column, heading in zip(table.columns, headings, strict=True):
        column.no_wrap = heading not in _BREAKABLE
    for row in rows:
        table.add_row(*(row[heading] for heading in headings))
    return table


def _cells(run: Run, worker: str | None) -> dict[str, Text]:
    best = time_words(run.best.measurement) if run.best else "none passed" if run.attempts else ""
    return {
        "run": Text(run.id, style="bold"),
        "when": Text(when(run.created)),
        "op": Text(run.task.name),
        "GPU": Text(run.task.gpu),
        "author": Text(run.settings.author, overflow="fold"),
        "attempts": Text(str(len(run.attempts))),
        "best": Text(best),
        "cost": Text(dollars_words(run.dollars)),
        "state": _state(run, worker),
    }


def _needed(heading: str, rows: Sequence[dict[str, Text]]) -> int:
    """How wide a column must be."""
    return min(max(len(heading), *(row[heading].cell_len for row in rows)), _BREAKABLE.get(heading, 1000))


def _state(run: Run, worker: str | None) -> Text:
    if worker:
        return Text(f"{worker} is on it", style="green")
    return Text(run.ending.words) if run.ending else Text("may go on", style="yellow")


def when(created: str) -> str:
    """A time of the record in this machine's own zone, to the minute."""
    return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M")
