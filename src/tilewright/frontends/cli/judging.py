"""Is a kernel right? For `audit`, `bench` and `import`, in the emulator, against its reference if it has one."""

from __future__ import annotations

import ast
import contextlib
import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tilewright import records
from tilewright.devices.protocol import Device, DeviceError
from tilewright.frontends.cli.check import CheckOptions, check_file, original, sizes_follow, usual_content
from tilewright.frontends.report.audit import Correctness, Suggestion, Weight
from tilewright.frontends.report.checks import CheckOutcome, CheckReport
from tilewright.frontends.report.runs import named_values
from tilewright.importing.calls import CallArgument, is_block
from tilewright.importing.models import ExtensionCall
from tilewright.importing.shapes import OutOfBounds
from tilewright.importing.sizes import ODD_SIZES, ROUND_SIZES, small_arguments
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile, KernelFileError, Op
from tilewright.prompts.verdict_text import remedy_of, verdict_text, verdict_words
from tilewright.records import PROFILES, GpuProfile, InputTensor, Limits, ScalarType, TensorSpec
from tilewright.tasks.errors import BadArgument
from tilewright.tasks.reading import python_source
from tilewright.toolchain import build_plan

Say = Callable[[str], None]
Judged = tuple[Correctness, tuple[Suggestion, ...]]
_SCHEDULES = 3
_SAMPLED_BLOCKS = 8
_WHOLE_ELEMENTS = 1 << 18  # up to which a call that has no smaller one is run whole
_CHECK_SECONDS = 60.0
_LINE_NUMBER = re.compile(
    r"(?P<before>(?P<said>(?<!PTX )\bline )|^[ >]*)(?P<number>\d+)(?(said)\b|(?= \|))", re.MULTILINE
)
_WORDS = {CheckOutcome.CLEAN: "no fault found", CheckOutcome.FINDINGS: "at fault"}


def judged_by_referee(verdict: records.Verdict, judged: KernelFile, file: KernelFile) -> Judged:
    """`judged` is the file as the referee had it, with lines that `file` does not have."""
    lines = _own_lines(judged.text, file.text)
    diagnosis = _renumbered(verdict_text(verdict, judged.text), lines)
    if isinstance(verdict, records.Passed):
        count = sum(one.status is records.CaseStatus.RIGHT for one in verdict.cases)
        judge = f"the referee, against the reference, in {count} cases: sizes, values and layouts that go wrong"
        return Correctness(True, verdict_words(verdict), judge, "", (*verdict.notes, *verdict.unjudged)), ()
    judge = "the referee, against the reference"
    if isinstance(verdict, records.Unsupported):
        return Correctness(None, verdict_words(verdict), judge, diagnosis), ()
    evidence = verdict.evidence
    if isinstance(evidence, records.Crashed) and evidence.ran_out:
        return Correctness(None, f"not decided: it {evidence.reason}", judge, diagnosis), ()
    found: tuple[records.FindingRecord, ...] = evidence.findings if isinstance(evidence, records.Crashed) else ()
    suggestions = _of_findings(found, file, lines)
    if not suggestions:
        line = lines.get(evidence.line or 0) if isinstance(evidence, records.Crashed) else None
        suggestions = (_wrong(verdict_words(verdict), diagnosis, line, file),)
        if isinstance(evidence, records.WrongValues) and evidence.drops_nan:
            suggestions = (replace(suggestions[0], weight=Weight.FAULT),)
    return Correctness(False, verdict_words(verdict), judge, diagnosis), suggestions


def _own_lines(judged: str, own: str) -> dict[int, int]:
    """The number of each line that both texts have, in the text that its owner knows."""
    blocks = difflib.SequenceMatcher(a=judged.splitlines(), b=own.splitlines(), autojunk=False).get_matching_blocks()
    return {one.a + k + 1: one.b + k + 1 for one in blocks for k in range(one.size)}


def _renumbered(text: str, lines: Mapping[int, int]) -> str:
    """What was said of the judged text with its owner's numbers, in sentences and beside the lines that are shown."""

    def own(found: re.Match[str]) -> str:
        number = str(lines.get(int(found["number"]), found["number"]))
        return found["before"] + (number if found["said"] else number.rjust(len(found["number"])))

    return _LINE_NUMBER.sub(own, text)


def judged_by_checkers(
    file: KernelFile,
    arguments: Mapping[str, ArgumentValue],
    gpu: GpuProfile,
    reference: tuple[Path, str] | None,
    say: Say,
    guessed_lengths: frozenset[str] = frozenset(),
) -> Judged:
    """By small calls of odd and of round sizes; accesses past tensors of a guessed length decide nothing."""
    options = CheckOptions(gpu, records.Emulation(schedules=_SCHEDULES), original(reference), seconds=_CHECK_SECONDS)
    seen: list[CheckReport] = []
    with contextlib.suppress(BadArgument):  # of a reference that takes no other sizes; said again below if of no call
        seen = [check_file(file, call, False, options, say) for call in _small_calls(file, arguments, gpu)]
    elements = sum(math.prod(one.shape) for one in arguments.values() if isinstance(one, TensorSpec))
    blocks = None if seen or elements <= _WHOLE_ELEMENTS else _SAMPLED_BLOCKS
    if not seen:
        if blocks is not None:
            sampled = replace(options.emulation, sampled_blocks=blocks)
            options = replace(options, emulation=sampled, reference=None)
        seen = [check_file(file, dict(arguments), False, options, say)]
    reports = [_within(one, guessed_lengths) for one in seen]
    worst = max(reports, key=lambda one: (one.outcome.exit_status == 1, one.outcome.exit_status))
    found = _of_reports(reports, file)
    whom = "against the reference" if worst.compared else "with nothing to compare results with"
    part = f"{blocks} blocks of each launch" if blocks is not None else "all blocks"
    sizes = "; ".join(named_values(one.arguments) for one in reports)
    judge = f"the emulator's checkers, {whom}, {part} under {_SCHEDULES} schedules at {sizes}"
    passed = {CheckOutcome.CLEAN: True, CheckOutcome.NOT_EMULABLE: None}.get(worst.outcome, False)
    passed = None if _ran_out_of_time(worst) or (passed and reports != seen) else passed
    agrees = "right at these sizes" if passed and worst.compared else ""
    text = "\n".join((worst.reason, *map(str, worst.diagnostics))).strip()
    notes = dict.fromkeys(f"not checked to the end: {one}" for report in reports for one in report.incomplete)
    words = agrees or _WORDS.get(worst.outcome, worst.outcome.value)
    words = "not decided: the emulator ran out of time" if _ran_out_of_time(worst) else words
    if reports != seen:
        past = {past_tensor(one) for report in seen for one in report.findings} & guessed_lengths or guessed_lengths
        short = ", ".join(sorted(past))
        notes[f"accesses go past {short}, whose length was guessed: say it with --shape, else it means nothing"] = None
    return Correctness(passed, words, judge, text, tuple(notes)), found


def _within(report: CheckReport, guessed_lengths: frozenset[str]) -> CheckReport:
    """The report without accesses past tensors of a guessed length, or so far from all that they may be."""
    unsure = {*guessed_lengths, ""} if guessed_lengths else set()
    outside = records.FindingKind.OUT_OF_BOUNDS_GLOBAL
    kept = tuple(one for one in report.findings if one.kind is not outside or past_tensor(one) not in unsure)
    if kept == report.findings:
        return report
    outcome = CheckOutcome.CLEAN if not kept and report.outcome is CheckOutcome.FINDINGS else report.outcome
    return replace(report, findings=kept, outcome=outcome)


def _small_calls(
    file: KernelFile, arguments: Mapping[str, ArgumentValue], gpu: GpuProfile
) -> list[dict[str, ArgumentValue]]:
    """None where a size may be left behind: tensors and numbers are made smaller together where they are equal."""
    if not sizes_follow(file, arguments):
        return []
    whole = {name: tuple(map(int, one)) if isinstance(one, tuple) else one for name, one in arguments.items()}
    call = [CallArgument.of(name, value) for name, value in whole.items()]
    tried = (small_arguments(file, call, gpu, ways) for ways in (ODD_SIZES, ROUND_SIZES))
    found = [one for one in tried if one is not None]
    return found[:1] if found[1:] == found[:1] else found


def _of_reports(reports: Sequence[CheckReport], file: KernelFile) -> tuple[Suggestion, ...]:
    """Each fault once, with the call it was seen in; one of odd sizes alone weighs less."""
    found: dict[tuple[str, int | None], Suggestion] = {}
    for number, report in reversed(tuple(enumerate(reports))):
        sizes = named_values(report.arguments)
        odd = number == 0 and len(reports) > 1
        for one in _of_report(report, file):
            placed = replace(one, evidence=f"{one.evidence} (at {'the odd sizes ' if odd else ''}{sizes})")
            found.setdefault((one.what, one.line), replace(placed, weight=Weight.FAULT) if odd else placed)
    return tuple(found.values())


def _ran_out_of_time(report: CheckReport) -> bool:
    """Which the emulator may have done, and not the kernel."""
    return report.outcome is CheckOutcome.FAULTED and report.reason.startswith(records.FaultKind.TIME.value)


def _of_report(report: CheckReport, file: KernelFile) -> tuple[Suggestion, ...]:
    made = list(_of_findings(report.findings, file))
    if _ran_out_of_time(report):
        return tuple(made)
    made += [_wrong(f"{one.name} is wrong", one.message, None, file) for one in report.results if not one.agrees]
    if not made and report.outcome not in (CheckOutcome.CLEAN, CheckOutcome.NOT_EMULABLE):
        first = next((one for one in report.diagnostics if one.severity is records.Severity.ERROR), None)
        line = first.line if first is not None else None
        made.append(_wrong(report.outcome.value, str(first) if first is not None else report.reason, line, file))
    return tuple(made)


def _of_findings(
    findings: Iterable[records.FindingRecord], file: KernelFile, lines: Mapping[int, int] | None = None
) -> tuple[Suggestion, ...]:
    """One for each kind of fault at each line."""
    made: dict[tuple[records.FindingKind, int | None], Suggestion] = {}
    for one in findings:
        line = one.line if lines is None else lines.get(one.line or 0)
        words = ": ".join(part for part in (str(one.thread or ""), one.where, one.detail) if part)
        place, evidence = (one.kernel, line, source_at(file, line)), _renumbered(words, lines or {})
        found = Suggestion(Weight.WRONG, one.kind.value, *place, evidence, "", remedy_of(one.kind))
        made.setdefault((one.kind, line), found)
    return tuple(made.values())


def _wrong(what: str, evidence: str, line: int | None, file: KernelFile) -> Suggestion:
    return Suggestion(Weight.WRONG, what, "", line, source_at(file, line), evidence, "", "")


def source_at(file: KernelFile, line: int | None) -> str:
    lines: Sequence[str] = file.text.splitlines()
    return lines[line - 1].strip() if line is not None and 0 < line <= len(lines) else ""


OriginalReference = tuple[str, str, Path]  # text, function, the folder it lies in
GPU = PROFILES["H200"]
ADAPTED = "imported_reference"
_SIZE = re.compile(r"\b(\w+) = (\w+\.shape\[\d+\])")  # of a plan's `let`; Python spells it alike


def checked(
    file: KernelFile, arguments: Mapping[str, ArgumentValue], reference: OriginalReference | None
) -> tuple[str, str, bool]:
    """What `check` says, whether it compared, and against what it could not."""
    options = CheckOptions(GPU, records.Emulation(schedules=1), seconds=_CHECK_SECONDS)
    report, not_compared = None, ""
    if reference is not None:
        try:
            report = check_file(file, arguments, True, replace(options, reference=reference), lambda text: None)
        except (BadArgument, KernelFileError) as error:
            not_compared = f"not compared: {error}"
    report = report or check_file(file, arguments, True, options, lambda text: None)
    reason = report.reason or "; ".join(str(one) for one in report.findings[:2])
    return report.outcome.value, "; ".join(filter(None, (reason, not_compared))), report.compared


def at_odd_sizes(
    file: KernelFile,
    call: Sequence[CallArgument],
    usual: Mapping[str, ArgumentValue] | None,
    reference: OriginalReference | None,
) -> list[str]:
    """What the kernel counts on without saying so."""
    odd = small_arguments(file, call, GPU, ODD_SIZES)
    if odd is None or odd == usual:
        return []
    outcome, reason, _ = checked(file, odd, reference)
    if outcome == CheckOutcome.CLEAN.value:
        return []
    sizes = named_values(odd)
    return [f"at odd sizes ({sizes}) it is not right: {outcome}: {reason}"]


def without_extension(text: str) -> str:
    """The module without the statements that build its extension, so that it needs neither compiler nor stand-ins."""

    def builds(node: ast.AST) -> bool:
        called = node.func if isinstance(node, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", ""))
        return name in ("load_inline", "load")

    tree = ast.parse(text)
    definitions = (ast.FunctionDef, ast.ClassDef)
    body = [one for one in tree.body if isinstance(one, definitions) or not any(map(builds, ast.walk(one)))]
    return ast.unparse(ast.Module(body, []))


def stand_ins(path: Path) -> str:
    """What stands in front of the file: it must be there before the file loads its extension."""
    folder = str(path.parent.resolve())
    return f"import tilewright.importing.models as _stand_ins; _stand_ins.install({folder!r})\n"


def adapter(name: str, call: ExtensionCall, inputs: Sequence[str]) -> str:
    """Python that calls the model with the arguments of the extension's function."""
    names = [one.name for one in call.arguments]
    named = {origin: n for n, origin in zip(names, call.origins, strict=True) if origin}
    given = [named.get(one, "None") if one.startswith("input:") else one for one in inputs]
    first = next(n for origin, n in named.items() if origin.startswith("input:"))
    weights = {
        origin.partition(":")[2]: n
        for n, origin in zip(names, call.origins, strict=True)
        if origin.startswith("parameter:")
    }
    mapping = ", ".join(f"{key!r}: {value}" for key, value in weights.items())
    return f"""

def {ADAPTED}({", ".join(names)}):
    import torch as _torch
    _model = {name}(*(get_init_inputs() if "get_init_inputs" in globals() else ())).to({first}.dtype)
    return _torch.func.functional_call(_model, {{{mapping}}}, ({", ".join(given)},))
"""


def for_op(file: KernelFile, reference: OriginalReference, guessed_lengths: Collection[str] = ()) -> OriginalReference:
    """A function of the launcher's parameters as one of the op's. Raises `BadArgument` where it takes others."""
    text, function, folder = reference
    taken = _taken(reference)
    if taken is None:
        return reference
    op, names = file.plan.op, [one.name for one in taken]
    given = {**{one.name: one.name for one in op.parameters}, **size_names(file)}
    foreign = [one.name for one in taken if one.name not in given and one.default is None]
    # What is written can be returned instead; numbers may be none of the function's business.
    needed = [one for one in op.parameters if not (one.in_place or one.optional or one.scalar is not None)]
    lacks = [one.name for one in needed if one.name not in names]
    if foreign or lacks:
        what = f"takes {', '.join(foreign)}" if foreign else f"does not take {', '.join(lacks)}"
        raise BadArgument(f"--reference: {function} {what}; the kernel's arguments are called {', '.join(given)}")
    shapeless = [name for name in names if name in guessed_lengths]
    if shapeless and lacks_numbers(file, reference):
        raise BadArgument(f"--reference: say the shapes that {function} takes: --shape {shapeless[0]}=ROWSxCOLS")
    if {one.name for one in op.parameters} == {*names} and not any(one.in_place for one in op.parameters):
        return reference
    known = [one for one in taken if one.name in given]
    passed = ", ".join(given[one.name] if one.positional_only else f"{one.name}={given[one.name]}" for one in known)
    text, imports = python_source.with_neighbours(text, "", folder)
    beside = "    _ = sys  # whose path finds the files beside it\n" if imports else ""
    return text + _in_place(op, f"{function}({passed})", {*names}, beside), ADAPTED, folder


def lacks_numbers(file: KernelFile, reference: OriginalReference) -> bool:
    """Whether it takes its sizes from tensors, where the op has them as numbers: the two must not change apart."""
    taken = _taken(reference)
    names = {one.name for one in taken or ()}
    numbers = [one.name for one in file.plan.op.parameters if one.scalar is ScalarType.INT and not is_block(one.name)]
    return taken is not None and any(name not in names for name in numbers)


def _taken(reference: OriginalReference) -> tuple[python_source.SourceParameter, ...] | None:
    """The parameters of a function; None for what is none, or is one of an op already."""
    text, function, folder = reference
    try:
        node = python_source.find_function(ast.parse(text), function, "the reference")
        python_source.with_neighbours(text, "", folder)
        return None if function == ADAPTED else python_source.parameters_of(node, "the reference")
    except (SyntaxError, ValueError):
        return None  # who runs it says what it is


def size_names(file: KernelFile) -> dict[str, str]:
    """Numbers of the launcher that the plan reads off tensors."""
    lets = [line for line in file.text.splitlines() if line.startswith("//! let ")]
    return dict(found for line in lets for found in _SIZE.findall(line))


def _in_place(op: Op, call: str, names: set[str], first: str) -> str:
    """Python of the op's parameters that leaves what a call returns, beside the op's results, in what is written."""
    written = [one.name for one in op.parameters if one.in_place]
    missing = [name for name in written if name not in names]
    taken = ", ".join(
        one.name + (f": {one.scalar.value}" if one.scalar else "") + ("=None" if one.optional else "")
        for one in sorted(op.parameters, key=lambda one: one.optional)
    )
    return f"""

def {ADAPTED}({taken}):
{first}    _all = ({"".join(f"{name}, " for name in written)})
    _made = {call}
    _made = () if _made is None else tuple(_made) if isinstance(_made, (tuple, list)) else (_made,)
    _made = tuple(one for one in _made if not any(one is other for other in _all))
    _results, _left = _made[:{len(op.results)}], _made[{len(op.results)}:]
    _places = ({"".join(f"{name}, " for name in missing)}) if len(_left) == {len(missing)} else _all
    if len(_left) != len(_places):
        raise ValueError(f"it returned {{len(_made)}} tensors; {op.name} makes {len(op.results) + len(written)}")
    for _place, _one in zip(_places, _left):  # which may be longer than what is written
        _place = _place if _one.numel() == _place.numel() else _place.view(-1)[: _one.numel()]
        _place.copy_(_one.reshape(_place.shape))
    return _results[0] if len(_results) == 1 else _results or None
"""


_REACH_SECONDS = 10.0
_INSTRUCTIONS = 100_000_000
# "8 bytes after the end of x", or, where a wide access begins inside, "x[12]".
_TENSOR = re.compile(r"\bof (\w+)$|^(\w+)(?:\[|$)")


def reach(emulator: Device) -> OutOfBounds:
    """The tensors whose ends an access goes past; None where the run does not come to its end."""

    def outside(file: KernelFile, arguments: Mapping[str, ArgumentValue], below: int) -> frozenset[str] | None:
        try:
            built = build_plan(file, arguments, emulator.profile)
            if isinstance(built, records.BuildFailure):
                return None
            specs = {name: one for name, one in arguments.items() if isinstance(one, TensorSpec)}
            inputs = tuple(InputTensor(name, one, usual_content(one.dtype, 0, below)) for name, one in specs.items())
            how = records.Emulation((), instruction_budget=_INSTRUCTIONS)
            run = emulator.execute(built.job("reach", inputs, limits=Limits(seconds=_REACH_SECONDS), emulation=how))
        except (DoesNotApply, DeviceError):
            return None
        if not isinstance(run, records.Completed):
            return None
        found = [past_tensor(one) for one in run.findings if one.kind is records.FindingKind.OUT_OF_BOUNDS_GLOBAL]
        return None if "" in found else frozenset(found)  # "": nobody knows outside of what

    return outside


def past_tensor(finding: records.FindingRecord) -> str:
    """The tensor that an access goes past; "" for any other finding, and where that is not told."""
    found = _TENSOR.search(finding.where) if finding.kind is records.FindingKind.OUT_OF_BOUNDS_GLOBAL else None
    return (found[1] or found[2]) if found is not None else ""
