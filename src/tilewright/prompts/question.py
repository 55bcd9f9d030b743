"""The two prompts of a question: the system prompt of a run, and the question of one attempt.

The system prompt has the rules, the file format, advice for the GPU and the kind of work, and the task. It is the same
for all questions of a run, so providers can cache it. The question has the history, the current file, and its problems
or its speed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright import records
from tilewright.kernel_file import contract
from tilewright.prompts.rendering import render, render_with_idioms
from tilewright.prompts.task_text import PRODUCT_KINDS, gpu_text, task_text
from tilewright.prompts.verdict_text import verdict_text, verdict_words
from tilewright.records import (
    KIB,
    Declined,
    DType,
    Kind,
    LintFinding,
    Modelled,
    Rejected,
    Severity,
    Situation,
    Stage,
    Task,
    Unsupported,
)

# -- the history and the best file --

MOST_LINES = 10
MOST_CHOICES = 24
_TERMS = 3
_WORTH_TELLING = 0.02  # smallest change of a term, relative to the time
_AT_LEAST = 1.03  # times the least memory time: nothing is left to gain


def history_text(attempts: tuple[records.Attempt, ...], noise: float, *, terms: bool = False) -> str:
    """One line per attempt with its outcome; older attempts share a line. `terms`: with the largest model terms."""
    kept = _kept(attempts, noise)
    older, recent = attempts[:-MOST_LINES], attempts[-MOST_LINES:]
    lines = [_condensed(older, kept)] if older else []
    return "\n".join([*lines, *(_line(one, kept, noise) + _facts(one, terms) for one in recent)])


def _kept(attempts: tuple[records.Attempt, ...], noise: float) -> list[records.Attempt]:
    """The attempts that were the best when they were made, in order."""
    kept: list[records.Attempt] = []
    for one in attempts:
        if one.passed and (not kept or one.beats(kept[-1], noise)):
            kept.append(one)
    return kept


def standing_text(attempt: records.Attempt, noise: float, *, bound: bool = False) -> str:
    """The state of the best file: verdict, time, tuning, and the time to beat. `bound`: with the time per resource."""
    parts = [verdict_text(attempt.verdict)]
    parts.append(measurement_text(attempt.measurement) if attempt.measurement else "No time is known for it.")
    if bound and isinstance(attempt.measurement, records.Modelled):
        parts.append(_bound_text(attempt.measurement))
    if attempt.tune:
        parts.append(tune_text(attempt.tune))
    if attempt.measurement:
        wanted_us = attempt.measurement.time_us * (1.0 - noise)
        parts.append(
            f"To be kept, the next file must be right and take less than {_time(wanted_us)} ({_percent(noise)} less)."
        )
    return "\n".join(part for part in parts if part)


def measurement_text(measurement: records.Measurement) -> str:
    """A measured or modelled time in full."""
    sizes = ", ".join(f"{name}={size}" for name, size in measurement.sizes.items())
    if isinstance(measurement, records.Measured):
        return _measured(measurement, sizes)
    return _modelled(measurement, sizes)


def tune_text(tune: records.TuneResult) -> str:
    """The choices that the tuner tried, fastest first; "" if there was only one."""
    if len(tune.tried) < 2 and not tune.failed:
        return ""
    ranked = sorted(tune.tried, key=lambda pair: pair[1])
    shown, left = ranked[:MOST_CHOICES], ranked[MOST_CHOICES:]
    names = "/".join(name for name, _ in tune.choice)
    listed = "; ".join(_entry(choice, time_us) for choice, time_us in shown)
    more = f"; {len(left)} more, the worst {_entry(*left[-1])}" if left else ""
    more += f"; {tune.failed} did not build or were wrong" if tune.failed else ""
    more += f"; {tune.skipped} were not tried" if tune.skipped else ""
    said = f"Tuner: {_choice(tune.choice)} is in use"
    if ranked and tune.choice != ranked[0][0]:
        said += " (the default is kept unless another is right and clearly faster)"
    return f"{said}. Tried, {names} and us: {listed}{more}."


# -- lines --


def _line(one: records.Attempt, kept: list[records.Attempt], noise: float) -> str:
    origin = f" from #{one.parent}" if one.parent is not None else ""
    said = f"#{one.number} {one.stage.value}{origin}: {_one_line(one.summary) or 'no summary'}"
    if not one.passed:
        return f"{said} -> {verdict_words(one.verdict)}{_where(one)}"
    if one.time_us is None:
        return f"{said} -> right, no time{'' if one in kept else '; not kept'}"
    against = next((before for before in reversed(kept) if before.number < one.number), None)  # the best at that time
    said += f" -> right, {_time(one.time_us)}{' (modelled)' if isinstance(one.measurement, records.Modelled) else ''}"
    if against is None or against.time_us is None:
        return said + (", kept" if one in kept else ", not kept")
    compared = f"{_compared(one.time_us, against.time_us)} #{against.number} ({_time(against.time_us)})"
    if one in kept:
        return f"{said}, {compared}: kept"
    if one.is_provisional and not against.is_provisional:
        return f"{said}, {compared}: reverted, because it is only provisionally right and #{against.number} is verified"
    why = _short(one.time_us, against.time_us, noise)
    return f"{said}, {compared}{why}: reverted{_changes(one.measurement, against.measurement)}"


def _changes(one: records.Measurement | None, against: records.Measurement | None) -> str:
    """The model terms that changed most, which show why a step gained nothing."""
    if not (isinstance(one, records.Modelled) and isinstance(against, records.Modelled)):
        return ""
    before, after = ({term.name: term.time_us for term in made.terms} for made in (against, one))
    changes = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in (*before, *after)}
    worth = [name for name in changes if abs(changes[name]) >= _WORTH_TELLING * against.time_us]
    ranked = sorted(worth, key=lambda name: -abs(changes[name]))[:_TERMS]
    told = ", ".join(f"{name} {before.get(name, 0.0):.3g} to {after.get(name, 0.0):.3g}" for name in ranked)
    return f" (resources alone: {told} us)" if told else ""


def _short(time_us: float, against_us: float, noise: float) -> str:
    """Why a faster file was not kept."""
    if time_us >= against_us:
        return ""
    if time_us >= against_us * (1.0 - noise):
        return f", below the {_percent(noise)} needed"
    return ", within what times scatter"


def _facts(one: records.Attempt, terms: bool) -> str:
    """Facts that explain the speed of a file that passed."""
    facts = []
    if one.passed and isinstance(one.measurement, records.Modelled):
        facts.append(_occupancy(one.measurement))
    if one.passed and one.tune and len(one.tune.tried) > 1:
        facts.append(f"best {_choice(one.tune.choice)}")
    if terms and one.passed and isinstance(one.measurement, records.Modelled):
        ranked = sorted(one.measurement.terms, key=lambda term: -term.time_us)[:_TERMS]
        facts.append(", ".join(f"{term.name} {term.time_us:.3g}" for term in ranked) + " us")
    return f" [{'; '.join(facts)}]" if facts else ""


def _compared(time_us: float, against_us: float) -> str:
    if time_us == against_us:
        return "as fast as"
    if time_us < against_us:
        return f"{_percent(1.0 - time_us / against_us)} faster than"
    return f"{_percent(time_us / against_us - 1.0)} slower than"


def _condensed(older: tuple[records.Attempt, ...], kept: list[records.Attempt]) -> str:
    counts = Counter("right" if one.passed else verdict_words(one.verdict).partition(":")[0] for one in older)
    best = [one for one in older if one in kept]
    outcome = ", ".join(f"{count} {what}" for what, count in counts.items())
    line = f"#{older[0].number}-#{older[-1].number}: {outcome}"
    if best:
        time = f", {_time(best[-1].time_us)}" if best[-1].time_us is not None else ""
        line += f"; best #{best[-1].number}{time}: {_one_line(best[-1].summary)}"
    return line


def _where(one: records.Attempt) -> str:
    verdict = one.verdict
    if isinstance(verdict, records.Rejected) and isinstance(verdict.evidence, records.WrongValues):
        return f" at {', '.join(f'{name}={size}' for name, size in verdict.evidence.case.sizes.items())}"
    return ""


def _measured(measurement: records.Measured, sizes: str) -> str:
    said = (
        f"Measured on {measurement.gpu} at {sizes}: {_time(measurement.time_us)}{_scatter(measurement.kernel)}; "
        f"{_floor(measurement)}, so {measurement.fraction:.0%} of it is reached."
    )
    for one in measurement.baselines:
        said += f" {one.name}: {_time(one.median_us)}{_scatter(one)}."
    return " ".join([said, *measurement.notes])


def _scatter(timing: records.Timing) -> str:
    """` (+- 0.3)`: half the 95 % confidence interval of the median; "" for zero."""
    half = timing.interval_us.half_width
    return f" (+- {half:.2g})" if half else ""


def _modelled(measurement: records.Modelled, sizes: str) -> str:
    """The modelled time and the floor. Its terms are part of the profile, in the last stage."""
    count = measurement.launches
    return (
        f"Modelled (not measured) for {measurement.gpu} at {sizes}: {_time(measurement.time_us)}; "
        f"{_floor(measurement)}, {measurement.fraction:.0%} of the time. "
        f"{count} {'launch' if count == 1 else 'launches'}, {measurement.grid_blocks:,} blocks, "
        f"{_occupancy(measurement)}.{_reachable(measurement)}"
    )


def _reachable(measurement: records.Modelled) -> str:
    if not measurement.reachable_us:
        return ""
    return (
        f" The model gives {_time(measurement.reachable_us)} to a kernel that moves only the least bytes, in one "
        f"launch: this file takes {_percent(measurement.time_us / measurement.reachable_us - 1.0)} more."
    )


def _bound_text(measurement: records.Modelled) -> str:
    if not measurement.bounds:
        return ""
    longest, *others = measurement.bounds
    share = longest.time_us / measurement.time_us if measurement.time_us else 0.0
    seen = f" ({longest.detail})" if longest.name == "latency" and longest.detail else ""
    said = f"Bound by {longest.name}{seen}: {_time(longest.time_us)} if it were alone, {share:.0%} of the time"
    least_us = measurement.reachable_us - records.FIRST_LAUNCH_US
    if longest.name == "device memory" and longest.time_us <= _AT_LEAST * least_us:
        said += ", which is its least: every byte moves once"
    told = ", ".join(f"{term.name} {term.time_us:.3g}" for term in others)
    return f"{said}. The others alone: {told} us." if told else f"{said}."


def _floor(measurement: records.Measurement) -> str:
    launch_us = records.LAUNCH_US
    return (
        f"the floor is {_time(measurement.floor_us)} ({launch_us:g} us for a launch, "
        f"{_time(measurement.floor_us - launch_us)} for bytes or products at the vendor's figures)"
    )


def _occupancy(measurement: records.Modelled) -> str:
    spills = f"{measurement.spill_bytes} bytes spilled" if measurement.spill_bytes else "no spills"
    registers = f"{measurement.registers} registers a thread, " if measurement.registers else ""
    return f"occupancy {measurement.occupancy:.0%}, {registers}{spills}"


def _choice(choice: tuple[tuple[str, int | bool], ...]) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in choice) or "no choice"


def _entry(choice: tuple[tuple[str, int | bool], ...], time_us: float) -> str:
    return f"{'/'.join(_value(value) for _, value in choice)} {time_us:.4g}"


def _value(value: int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _time(microseconds: float | None) -> str:
    if microseconds is None:
        return "no time"
    return f"{microseconds:,.0f} us" if microseconds >= 1000 else f"{microseconds:.4g} us"


def _percent(fraction: float) -> str:
    return f"{100.0 * fraction:.0f} %" if abs(fraction) >= 0.1 else f"{100.0 * fraction:.2g} %"


def _one_line(text: str) -> str:
    return " ".join(text.split())


_CUTE_WORD = re.compile(r"\bcute\b|\bcutlass\b", re.IGNORECASE)
_HALF = (DType.F16, DType.BF16)
_LARGE = 1024  # matrix sizes from which CuTe pays
_LITTLE = 1.08  # times the modelled minimum: little is left to gain
_HOPPER = 90
_ROWS_PER_SM, _LONG_ROW_BYTES = 2, 256 * KIB  # fewer and longer rows do not fill the GPU with one block each
_MOST_LINT = 4
_TILE = 128  # tile size of large matrix products


def system_text(task: Task, emulated_only: bool = False, skill: str = "") -> str:
    """The system prompt. `emulated_only`: there is no GPU, only the emulator; `skill`: the text of a skill."""
    products = task.kind in PRODUCT_KINDS
    tiles = product_tiles(task) if products else 0
    advice, idioms = render_with_idioms(
        f"kinds/{task.kind.value}",
        half=any(one.dtype in _HALF for one in task.tensors),
        per_row=any(one.shape for one in task.outputs),
        precision=task.precision.value,
        tiles=tiles,
        sms=task.profile.sms,
        cute=names_cute(task),
        hopper=task.profile.cc == _HOPPER,
        few_long=few_long_rows(task),
        columns=keeps_columns(task),
    )
    return render(
        "system",
        emulated_only=emulated_only,
        contract=contract(),
        gpu=gpu_text(task.profile),
        family=render(
            f"families/{family_of(task.profile.cc)}",
            products=products,
            large=products and tiles >= task.profile.sms,
        ),
        kind_name=task.kind.value,
        kind=advice,
        idioms=idioms,
        cute=cute_text(task) if wants_cute(task) else "",
        skill=skill,
        task=task_text(task),
    )


@dataclass(frozen=True)
class FewLongRows:
    """Too few rows to fill the GPU with one block each."""

    rows: int
    kib: int


def few_long_rows(task: Task) -> FewLongRows | None:
    """The rows of the largest input, along its last dimension or those it shares with a weight."""
    specs = sorted(task.specs().values(), key=lambda spec: -spec.numel * spec.dtype.itemsize)
    if not specs or specs[0].ndim < 2 or not any(one.shape for one in task.outputs):
        return None
    largest, *others = specs
    trailing = (one.ndim for one in others if one.ndim and one.shape == largest.shape[1:][-one.ndim :])
    along = max(trailing, default=1)
    row = math.prod(largest.shape[-along:]) * largest.dtype.itemsize
    rows = largest.numel * largest.dtype.itemsize // max(row, 1)
    few = rows < _ROWS_PER_SM * task.profile.sms and row >= _LONG_ROW_BYTES
    return FewLongRows(rows, row // KIB) if few else None


def keeps_columns(task: Task) -> bool:
    """Whether every result keeps the last dimension of the largest input and reduces others."""
    largest = max(task.tensors, key=lambda one: len(one.dimensions), default=None)
    return largest is not None and all(
        0 < len(one.shape) < len(largest.dimensions) and one.shape[-1] == largest.dimensions[-1] for one in task.outputs
    )


def names_cute(task: Task) -> bool:
    return mentions_cute(task.words) or mentions_cute(task.reference)


def wants_cute(task: Task) -> bool:
    """Whether to explain CuTe: for large matrix products, or if the request or the reference names it."""
    if names_cute(task):
        return True
    return task.kind in PRODUCT_KINDS and min(product_sizes(task), default=0) >= _LARGE


def product_sizes(task: Task) -> tuple[int, ...]:
    """The matrix sizes that decide whether CuTe pays; () if unknown."""
    shapes = [spec.shape for spec in task.specs().values()]
    if task.kind is Kind.CONVOLUTION:
        wide = [shape for shape in shapes if len(shape) >= 3]  # the input, then the weights
        channels = max(wide[1][0], 1) if len(wide) > 1 else 0
        return (_results(task) // channels, channels, math.prod(wide[1]) // channels) if channels else ()
    matrices = sorted((shape for shape in shapes if len(shape) >= 2), key=math.prod, reverse=True)
    if task.kind is Kind.ATTENTION:
        return matrices[0][-2:-1] if matrices else ()  # the sequence length; heads are always small
    return tuple(size for shape in matrices[:2] for size in shape[-2:])


def product_tiles(task: Task) -> int:
    """The number of 128 x 128 tiles of the largest result."""
    return math.ceil(_results(task) / (_TILE * _TILE))


def _results(task: Task) -> int:
    return max((math.prod(spec.shape) for spec in task.output_specs().values()), default=0)


def mentions_cute(text: str) -> bool:
    return _CUTE_WORD.search(text) is not None


def cute_text(task: Task) -> str:
    """How to use CuTe here, with a pattern for the GPU."""
    if task.kind not in PRODUCT_KINDS:
        name = "cute_rows"
    elif task.profile.cc == _HOPPER:
        name = "cute_sm90"
    else:
        name = "cute_sm80"
    return render("cute", idioms=(name,))


def family_of(cc: int) -> str:
    """The advice file of a compute capability."""
    if cc >= 120:
        return "sm_120a"
    if cc >= 100:
        return "sm_100a"
    if cc >= 90:
        return "sm_90a"
    if cc > 80:
        return "sm_86"
    return "sm_80" if cc == 80 else "sm_75"


# -- the question of one attempt --


def question_text(situation: Situation) -> str:
    """The question of one attempt. Stages are templates in `templates/stages`."""
    hinted = mentions_cute(situation.hint) and not wants_cute(situation.task)
    return render(
        "question",
        situation=situation,
        history=history_text(situation.history, situation.noise, terms=situation.stage is Stage.PROFILED),
        body=_body(situation),
        cute=cute_text(situation.task) if hinted else "",
        base=base_of(situation),
        lint=lint_lines(situation.lint),
        may_pass=may_pass(situation),
    )


def lint_lines(findings: Sequence[LintFinding]) -> list[str]:
    """The most severe findings, one line each, without remarks."""
    grave = [one for one in findings if one.severity is not Severity.REMARK]
    return [
        f"- {f'line {one.line}' if one.line else one.kernel}: {one.rule.value}: {one.evidence}; {one.remedy}"
        for one in grave[:_MOST_LINT]
    ]


def base_of(situation: Situation) -> str | None:
    """The file that edits apply to, which the question shows."""
    if situation.stage is Stage.DRAFT and situation.parent is not None:
        return None  # another candidate of this step has passed; this one starts anew
    shown = situation.failing_text if situation.stage.is_repair else situation.parent_text
    return shown or None


def may_pass(situation: Situation) -> bool:
    """Whether the reply may be `Nothing better: ...`."""
    return situation.stage in (Stage.STRUCTURE, Stage.PROFILED)


def correction_text(problem: str, *, cut: bool, base: str | None) -> str:
    """The question after an unusable reply; `cut`: the reply reached the output limit."""
    return render("correction", problem=problem.rstrip("."), cut=cut, base=base)


def _body(situation: Situation) -> str:
    name = f"stages/{situation.stage.value}"
    failing = situation.failing
    if situation.stage.is_repair:
        if failing is None:
            raise ValueError(f"a {situation.stage.value} step needs the attempt to repair")
        return render(
            name,
            situation=situation,
            verdict=verdict_text(failing.verdict, situation.failing_text),
            unsupported=isinstance(failing.verdict, Unsupported),
            declined=isinstance(failing.verdict, Rejected) and isinstance(failing.verdict.evidence, Declined),
        )
    if situation.stage is Stage.DRAFT:
        before = situation.history[: len(situation.history) - situation.candidate]  # not of this step
        return render(name, start=base_of(situation), given_up=bool(before))
    if situation.parent is None:
        raise ValueError(f"a {situation.stage.value} step needs a file that passed")
    standing = standing_text(situation.parent, situation.noise, bound=situation.stage is Stage.STRUCTURE)
    found = situation.parent.measurement
    little_left = isinstance(found, Modelled) and found.time_us <= _LITTLE * found.reachable_us
    return render(name, situation=situation, standing=standing, little_left=little_left)
