"""A candidate: parsing its text for a task, and evaluating, building and running it at one case."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tilewright import records
from tilewright.devices.protocol import Device
from tilewright.kernel_file import (
    Choice,
    Code,
    DoesNotApply,
    Evaluation,
    KernelFile,
    KernelFileError,
    Op,
    Problem,
    Refused,
    apply_autofixes,
    autofix,
    compare_op,
    compare_out,
    evaluate,
    needs_of_task,
    op_of_task,
    parse,
    try_evaluate,
)
from tilewright.kernel_file.words import DIRECTIVES
from tilewright.records import BadPlan, Build, Case, Emulation, GpuProfile, InputTensor, Job, NotBuilt, Task
from tilewright.reference import AnyReference, ReferenceProblem
from tilewright.toolchain import BuiltPlan, build_many
from tilewright.verify.case_sizes import has_own_size
from tilewright.verify.case_work import elements_of, work_of
from tilewright.verify.distributions import case_task, contents, draw_inputs, is_of_numbers, whole_inputs
from tilewright.verify.judging_records import LARGE, Judgement, JudgeRequest, SurveyRequest, ValueSurvey

_LEAST_BUDGET = 100_000_000  # thread instructions of an emulated run: about a second
_LONG_BUDGET = 30_000_000
_BUDGET_PER_STEP = 1000
_CASE_SECONDS = 30.0
_SURVEY = "tilewright.verify.value_survey:survey_values"
_SURVEY_SECONDS = 20.0
_WARM_UP = "tilewright.verify.judging:warm_up"
_GPU_SECONDS = 60.0
_GPU_BYTES = 64 << 30
LARGEST_DATA = 64 << 20  # bytes of inputs that are sent; larger ones are generated on the GPU from a seed
_HUGE = 1 << 29  # elements of inputs and results
_WORTH_SENDING = 1 << 20  # elements of a case that a remote GPU judges faster than this CPU
_PLAN_LINE = re.compile(rf"(\s*//!\s*(?:(?:{'|'.join(DIRECTIVES)})\b)?)(.*)")  # (directive, rest)
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


# -- parsing --


def read_kernel(text: str, task: Task) -> KernelFile | BadPlan:
    """Parse the text, apply mechanical fixes, and compare it with the task's op and outputs.

    Results with other names are renamed in the plan. The returned file has the fixed text. Whether it accepts the
    task's sizes is not checked here.
    """
    try:
        file = autofix(text, allow_library=task.allow_library)
        file = _with_results_of(file, op_of_task(task), task.allow_library)
        problems = compare_op(file, op_of_task(task))
        fixed = apply_autofixes(file.text, problems)
        if fixed != file.text:
            file = autofix(fixed, allow_library=task.allow_library)
            problems = compare_op(file, op_of_task(task))
        written = {rest.strip() for word, rest in _plan_words(file).values() if word == "need"}
        file = _with_lines(file, [f"need    {need}" for need in needs_of_task(task) if need not in written], task)
        file = _with_leading_of(file, task)
        problems = problems or _lead_problems(file, task) or _out_problems(file, task)
    except KernelFileError as error:
        problems = error.problems
    return bad_plan(problems, text) if problems else file


def _with_results_of(file: KernelFile, op: Op, allow_library: bool) -> KernelFile:
    written = file.plan.op.results
    lines = file.text.split("\n")
    plan = {number: found for number, line in enumerate(lines) if (found := _PLAN_LINE.match(line))}
    used = {word for found in plan.values() for word in re.findall(r"\w+", found[2])}
    if written == op.results or len(written) != len(op.results) or used & ({*op.results} - {*written}):
        return file
    names = dict(zip(written, op.results, strict=True))
    for number, line in plan.items():
        lines[number] = line[1] + _NAME.sub(lambda found: names.get(found[0], found[0]), line[2])
    try:
        return parse("\n".join(lines), file.name, allow_library=allow_library)
    except KernelFileError:
        return file


def _with_leading_of(file: KernelFile, task: Task) -> KernelFile:
    """Add the task's `lead` line where the file has none."""
    if not task.leading or file.compiled.lead is not None:
        return file
    try:
        return _with_lines(file, ["lead    " + ", ".join(f"{name}: {rank}" for name, rank in task.leading)], task)
    except KernelFileError:  # a library step gets its tensors as they are given
        return file


def _with_lines(file: KernelFile, missing: list[str], task: Task) -> KernelFile:
    after = next((number for number, (word, _) in _plan_words(file).items() if word not in ("", "version", "op")), None)
    if not missing or after is None:
        return file
    lines = file.text.split("\n")
    lines[after:after] = [f"//! {line}" for line in missing]
    return parse("\n".join(lines), file.name, allow_library=task.allow_library)


def _plan_words(file: KernelFile) -> dict[int, tuple[str, str]]:
    """The plan's lines by number: the directive ("" for a continuation) and the rest."""
    found = {number: _PLAN_LINE.match(line) for number, line in enumerate(file.text.split("\n"))}
    return {number: (one[1].replace("//!", "").strip(), one[2]) for number, one in found.items() if one}


def _lead_problems(file: KernelFile, task: Task) -> tuple[Problem, ...]:
    lead = file.compiled.lead
    if lead is None or lead.ranks == task.leading:
        return ()
    ranks = ", ".join(f"{name}: {rank}" for name, rank in task.leading)
    remedy = f"write `lead {ranks}`, or leave it out" if ranks else "leave it out: the task's rows have no other rank"
    found = "a `lead` that is not the task's: the reference was not found to do the same with each row"
    return (Problem.at(lead.at, Code.TASK_MISMATCH, found, remedy),)


def _out_problems(file: KernelFile, task: Task) -> tuple[Problem, ...]:
    try:
        evaluation = evaluate(file, task.arguments(), task.profile)
    except DoesNotApply:
        return ()
    return compare_out(evaluation, task.output_specs())


def bad_plan(problems: Iterable[Problem], text: str) -> BadPlan:
    lines = text.split("\n")
    return BadPlan(
        tuple(
            records.PlanProblem(
                line=one.line,
                column=one.column,
                code=one.code.value,
                message=one.found,
                remedy=one.remedy,
                source_line=lines[one.line - 1] if 0 < one.line <= len(lines) else "",
            )
            for one in problems
        )
    )


# -- running --


@dataclass
class Times:
    """The seconds of a verdict."""

    build_s: float = 0.0
    run_s: float = 0.0
    judge_s: float = 0.0

    def __str__(self) -> str:
        return f"building {self.build_s:.2f} s, running {self.run_s:.2f} s, judging {self.judge_s:.2f} s"


def instruction_budget(task: Task, case: Case) -> int:
    """More thread instructions than a correct kernel needs at these sizes, to end endless loops.

    With one dimension at its full size, where thousands of blocks may each do little, the budget is smaller; a case
    that exceeds it is run again at an eighth of that dimension.
    """
    long = case.sizes != task.sizes and has_own_size(task, case)
    return (_LONG_BUDGET if long else _LEAST_BUDGET) + _BUDGET_PER_STEP * work_of(task, case.sizes)


class Candidate:
    """A kernel file, with the choice of tune values that it is judged with where that applies."""

    def __init__(self, file: KernelFile, task: Task, choice: Choice | None, times: Times) -> None:
        self.file = file
        self.task = task
        self.choice = choice
        self._times = times
        self._jobs = 0

    def evaluate(self, case: Case, gpu: GpuProfile, *, strictly: bool = False) -> Evaluation | Refused | BadPlan:
        """Evaluate the plan at a case with the choice. Unless `strictly`, fall back to dispatch where the choice does
        not apply."""
        task = case_task(self.task, case)
        arguments = task.arguments(case.sizes)
        try:
            outcome = try_evaluate(self.file, arguments, gpu, self.choice)
            if isinstance(outcome, Refused) and self.choice and not strictly:
                outcome = try_evaluate(self.file, arguments, gpu, None)
        except KernelFileError as error:
            if is_of_numbers(case.values):  # such scalars may be outside the plan's domain, a divisor of 0 for instance
                return Refused(error.problems[0], False)
            return bad_plan(error.problems, self.file.text)
        if isinstance(outcome, Evaluation):
            problems = compare_out(outcome, task.output_specs(case.sizes))
            if problems:
                return bad_plan(problems, self.file.text)
        return outcome

    def build_all(self, evaluations: Sequence[Evaluation]) -> list[Build | None] | NotBuilt:
        """Build all evaluations in parallel; None where nothing is launched."""
        start = time.monotonic()
        requests = [one.build_request() for one in evaluations]
        unique = list(dict.fromkeys(one for one in requests if one is not None))
        made = dict(zip(unique, build_many(unique), strict=True))
        self._times.build_s += time.monotonic() - start
        builds: list[Build | None] = []
        for request in requests:
            built = made[request] if request is not None else None
            if request is not None and isinstance(built, records.BuildFailure):
                return NotBuilt(built.reason, built.diagnostics, request.constants)
            builds.append(built if isinstance(built, Build) else None)
        return builds

    def bound(self, case: Case, evaluation: Evaluation, built: Build | None) -> BuiltPlan | BadPlan:
        """Bind the plan to the compiled kernels: their parameters, and whether a cooperative grid is co-resident."""
        numbers = {one.name: one.value for one in case_task(self.task, case).numbers}
        try:
            return BuiltPlan.of(evaluation, built, numbers)
        except KernelFileError as error:
            return bad_plan(error.problems, self.file.text)
        except DoesNotApply as refusal:
            return bad_plan((refusal.problem,), self.file.text)

    def job(
        self,
        case: Case,
        evaluation: Evaluation,
        built: Build | None,
        how: Emulation | None,
        inputs: tuple[InputTensor, ...] | None = None,
    ) -> Job | BadPlan:
        """The job of a case: emulated as `how` says, or on a GPU; on the case's inputs, or on `inputs`."""
        task = case_task(self.task, case)
        ready = self.bound(case, evaluation, built)
        if isinstance(ready, BadPlan):
            return ready
        self._jobs += 1
        in_place = tuple(one.name for one in task.tensors if one.in_place and not one.optional)
        return ready.job(
            f"{self.file.identity[:12]}-{self._jobs}",
            case_inputs(task, case) if inputs is None else inputs,
            returns=(*(one.name for one in task.outputs), *in_place),
            limits=records.Limits(_GPU_SECONDS if how is None else _CASE_SECONDS, _GPU_BYTES),
            emulation=how,
        )

    def emulated_job(self, case: Case, gpu: GpuProfile, inputs: tuple[InputTensor, ...]) -> Job | None:
        """The emulated job of a case on these inputs; None where the file declines it."""
        evaluation = self.evaluate(case, gpu, strictly=True)
        if not isinstance(evaluation, Evaluation):
            return None
        built = self.build_all([evaluation])
        if isinstance(built, NotBuilt):
            return None
        job = self.job(case, evaluation, built[0], Emulation(), inputs)
        return None if isinstance(job, BadPlan) else job

    def execute(self, device: Device, job: Job) -> records.Execution:
        start = time.monotonic()
        try:
            return device.execute(job)
        finally:
            self._times.run_s += time.monotonic() - start


def drawn_by_seed(task: Task, case: Case) -> bool:
    """Whether the inputs are too large to send, so that each side generates them from the seed."""
    return sum(spec.storage_bytes for spec in task.specs(case.sizes).values()) > LARGEST_DATA


@dataclass(frozen=True)
class Judges:
    """The references that judge results: one in this process's child, and one on the GPU's machine."""

    here: AnyReference
    at_gpu: AnyReference | None = None

    def further_values(self, task: Task, sizes: dict[str, int]) -> tuple[str, ...]:
        """The further kinds of values that the reference accepts at these sizes."""
        kinds: list[str] = []
        for whole in (False, True) if whole_inputs(task) else (False,):
            try:
                answer: ValueSurvey = self.here.call(
                    _SURVEY, SurveyRequest(task, sizes, whole), ValueSurvey, _SURVEY_SECONDS
                )
            except ReferenceProblem:  # it timed out or crashed on such values
                continue
            kinds += answer.kinds
        return tuple(kinds)

    def warm_up(self, task: Task, case: Case) -> None:
        """Make the reference on this machine's GPU load its libraries."""
        if self.here.sees_gpu:
            with suppress(Exception):  # judging meets the same error again
                self.here.call(_WARM_UP, JudgeRequest(task, case, ()), Judgement)

    def of(self, task: Task, case: Case) -> AnyReference | None:
        """The reference that judges a case: the one on the GPU's machine if the case is large and can be sent, else the
        local one.

        None where inputs would have to be generated from the seed and cannot be: values that no device generates, or no
        GPU here.
        """
        by_seed = drawn_by_seed(task, case)
        if by_seed and contents(task, case) is None:
            return None
        if self.at_gpu is not None and elements_of(task, case.sizes) > _WORTH_SENDING:
            return self.at_gpu
        return self.here if not by_seed or self.here.sees_gpu else None

    def shares(self, task: Task, case: Case) -> bool:
        """Whether results stay in GPU memory, where the judge reads them part by part."""
        judge = self.of(task, case)
        return judge is not None and judge.sees_gpu and elements_of(task, case.sizes) >= LARGE


def is_huge(task: Task, case: Case) -> bool:
    """Whether judging the case takes seconds even on a GPU."""
    return elements_of(task, case.sizes) >= _HUGE


def case_inputs(task: Task, case: Case) -> tuple[InputTensor, ...]:
    specs = task.specs(case.sizes)
    given: dict[str, records.Content]
    if drawn_by_seed(task, case):
        seeded = contents(task, case)
        if seeded is None:
            raise ValueError(f"{case} takes inputs that only bytes can hold, and more than {LARGEST_DATA} of them")
        given = seeded
    else:
        given = {name: records.Data(content) for name, content in draw_inputs(task, case).items()}
    return tuple(InputTensor(name, specs[name], content) for name, content in given.items())
