"""A run, its attempts, its task and what it cost in words that every front end uses; nothing here knows a terminal.

Tables, plots and live progress are all made of `rows`: what each attempt was, how it compares with the best before it,
and whether it was kept.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright import records
from tilewright.prompts.task_text import PRODUCT_KINDS
from tilewright.store import LibraryEntry
from tilewright.tasks import derivative_words, may_convolve, task_op_line
from tilewright.tasks.errors import BadArgument

PROVISIONAL = "provisional"  # right wherever it was judged, which is not everywhere
_WHY_CHARACTERS = 100
_NARROW = re.compile(r"\b(wg)?mma|tf32|tfloat32|__half|bfloat16", re.IGNORECASE)  # what multiplies with fewer digits


@dataclass(frozen=True)
class Row:
    """One attempt in a few words. `speedup`: the best time before it over its own."""

    attempt: records.Attempt
    verdict: str
    time_us: float | None
    speedup: float | None
    kept: bool  # it became the best when it was made
    best: bool  # it is the best of the whole run
    notes: tuple[str, ...] = ()  # of the attempt, as far as none before it has them
    less: str = ""  # why it was not kept though it is faster: it is provisional, or gives up sizes for too little

    @property
    def summary(self) -> str:
        """The author's line, after a few words on why it failed, or was not kept, where it did."""
        own, why = " ".join(self.attempt.summary.split()), self.less or why_words(self.attempt.verdict)
        return f"{why} ({own})" if why else own


def rows(run: records.Run) -> tuple[Row, ...]:
    """Every attempt of a run, in order."""
    made: list[Row] = []
    before: records.Attempt | None = None
    seen: set[str] = set()
    best = run.best
    for attempt in run.attempts:
        kept = run.takes(attempt, before)
        row = _row(attempt, before, kept=kept, best=attempt is best)
        made.append(replace(row, notes=tuple(one for one in attempt.notes if one not in seen)))
        seen.update(attempt.notes)
        before = attempt if kept else before
    return tuple(made)


def waiting_words(run: records.Run) -> str:
    """Which attempt would be much faster than the best and is only kept behind it until a GPU judges it; "" if none."""
    best = run.best
    if best is None or not isinstance(best.measurement, records.Modelled) or best.is_provisional:
        return ""
    best_us = best.measurement.time_us
    waiting = [one for one in run.attempts if one.is_provisional and one.time_us and one.time_us < best_us]
    if not waiting:
        return ""
    first = min(waiting, key=lambda one: one.time_us or 0.0)
    gain = best_us / (first.time_us or 1.0)
    state = f"attempt {first.number} is modelled {gain:.1f}x as fast and waits for a GPU to judge it"
    return f"{state}: make it where there is one, or with --spool DIR (see it: tilewright show {run.id} {first.number})"


def _row(attempt: records.Attempt, before: records.Attempt | None, kept: bool, best: bool) -> Row:
    time_us = attempt.time_us
    earlier_us = before.time_us if before else None
    speedup = earlier_us / time_us if earlier_us and time_us else None
    less = "" if kept or before is None or speedup is None or speedup <= 1 else _less_words(attempt, before)
    return Row(attempt, verdict_words(attempt.verdict), time_us, speedup, kept, best, less=less)


def _less_words(attempt: records.Attempt, before: records.Attempt) -> str:
    """What a faster attempt has less of than the one it did not take the place of; "" where noise may explain it."""
    if attempt.is_provisional and not before.is_provisional:
        return "kept behind one that passed until a GPU judges it"
    if attempt.is_narrower_than(before):
        return f"gains too little for the sizes it gives up: it takes only {limit_words(attempt)}"
    return ""


def limit_words(attempt: records.Attempt | None) -> str:
    """Which of the sizes that the task asks for a kernel takes: `n a multiple of 4`; "" where it takes them all."""
    return records.SizeLimit.words(_limits_of(attempt))


def _limits_of(attempt: records.Attempt | None) -> tuple[records.SizeLimit, ...]:
    return attempt.verdict.limits if attempt is not None and isinstance(attempt.verdict, records.Passed) else ()


def verdict_words(verdict: records.Verdict) -> str:
    """A word or two for a table."""
    match verdict:
        case records.Passed():
            return PROVISIONAL if verdict.is_provisional else "passed"
        case records.Rejected():
            return verdict.reason
        case records.Unsupported():
            return verdict.reason


def why_words(verdict: records.Verdict) -> str:
    """Why a candidate failed, in a few words; empty where its reason or the author's own line says it."""
    words = ""
    evidence = verdict.evidence if isinstance(verdict, records.Rejected) else None
    match evidence:
        case records.BadPlan(problems=(first, *_)):
            words = (f"line {first.line}: " if first.line else "") + first.message
        case records.NotBuilt(diagnostics=diagnostics, reason=reason):
            errors = [one for one in diagnostics if one.severity is records.Severity.ERROR]
            place = f"line {errors[0].line}: " if errors and errors[0].line else ""
            words = f"{place}{errors[0].message}" if errors else reason.value
        case records.Declined(message=message) | records.Crashed(message=message):
            words = message
        case records.WrongValues(outputs=(first, *_)):
            words = f"{first.output}: {first.description}"
        case records.NotFaster(time_us=time_us, best_us=best_us):
            words = f"{microseconds(time_us)} us, the best takes {microseconds(best_us)} us"
    if isinstance(verdict, records.Unsupported):
        words = verdict.message
    return textwrap.shorten(words, _WHY_CHARACTERS, placeholder=" ...")


def time_words(measurement: records.Measurement | None) -> str:
    """`12.3 us`, or `12.3 us modelled`: a modelled time is never shown as a measured one."""
    if measurement is None:
        return "no time"
    modelled = "" if isinstance(measurement, records.Measured) else " modelled"
    return f"{microseconds(measurement.time_us)} us{modelled}"


def fraction_words(measurement: records.Measurement) -> str:
    """`80% of the roofline (9.86 us)`."""
    return f"{measurement.fraction:.0%} of the roofline ({microseconds(measurement.floor_us)} us)"


def unmeasured_words(attempt: records.Attempt) -> str:
    """Why an attempt that passed has no time, in a sentence; "" where it has one."""
    if attempt.measurement is not None or not attempt.passed:
        return ""
    return f"it has no time: {attempt.unmeasured or 'why is not on record'}"


def scatter_words(timing: records.Timing) -> str:
    """`12.2 to 12.4`: where its median lies."""
    return f"{microseconds(timing.interval_us.low)} to {microseconds(timing.interval_us.high)}"


def conditions_words(gpu: records.GpuConditions) -> str:
    """`SM clock 1980 MHz of 1980, memory 3201 MHz, 41 C`."""
    clocks = sorted({gpu.least_sm_mhz, gpu.most_sm_mhz})
    clock = " to ".join(map(str, clocks))
    return f"SM clock {clock} MHz of {gpu.possible_sm_mhz}, memory {gpu.memory_mhz} MHz, {gpu.celsius} C"


def microseconds(time_us: float) -> str:
    if time_us >= 1000:
        return f"{time_us:,.0f}"
    return f"{time_us:.1f}" if time_us >= 10 else f"{time_us:.2f}"


def speedup_words(speedup: float | None) -> str:
    return "" if speedup is None else f"{speedup:.2f}x"


def attempt_words(row: Row) -> str:
    """`passed, 8.76 us modelled, 1.63x, kept`."""
    words = [row.verdict]
    words += [time_words(row.attempt.measurement)] if row.attempt.passed else []
    words += [speedup_words(row.speedup)] if row.speedup is not None else []
    return ", ".join([*words, *(["kept"] if row.kept else [])])


def dollars_words(dollars: float | None) -> str:
    if dollars is None:
        return "unknown cost"
    return f"${dollars:.2f}" if dollars == 0 or dollars >= 0.01 else f"${dollars:.4f}"


def seconds_words(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def spend_words(run: records.Run, took_s: float | None = None) -> str:
    """What a run has cost so far, of what it may; `took_s` by another clock than that of its attempts."""
    budget, tokens = run.settings.budget, run.usage.tokens
    parts = [f"{len(run.attempts)} of {budget.attempts} attempts"]
    if tokens:
        lost = f" (about {run.cut.tokens:,} in replies that were cut off)" if run.cut.tokens else ""
        parts += [f"{tokens:,} tokens{lost}", f"{dollars_words(run.dollars)} of {dollars_words(budget.dollars)}"]
    return ", ".join([*parts, seconds_words(run.seconds if took_s is None else took_s)])


def addition_words(run: records.Run) -> str:
    """What to add to a run that ended, so that it goes on with a chance. The playbook reads no hints."""
    if run.ending is records.Ending.SECONDS:
        return "--seconds S"
    return "--model PROVIDER:NAME" if run.settings.author == "playbook" else "--hint ..."


def attempts_words(run: records.Run) -> str:
    return number_of(len(run.attempts), "attempt")


def attempt_of(run: records.Run, number: int) -> records.Attempt:
    found = next((one for one in run.attempts if one.number == number), None)
    if found is None:
        raise BadArgument(f"run {run.id} has no attempt {number}; it has {len(run.attempts)}")
    return found


def best_of(run: records.Run, remedy: str = "see --attempt N") -> records.Attempt:
    if run.best is None:
        raise BadArgument(f"no attempt of run {run.id} has passed, so it has no kernel; {remedy}")
    return run.best


def number_of(count: int, what: str) -> str:
    """`1 attempt`, `2 attempts`."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def named_values(values: Mapping[str, object]) -> str:
    """`rows = 4096, eps = 1e-05`."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def kind_words(measured: bool) -> str:
    return "measured" if measured else "modelled"


def is_measured(attempts: Iterable[records.Attempt]) -> bool:
    """Whether the times of these attempts were measured on a GPU rather than modelled."""
    return any(isinstance(one.measurement, records.Measured) for one in attempts)


# -- a task --


def task_words(task: records.Task, best: records.Attempt | None = None) -> list[str]:
    """Lines for a person, who sees here that a result is of another dtype, or a size fixed, than was meant.

    `best`: the attempt whose kernel is kept, which may take fewer sizes than the task asks for.
    """
    lines = [task_op_line(task), f"{', '.join(input_words(task))}{_results(task)}", *_sizes(task, _limits_of(best))]
    lines += [f"precision: {task.precision.words}"] if _precision_matters(task) else []
    lines += [f"assumed: {assumption}" for assumption in task.assumptions]
    return lines if task.derivative is None else [*lines, *derivative_words(task.derivative)]


def rounding_words(task: records.Task, kernel: str) -> str:
    """Where a kernel computes f32 products with less than f32's digits, as its task allows: how; "" where not."""
    f32 = any(one.dtype is records.DType.F32 for one in task.tensors)
    code = re.sub(r"//.*|/\*[\s\S]*?\*/", "", kernel)
    if not f32 or _NARROW.search(code) is None:
        return ""
    exact = "for f32's own digits make it anew with --precision strict"
    if task.precision is records.Precision.HALF:
        return f"computes f32 work in 16 bits, as was allowed; {exact}"
    what, allowed = "", ""
    if task.precision is records.Precision.TF32:
        what, allowed = "products", "as was allowed"
    elif task.precision is records.Precision.DTYPE and may_convolve(task):
        what, allowed = "convolutions", "as PyTorch does by default"
    return f"computes f32 {what} in TF32, which keeps 10 bits after the point of 23, {allowed}; {exact}" if what else ""


def _precision_matters(task: records.Task) -> bool:
    """Whether f32 values are multiplied and added up, or something else than usual was asked for."""
    f32 = any(one.dtype is records.DType.F32 for one in task.tensors)
    return f32 and (task.kind in PRODUCT_KINDS or task.precision is not records.Precision.DTYPE)


def input_words(task: records.Task) -> list[str]:
    """`x = bf16[4096, 1024]`, `eps = 1e-05`."""
    specs = task.specs()
    return [
        f"{one.name} = {one.value if isinstance(one, records.NumberInput) else specs.get(one.name, 'None')}"
        for one in task.inputs
    ]


def _results(task: records.Task) -> str:
    results = named_values(task.output_specs())
    return f" -> {results}" if results else ""


def _sizes(task: records.Task, less: tuple[records.SizeLimit, ...] = ()) -> list[str]:
    """Which dimensions may have other sizes in a call, and which may not; those of size 1 go without saying.

    `less`: of which dimensions the kernel takes fewer sizes than the task asks for.
    """
    narrow = {one.dimension for one in less}
    asked = [f"{one.name}{size_words(one, task)}" for one in task.free if one.name in narrow]
    parts = any_words(task, narrow)
    parts += [f"only {records.SizeLimit.words(less)} (asked for: any {', '.join(asked)})"] if less else []
    parts += then_words(task)
    fixed, bounds = fixed_words(task), bound_words(task)
    parts += [f"always {fixed}"] if fixed else []
    parts += [f"only {' and '.join(bounds)}"] if bounds else []
    return ["; ".join(parts)] if parts else []


def any_words(task: records.Task, narrow: Collection[str]) -> list[str]:
    """`any rows, cols (at least 5)`: dimensions whose sizes are free, but those that the kernel takes fewer of."""
    free = [f"{one.name}{size_words(one, task)}" for one in task.free if one.varies and one.name not in narrow]
    return [f"any {', '.join(free)}"] if free else []


def then_words(task: records.Task) -> list[str]:
    """`then out = rows - 2 (at least 1)`: dimensions whose sizes follow from others."""
    made = [one for one in task.dimensions if one.varies]
    follow = [f"{one.name} = {one.formula}{_room(one.formula)}" for one in made if one.formula]
    return [f"then {', '.join(follow)}"] if follow else []


def fixed_words(task: records.Task) -> str:
    """`cols = 512`; those of size 1 go without saying."""
    return ", ".join(f"{one.name} = {one.size}" for one in task.dimensions if not one.varies and one.size != 1)


def bound_words(task: records.Task) -> list[str]:
    bounded = ((one.name, one.bounds) for one in task.numbers if one.bounds is not None)
    return [condition for name, bounds in bounded for condition in bounds.conditions(name)]


def _room(formula: records.SizeFormula) -> str:
    """Said of what several sizes together must leave room for; of one alone its least is said."""
    shrinks = any(term.coefficient < 0 for term in formula.terms) or formula.constant < 0 or formula.divisor > 1
    return " (at least 1)" if shrinks and len(formula.names) > 1 else ""


def size_words(one: records.Dimension, task: records.Task) -> str:
    """` (at least 5, a multiple of 4)`; "" where any size is taken."""
    limits = [f"a multiple of {one.multiple_of}"] if one.multiple_of > 1 else []
    limits += [least] if (least := task.least_words(one)) else []
    limits += [f"at most {one.at_most}"] if one.at_most is not None else []
    return f" ({', '.join(limits)})" if limits else ""


# -- a kernel of the library --


def entry_words(entry: LibraryEntry) -> str:
    """`run softmax-backward-d6hr (playbook, 3.1 us modelled on H200)`."""
    standing = f", {PROVISIONAL}: not all that it does there was judged" if entry.provisional else ""
    return f"run {entry.run} ({entry.author}, {time_words(entry.measurement)} on {entry.gpu}{standing})"


def found_words(entry: LibraryEntry, wanted: str, anew: str) -> str:
    """Who made it. `wanted`: the author named for this request, if any; `anew`: the option that has it made anew."""
    made = f"already made by {entry_words(entry)}"
    if wanted and wanted != entry.author:
        return f"{made}, so {wanted} was not asked for one; {anew} has it made anew by {wanted}"
    return f"{made}; {anew} makes it anew"
