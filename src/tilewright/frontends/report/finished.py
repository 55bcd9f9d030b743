"""What people ask of a finished kernel: is it faster than PyTorch, what does it take, gradients, how is it called.

One record, `Finished`, that the terminal, JSON and the Python API show.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright import records
from tilewright.frontends.api.kernel_arguments import option_words
from tilewright.frontends.report import runs
from tilewright.frontends.report.document import Block, Mark, Source, Tone, say, say_each
from tilewright.frontends.report.run_report import attempts_table, state_words
from tilewright.frontends.report.runs import PROVISIONAL, microseconds
from tilewright.kernel_file import KernelFile, KernelFileError, parse
from tilewright.kernel_file.printer import print_expression
from tilewright.kernel_file.supported_sizes import size_limits_of_files
from tilewright.kernel_file.syntax import Accept, Lead, Name, Need, conjuncts, walk
from tilewright.store import LibraryKernel, Request
from tilewright.words import NotUnderstood, SeveralReadings, read

_SAMPLED = re.compile(
    r"(?P<where>at|near) the task's own sizes (?P<blocks>.*?) (?:was|were) run and a part of the results judged: "
    r"(?P<sizes>.*)"
)
_BACKWARD = "--backward (in Python: backward=True)"
_FOLLOWED = "every block's addresses at the task's own sizes: "  # begins what addresses show
_DECLINES = (
    "the file declines",
    records.SizeLimit.NOTE,
    records.SizeLimit.FORMER_NOTE,
)  # begin sentences on what a file declines
_SAME = 0.005  # of a time: less is no difference
_MODELLED_GAIN = 1.05  # over eager: a modelled gain below this says nothing


@dataclass(frozen=True)
class Finished:
    """The answers, each in plain sentences. `only` are the restrictions, without the word."""

    speed: str
    is_slower: bool  # than eager or torch.compile
    time_with: str  # the command that times it on a GPU; "" where it is measured
    only: tuple[str, ...]
    takes: str
    otherwise: str  # what any other call does
    gradients: str
    call: str  # lines of Python
    checked: tuple[str, ...]  # how it was verified; the first says whether it is
    is_verified: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Made:
    """What the answers are made from."""

    task: records.Task
    path: Path  # of the kernel, as it is to be called
    text: str
    run: str  # its name
    measurement: records.Measurement | None
    why_untimed: str = ""
    request: Request | None = None
    backward: tuple[records.Task, Path] | None = None
    cases: int = 0  # that were right
    devices: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    own_reference: bool = False  # the call has the function already: an object of the Python API


def made_by_run(run: records.Run, path: Path, request: Request | None = None) -> Made:
    best = run.best
    assert best is not None
    verdict = best.verdict if isinstance(best.verdict, records.Passed) else records.Passed(())
    right = [one for one in verdict.cases if one.status is records.CaseStatus.RIGHT]
    return Made(
        task=run.task,
        path=path,
        text=path.read_text("utf-8"),
        run=run.id,
        measurement=best.measurement,
        why_untimed=runs.unmeasured_words(best),
        request=request,
        cases=len(right),
        devices=tuple(one.device for one in right if one.device),
        notes=verdict.notes,
        unjudged=verdict.unjudged,
    )


def made_before(kernel: LibraryKernel, path: Path) -> Made:
    """Of a kernel of the library."""
    record, entry = kernel.provenance(), kernel.entry
    try:
        text = kernel.text()
    except OSError as error:
        text = f"{path} cannot be read any more: {error.strerror}"
    return Made(
        task=kernel.task(),
        path=path,
        text=text,
        run=entry.run,
        measurement=entry.measurement,
        request=kernel.request(),
        cases=record.right_cases if record else 0,
        devices=record.verified_on if record else (),
        notes=record.notes if record else (),
        unjudged=record.unjudged if record else (),
    )


def finished(made: Made) -> Finished:
    try:
        file = parse(made.text, str(made.path))
    except KernelFileError:
        file = None
    has_reference = made.own_reference or bool(_import_of_reference(made.task, made.request))
    has_reference = has_reference or records.reference_path(made.path).is_file()
    otherwise = "Any other call runs the PyTorch function instead, and a warning says so once."
    if not has_reference:
        otherwise = (
            "Any other call raises NoKernelApplies: this file comes without a PyTorch function to fall back to; "
            "load(..., reference=function) gives it one."
        )
    speed, is_slower = speed_words(made)
    only = tuple(_restrictions(made.task, file))
    checked = _checked(made, restricted=bool(only))
    return Finished(
        speed=speed,
        is_slower=is_slower,
        time_with="" if isinstance(made.measurement, records.Measured) else _bench_command(made),
        only=only,
        takes=_takes(made.task, file, only),
        otherwise=otherwise,
        gradients=_gradients(made, has_reference),
        call=call_text(made),
        checked=checked,
        is_verified=checked[0].startswith("verified"),
        warnings=tuple(filter(None, (runs.rounding_words(made.task, made.text),))),
    )


def is_catalogued(task: records.Task, request: Request | None) -> bool:
    """Whether the reference is what the catalogue has for a request in words, so that it may run in any process."""
    with contextlib.suppress(NotUnderstood, SeveralReadings):
        return request is not None and bool(task.words) and read(task.words, request.shapes).reference == task.reference
    return False


# -- speed --


def speed_words(made: Made) -> tuple[str, bool]:
    """How it compares with PyTorch, and whether it is slower than anything that PyTorch does by itself."""
    timing = made.measurement
    if timing is None:
        return made.why_untimed or "it has no time: why is not on record", False
    roofline = runs.fraction_words(timing)
    if not isinstance(timing, records.Measured):
        times, slow = f"{microseconds(timing.time_us)} us", False
        if timing.eager_us:
            ratio, kernels = timing.eager_us / timing.time_us, runs.number_of(timing.eager_kernels, "kernel")
            times += f", eager {microseconds(timing.eager_us)} us ({ratio:.2f}x; its {kernels} at the speed of a copy)"
            slow = ratio < _MODELLED_GAIN
        untimed = f"not timed against PyTorch: no GPU here. Modelled for {timing.gpu}: {times}, {roofline}"
        return untimed + ". It may be no faster than eager: time it before you use it" * slow, slow
    groups: dict[str, list[str]] = {"slower than": [], "as fast as": [], "faster than": []}
    beside = []
    for one in timing.baselines:
        ratio, lies = one.median_us / timing.time_us, timing.times_as_long(one)
        clear = lies.low > 1 + _SAME or lies.high < 1 - _SAME
        groups["as fast as" if not clear else "faster than" if ratio > 1 else "slower than"].append(one.name)
        beside.append(f"{one.name} {microseconds(one.median_us)} us ({ratio:.2f}x)")
    standing = ", ".join(f"{how} {' and '.join(names)}" for how, names in groups.items() if names)
    times = "; ".join([f"{microseconds(timing.time_us)} us", ", ".join(beside) or "PyTorch was not timed"])
    lead = f"{standing}, " if standing else ""
    return f"{lead}measured on {timing.gpu}: {times}; {roofline}", bool(groups["slower than"])


def _bench_command(made: Made) -> str:
    task, request = made.task, made.request
    reference = made.run
    if request is not None and task.origin is records.Origin.FUNCTION and task.derivative is None:
        reference = request.text.strip() if ".py:" in request.text else made.run
    words = option_words({**task.specs(), **{one.name: one.value for one in task.numbers if not one.default}})
    path = shlex.quote(str(made.path))
    return " ".join([f"tilewright bench {path} --reference {shlex.quote(reference)}", *words])


# -- what it takes --


def _restrictions(task: records.Task, file: KernelFile | None) -> Iterator[str]:
    """Numbers that are pinned, sizes that are fixed or bounded: `step = 10`, `cols at most 512`."""
    numbers = {one.name for one in task.numbers}
    words = runs.bound_words(task)
    for need in (one for one in file.plan.directives if isinstance(one, Need)) if file else ():
        for condition in conjuncts(need.condition):
            names = {one.id for one in walk(condition) if isinstance(one, Name)}
            if names and names <= numbers:
                words.append(print_expression(condition))
    yield from dict.fromkeys(one.replace(" == ", " = ") for one in words)
    yield from map(str, _limits(task, file))
    yield from filter(None, [runs.fixed_words(task)])


def _limits(task: records.Task, file: KernelFile | None) -> tuple[records.SizeLimit, ...]:
    return size_limits_of_files(task, [file], task.profile) if file is not None else ()


def _takes(task: records.Task, file: KernelFile | None, restrictions: Sequence[str]) -> str:
    """`any rows, cols; any eps; bf16 tensors; contiguous`."""
    narrow = {one.dimension for one in _limits(task, file)}
    leads = [one for one in (file.plan.directives if file else ()) if isinstance(one, Lead)]
    leading = [name for one in leads for name, _ in one.ranks]
    dtypes = {one.name: one.dtype.value for one in task.tensors if not one.optional}
    parts = runs.any_words(task, narrow) + runs.then_words(task)
    of = f" of {' and '.join(leading)}" if len(leading) < len(task.tensors) else ""
    parts += [f"any leading dimensions{of}"] if leading else []
    restricted = {name for one in restrictions for name in re.findall(r"\w+", one)}
    numbers = [one.name for one in task.numbers if one.bounds is None and one.name not in restricted]
    parts += [f"any {', '.join(numbers)}"] if numbers else []
    if len({*dtypes.values()}) == 1:
        parts.append(f"{next(iter(dtypes.values()))} tensors")
    else:
        parts += [", ".join(f"{name} in {dtype}" for name, dtype in dtypes.items())] if dtypes else []
    strided = {one.name for one in (file.plan.directives if file else ()) if isinstance(one, Accept) and one.strided}
    dense = [name for name in dtypes if name not in strided]
    if dense:
        parts.append("contiguous" if len(dense) == len(dtypes) else f"{', '.join(dense)} contiguous, others strided")
    return "; ".join(parts)


# -- gradients --


def _gradients(made: Made, has_reference: bool) -> str:
    task = made.task
    if task.derivative is not None:
        return "this is a backward kernel"
    if made.backward is not None:
        return "a backward kernel computes them"
    if not any(one.dtype.is_float for one in task.tensors) or not any(one.dtype.is_float for one in task.outputs):
        return "it has none: its inputs or its results are whole numbers"
    if any(one.in_place for one in task.tensors):
        return "none, because it changes its input: a call that needs them raises GradientNotSupported"
    if has_reference:
        none = "there is no backward kernel: the backward pass runs the PyTorch function again."
        return f"{none} Make one with {_BACKWARD}"
    none = "none: a call whose inputs require grad raises GradientNotSupported."
    return f"{none} Make it with {_BACKWARD}, or call it under torch.no_grad()"


# -- how it was checked --


def _checked(made: Made, restricted: bool) -> tuple[str, ...]:
    """`restricted`: what it declines is told already."""
    notes = [note_words(one) for one in made.notes if not (restricted and one.startswith(_DECLINES))]
    if made.task.degenerate:
        return ("not verified: the task's answers prove nothing", *notes)
    if made.unjudged:
        reason = "not verified: at the task's own sizes it does what no judged case did"
        return (f"{PROVISIONAL}, {reason}", *made.unjudged, *notes)
    return (verified_words(made.cases, made.devices), *notes)


def verified_words(cases: int, devices: Sequence[str]) -> str:
    """`verified: right in 24 cases on H200 (emulated)`."""
    where = f" on {', '.join(dict.fromkeys(devices))}" if devices else ""
    return f"verified: right in {runs.number_of(cases, 'case')}{where}"


def note_words(note: str) -> str:
    """A sentence of the referee on how far it looked, in plain words."""
    sampled = _SAMPLED.fullmatch(note)
    if note.startswith(_FOLLOWED):
        return f"at the full size {note.removeprefix(_FOLLOWED)}"
    if sampled is None:
        return f"limit of the check: {note}"
    blocks = sampled["blocks"].replace("every block", "every block ran").replace("launch", "launch ran")
    return f"{sampled['where']} the full size ({sampled['sizes']}) {blocks}, and a sample of the results was compared"


# -- how it is called --


def call_text(made: Made) -> str:
    """Lines of Python that can be pasted; with a backward kernel, gradients are that kernel's."""
    task = made.task
    numbers = [f"{one.name}={one.value!r}" for one in task.numbers if not one.default]
    imported = _import_of_reference(task, made.request)
    joined = _joined(*made.backward) if made.backward is not None else ""
    reference = f", reference={task.function}" if imported else ""
    lines = ["import tilewright", *([imported] if imported else [])]
    lines.append(f'kernel = tilewright.load("{made.path}"{reference}){joined}')
    return "\n".join([*lines, _assigned_call(task, "kernel", numbers)])


def _assigned_call(task: records.Task, name: str, numbers: Sequence[str] = ()) -> str:
    """`y = kernel(x, step=10)`."""
    arguments = ", ".join([*(one.name for one in task.tensors if not one.optional), *numbers])
    results = ", ".join(one.name for one in task.outputs)
    return f"{f'{results} = ' if results else ''}{name}({arguments})"


def _joined(task: records.Task, path: Path) -> str:
    """`.with_backward(...)` of a file of gradients."""
    derivative = task.derivative
    if derivative is None:
        return ""
    gradients = ", ".join(f'"{a}": "{b}"' for a, b in zip(derivative.results, derivative.gradients, strict=True))
    by = ", ".join(f'"{one}"' for one in derivative.by)
    return f'.with_backward(tilewright.load("{path}"), {{{gradients}}}, [{by}])'


def _import_of_reference(task: records.Task, request: Request | None) -> str:
    """How Python comes by the person's own function; "" where the task is no function in a file of theirs."""
    if request is None or task.origin is not records.Origin.FUNCTION or task.derivative is not None:
        return ""
    file = Path(request.text.strip().rsplit(":", 1)[0]).expanduser()
    if file.suffix != ".py" or not file.is_file():
        return ""
    if file.resolve().parent == Path.cwd() and file.stem.isidentifier():
        return f"from {file.stem} import {task.function}"
    return f'import runpy; {task.function} = runpy.run_path("{file}")["{task.function}"]'


# -- all of it --


def answer_blocks(answers: Finished, *, call: bool = True) -> Iterator[Block]:
    """The answers in the order in which they are asked for."""
    yield say(Mark("speed: "), answers.speed, tone=Tone.BAD if answers.is_slower else Tone.PLAIN)
    if answers.time_with:
        yield say(f"time it on a GPU with: {answers.time_with}")
    if answers.only:
        otherwise = answers.otherwise[:1].lower() + answers.otherwise[1:]
        yield say(Mark(f"only for {' and '.join(answers.only)}"), f": {otherwise}")
    yield say(Mark("works for: "), f"{answers.takes}.{'' if answers.only else f' {answers.otherwise}'}")
    yield say(Mark("gradients: "), answers.gradients)
    first, *rest = answers.checked
    yield say(first, tone=Tone.PLAIN if answers.is_verified else Tone.FAIR)
    yield from say_each(f"  {one}" for one in rest)
    yield from say_each(answers.warnings, Tone.FAIR)
    if call:
        yield say(Mark("call it:"))
        yield Source(answers.call, "python")


def end_of_run(
    run: records.Run, answers: Finished | None, path: Path | None, *, table: bool, call: bool, took_s: float | None
) -> Iterator[Block]:
    """The end of `make`. `table`: the attempts were not shown yet, one by one; `took_s`: the whole command."""
    if table:
        yield attempts_table(run)
        yield say("")
    which = f"; the best is attempt {run.best.number}" if run.best is not None and not table else ""
    yield say(f"{state_words(run)}; {runs.spend_words(run, took_s)}{which}")
    if answers is None or path is None:
        yield say("no attempt passed, so there is no kernel", tone=Tone.BAD)
        if run.attempts:
            yield say(f"see why: tilewright show {run.id} --attempt {run.attempts[-1].number}")
        yield say(f"go on: tilewright resume {run.id} {runs.addition_words(run)}")
        return
    yield from say_each(f"by algebra: {note}" for note in (run.best.notes if run.best else ()))
    yield say("")
    yield say(f"kernel: {path}", tone=Tone.GOOD)
    yield from answer_blocks(answers, call=call)
    yield from say_each([runs.waiting_words(run)], Tone.FAIR)
    yield say(f"more: tilewright show {run.id}", tone=Tone.FAINT)
    if run.ending is records.Ending.SECONDS:
        yield say(f"go on: tilewright resume {run.id} {runs.addition_words(run)}", tone=Tone.FAINT)
