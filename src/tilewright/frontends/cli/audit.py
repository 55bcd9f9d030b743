"""`tilewright audit`: from arguments to one record, and the record to a terminal, JSON, Markdown or one HTML file.

`--improve` hands the kernel on to the loop, with what was found as the first hint.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.frontends.api.choices import ChosenDevice, choose_device, open_devices
from tilewright.frontends.api.judges import judges
from tilewright.frontends.api.kernel_arguments import complete_arguments, pairs, parse_arguments
from tilewright.frontends.api.references import argument_words, task_of_file, task_of_reference
from tilewright.frontends.cli.audit_checks import (
    Judged,
    Timed,
    cost_suggestions,
    judged_by_checkers,
    judged_by_referee,
    not_modelled,
    sizes_follow,
    timed,
    told_sizes,
)
from tilewright.frontends.cli.explain import check_page
from tilewright.frontends.cli.imported_checks import ADAPTED, for_op, size_names
from tilewright.frontends.cli.importing import ImportedFile, ImportReport, Wanted, import_files
from tilewright.frontends.cli.make import Delivery, check_output, make_run
from tilewright.frontends.cli.terminal import FAULT, NotDone, print_json, progress, stdout_console
from tilewright.frontends.report.audit import Audit, Suggestion, Weight, audit_report, hint_words
from tilewright.frontends.report.checks import describe_arguments
from tilewright.frontends.report.rendering import write_page
from tilewright.frontends.report.terminal import show
from tilewright.kernel_file import (
    ArgumentValue,
    Choice,
    DoesNotApply,
    KernelFile,
    TunedChoices,
    evaluate_tuned,
    parse,
)
from tilewright.lint import lint_plan
from tilewright.measure import Stopwatch
from tilewright.measure.preparation import NotPrepared
from tilewright.prompts.advice import advice_lines
from tilewright.records import (
    PROFILES,
    BadPlan,
    BuildFailure,
    GpuProfile,
    JudgedAnswer,
    Kind,
    LintFinding,
    LintRule,
    Measured,
    Passed,
    ScalarType,
    Settings,
    Task,
)
from tilewright.store import Request
from tilewright.tasks import RefusedRequest
from tilewright.tasks.errors import BadArgument
from tilewright.toolchain import build_plan
from tilewright.verify.candidate import read_kernel

# -- what is audited: --

_BARE = "nobody says how much is there: such tensors are taken large, and the roofline counts them whole"
_PLAN = re.compile(r"^\s*//!", re.MULTILINE)


@dataclass(frozen=True)
class Asked:
    """As it was written on the command line."""

    file: Path
    function: str  # of the launchers of a file that is imported; "" for its only one
    reference: tuple[Path, str] | None
    shapes: tuple[str, ...]
    numbers: tuple[str, ...]
    include: tuple[Path, ...] = ()  # for a file that is imported
    defines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    file: KernelFile
    arguments: Mapping[str, ArgumentValue]
    guessed: bool
    imported_from: str = ""
    notes: tuple[str, ...] = ()
    guessed_lengths: frozenset[str] = frozenset()  # tensors behind plain pointers that nobody said the length of
    reference: str = ""  # text with the function `imported_reference`: the source's own, or one given, as the op's
    choice: Choice | None = None  # of its tuned constants, where one is recorded beside it that holds
    compared: str = ""  # by the import with the source's own reference, for where no task can be made of that


def read_subject(asked: Asked, gpu: GpuProfile, say: Say) -> Subject:
    """Raises `BadArgument`, `KernelFileError`, and `NotDone` with the reasons where nothing could be imported."""
    text = _text(asked.file)
    if asked.file.suffix == ".py" or not _PLAN.search(text):
        return _imported(asked, gpu, say)
    if asked.function:
        raise BadArgument(f"--function {asked.function}: {asked.file} is a kernel file; drop it")
    subject = _with_arguments(parse(text, str(asked.file)), asked, gpu, (), ())
    _, near = evaluate_tuned(subject.file, subject.arguments, gpu, TunedChoices.load(asked.file))
    if near is None:
        return subject
    shown = ", ".join(f"{name} = {value}" for name, value in near.winner.choice)
    note = f"timed with {shown}: {near.why(gpu)}; judged with the first choices of the file"
    return replace(subject, choice=near.choice, notes=(*subject.notes, note))


def _text(path: Path) -> str:
    if path.is_dir():
        raise BadArgument(f"{path}: a folder; give one file (.cu or .py)")
    if not path.exists():
        raise BadArgument(f"{path}: no such file; give a kernel file, or CUDA as it is found (.cu or .py)")
    if path.suffix not in (".cu", ".cuh", ".py"):
        raise BadArgument(f"{path}: give a .cu or .py file")
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise BadArgument(f"{path}: not UTF-8 text; save it as UTF-8") from None


def _with_arguments(
    file: KernelFile, asked: Asked, gpu: GpuProfile, sizes: tuple[str, ...], numbers: tuple[str, ...]
) -> Subject:
    """At the sizes that were said; else at those it was imported at; else at some that fit."""
    op = file.plan.op
    said = parse_arguments(op, asked.shapes, asked.numbers)
    known = {**parse_arguments(op, sizes, numbers), **said}
    arguments, guessed = complete_arguments(file, known, gpu)
    return Subject(file, arguments, guessed)


def _imported(asked: Asked, gpu: GpuProfile, say: Say) -> Subject:
    say(f"importing {asked.file.name}")
    functions = (asked.function,) if asked.function else ()
    with tempfile.TemporaryDirectory() as folder:
        said = (asked.reference, asked.shapes, asked.numbers, asked.include, asked.defines)
        wanted = Wanted(asked.file, Path(folder), functions, *said, keep_references=True)
        report = import_files(wanted, say)
        one = _only(asked, report)
        text = Path(one.file).read_text("utf-8")
        reference = Path(one.reference).read_text("utf-8") if one.reference else ""
    file = parse(text, f"{one.function}.cu")
    subject = _sized(file, _only_of(asked, file), gpu, one, any_said=bool(asked.shapes or asked.numbers))
    refused = tuple(f"not imported: {other.function or asked.file.name}: {other.reason}" for other in report.refused)
    pinned = ("it holds only at the sizes it was imported at",) if one.only_at_these_sizes else ()
    bare = (f"behind plain pointers {_BARE}",) if one.bare_pointers else ()
    return replace(
        subject,
        imported_from=str(asked.file),
        notes=(*one.notes, *pinned, *bare, *refused),
        guessed_lengths=frozenset(one.bare_pointers),
        reference=reference or _given_reference(asked, file, one.bare_pointers),
        compared=f"the import compared it with the source's own reference: {one.check}" if one.compared else "",
    )


def _given_reference(asked: Asked, file: KernelFile, guessed_lengths: tuple[str, ...]) -> str:
    """The reference that was given as a function of the op's parameters; "" where it is one as it stands."""
    if asked.reference is None:
        return ""
    path, function = asked.reference
    text, name, _ = for_op(file, (_text(path), function, path.parent), guessed_lengths)
    return text if name == ADAPTED else ""


def _sized(file: KernelFile, asked: Asked, gpu: GpuProfile, one: ImportedFile, any_said: bool) -> Subject:
    """At the sizes that the source's own call has; where those were tried out, rather at some of usual size."""
    recorded = asked.file.suffix == ".py"
    told = any(parameter.scalar is ScalarType.INT for parameter in file.plan.op.parameters)
    if not recorded and not any_said and not told:
        with contextlib.suppress(BadArgument):
            return _with_arguments(file, asked, gpu, (), one.call_numbers)
    own = asked if recorded else replace(asked, shapes=(), numbers=())  # else the call has what was said
    subject = _with_arguments(file, own, gpu, one.call_shapes, one.call_numbers)
    return replace(subject, guessed=not recorded and not any_said)


def _only(asked: Asked, report: ImportReport) -> ImportedFile:
    if len(report.imported) == 1:
        return report.imported[0]
    if report.imported:
        names = ", ".join(one.function for one in report.imported)
        raise BadArgument(f"{asked.file}: {len(report.imported)} launchers; choose one with --function: {names}")
    reasons = "; ".join(one.reason for one in report.refused)
    if reasons.startswith("--"):  # what was said is at fault, not the file
        raise BadArgument(reasons)
    raise NotDone(f"{asked.file} could not be imported: {reasons}", FAULT)


def _only_of(asked: Asked, file: KernelFile) -> Asked:
    """What was said of the launcher's parameters, as far as the op has them: some become sizes of tensors."""
    names = {one.name for one in file.plan.op.parameters}
    known = names | size_names(file).keys()

    def kept(option: str, texts: tuple[str, ...]) -> tuple[str, ...]:
        for name in pairs(option, texts).keys() - known:
            raise BadArgument(
                f"{option} {name}: write one of {file.plan.op.name}'s parameters: {', '.join(sorted(known))}"
            )
        return tuple(text for text in texts if text.partition("=")[0].strip() in names)

    return replace(asked, shapes=kept("--shape", asked.shapes), numbers=kept("--set", asked.numbers))


# -- `audit`: --

Say = Callable[[str], None]
_ORDER = tuple(Weight)
_BYTES_ONLY = "every input read once and every output written once; products are not counted without a reference"
_BYTES_AND_PRODUCTS = "every input read once, every output written once, and the reference's products at the GPU's peak"


def audit(asked: Asked, device: ChosenDevice, say: Say) -> tuple[Audit, Subject]:
    """Raises what `check` raises, `NotDone` where a file cannot be imported, `RefusedRequest` for a bad reference."""
    subject = read_subject(asked, PROFILES[device.gpu], say)
    if not subject.reference:
        return _Auditor(asked, subject, device, say).run(), subject
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder, "reference.py")
        own.write_text(subject.reference, "utf-8")
        # Of the source's own no task may be made; the import has compared with it.
        with contextlib.suppress(*(() if asked.reference else (RefusedRequest,))):
            return _Auditor(replace(asked, reference=(own, ADAPTED)), subject, device, say).run(), subject
    subject = replace(subject, notes=(*subject.notes, *filter(None, (subject.compared,))))
    return _Auditor(asked, subject, device, say).run(), subject


@dataclass(frozen=True)
class _Auditor:
    asked: Asked
    subject: Subject
    device: ChosenDevice
    say: Say

    def run(self) -> Audit:
        subject, gpu = self.subject, PROFILES[self.device.gpu]
        self.say("building")
        try:
            built = build_plan(subject.file, subject.arguments, gpu, subject.choice)
        except DoesNotApply as refusal:
            raise BadArgument(f"{subject.file.name}:{refusal}") from None
        if isinstance(built, BuildFailure):
            judged = judged_by_checkers(subject.file, subject.arguments, gpu, None, self.say)
            return self._made(None, judged, not_modelled("it does not build"), (), ())
        self.say("reading the compiled code")
        others = not told_sizes(subject.file, subject.arguments) or sizes_follow(subject.file, subject.arguments)
        read, unread = lint_plan(built, subject.arguments, other_sizes=others)
        lint = tuple(one for one in read if not _past_a_guess(one, subject.guessed_lengths))
        if self.asked.reference is None:
            return self._without_reference(lint, unread)
        return self._with_reference(lint, unread)

    # -- with a reference --

    def _with_reference(self, lint: tuple[LintFinding, ...], unread: tuple[str, ...]) -> Audit:
        assert self.asked.reference is not None
        file = self.subject.file
        self.say("reading the reference")
        task = task_of_reference(self.asked.reference, self.subject.arguments, self.device)
        task = replace(task, name=file.plan.op.name)
        own = read_kernel(file.text, task)
        with judges(task, Settings(author=""), self.device, self.say) as (referee, stopwatch):
            answer: JudgedAnswer | None = None
            if isinstance(own, BadPlan):  # its parameters come otherwise, or are called otherwise
                judged = self._by_checkers(own.problems[0].message)
            elif told_sizes(file, self.subject.arguments):
                judged = self._by_checkers("sizes come as numbers here, and it changes tensors apart from them")
            else:
                self.say("judging")
                verdict = referee.judge(own)
                answer = verdict.answer if isinstance(verdict, Passed) else None
                judged = judged_by_referee(verdict, own, file)
            found = self._timed(stopwatch, answer)
        found = replace(found, speed=replace(found.speed, floor_is=_BYTES_AND_PRODUCTS))
        return self._made(task, judged, found, lint, unread)

    def _by_checkers(self, why: str) -> Judged:
        gpu, arguments = PROFILES[self.device.gpu], self.subject.arguments
        unsure = self.subject.guessed_lengths
        correctness, found = judged_by_checkers(
            self.subject.file, arguments, gpu, self.asked.reference, self.say, unsure
        )
        return replace(correctness, notes=(*correctness.notes, f"the referee was not asked: {why}")), found

    # -- without one --

    def _without_reference(self, lint: tuple[LintFinding, ...], unread: tuple[str, ...]) -> Audit:
        file, arguments, gpu = self.subject.file, self.subject.arguments, PROFILES[self.device.gpu]
        judged = judged_by_checkers(file, arguments, gpu, None, self.say, self.subject.guessed_lengths)
        try:
            task = task_of_file(file, arguments, gpu)
        except BadArgument as problem:
            return self._made(None, judged, not_modelled(str(problem)), lint, unread)
        with (
            open_devices(self.device) as (emulator, device),
            Stopwatch(task, None, emulator=emulator, gpu=device, baselines=(), say=self.say) as stopwatch,
        ):
            found = self._timed(stopwatch, None)
        found = replace(found, speed=replace(found.speed, floor_is=_BYTES_ONLY))
        return self._made(task, judged, found, lint, unread)

    # -- what follows --

    def _timed(self, stopwatch: Stopwatch, answer: JudgedAnswer | None) -> Timed:
        self.say("timing")
        file, choice = self.subject.file, self.subject.choice
        told = answer if choice is None else None  # it is of the first choices
        try:
            measured = stopwatch.measure(file, choice, told) if not self.device.is_emulated else None
            return timed(file, stopwatch, measured if isinstance(measured, Measured) else None, choice)
        except NotPrepared as problem:
            return not_modelled(problem)

    def _made(
        self,
        task: Task | None,
        judged: Judged,
        found: Timed,
        lint: tuple[LintFinding, ...],
        unread: tuple[str, ...],
    ) -> Audit:
        subject, (correctness, wrong) = self.subject, judged
        file = subject.file
        costs = tuple(cost_suggestions(file, task, found, lint)) if task is not None else ()
        kind = task.kind if task is not None else Kind.OTHER
        known = kind is not Kind.OTHER and self.asked.reference is not None
        return Audit(
            file=file.name,
            identity=file.identity,
            op=file.plan.op.name,
            gpu=self.device.gpu,
            device=self.device.words,
            arguments=describe_arguments(subject.arguments),
            guessed=subject.guessed,
            imported_from=subject.imported_from,
            notes=(*subject.notes, *(f"lint did not look at all of it: {one}" for one in unread)),
            correctness=correctness,
            speed=found.speed,
            suggestions=ranked(wrong, costs),
            kind=kind.value if known else "",
            advice=advice_lines(kind) if known else (),
        )


def ranked(wrong: Iterable[Suggestion], others: Iterable[Suggestion]) -> tuple[Suggestion, ...]:
    """What goes wrong first, then what is read to, then by what mending it gains; what was seen is not read again."""
    first = tuple(wrong)
    seen = {one.line for one in first if one.line is not None}
    rest = [one for one in others if one.weight is not Weight.FAULT or one.line not in seen]

    def place(one: Suggestion) -> tuple[int, float, int, int]:
        grave = one.weight in (Weight.WRONG, Weight.FAULT)
        return (_ORDER.index(one.weight) if grave else 2, -(one.gain or 1.0), _ORDER.index(one.weight), one.line or 0)

    return tuple(sorted((*first, *rest), key=place))


def _past_a_guess(finding: LintFinding, guessed_lengths: frozenset[str]) -> bool:
    """Whether it is of what lies past a tensor that nobody said the length of."""
    is_bounds = finding.rule is LintRule.MISSING_BOUNDS
    return is_bounds and any(f"end of {name} " in finding.evidence for name in guessed_lengths)


@dataclass(frozen=True)
class Renderings:
    """How it is told; a page is written beside what is printed."""

    as_json: bool
    markdown: Path | None
    html: Path | None


@dataclass(frozen=True)
class Improvement:
    """Who is to improve the kernel, within which budget, and where the better one goes."""

    settings: Settings
    delivery: Delivery


def audit_command(
    asked: Asked, gpu: str | None, spool: str, renderings: Renderings, improvement: Improvement | None
) -> int:
    """Returns the exit status, of the audit or of the run that improves it."""
    if improvement is not None:
        _refuse(asked, renderings, improvement)
    pages = [path for path in (renderings.markdown, renderings.html) if path is not None]
    for path in pages:
        is_markdown = path is renderings.markdown
        check_page(path, (".md",) if is_markdown else (".html",), "--markdown" if is_markdown else "--html")
    device = choose_device(gpu, spool)
    with progress() as say:
        found, subject = audit(asked, device, say)
    report = audit_report(found, subject.file.text)
    for path in pages:
        write_page(report, path)
    if renderings.as_json:
        print_json(found)
    else:
        show(stdout_console(), report)
        for path in pages:
            print(f"wrote {path}")
    if improvement is None:
        return found.exit_status
    _improve(asked, found, subject, gpu, improvement)
    return 0


# -- and then --


def _refuse(asked: Asked, renderings: Renderings, improvement: Improvement) -> None:
    """What cannot be improved is refused before anything is audited."""
    if asked.reference is None and asked.file.suffix != ".py":
        raise BadArgument("--improve needs to know what is right; give --reference FILE.py:FUNCTION")
    if renderings.as_json:
        raise BadArgument("--json and --improve would print two records; drop one, and see the run's with show --json")
    check_output(improvement.delivery.output)


def _improve(asked: Asked, found: Audit, subject: Subject, gpu: str | None, improvement: Improvement) -> None:
    shapes, numbers = argument_words(subject.arguments)
    if subject.reference:
        request = Request(subject.reference, shapes, numbers, function=ADAPTED)
    elif asked.reference is not None:
        path, function = asked.reference
        request = Request(f"{path}:{function}", shapes, numbers)
    else:
        raise BadArgument(f"--improve: {asked.file} says nowhere what is right; give --reference FILE.py:FUNCTION")
    settings = replace(improvement.settings, start=subject.file.text, hints=((0, hint_words(found)),))
    make_run(request, settings, gpu, False, False, improvement.delivery)
