"""A candidate at one case: its plan evaluated, built, bound, and run on a device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.devices.protocol import Device
from tilewright.kernel_file import (
    Choice,
    DoesNotApply,
    Evaluation,
    KernelFile,
    KernelFileError,
    Refused,
    bind,
    compare_out,
    settle,
    try_evaluate,
)
from tilewright.records import (
    BadPlan,
    BoundPlan,
    Build,
    BuildFailure,
    BuildRequest,
    Case,
    Content,
    Data,
    Emulation,
    Execution,
    GpuProfile,
    InputTensor,
    Job,
    LibraryCall,
    Limits,
    NotBuilt,
    Task,
)
from tilewright.reference import AnyReference
from tilewright.toolchain import build_many
from tilewright.verify.cases import work_of
from tilewright.verify.distributions import case_task, contents, draw_inputs
from tilewright.verify.reading import bad_plan

_LEAST_BUDGET = 100_000_000  # thread instructions of one emulated run: about a second
_BUDGET_PER_STEP = 1000
_CASE_SECONDS = 30.0
_GPU_SECONDS = 60.0
_GPU_BYTES = 64 << 30
LARGEST_DATA = 64 << 20  # bytes of inputs that travel; beyond it a GPU draws them by seed
_WORTH_SENDING = 1 << 20  # elements of a case: a CPU judges fewer before a far GPU has them


@dataclass
class Times:
    """Where a verdict's seconds went."""

    build_s: float = 0.0
    run_s: float = 0.0
    judge_s: float = 0.0

    def __str__(self) -> str:
        return f"building {self.build_s:.2f} s, running {self.run_s:.2f} s, judging {self.judge_s:.2f} s"


def instruction_budget(task: Task, case: Case) -> int:
    """More than an honest kernel takes at these sizes, so that an endless loop ends soon."""
    return _LEAST_BUDGET + _BUDGET_PER_STEP * work_of(task, case.sizes)


class Candidate:
    """A kernel file, and the tune choice it is judged with where that holds."""

    def __init__(self, file: KernelFile, task: Task, choice: Choice | None, times: Times) -> None:
        self.file = file
        self.task = task
        self.choice = choice
        self._times = times
        self._jobs = 0

    def evaluate(self, case: Case, gpu: GpuProfile, *, strictly: bool = False) -> Evaluation | Refused | BadPlan:
        """The plan at a case: with the choice, or, unless `strictly`, as dispatch would choose where that fails."""
        arguments = case_task(self.task, case).arguments(case.sizes)
        try:
            outcome = try_evaluate(self.file, arguments, gpu, self.choice)
            if isinstance(outcome, Refused) and self.choice and not strictly:
                outcome = try_evaluate(self.file, arguments, gpu, None)
        except KernelFileError as error:
            return bad_plan(error.problems, self.file.text)
        if isinstance(outcome, Evaluation):
            problems = compare_out(outcome, self.task.output_specs(case.sizes))
            if problems:
                return bad_plan(problems, self.file.text)
        return outcome

    def build_all(self, evaluations: Sequence[Evaluation]) -> list[Build | None] | NotBuilt:
        """The build of each, made on all cores; None where nothing is launched."""
        start = time.monotonic()
        requests = [_request(one) for one in evaluations]
        unique = list(dict.fromkeys(one for one in requests if one is not None))
        made = dict(zip(unique, build_many(unique), strict=True))
        self._times.build_s += time.monotonic() - start
        builds: list[Build | None] = []
        for request in requests:
            built = made[request] if request is not None else None
            if request is not None and isinstance(built, BuildFailure):
                return NotBuilt(built.reason, built.diagnostics, request.constants)
            builds.append(built if isinstance(built, Build) else None)
        return builds

    def job(self, case: Case, evaluation: Evaluation, built: Build | None, how: Emulation | None) -> Job | BadPlan:
        """The run of a case: emulated as `how` says, or on a GPU."""
        task = case_task(self.task, case)
        try:
            plan = _bound(evaluation, built, task)
        except KernelFileError as error:
            return bad_plan(error.problems, self.file.text)
        except DoesNotApply as refusal:
            return bad_plan((refusal.problem,), self.file.text)
        self._jobs += 1
        in_place = tuple(one.name for one in task.tensors if one.in_place and not one.optional)
        seconds = _GPU_SECONDS if how is None else _CASE_SECONDS
        return Job(
            id=f"{self.file.identity[:12]}-{self._jobs}",
            arch=evaluation.gpu.arch,
            cubin=built.cubin if built is not None and how is None else b"",
            plan=plan,
            inputs=case_inputs(task, case),
            returns=(*(one.name for one in task.outputs), *in_place),
            limits=Limits(seconds=seconds, device_bytes=_GPU_BYTES),
            ptx=built.ptx if built is not None else None,
            emulation=how or Emulation(),
        )

    def execute(self, device: Device, job: Job) -> Execution:
        start = time.monotonic()
        try:
            return device.execute(job)
        finally:
            self._times.run_s += time.monotonic() - start


def _request(evaluation: Evaluation) -> BuildRequest | None:
    return evaluation.build_request(evaluation.gpu.arch)


def _bound(evaluation: Evaluation, built: Build | None, task: Task) -> BoundPlan:
    if built is None:
        library = tuple(step for step in evaluation.steps if isinstance(step, LibraryCall))
        return BoundPlan(evaluation.buffers, evaluation.maps, library)
    numbers = {one.name: one.value for one in task.numbers}
    return settle(bind(evaluation, built, evaluation.gpu), evaluation.late_values(numbers))


def drawn_by_seed(task: Task, case: Case) -> bool:
    """Whether the inputs are too large to travel, so that whoever needs them draws them."""
    return sum(spec.storage_bytes for spec in task.specs(case.sizes).values()) > LARGEST_DATA


@dataclass(frozen=True)
class Judges:
    """Those who can say what a case's results must be: the reference here, and one where the GPU is."""

    here: AnyReference
    at_gpu: AnyReference | None = None

    def of(self, task: Task, case: Case) -> AnyReference | None:
        """Who judges a case: the one at the GPU where it is large and can be sent there, else the one here.

        None where inputs that do not travel cannot be drawn again here, and the case cannot be judged there: values
        that no device draws, or results too large to send.
        """
        by_seed = drawn_by_seed(task, case)
        if by_seed and contents(task, case) is None:
            return None
        given, made = task.specs(case.sizes), task.output_specs(case.sizes)
        if self.at_gpu is not None and sum(spec.numel for spec in (*given.values(), *made.values())) > _WORTH_SENDING:
            in_place = {one.name for one in task.tensors if one.in_place}
            sent = [*made.values(), *(spec for name, spec in given.items() if name in in_place)]
            sent += [] if by_seed else given.values()
            most = self.at_gpu.most_bytes
            if most is None or sum(spec.storage_bytes for spec in sent) <= most:
                return self.at_gpu
        return self.here if not by_seed or self.here.sees_gpu else None


def case_inputs(task: Task, case: Case) -> tuple[InputTensor, ...]:
    specs = task.specs(case.sizes)
    given: dict[str, Content]
    if drawn_by_seed(task, case):
        seeded = contents(task, case)
        if seeded is None:
            raise ValueError(f"{case} takes inputs that only bytes can hold, and more than {LARGEST_DATA} of them")
        given = seeded
    else:
        given = {name: Data(content) for name, content in draw_inputs(task, case).items()}
    return tuple(InputTensor(name, specs[name], content) for name, content in given.items())
