"""Whether a kernel is right: the referee's verdict where there is a reference, else every checker at odd sizes."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tilewright import records
from tilewright.frontends.audit.report import Correctness, Suggestion, Weight
from tilewright.frontends.check import CheckOptions, CheckOutcome, CheckReport, check_file
from tilewright.importing.calls import Given
from tilewright.importing.sizes import ODD, ROUND, small_arguments
from tilewright.kernel_file import ArgumentValue, KernelFile
from tilewright.prompts.verdict_text import remedy_of, verdict_text, verdict_words
from tilewright.records import Emulation, FindingRecord, GpuProfile, TensorSpec

Say = Callable[[str], None]
Judged = tuple[Correctness, tuple[Suggestion, ...]]
_SCHEDULES = 3
_SAMPLED_BLOCKS = 8
_WHOLE_ELEMENTS = 1 << 18  # up to which a call that has no smaller one is run whole
_SECONDS = 60.0
_WORDS = {CheckOutcome.CLEAN: "no fault found", CheckOutcome.FINDINGS: "at fault"}


# -- by the referee --


def judged_by_referee(verdict: records.Verdict, judged: KernelFile, file: KernelFile) -> Judged:
    """`judged` is the file as the referee had it, with lines that `file` does not have."""
    told = verdict_text(verdict, judged.text)
    if isinstance(verdict, records.Passed):
        count = sum(one.status is records.CaseStatus.RIGHT for one in verdict.cases)
        judge = f"the referee, against the reference, in {count} cases: sizes, values and layouts that go wrong"
        return Correctness(True, verdict_words(verdict), judge, "", (*verdict.notes, *verdict.unjudged)), ()
    judge = "the referee, against the reference"
    if isinstance(verdict, records.Unsupported):
        return Correctness(None, verdict_words(verdict), judge, told), ()
    lines = _own_lines(judged.text, file.text)
    evidence = verdict.evidence
    found: tuple[FindingRecord, ...] = evidence.findings if isinstance(evidence, records.Crashed) else ()
    suggestions = _of_findings(found, file, lines)
    if not suggestions:
        line = lines.get(evidence.line or 0) if isinstance(evidence, records.Crashed) else None
        suggestions = (_wrong(verdict_words(verdict), told, line, file),)
    return Correctness(False, verdict_words(verdict), judge, told), suggestions


def _own_lines(judged: str, own: str) -> dict[int, int]:
    """The number of each line that both texts have, in the text that its owner knows."""
    blocks = difflib.SequenceMatcher(a=judged.splitlines(), b=own.splitlines(), autojunk=False).get_matching_blocks()
    return {one.a + k + 1: one.b + k + 1 for one in blocks for k in range(one.size)}


# -- by the checkers --


def judged_by_checkers(
    file: KernelFile,
    arguments: Mapping[str, ArgumentValue],
    gpu: GpuProfile,
    reference: tuple[Path, str] | None,
    say: Say,
) -> Judged:
    """The whole of a small call of odd sizes, if the file takes one, under several orders of warps and blocks."""
    small, blocks = _small_call(file, arguments, gpu)
    compared = reference if blocks is None else None
    emulation = Emulation(schedules=_SCHEDULES, sampled_blocks=blocks)
    options = CheckOptions(gpu, emulation, compared, seconds=_SECONDS)
    report = check_file(file, small, False, options, say)
    whom = "against the reference" if report.compared else "with nothing to compare results with"
    part = f"{blocks} blocks of each launch" if blocks is not None else "all blocks"
    sizes = ", ".join(f"{name} = {text}" for name, text in report.arguments.items())
    judge = f"the emulator's checkers, {whom}, {part} under {_SCHEDULES} schedules at {sizes}"
    passed = {CheckOutcome.CLEAN: True, CheckOutcome.NOT_EMULABLE: None}.get(report.outcome, False)
    agrees = "right at these sizes" if passed and report.compared else ""
    words = agrees or _WORDS.get(report.outcome, report.outcome.value)
    text = "\n".join((report.reason, *map(str, report.diagnostics))).strip()
    notes = tuple(f"not checked to the end: {one}" for one in report.incomplete)
    return Correctness(passed, words, judge, text, notes), _of_report(report, file)


def _small_call(
    file: KernelFile, arguments: Mapping[str, ArgumentValue], gpu: GpuProfile
) -> tuple[Mapping[str, ArgumentValue], int | None]:
    """A call to run, and of how many blocks of it; None: all."""
    call = [_given(name, value) for name, value in arguments.items()]
    small = small_arguments(file, call, gpu, ODD) or small_arguments(file, call, gpu, ROUND)
    if small is not None:
        return small, None
    elements = sum(math.prod(one.shape) for one in arguments.values() if isinstance(one, TensorSpec))
    return arguments, None if elements <= _WHOLE_ELEMENTS else _SAMPLED_BLOCKS


def _given(name: str, value: ArgumentValue) -> Given:
    if isinstance(value, TensorSpec):
        return Given(name, "tensor", value.dtype.value, value.shape)
    if value is None:
        return Given(name, "tensor", value=None)
    if isinstance(value, tuple):
        return Given(name, "ints", value=tuple(int(one) for one in value))
    kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
    return Given(name, kind, value=value)


def _of_report(report: CheckReport, file: KernelFile) -> tuple[Suggestion, ...]:
    made = list(_of_findings(report.findings, file))
    made += [_wrong(f"{one.name} is wrong", one.message, None, file) for one in report.results if not one.agrees]
    if not made and report.outcome not in (CheckOutcome.CLEAN, CheckOutcome.NOT_EMULABLE):
        first = next((one for one in report.diagnostics if one.severity is records.Severity.ERROR), None)
        line = first.line if first is not None else None
        made.append(_wrong(report.outcome.value, str(first) if first is not None else report.reason, line, file))
    return tuple(made)


def _of_findings(
    findings: Iterable[FindingRecord], file: KernelFile, lines: Mapping[int, int] | None = None
) -> tuple[Suggestion, ...]:
    """One for each kind of fault at each line."""
    made: dict[tuple[records.FindingKind, int | None], Suggestion] = {}
    for one in findings:
        line = one.line if lines is None else lines.get(one.line or 0)
        told = ": ".join(part for part in (str(one.thread or ""), one.where, one.detail) if part)
        found = Suggestion(
            Weight.WRONG, one.kind.value, one.kernel, line, source_at(file, line), told, "", remedy_of(one.kind)
        )
        made.setdefault((one.kind, line), found)
    return tuple(made.values())


def _wrong(what: str, evidence: str, line: int | None, file: KernelFile) -> Suggestion:
    return Suggestion(Weight.WRONG, what, "", line, source_at(file, line), evidence, "", "")


def source_at(file: KernelFile, line: int | None) -> str:
    lines: Sequence[str] = file.text.splitlines()
    return lines[line - 1].strip() if line is not None and 0 < line <= len(lines) else ""
