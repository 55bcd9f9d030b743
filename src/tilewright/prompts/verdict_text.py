"""Describes a verdict: what is wrong with a kernel, at which lines, with the numbers needed to fix it.

`verdict_words` gives a few words for a table, `verdict_text` the full description, limited in length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tilewright import records
from tilewright.records import FindingKind

MOST_ERRORS = 6
MOST_FINDINGS = 6
MOST_CASES = 6
AROUND = 2  # lines of context around a faulty line
_MESSAGE_CHARACTERS = 360
_NOTE_CHARACTERS = 200
_NOTES = 2

_REMEDY = {
    FindingKind.OUT_OF_BOUNDS_GLOBAL: "guard the index, or the vector's whole extent, by the tensor's size",
    FindingKind.MISALIGNED: "a vector access needs an address its size divides: choose the width by the row's length",
    FindingKind.UNINITIALISED_SHARED: "write it, or put a barrier between the write and this read",
    FindingKind.UNINITIALISED_GLOBAL: "scratch and outputs start undefined: write first, or declare it `zeroed`",
    FindingKind.RACE_SHARED: "put a barrier (__syncthreads, __syncwarp) between the two accesses",
    FindingKind.RACE_GLOBAL: "give each element one writer, or order the two by a launch or a release and an acquire",
    FindingKind.BARRIER_DIVERGENCE: "every thread of the block must reach the same __syncthreads: no return before it",
    FindingKind.SHUFFLE_MASK: "the mask must name exactly the lanes that execute it: keep the warp whole there",
    FindingKind.ASYNC_NOT_WAITED: "wait for the copy's group, then a barrier, before other threads read it",
    FindingKind.ASYNC_NOT_CONSUMED: "wait for all groups before the kernel ends, or do not start copies nobody reads",
    FindingKind.INPUT_WRITTEN: "only outputs, scratch and tensors marked `!` may be written",
    FindingKind.STALE_READ: "read it without __ldg, .nc or `const __restrict__`: that cache misses new writes",
    FindingKind.NOT_AWAITED: "execute griddepcontrol.wait before it, in every block, or leave `pdl` away",
    FindingKind.LATER_BLOCK: "mark the launch `cooperative` and keep its grid resident, or split it into two launches",
    FindingKind.MBARRIER: "its counts and bytes must be those that arrive in each phase, and init must come first",
    FindingKind.NO_PROXY_FENCE: "fence.proxy.async after the writes, then a barrier, then the bulk copy or the wgmma",
    FindingKind.BULK_COPY: "addresses and sizes in 16 bytes; with a map, 128-byte shared addresses and its own rank",
    FindingKind.PEER_ABSENT: "meet at a cluster barrier before the first access to another block and before the end",
    FindingKind.WGMMA_IN_FLIGHT: "commit the wgmmas and wait for their group before registers of theirs are touched",
    FindingKind.WGMMA_NOT_FENCED: "execute wgmma.fence after the registers are set and before the wgmmas that use them",
    FindingKind.WARPGROUP: "all four warps of an aligned warpgroup must execute it together, with the same operands",
    FindingKind.OUTPUT_NOT_WRITTEN: "every element of an output must be written at every size",
    FindingKind.UNINITIALISED_REGISTER: "give the variable a value before it is read",
    FindingKind.COUNTER_LEFT: "reset the counter to zero in the last block that uses it",
}


def remedy_of(kind: FindingKind) -> str:
    """How to fix a kind of finding; "" without general advice."""
    return _REMEDY.get(kind, "")


_RAN_OUT = (
    "That is no fault in itself: it was stopped at the limit of what this case may take, long before its results could "
    "be judged. Either a loop or a wait never ends, or it does far more work than the task needs at these sizes: see "
    "that no thread goes over what others have done, and that a tile that is mostly empty costs little. On a GPU "
    "(--gpu on a machine that has one, or --spool) the same work takes a fraction of the time."
)


def verdict_words(verdict: records.Verdict) -> str:
    """A few words for one line of a table: `right`, `wrong values: the last elements`."""
    if isinstance(verdict, records.Passed):
        return "right, provisionally" if verdict.is_provisional else "right"
    if isinstance(verdict, records.Unsupported):
        return verdict.reason
    evidence = verdict.evidence
    detail = ""
    match evidence:
        case records.WrongValues(drops_nan=True, right_cases=right):
            cases = f"{len(right)} case{'s' if len(right) != 1 else ''}"
            detail = f"numbers are right in {cases}" if right else "the other elements are right"
        case records.WrongValues(outputs=outputs) if outputs:
            detail = outputs[0].pattern.value
        case records.Crashed(findings=findings) if findings:
            detail = findings[0].kind.value
        case records.Crashed(fault=fault) if fault is not None:
            detail = fault.value
        case records.NotBuilt(diagnostics=diagnostics):
            errors = [one for one in diagnostics if one.severity is records.Severity.ERROR]
            detail = _shortened(errors[0].message, 70) if errors else evidence.reason.value
        case records.BadPlan(problems=problems) if problems:
            detail = problems[0].code
        case records.Duplicate(attempt=attempt):
            detail = f"#{attempt}"
        case records.NotFaster(time_us=time_us):
            detail = f"{time_us:,.4g} us"
        case records.NothingBetter(reason=reason):
            detail = reason
        case _:
            pass
    if detail.startswith(verdict.reason):  # a race is one in shared memory, or in global memory
        return detail
    return f"{verdict.reason}: {detail}" if detail else verdict.reason


def verdict_text(verdict: records.Verdict, source: str = "") -> str:
    """The full description for an author, with the lines of the kernel file `source` that it names."""
    if isinstance(verdict, records.Passed):
        return _passed(verdict)
    if isinstance(verdict, records.Changed):
        return verdict.message
    if isinstance(verdict, records.Unsupported):
        return f"It could not be run here, so it is neither right nor wrong: {verdict.message}"
    lines = source.split("\n") if source else []
    evidence = verdict.evidence
    match evidence:
        case records.BadReply(message=message):
            text = f"There is no usable reply: {message}"
        case records.BadPlan():
            text = _bad_plan(evidence)
        case records.NotBuilt():
            text = _not_built(evidence, lines)
        case records.Declined(case=case, message=message):
            text = f"The file declines a call that it must take, {case}: {message}"
            if message.endswith(("contiguous()", "clone()")):  # which a caller may do, and the file must not want
                text += ", or better let the file take it: `accept NAME: strided, unaligned`"
        case records.Crashed():
            text = _crashed(evidence, lines)
        case records.WrongValues():
            text = _wrong_values(evidence)
        case records.Unstable(case=case, outputs=outputs, when=when, wrong=wrong):
            found = f"differently when it was timed ({when})" if when else "differently from run to run"
            text = (
                f"At {case}, {' and '.join(outputs) or 'the result'} came out {found}: some order is left to chance "
                "(a race, or floating-point atomics), an address decides, or a variable is used that nothing set. "
                "Combine partial results in a fixed order, initialise every variable."
            )
            text += "".join(f" In one run {one.output} was wrong: {one.description}." for one in wrong)
        case records.Impossible(message=message):
            text = (
                f"It cannot have done the work: {message}. Look for a loop that ends early, a grid or a stride that "
                "leaves elements out, a condition that skips a launch at the task's sizes."
            )
        case records.Duplicate(attempt=attempt):
            text = f"This is the file of attempt #{attempt}, byte for byte; it was not run again."
        case records.NotFaster(time_us=time_us, best_us=best_us, attempt=attempt):
            text = (
                f"It takes {time_us:,.4g} us at the task's sizes, and attempt #{attempt} {best_us:,.4g} us. So it was "
                "not judged at these sizes: only at smaller ones, where it is right."
            )
        case records.NothingBetter(reason=reason):
            text = f"No file was sent, because nothing better was seen: {reason}"
    if isinstance(evidence, records.WrongValues):
        return text
    right = [one.case for one in verdict.cases if one.status is records.CaseStatus.RIGHT]
    return text + (f"\nRight before that: {_cases(right)}." if right else "")


# -- the kinds of evidence --


def _passed(verdict: records.Passed) -> str:
    right = [one for one in verdict.cases if one.status is records.CaseStatus.RIGHT]
    text = f"Right in {len(right)} cases, worst error {verdict.error_ratio:.2g} of what is allowed"
    text += f": {_cases(right)}." if right else "."
    others = Counter(one.status for one in verdict.cases if one.status is not records.CaseStatus.RIGHT)
    if any("too large" in note for note in verdict.notes):
        del others[records.CaseStatus.TOO_LARGE]  # the note says it
    for status, count in others.items():
        example = next(one for one in verdict.cases if one.status is status)
        text += f" {count} {'case' if count == 1 else 'cases'} {status.value}, such as {example.case}."
    said = " ".join([text, *(f"{note[:1].upper()}{note[1:].rstrip('.')}." for note in verdict.notes)])
    if not verdict.is_provisional:
        return said
    unjudged = [f"- {sentence}" for sentence in verdict.unjudged[:MOST_ERRORS]]
    unjudged += _more(len(verdict.unjudged), MOST_ERRORS, "line")
    why = "It is provisional, not verified: this runs at the task's own sizes and was never judged:"
    return "\n".join([said, why, *unjudged])


def _bad_plan(evidence: records.BadPlan) -> str:
    said = ["The launch plan is refused:"]
    for problem in evidence.problems[:MOST_ERRORS]:
        place = f"line {problem.line}, column {problem.column}: " if problem.line else ""
        said.append(f"- {place}{problem.code}: {problem.message}; {problem.remedy}")
        if problem.source_line:
            said.append(f"    {problem.line:4} | {problem.source_line.rstrip()}")
    said += _more(len(evidence.problems), MOST_ERRORS, "problem")
    return "\n".join(said)


def _not_built(evidence: records.NotBuilt, lines: list[str]) -> str:
    constants = ", ".join(f"{name} = {value}" for name, value in evidence.constants)
    said = [f"It does not build{f' with {constants}' if constants else ''}: {evidence.reason.value}."]
    errors = [one for one in evidence.diagnostics if one.severity is records.Severity.ERROR]
    for error in errors[:MOST_ERRORS]:
        said += _diagnostic(error, lines)
    said += _more(len(errors), MOST_ERRORS, "error")
    return "\n".join(said)


def _diagnostic(error: records.Diagnostic, lines: list[str]) -> list[str]:
    message = _shortened(error.message, _MESSAGE_CHARACTERS)
    in_file = 1 <= error.line <= len(lines) and lines[error.line - 1].strip() == error.source_line.strip()
    place = f"line {error.line}" if in_file or not error.line else f"{error.file}:{error.line}"
    said = [f"- {place}: {message}"]
    if in_file:
        said += _excerpt([error.line], lines)
    elif error.source_line:
        said.append(f"         | {_shortened(error.source_line, _MESSAGE_CHARACTERS)}")
    said += [f"    {_shortened(note, _NOTE_CHARACTERS)}" for note in error.notes[:_NOTES]]
    return said


def _crashed(evidence: records.Crashed, lines: list[str]) -> str:
    said = [f"At {evidence.case}:"]
    if evidence.fault is not None:
        place = f" in {evidence.kernel}" if evidence.kernel else ""
        at = f" (launched at line {evidence.line})" if evidence.line is not None else ""
        said[0] += f" the run stopped{place}{at}: {evidence.fault.value}: {evidence.message}"
    else:
        said[0] += " it ran to its end, but:"
    if evidence.ran_out:
        said.append(_RAN_OUT)
    quoted = dict(evidence.source_lines)
    for finding in evidence.findings[:MOST_FINDINGS]:
        said += _finding(finding, lines, quoted)
    said += _more(len(evidence.findings), MOST_FINDINGS, "finding")
    return "\n".join(said)


def _finding(finding: records.FindingRecord, lines: list[str], quoted: dict[int, str]) -> list[str]:
    said = [f"- {_shortened(str(finding), _MESSAGE_CHARACTERS)}"]
    if finding.other_thread is not None:
        at = f" at line {finding.other_line}" if finding.other_line is not None else ""
        said[0] += f"; the other is {finding.other_thread}{at}"
    named = sorted({line for line in (finding.line, finding.other_line) if line is not None})
    if lines:
        said += _excerpt(named, lines, around=1 if len(named) > 1 else AROUND)
    else:
        said += [f"    {line:4} | {quoted[line].rstrip()}" for line in named if line in quoted]
    if finding.kind in _REMEDY:
        said.append(f"    -> {_REMEDY[finding.kind]}")
    return said


def _wrong_values(evidence: records.WrongValues) -> str:
    said = [f"The smallest case found to fail: {evidence.case}."]
    for output in evidence.outputs:
        said += _wrong_output(output)
    if evidence.right_cases:
        said.append(f"These cases are right: {_cases(evidence.right_cases)}.")
    return "\n".join(said)


def _wrong_output(output: records.WrongOutput) -> list[str]:
    said = [
        f"- {output.output}: {output.wrong:,} of {output.elements:,} elements wrong ({output.pattern.value}). "
        f"{output.description}"
    ]
    if output.worst_error is not None and output.allowed_error is not None:
        reference = output.reference_error
        own = "" if reference is None else f"; PyTorch's own worst error here is {reference:.3g}"
        said.append(f"    worst error {output.worst_error:.4g}, allowed there {output.allowed_error:.3g}{own}")
    said += [
        f"    {output.output}{list(one.index)}: expected {one.expected:.7g}, got {one.got:.7g}"
        for one in output.first[:4]
    ]
    return said


# -- pieces --


def _excerpt(named: list[int], lines: list[str], around: int = AROUND) -> list[str]:
    """The named lines, marked, with context."""
    shown = sorted(
        {near for line in named for near in range(line - around, line + around + 1) if 1 <= near <= len(lines)}
    )
    said: list[str] = []
    for before, line in zip([None, *shown], shown, strict=False):
        if before is not None and line > before + 1:
            said.append("         ...")
        said.append(f"  {'>' if line in named else ' '} {line:4} | {lines[line - 1].rstrip()}")
    return said


def _cases(cases: Iterable[records.Case | records.CaseResult]) -> str:
    all_cases = [one.case if isinstance(one, records.CaseResult) else one for one in cases]
    shown = [str(one) for one in all_cases[:MOST_CASES]]
    rest = len(all_cases) - len(shown)
    return "; ".join(shown) + (f"; and {rest} more" if rest else "")


def _more(count: int, shown: int, what: str) -> list[str]:
    rest = count - shown
    return [f"(and {rest} more {what}{'s' if rest > 1 else ''})"] if rest > 0 else []


def _shortened(text: str, characters: int) -> str:
    """The text on one line. A long one keeps both ends: compilers often print plain types at the end."""
    text = " ".join(text.split())
    if len(text) <= characters:
        return text
    return f"{text[: characters * 2 // 3].rstrip()} ... {text[-characters // 3 :].lstrip()}"
