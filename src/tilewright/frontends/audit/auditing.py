"""`audit`: one kernel file judged, read, modelled or measured, and what follows from it, in order."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.frontends.audit.correctness import (
    Judged,
    judged_by_checkers,
    judged_by_referee,
    sizes_follow,
    told_sizes,
)
from tilewright.frontends.audit.report import Audit, Suggestion, Weight
from tilewright.frontends.audit.speed import Timed, cost_suggestions, not_modelled, timed
from tilewright.frontends.audit.subject import Asked, Subject, read_subject
from tilewright.frontends.build_report import describe_arguments
from tilewright.frontends.choices import ChosenDevice, open_devices
from tilewright.frontends.file_task import task_of_file, task_of_reference
from tilewright.frontends.imported_checks import ADAPTED
from tilewright.frontends.judging import judges
from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.kernel_file import DoesNotApply
from tilewright.lint import lint_plan
from tilewright.measure import Stopwatch
from tilewright.measure.preparation import NotPrepared
from tilewright.prompts.advice import advice_lines
from tilewright.records import (
    PROFILES,
    BadPlan,
    BuildFailure,
    JudgedAnswer,
    Kind,
    LintFinding,
    LintRule,
    Measured,
    Passed,
    Settings,
    Task,
)
from tilewright.tasks import RefusedRequest
from tilewright.toolchain import build_plan
from tilewright.verify.candidate import read_kernel

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
