"""`tilewright audit`: a report on a kernel that exists; `--improve` hands it to `make` with what was found."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from tilewright import records
from tilewright.devices.emulation.listing import costly_lines
from tilewright.frontends.api.choices import (
    ChosenDevice,
    author_name,
    choose_device,
    open_devices,
    settings_of,
    spool_path,
)
from tilewright.frontends.api.judges import Say, judges
from tilewright.frontends.api.kernel_arguments import complete_arguments, parse_arguments
from tilewright.frontends.api.requests import argument_words, task_of_file, task_of_reference
from tilewright.frontends.cli import terminal
from tilewright.frontends.cli.check import sizes_may_vary, told_sizes
from tilewright.frontends.cli.importing import ImportedKernel, Wanted, import_one, launcher_reference
from tilewright.frontends.cli.judging import ADAPTED, Judged, for_op, judged_by_checkers, judged_by_referee, source_at
from tilewright.frontends.cli.make import Delivery, check_output, make_run
from tilewright.frontends.report.audit import Audit, Speed, Suggestion, Weight, audit_report, hint_words
from tilewright.frontends.report.checks import call_of
from tilewright.frontends.report.document import REMEDIES
from tilewright.frontends.report.emulated import roofline_of
from tilewright.frontends.report.rendering import write_page
from tilewright.frontends.report.runs import named_values
from tilewright.kernel_file import ArgumentValue, Choice, DoesNotApply, KernelFile, TunedChoices, evaluate_tuned, parse
from tilewright.lint import lint_plan
from tilewright.lint.catalogue import RULES
from tilewright.measure import Stopwatch, what_if
from tilewright.measure.emulated_counts import NotCounted
from tilewright.measure.evidence import profile_figures
from tilewright.measure.performance_model import PlanModel
from tilewright.measure.preparation import NotPrepared
from tilewright.prompts.advice import advice_lines
from tilewright.store import Request
from tilewright.tasks import RefusedRequest
from tilewright.tasks.errors import BadArgument
from tilewright.toolchain import build_plan
from tilewright.verify.candidate import read_kernel

_BARE = "nobody says how much is there: such tensors are taken large, and the roofline counts them whole"
_ORDER = tuple(Weight)
_BYTES_ONLY = "every input read once and every output written once; products are not counted without a reference"
_BYTES_AND_PRODUCTS = "every input read once, every output written once, and the reference's products at the GPU's peak"


def audit(
    file: Annotated[
        Path, typer.Argument(help="A kernel file, or existing CUDA code: a .cu or .py file.", show_default=False)
    ],
    reference: terminal.ReferenceOption = None,
    shape: terminal.ShapeOption = None,
    set_: terminal.SetOption = None,
    function: Annotated[str, typer.Option(metavar="NAME", help="The launcher to audit, of a file with several.")] = "",
    include: terminal.IncludeOption = None,
    define: terminal.DefineOption = None,
    gpu: terminal.GpuOption = None,
    spool: terminal.SpoolOption = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE.md", help="Write the report as Markdown too.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write it as one HTML file too.")] = None,
    improve: Annotated[
        bool, typer.Option("--improve", help="Then have it improved: a run that starts from it, told what was found.")
    ] = False,
    model: terminal.ModelOption = None,
    author: terminal.AuthorOption = None,
    base_url: terminal.BaseUrlOption = None,
    attempts: terminal.AttemptsOption = terminal.BUDGET.attempts,
    tokens: terminal.TokensOption = terminal.BUDGET.tokens,
    dollars: terminal.DollarsOption = terminal.BUDGET.dollars,
    seconds: terminal.SecondsOption = terminal.BUDGET.seconds,
    output: terminal.OutputOption = None,
    as_json: terminal.JsonOption = False,
) -> None:
    """Report on a kernel you have: is it correct, where does its time go, what would each fix gain, line by line."""
    settings = records.Settings(author="")
    if improve:
        writer = author_name(model, author, os.environ)
        settings = settings_of(writer, records.Budget(attempts, tokens, dollars, seconds), base_url, spool)
        if not reference and file.suffix != ".py":
            raise BadArgument("--improve needs a reference to judge by; give --reference FILE.py:FUNCTION")
        if as_json:
            raise BadArgument("--json and --improve would print two records; drop one, and see show --json for the run")
        check_output(output)
    elif model or author or output:
        raise BadArgument("--model, --author and -o say who improves the kernel and where it goes; give --improve too")
    terminal.check_writable("--markdown", markdown, ".md")
    terminal.check_writable("--html", html, ".html")
    asked = Wanted(
        file,
        functions=(function,) if function else (),
        shapes=tuple(shape or ()),
        numbers=tuple(set_ or ()),
        include=tuple(include or ()),
        defines=tuple(define or ()),
        keep_references=True,
    )
    device = choose_device(gpu, spool_path(spool))
    with contextlib.ExitStack() as stack:
        with terminal.progress() as say:
            subject = read_subject(asked, reference, records.PROFILES[device.gpu], say, stack)
            found = audited(subject, device, say)
        report = audit_report(found, subject.file.text)
        for page in filter(None, (markdown, html)):
            write_page(report, page)
        terminal.deliver(found, as_json, report)
        if not as_json:
            for page in filter(None, (markdown, html)):
                print(f"wrote {page}")
        if not improve:
            terminal.exit_with(found.exit_status)
            return
        request = _request(subject, file, reference)
        settings = replace(settings, start=subject.file.text, hints=((0, hint_words(found)),))
        delivery = Delivery(output=output, author=settings.author if model or author else "")
        make_run(request, settings, gpu, False, False, delivery)


@dataclass(frozen=True)
class Subject:
    """The kernel that is audited, the call it is audited at, and what decides whether it is right."""

    file: KernelFile
    arguments: Mapping[str, ArgumentValue]
    guessed: bool
    reference: tuple[Path, str] | None = None  # a function of the op's parameters
    is_own: bool = False  # the reference is the source's own: that no task can be made of it is no fault
    imported_from: str = ""
    notes: tuple[str, ...] = ()
    guessed_lengths: frozenset[str] = frozenset()  # tensors behind plain pointers that nobody said the length of
    choice: Choice | None = None  # of its tuned constants, where one is recorded beside it that holds
    compared: str = ""  # by the import with the source's own reference, for where no task can be made of that


def read_subject(
    asked: Wanted, reference: str | None, gpu: records.GpuProfile, say: Say, stack: contextlib.ExitStack
) -> Subject:
    """Raises `BadArgument`, `KernelFileError`, and `NotDone` with the reasons where nothing could be imported."""
    path = asked.what
    if path.exists() and not path.is_dir() and path.suffix not in (".cu", ".cuh", ".py"):
        raise BadArgument(f"{path}: give a .cu or .py file")
    text = terminal.read_text(path, "one file (.cu or .py)")
    if path.suffix == ".py" or terminal.is_plain_cuda(text):
        return _imported(asked, reference, gpu, say, stack)
    if asked.functions:
        raise BadArgument(f"--function {asked.functions[0]}: {path} is a kernel file; drop it")
    file = parse(text, str(path))
    given = parse_arguments(file.plan.op, asked.shapes, asked.numbers)
    arguments, guessed = complete_arguments(file, given, gpu)
    known = stack.enter_context(terminal.reference_of(reference, arguments))
    _, near = evaluate_tuned(file, arguments, gpu, TunedChoices.load(path))
    if near is None:
        return Subject(file, arguments, guessed, known)
    shown = named_values(dict(near.winner.choice))
    note = f"timed with {shown}: {near.why(gpu)}; judged with the first choices of the file"
    return Subject(file, arguments, guessed, known, choice=near.choice, notes=(note,))


def _imported(
    asked: Wanted, reference: str | None, gpu: records.GpuProfile, say: Say, stack: contextlib.ExitStack
) -> Subject:
    say(f"importing {asked.what.name}")
    known = stack.enter_context(launcher_reference(reference, asked.what, asked.shapes, asked.numbers))
    found = import_one(replace(asked, reference=known), say, "choose one with --function", terminal.FAULT)
    one, file = found.record, found.file
    arguments, guessed = _call(asked, found, gpu)
    refused = tuple(f"not imported: {other.function or asked.what.name}: {other.reason}" for other in found.refused)
    pinned = ("it holds only at the sizes it was imported at",) if one.only_at_these_sizes else ()
    bare = (f"behind plain pointers {_BARE}",) if one.bare_pointers else ()
    text = found.reference
    if known is not None and not text:  # which may be a function of the op's parameters as it stands
        adapted, name, _ = for_op(file, (terminal.read_text(known[0]), known[1], known[0].parent), one.bare_pointers)
        text = adapted if name == ADAPTED else ""
    is_own = known is None
    if text:
        written = Path(stack.enter_context(tempfile.TemporaryDirectory()), "reference.py")
        written.write_text(text, "utf-8")
        known = written, ADAPTED
    return Subject(
        file,
        arguments,
        guessed,
        known,
        is_own=is_own,
        imported_from=str(asked.what),
        notes=(*one.notes, *pinned, *bare, *refused),
        guessed_lengths=frozenset(one.bare_pointers),
        compared=f"the import compared it with the source's own reference: {one.check}" if one.compared else "",
    )


def _call(asked: Wanted, found: ImportedKernel, gpu: records.GpuProfile) -> tuple[dict[str, ArgumentValue], bool]:
    """The call of the source; where its sizes were only tried out, one of usual size, if the file takes one."""
    op, one = found.file.plan.op, found.record
    is_sized, is_recorded = bool(asked.shapes or asked.numbers), asked.what.suffix == ".py"
    if not is_recorded and not is_sized and not any(each.scalar is records.ScalarType.INT for each in op.parameters):
        with contextlib.suppress(BadArgument):
            return complete_arguments(found.file, parse_arguments(op, (), one.call_numbers), gpu)
    own = parse_arguments(op, *found.specified) if is_recorded else {}  # else the call has what was given
    known = {**parse_arguments(op, one.call_shapes, one.call_numbers), **own}
    return complete_arguments(found.file, known, gpu)[0], not is_recorded and not is_sized


def audited(subject: Subject, device: ChosenDevice, say: Say) -> Audit:
    """Raises what `check` raises, and `RefusedRequest` for a reference that no task can be made of."""
    if subject.is_own:
        with contextlib.suppress(RefusedRequest):
            return _audited(subject, device, say)
        notes = (*subject.notes, *filter(None, (subject.compared,)))
        subject = replace(subject, reference=None, notes=notes)
    return _audited(subject, device, say)


def _audited(subject: Subject, device: ChosenDevice, say: Say) -> Audit:
    file, arguments, gpu = subject.file, subject.arguments, records.PROFILES[device.gpu]
    task: records.Task | None = None
    lint: tuple[records.LintFinding, ...] = ()
    unread: tuple[str, ...] = ()
    say("building")
    try:
        built = build_plan(file, arguments, gpu, subject.choice)
    except DoesNotApply as refusal:
        raise BadArgument(f"{file.name}:{refusal}") from None
    if isinstance(built, records.BuildFailure):
        judged = judged_by_checkers(file, arguments, gpu, None, say)
        found = not_modelled("it does not build")
    else:
        say("reading the compiled code")
        read, unread = lint_plan(built, arguments, other_sizes=sizes_may_vary(file, arguments))
        ends = [f"end of {name} " for name in subject.guessed_lengths]  # of tensors that nobody said the length of
        bounds = [one for one in read if one.rule is records.LintRule.MISSING_BOUNDS]
        guessed = [one for one in bounds if any(end in one.evidence for end in ends)]
        lint = tuple(one for one in read if one not in guessed)
        examined = _without_reference if subject.reference is None else _with_reference
        task, judged, found = examined(subject, device, say)
    (correctness, wrong), kind = judged, task.kind if task is not None else records.Kind.OTHER
    known = kind is not records.Kind.OTHER and subject.reference is not None
    return Audit(
        **vars(call_of(file, arguments, subject.guessed)),
        gpu=device.gpu,
        device=device.words,
        imported_from=subject.imported_from,
        notes=(*subject.notes, *(f"lint did not look at all of it: {one}" for one in unread)),
        correctness=correctness,
        speed=found.speed,
        suggestions=ranked(wrong, cost_suggestions(file, task, found, lint) if task is not None else ()),
        kind=kind.value if known else "",
        advice=advice_lines(kind) if known else (),
    )


def _with_reference(subject: Subject, device: ChosenDevice, say: Say) -> tuple[records.Task, Judged, Timed]:
    """By the referee or, where it cannot call the kernel, by the emulator's checkers."""
    assert subject.reference is not None
    file, arguments = subject.file, subject.arguments
    say("reading the reference")
    task = replace(task_of_reference(subject.reference, arguments, device), name=file.plan.op.name)
    own = read_kernel(file.text, task)
    with judges(task, records.Settings(author=""), device, say) as (referee, stopwatch):
        answer: records.JudgedAnswer | None = None
        if isinstance(own, records.BadPlan) or told_sizes(file, arguments):
            why = "sizes come as numbers here, and it changes tensors apart from them"
            why = own.problems[0].message if isinstance(own, records.BadPlan) else why
            correctness, wrong = judged_by_checkers(
                file, arguments, records.PROFILES[device.gpu], subject.reference, say, subject.guessed_lengths
            )
            notes = (*correctness.notes, f"the referee was not asked: {why}")
            judged: Judged = replace(correctness, notes=notes), wrong
        else:
            say("judging")
            verdict = referee.judge(own)
            answer = verdict.answer if isinstance(verdict, records.Passed) else None
            judged = judged_by_referee(verdict, own, file)
        return task, judged, _timed(subject, device, say, stopwatch, answer, _BYTES_AND_PRODUCTS)


def _without_reference(subject: Subject, device: ChosenDevice, say: Say) -> tuple[records.Task | None, Judged, Timed]:
    file, arguments, gpu = subject.file, subject.arguments, records.PROFILES[device.gpu]
    judged = judged_by_checkers(file, arguments, gpu, None, say, subject.guessed_lengths)
    try:
        task = task_of_file(file, arguments, gpu)
    except BadArgument as problem:
        return None, judged, not_modelled(str(problem))
    with (
        open_devices(device) as (emulator, own_gpu),
        Stopwatch(task, None, emulator=emulator, gpu=own_gpu, baselines=(), say=say) as stopwatch,
    ):
        return task, judged, _timed(subject, device, say, stopwatch, None, _BYTES_ONLY)


def _timed(
    subject: Subject,
    device: ChosenDevice,
    say: Say,
    stopwatch: Stopwatch,
    answer: records.JudgedAnswer | None,
    floor_is: str,
) -> Timed:
    say("timing")
    file, choice = subject.file, subject.choice
    try:
        verified = answer if choice is None else None  # it is of the first choices
        measured = None if device.is_emulated else stopwatch.measure(file, choice, verified)
        found = timed(file, stopwatch, measured if isinstance(measured, records.Measured) else None, choice)
    except NotPrepared as problem:
        found = not_modelled(problem)
    return replace(found, speed=replace(found.speed, floor_is=floor_is))


def ranked(wrong: Iterable[Suggestion], others: Iterable[Suggestion]) -> tuple[Suggestion, ...]:
    """What goes wrong first, then what is read to, then by what mending it gains; what was seen is not read again."""
    first = tuple(wrong)
    seen = {one.line for one in first if one.line is not None}
    rest = [one for one in others if one.weight is not Weight.FAULT or one.line not in seen]

    def place(one: Suggestion) -> tuple[int, float, int, int]:
        grave = one.weight in (Weight.WRONG, Weight.FAULT)
        return (_ORDER.index(one.weight) if grave else 2, -(one.gain or 1.0), _ORDER.index(one.weight), one.line or 0)

    return tuple(sorted((*first, *rest), key=place))


def _request(subject: Subject, file: Path, named: str | None) -> Request:
    """What is to be made: the reference, at the sizes of the audit."""
    if subject.reference is None:
        raise BadArgument(f"--improve: {file} has no reference of its own; give --reference FILE.py:FUNCTION")
    path, function = subject.reference
    shapes, numbers = argument_words(subject.arguments)
    if named == f"{path}:{function}":
        return Request(named, shapes, numbers)
    return Request(path.read_text("utf-8"), shapes, numbers, function=function)


_COUNTED = (records.LintRule.UNCOALESCED, records.LintRule.BANK_CONFLICT)  # told better by counts, line by line
_WEIGHTS = {
    records.Severity.ERROR: Weight.FAULT,
    records.Severity.WARNING: Weight.COST,
    records.Severity.REMARK: Weight.REMARK,
}
_AT_BOUND = 1.05  # of the least that the model gives the task
_MOST_WAITS, _LEAST_WAIT = 2, 0.15  # lines where the GPU's counters saw warps wait; of all samples
_BY_LINES = {records.LintRule.NARROW_LOAD: what_if.vectorised, records.LintRule.ACCIDENTAL_DOUBLE: what_if.in_f32}


@dataclass(frozen=True)
class Timed:
    speed: Speed
    model: PlanModel | None
    profiles: tuple[records.KernelProfile, ...] = ()


def timed(
    file: KernelFile, stopwatch: Stopwatch, measured: records.Measured | None, choice: Choice | None = None
) -> Timed:
    """Modelled, with the measured time and the GPU's counters where there is one. Raises `NotPrepared`."""
    done = stopwatch.profiled(file, choice)
    profiles = () if isinstance(done, str) else done.profiles
    longest = max(profiles, key=lambda one: one.duration_us, default=None)
    counters = tuple(line.strip() for line in profile_figures(longest)) if longest is not None else ()
    evidence = stopwatch.evidence(file, choice)
    try:
        model = stopwatch.model(file, choice)
    except NotCounted as problem:
        return Timed(Speed(measured, f"not modelled: {problem}", counters=counters, evidence=evidence), None, profiles)
    modelled, shown = model.modelled, measured or model.modelled
    speed = Speed(
        shown,
        terms=modelled.terms,
        bound_by=modelled.bounds[0].name if modelled.bounds else "",
        reachable_us=modelled.reachable_us,
        counters=counters,
        evidence=evidence,
        roofline=roofline_of(model, stopwatch.task.profile, shown.time_us, measured is not None),
    )
    return Timed(speed, model, profiles)


def cost_suggestions(
    file: KernelFile, task: records.Task, found: Timed, lint: Sequence[records.LintFinding]
) -> Iterator[Suggestion]:
    """What lint reads, what counts and counters tell by line, and the resource that bounds it."""
    model = found.model
    for one in lint:
        if model is None or one.rule not in _COUNTED:
            gain = _lint_gain(model, task, one) if model is not None else None
            place, reasons = (one.kernel, one.line, source_at(file, one.line)), (one.evidence, one.why, one.remedy)
            yield Suggestion(_WEIGHTS[one.severity], one.rule.value, *place, *reasons, gain)
    yield from _waits(found.profiles, file)
    if model is not None:
        yield from _costly(model, task, file)
        yield from _bottleneck(model)


def _lint_gain(model: PlanModel, task: records.Task, finding: records.LintFinding) -> float | None:
    if finding.rule is records.LintRule.SPILL:
        change = what_if.without_spills(finding.kernel)
    elif finding.rule is records.LintRule.LOCAL_ARRAY:  # which is declared at one line and used at others
        change = what_if.at_lines(finding.kernel, range(1, 1 << 20), what_if.in_registers)
    elif finding.rule in _BY_LINES and finding.line is not None:
        change = what_if.at_lines(finding.kernel, {finding.line}, _BY_LINES[finding.rule])
    else:
        return None
    return what_if.speedup_with(model, task, change)


def _costly(model: PlanModel, task: records.Task, file: KernelFile) -> Iterator[Suggestion]:
    """Lines whose requests take more sectors or passes than their bytes need, by the emulator's counts."""
    for launch in model.launches:
        for one in costly_lines(launch.facts.listing):
            gain = what_if.speedup_with(model, task, what_if.at_lines(one.kernel, {one.line}, what_if.coalesced))
            shared = "shared" in one.message
            what = "bank conflicts" if shared else "uncoalesced access"
            rule = RULES[records.LintRule.BANK_CONFLICT if shared else records.LintRule.UNCOALESCED]
            place = (one.kernel, one.line, source_at(file, one.line))
            yield Suggestion(Weight.COST, what, *place, one.message, rule.why, rule.remedy, gain)


def _bottleneck(model: PlanModel) -> Iterator[Suggestion]:
    modelled = model.modelled
    if not modelled.bounds or modelled.time_us <= _AT_BOUND * modelled.reachable_us:
        return
    term = modelled.bounds[0]
    kernel = max(model.launches, key=lambda launch: launch.time_us).facts.counted.launch.kernel
    share = term.time_us / modelled.time_us
    evidence = f"{term.time_us:.1f} us alone, {share:.0%} of the whole as modelled: {term.detail}"
    why = "of all resources it takes the longest; what others take hides behind it"
    remedy, gain = REMEDIES.get(term.name, ""), what_if.speedup_without(model, term.name)
    yield Suggestion(Weight.COST, f"bound by {term.name}", kernel, None, "", evidence, why, remedy, gain)


def _waits(profiles: Sequence[records.KernelProfile], file: KernelFile) -> Iterator[Suggestion]:
    """Lines where the GPU's own counters saw warps wait."""
    for one in profiles:
        heavy = sorted(one.lines, key=lambda line: -line.samples)
        for line in heavy[:_MOST_WAITS]:
            share = line.samples / max(one.samples, 1)
            if share >= _LEAST_WAIT:
                reason = next(iter(line.waits), "nothing")
                evidence = f"{share:.0%} of the samples of warps are here, most of them waiting for {reason} (counters)"
                place = (one.kernel, line.line, source_at(file, line.line))
                yield Suggestion(Weight.COST, "warps wait here", *place, evidence, "", "")


def not_modelled(reason: NotPrepared | str) -> Timed:
    return Timed(Speed(None, str(reason)), None)
